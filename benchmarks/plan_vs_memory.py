"""Peak memory of whole training runs on a CPU against what ``agpo_bench.planning`` foresees.

A case is a process of its own that trains a random model of some shape for two rollout batches with checkpoints, and
reports its largest resident memory. The same run with a model of a few thousand parameters of the same family is
what Python, the libraries and the data take; it is subtracted. Responses of a random model run to their limit, which is
the case that a plan describes.

glibc keeps freed blocks below 32 MB for later, as CUDA's allocator does. For what a run holds it is told to return them
at once (``MALLOC_MMAP_THRESHOLD_``); ``--whole`` leaves it as it is and compares the whole process, floor included.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIVE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run: a model's sizes and the settings that memory depends on."""

    name: str
    method: str = "grpo"
    family: str = "llama"
    hidden: int = 256
    inner: int = 704
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 4096
    tied: bool = True
    prompts: int = 4
    group_size: int = 4
    new_tokens: int = 48
    micro_batch_tokens: int = 512
    changes: tuple[str, ...] = ()
    """As ``--set`` takes them."""


SMALL = {"hidden": 256, "inner": 704, "layers": 6, "vocabulary": 4096}
MIDDLE = {"hidden": 512, "inner": 1408, "layers": 5, "vocabulary": 16384}
LARGE = {"hidden": 768, "inner": 2048, "layers": 6, "vocabulary": 16384, "heads": 12, "tied": False}
SMOLLM2 = {"hidden": 576, "inner": 1536, "layers": 30, "vocabulary": 49152, "heads": 9, "kv_heads": 3}
CASES = (
    Case(name="5M Llama, GRPO, 512 tokens", **SMALL, micro_batch_tokens=512),
    Case(name="5M Llama, GRPO, 1024 tokens", **SMALL, prompts=6, group_size=8, micro_batch_tokens=1024),
    Case(name="23M Llama, GRPO, 512 tokens", **MIDDLE, micro_batch_tokens=512),
    Case(name="23M Llama, PPO with a critic of its own", **MIDDLE, method="ppo", changes=("critic.trunk=separate",)),
    Case(name="23M Qwen2, DAPO", **MIDDLE, family="qwen2", method="dapo", changes=("track_reference_kl=false",)),
    Case(name="66M Qwen2, GRPO, 256 tokens", **LARGE, family="qwen2", micro_batch_tokens=256),
    Case(name="23M Llama, GRPO, checkpointing", **MIDDLE, changes=("gradient_checkpointing=true",)),
    Case(name="23M Llama, GRPO, bfloat16", **MIDDLE, changes=("dtype=bfloat16",)),
    Case(name="6M Gemma 2, GRPO, 512 tokens", **SMALL, family="gemma2"),
    Case(name="23M Llama, DPO", **MIDDLE, method="dpo"),
    Case(name="23M Llama, GRPO, LoRA", **MIDDLE, changes=("lora_rank=8",)),
    Case(
        name="23M Qwen2, PPO with a critic of its own, LoRA on q and v",
        **MIDDLE,
        family="qwen2",
        method="ppo",
        changes=("lora_rank=8", "lora_targets=q_proj,v_proj", "critic.trunk=separate"),
    ),
    Case(name="66M Llama, GRPO, LoRA, bfloat16", **LARGE, changes=("lora_rank=16", "dtype=bfloat16")),
    Case(name="6M Gemma 2, GRPO, LoRA", **SMALL, family="gemma2", changes=("lora_rank=8",)),
    Case(name="135M Llama (SmolLM2's sizes), GRPO", **SMOLLM2, micro_batch_tokens=512),
)
"""Sizes, families, methods and settings that the formulas tell apart."""


def floor_of(case: Case) -> Case:
    """The same run with next to no model."""
    tiny = {"hidden": 32, "inner": 64, "layers": 1, "heads": 2, "kv_heads": 1, "vocabulary": 320}
    return replace(case, name=f"{case.family} floor", **tiny, prompts=2, group_size=4, new_tokens=8, tied=True)


