"""What a dry run looks at: each check is one sentence, and either fine, a remark, or a reason not to start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from agpo_bench.config import RunConfig
from agpo_bench.planning.items import gib
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.plan import Hardware, Plan, machine_of, make_plan
from agpo_bench.planning.shapes import ModelShape, find_shape
from agpo_bench.planning.workload import Lengths

Outcome = Literal["ok", "note", "FAIL"]
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of a dry run."""

    outcome: Outcome
    what: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.outcome:<4}  {self.what}: {self.sentence}"


def guarded(what: str, look: Callable[[], str]) -> Check:
    """The sentence that ``look`` returns, or the mistake that it found."""
    from agpo_bench.commands.mistakes import in_one_sentence

    try:
        return Check(outcome="ok", what=what, sentence=look())
    except (ValueError, OSError) as error:
        return Check(outcome="FAIL", what=what, sentence=in_one_sentence(error))


def check_data(config: RunConfig) -> str:
    """Every training benchmark has its train split, and its test split where test items are to be left out."""
    from agpo_bench.data.benchmarks import load_task, open_source, task_names

    source = open_source(config.data)
    if config.tasks != ("all",):
        names = [load_task(name).name for name in config.tasks]
    else:
        names = [name for name in task_names() if "train" in source.splits(load_task(name))]
    if not names:
        raise ValueError(f"{source.description} holds no train split of any benchmark")
    sizes = {}
    for name in names:
        task = load_task(name)
        sizes[name] = len(source.load(task, "train").items)
        if config.dedup != "off" and "test" not in source.splits(task):
            raise ValueError(f"{name}: no test split to look for in the training problems; use --dedup off, or add it")
    listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    return f"{sum(sizes.values()):,} training problems in {source.description}: {listed}"


def check_model(config: RunConfig, shape: ModelShape) -> Iterator[Check]:
    """A directory must hold weights and a tokenizer; a hub id says what will be downloaded."""
    if config.model in ("embedded", "smollm2"):
        needed = "is in this package" if config.model == "embedded" else "is unpacked at the first start"
        yield Check(
            outcome="ok", what="model", sentence=f"{config.model} ({shape.num_parameters:,} parameters) {needed}"
        )
        return
    directory = Path(config.model).expanduser()
    if not directory.is_dir():
        yield Check(
            outcome="note",
            what="model",
            sentence=f"{config.model} comes from the hub at the start, about {gib(2 * shape.num_parameters)}; "
            "whether this account may read it shows then",
        )
        return
    yield guarded("model", lambda: _directory(directory, shape))


def _directory(directory: Path, shape: ModelShape) -> str:
    files = [file for pattern in _WEIGHTS for file in directory.glob(pattern)]
    if not files:
        raise ValueError(f"{directory} holds no weights ({' or '.join(_WEIGHTS)})")
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        raise ValueError(f"{directory} holds no tokenizer ({', '.join(_TOKENIZERS)})")
    found = sum(file.stat().st_size for file in files)
    if found < shape.num_parameters:
        raise ValueError(
            f"{directory} holds {gib(found)} of weights, less than a byte for each of the {shape.num_parameters:,} "
            "parameters that its config.json describes; a file is missing"
        )
    return f"{directory}: {shape.num_parameters:,} parameters, {gib(found)} of weights, and a tokenizer"


def check_output(out: Path, plans: Sequence[Plan], *, num_seeds: int) -> str:
    """The folder can be written, and its disk holds the checkpoints of all runs."""
    existing = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write into {existing}; choose another --out")
    free = shutil.disk_usage(existing).free
    needed = num_seeds * sum(checkpoint_bytes(plan) * plan.config.keep_checkpoints for plan in plans)
    needed += max(checkpoint_bytes(plan) for plan in plans)
    needed += num_seeds * sum(merged_bytes(plan) for plan in plans)
    each = gib(max(checkpoint_bytes(plan) for plan in plans))
    if needed > free:
        raise ValueError(
            f"{existing} has {gib(free)} free and the checkpoints take {gib(needed)} ({each} each, one more while "
            "one is written); free space, choose another --out, or keep fewer with keep_checkpoints"
        )
    return f"{out} can be written, {gib(free)} free for checkpoints of {each} each, {gib(needed)} in all"


def checkpoint_bytes(plan: Plan) -> float:
    """float32 weights and two moments of what is trained, the critic's included: ``training.checkpoint``."""
    from agpo_bench.planning.deepspeed_memory import trained_parameters

    return 12.0 * trained_parameters(plan.shape, plan.needs, plan.machine)


def merged_bytes(plan: Plan) -> float:
    """The float32 model with its adapters merged in, which the end of such a run adds to its last checkpoint."""
    return 4.0 * plan.shape.num_parameters if plan.machine.lora_rank else 0.0


def check_memory(plan: Plan) -> Check:
    """The plan's verdict."""
    from agpo_bench.planning.report import verdict

    outcome: Outcome = {True: "ok", None: "note", False: "FAIL"}[plan.fits]  # type: ignore[assignment]
    advice = "" if plan.fits is not False else "; agpo-bench plan says what to change"
    return Check(outcome=outcome, what=f"memory, {plan.needs.name}", sentence=verdict(plan).strip() + advice)


def check_packages(config: RunConfig) -> Iterator[Check]:
    """Optional packages that the run imports; a remark only, because the run may start on another machine."""
    machine = machine_of(config, Hardware())
    extras: dict[str, str] = {name: name for name in sorted({machine.engine, machine.sampler} - {"torch"})}
    if config.lora_rank:
        extras["peft"] = "lora"
    for name, extra in extras.items():
        if find_spec(name) is None:
            yield Check(
                outcome="note",
                what="packages",
                sentence=f'{name} is not installed here; where the run starts: pip install "agpo-bench[{extra}]"',
            )
        else:
            yield Check(outcome="ok", what="packages", sentence=f"{name} is installed")


def plans_of(config: RunConfig, needs: Sequence[MethodNeeds], hardware: Hardware) -> list[Plan]:
    """One plan a method."""
    shape, lengths = find_shape(config.model, revision=config.revision), Lengths.of(config)
    return [make_plan(config, shape, one, hardware, lengths) for one in needs]


def launch_lines(words: Sequence[str], *, engine: str, num_gpus: int, gpus_per_node: int | None) -> list[str]:
    """The command for each node; ``words`` are those after ``agpo-bench``."""
    command = " ".join(f"'{word}'" if " " in word else word for word in words)
    local = min(gpus_per_node or num_gpus, num_gpus)
    if num_gpus % local:
        raise ValueError(f"{num_gpus} devices are not whole nodes of {local}; change --gpus or --gpus-per-node")
    nodes = num_gpus // local
    if num_gpus == 1:
        return [f"agpo-bench {command}"]
    if nodes == 1:
        lines = [f"torchrun --standalone --nproc_per_node {local} -m agpo_bench {command}"]
        if engine == "deepspeed":
            lines.append(f"deepspeed --num_gpus {local} --module agpo_bench {command}")
        return lines
    return [
        f"torchrun --nnodes {nodes} --nproc_per_node {local} --rdzv_backend c10d --rdzv_endpoint HOST:29500 "
        f"-m agpo_bench {command}"
    ]
