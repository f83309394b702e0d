"""Generated tokens a second and peak memory of whole RL steps: our GRPO loop against TRL's GRPOTrainer.

Same model, prompts and settings: 32 prompts × 8, two passes over a batch, four optimiser updates a pass, β .03. Ours
grades with the real graders, keeps rollout records and measures step KL; the peer's reward is a constant-time formula.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import setting
from measure import Comparison, Measurement, Stopwatch, compared, report, table


def ours(
    args: argparse.Namespace, method: str = "grpo", changes: Mapping[str, Any] = MappingProxyType({})
) -> Measurement:
    """Steps of the training loop itself, without writing files."""
    from agpo_bench.methods.recipe import load_method
    from agpo_bench.rollout.torch_sampler import TorchSampler
    from agpo_bench.training.online import OnlineLoop
    from agpo_bench.training.setup import build_session

    config = setting.config(args)
    session = build_session(config, load_method(method, changes))
    if args.lengths == "full":
        from dataclasses import replace

        loaded = replace(session.policy.loaded, terminators=frozenset())
        session.sampler = TorchSampler(loaded, max_rows=config.sampler_rows)
        session.stop = dict.fromkeys(session.stop, ())
    loop, watch = OnlineLoop(session), Stopwatch()
    phases = ("train", "probe") if session.method.reuses_probe else ("train",)
    before = training_before = 0

    def trained() -> int:
        return sum(session.ledger.by_phase()[phase] for phase in phases)

    for number in range(args.batches + 1):
        if number == 1:
            before, training_before = session.ledger.used, trained()
        if number == 0:
            loop.step()
            continue
        with watch.running():
            loop.step()
    return watch.measurement(
        tokens=session.ledger.used - before,
        training_tokens=trained() - training_before,
    )


def peer(args: argparse.Namespace) -> Measurement:
    """TRL, timed from the end of its first rollout batch's updates."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from agpo_bench.training.setup import model_path

    directory = model_path(args.model)
    sizes = setting.sizes(args)
    updates = sizes.minibatches * setting.EPOCHS
    counted: list[int] = []

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted.append(sum(len(ids) for ids in completion_ids))
        return [float(sum(ids) % 2) for ids in completion_ids]

    watch = Stopwatch()
    block: list[Any] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args_: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == updates:
                block.append(watch.running())
                block[0].__enter__()

    length = {"min_new_tokens": sizes.max_new_tokens} if args.lengths == "full" else {}
    rows = [{"prompt": prompt.text} for prompt in setting.prompts(args)]
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=sizes.num_prompts * sizes.group_size // sizes.minibatches,
            steps_per_generation=sizes.minibatches,
            gradient_accumulation_steps=1,
            num_generations=sizes.group_size,
            num_iterations=setting.EPOCHS,
            max_completion_length=sizes.max_new_tokens,
            temperature=1.0,
            top_p=setting.TOP_P,
            beta=setting.BETA,
            loss_type="grpo",
            learning_rate=setting.LEARNING_RATE,
            lr_scheduler_type="constant",
            adam_beta2=0.95,
            weight_decay=0.1,
            max_grad_norm=1.0,
            max_steps=updates * (args.batches + 1),
            # What a user who cares for speed on a CPU would set: the peer at its best.
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            generation_kwargs=length,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(directory, dtype="float32"),
            reward_funcs=reward,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(directory),
            callbacks=[Clock()],
        )
        trainer.train()
    block[0].__exit__(None, None, None)
    assert len(counted) == args.batches + 1, f"the peer sampled {len(counted)} batches"
    tokens = sum(counted[1:])
    return watch.measurement(tokens=tokens, training_tokens=tokens)


def compare(args: argparse.Namespace) -> list[Comparison]:
    """Speed at both lengths; memory at real lengths."""
    found = []
    targets, memory = ((("full", 1.5),), 0.5) if args.model == "smollm2" else ((("real", 2.5), ("full", 1.3)), 0.7)
    for lengths, target in targets:
        args.lengths = lengths
        mine, theirs = compared("rl_step_vs_trl.py", repeats=args.repeats, options=setting.side_options(args))
        name = f"RL step / TRL GRPOTrainer, {setting.title(args)}"
        found.append(Comparison(name=name, ours=mine, peer=theirs, target=target, what="tokens/s"))
        found.append(Comparison(name=name, ours=mine, peer=theirs, target=memory, what="peak memory"))
    return found


if __name__ == "__main__":
    arguments = setting.arguments(__doc__).parse_args()
    if arguments.side:
        report({"ours": ours, "peer": peer}[arguments.side](arguments))
    else:
        print(table(compare(arguments)))