def write_model(case: Case, into: Path) -> None:
    """A random model of the case's shape with the embedded tokenizer; written without torch, which takes seconds."""
    import numpy as np
    from safetensors.numpy import save_file

    from agpo_bench.data.embedded import embedded_model_directory

    source = embedded_model_directory()
    into.mkdir(parents=True)
    head = case.hidden // case.heads
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gemma2": "Gemma2ForCausalLM"}
    config = {
        "architectures": [names[case.family]],
        "model_type": case.family,
        "vocab_size": case.vocabulary,
        "hidden_size": case.hidden,
        "intermediate_size": case.inner,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "num_key_value_heads": case.kv_heads,
        "head_dim": head,
        "tie_word_embeddings": case.tied,
        "eos_token_id": json.loads((source / "config.json").read_text())["eos_token_id"],
        "pad_token_id": None,
        "bos_token_id": None,
    }
    if case.family == "gemma2":
        config["sliding_window"] = 4096
    (into / "config.json").write_text(json.dumps(config))
    for file in source.glob("tokenizer*"):
        shutil.copy(file, into)
    d, query, key = case.hidden, case.heads * head, case.kv_heads * head
    matrices = {"self_attn.q_proj": (query, d), "self_attn.k_proj": (key, d), "self_attn.v_proj": (key, d)}
    matrices |= {"self_attn.o_proj": (d, query), "mlp.gate_proj": (case.inner, d), "mlp.up_proj": (case.inner, d)}
    matrices |= {"mlp.down_proj": (d, case.inner)}
    norms = ["input_layernorm", "post_attention_layernorm"]
    if case.family == "gemma2":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    generator = np.random.default_rng(0)

    def random(*shape: int) -> object:
        return generator.normal(0.0, 0.02, shape).astype(np.float32)

    weights = {"model.embed_tokens.weight": random(case.vocabulary, d), "model.norm.weight": np.ones(d, np.float32)}
    if not case.tied:
        weights["lm_head.weight"] = random(case.vocabulary, d)
    for layer in range(case.layers):
        for name, shape in matrices.items():
            weights[f"model.layers.{layer}.{name}.weight"] = random(*shape)
            if case.family == "qwen2" and name.endswith(("q_proj", "k_proj", "v_proj")):
                weights[f"model.layers.{layer}.{name}.bias"] = np.zeros(shape[0], np.float32)
        for name in norms:
            weights[f"model.layers.{layer}.{name}.weight"] = np.ones(d, np.float32)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})


def plan_arguments(case: Case, model: Path) -> dict[str, object]:
    """Config fields of the run; the plan is made from the same."""
    batch = case.prompts * case.group_size * case.new_tokens
    return {
        "model": str(model),
        "tasks": ("gsm8k", "math", "cmath"),
        "dedup": "off",
        "num_threads": 1,
        "prompts_per_batch": case.prompts,
        "group_size": case.group_size,
        "max_new_tokens": case.new_tokens,
        "micro_batch_tokens": case.micro_batch_tokens,
        "minibatches_per_epoch": 2,
        "epochs_per_batch": 1,
        "learning_rate": 1e-6,
        "monitor_rollouts": None,
        "budget": 3 * batch // 2,
        "checkpoint_every_steps": 1,
    }


def run(case: Case, model: Path, out: Path) -> int:
    """Train and return the peak in bytes."""
    from agpo_bench.commands.train import split_changes
    from agpo_bench.config import load_config
    from agpo_bench.methods.recipe import load_method
    from agpo_bench.training import rewards
    from agpo_bench.training.run import train

    rewards.grade_many = every_other  # type: ignore[assignment]
    config_changes, recipe_changes = split_changes(case.changes)
    config = load_config("embedded", **{**plan_arguments(case, model), **config_changes})
    method = load_method(case.method, recipe_changes)
    outcome = train(config, method, directory=out / case.method / "seed-42")
    assert outcome.num_steps >= 2
    # Not ru_maxrss: a process inherits that of whoever started it, which may be larger than its own ever gets.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])  # type: ignore[index]


def every_other(grader: object, pairs: Sequence[object]) -> list[object]:
    """Verdicts that differ within a group: a random model answers nothing, and DAPO and DPO leave such groups out."""
    del grader
    from agpo_bench.records import Verdict

    return [Verdict(score=float(i % 2), answer=None, reason="", is_error=False) for i in range(len(pairs))]


def planned(case: Case, model: Path) -> float:
    """What the plan says, in bytes."""
    from agpo_bench.commands.plan import PlanArguments, make_plans
    from agpo_bench.planning.cost import Rates
    from agpo_bench.planning.items import PHASES
    from agpo_bench.planning.plan import Hardware

    (plan,) = make_plans(
        PlanArguments(
            method=case.method,
            preset="embedded",
            fields=plan_arguments(case, model),
            changes=case.changes,
            hardware=Hardware(),
            rates=Rates(),
            prompt_tokens=PROMPT_TOKENS,
            response_tokens=None,
        )
    )
    # On a CPU the host's memory is the device's; what it holds is held between the phases.
    lasting = sum(one.num_bytes for one in plan.memory.items if len(one.phases) == len(PHASES))
    return max(plan.memory.peak_bytes, lasting + plan.memory.host_bytes)


PROMPT_TOKENS = 23
"""Mean of the embedded training problems."""


def measured(case: Case, scratch: Path, *, environment: dict[str, str]) -> int:
    """Peak of the case in bytes, in a process of its own; the model stays for the plan."""
    model = model_of(case, scratch)
    if not model.is_dir():
        write_model(case, model)
    out = Path(tempfile.mkdtemp(dir=scratch))
    try:
        return int(_child(case, model, "--out", str(out), environment=environment))
    finally:
        shutil.rmtree(out)


def model_of(case: Case, scratch: Path) -> Path:
    """Where the case's model lies."""
    return scratch / f"{case.family}-{case.hidden}-{case.layers}"


def _child(case: Case, model: Path, *options: str, environment: dict[str, str]) -> str:
    command = [sys.executable, __file__, "--case", json.dumps(asdict(case)), "--model", str(model)]
    quiet = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    full = {**os.environ, **quiet, **environment, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run([*command, *options], env=full, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{case.name} failed:\n{done.stderr[-4000:]}")
    return done.stdout.strip().rsplit("\n", 1)[-1]


def case_from(text: str) -> Case:
    """The case that ``_child`` wrote."""
    fields = json.loads(text)
    return Case(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()})


def main() -> None:
    """All cases as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="run this one in this process and print its peak")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="cases whose name holds this")
    parser.add_argument("--whole", action="store_true", help="also the whole process, with glibc as it is")
    args = parser.parse_args()
    if args.case:
        print(run(case_from(args.case), args.model, args.out))
    else:
        table([case for case in CASES if (args.only or "") in case.name], with_whole=args.whole)


def table(cases: list[Case], *, with_whole: bool) -> None:
    """Measure and print line by line."""
    whole = (" plan and floor MiB | whole process MiB | ratio |", "---|---|---|") if with_whole else ("", "")
    print(f"| run | plan MiB | held MiB | ratio |{whole[0]}\n|---|---|---|---|{whole[1]}", flush=True)
    floors: dict[tuple[str, ...], int] = {}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)

        def peak(case: Case, kind: str) -> int:
            return measured(case, scratch, environment=LIVE if kind == "held" else {})

        def floor(case: Case, kind: str) -> int:
            # peft and the library's modelling code are loaded for adapters alone.
            key = (case.family, kind, *(case.changes if "LoRA" in case.name else ()))
            if key not in floors:
                floors[key] = peak(floor_of(case), kind)
            return floors[key]

        for case in cases:
            held = peak(case, "held") - floor(case, "held")
            plan = planned(case, model_of(case, scratch))
            line = f"| {case.name} | {_mib(plan)} | {_mib(held)} | {plan / held:.2f} |"
            if with_whole:
                foreseen, found = plan + floor(case, "whole"), peak(case, "whole")
                line += f" {_mib(foreseen)} | {_mib(found)} | {foreseen / found:.2f} |"
            print(line, flush=True)


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f}"


if __name__ == "__main__":
    main()
