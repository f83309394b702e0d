"""What both sides of every comparison share: the model, the prompts, the settings."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from agpo_bench.config import RunConfig, load_config
from agpo_bench.records import Prompt
from agpo_bench.training.model import LoadedModel, load_model
from agpo_bench.training.setup import model_path, training_prompts

TASKS = ("gsm8k", "math", "ocw", "sat", "mmlu_stem", "cmath", "gaokao_cloze", "gaokao_qa")
"""Embedded problems whose grading costs nothing to speak of: running programs would hide what is compared."""
TOP_P = 0.95
BETA = 0.03
EPOCHS = 2
LEARNING_RATE = 1e-6
"""Small, so that both sides keep the answer lengths they start with."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A rollout batch and how it is updated on."""

    num_prompts: int
    group_size: int
    max_new_tokens: int
    minibatches: int
    micro_batch_tokens: int


_TINY = Sizes(num_prompts=32, group_size=8, max_new_tokens=40, minibatches=4, micro_batch_tokens=4096)
_SMOLLM2 = Sizes(num_prompts=4, group_size=8, max_new_tokens=64, minibatches=1, micro_batch_tokens=2048)


def sizes(args: argparse.Namespace) -> Sizes:
    """What the model can do in a minute; ``--prompts``, ``--group-size`` and ``--new-tokens`` change it."""
    chosen = _SMOLLM2 if args.model == "smollm2" else _TINY
    return replace(
        chosen,
        num_prompts=args.prompts or chosen.num_prompts,
        group_size=args.group_size or chosen.group_size,
        max_new_tokens=args.new_tokens or chosen.max_new_tokens,
    )


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every comparison can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--side", help="run one side in this process and print its measurement")
    parser.add_argument("--model", default="embedded", help="model directory, embedded or smollm2")
    parser.add_argument("--prompts", type=int, help="prompts of a rollout batch")
    parser.add_argument("--group-size", type=int, help="rollouts a prompt")
    parser.add_argument("--new-tokens", type=int, help="most tokens of a response")
    parser.add_argument("--lengths", choices=("real", "full"), default="real", help="end at the terminator, or never")
    parser.add_argument("--batches", type=int, default=5, help="rollout batches a process, after a first one")
    parser.add_argument("--repeats", type=int, default=3, help="processes a side")
    return parser


def side_options(args: argparse.Namespace) -> list[str]:
    """The same settings for a child process."""
    options = ["--model", args.model, "--lengths", args.lengths, "--batches", str(args.batches)]
    for name, value in (("prompts", args.prompts), ("group-size", args.group_size), ("new-tokens", args.new_tokens)):
        options += [f"--{name}", str(value)] if value else []
    return options


def config(args: argparse.Namespace) -> RunConfig:
    """The embedded preset with the settings above spelt out."""
    chosen = sizes(args)
    return load_config(
        "embedded",
        model=args.model,
        tasks=TASKS,
        prompts_per_batch=chosen.num_prompts,
        group_size=chosen.group_size,
        max_new_tokens=chosen.max_new_tokens,
        micro_batch_tokens=chosen.micro_batch_tokens,
        top_p=TOP_P,
        epochs_per_batch=EPOCHS,
        minibatches_per_epoch=chosen.minibatches,
        learning_rate=LEARNING_RATE,
        learning_rate_schedule="constant",
        budget="1G",
        checkpoint_every_steps=1_000_000,
    )


def title(args: argparse.Namespace) -> str:
    """What a row of the table says of model and lengths."""
    name = {"embedded": "", "smollm2": "SmolLM2-135M, "}.get(args.model, f"{args.model}, ")
    return f"{name}{args.lengths} lengths"


def load(model: str, *, lengths: str) -> LoadedModel:
    """The model; at full lengths nothing terminates a response."""
    loaded = load_model(model_path(model))
    return loaded if lengths == "real" else replace(loaded, terminators=frozenset())


def prompts(args: argparse.Namespace) -> list[Prompt]:
    """Training problems, the benchmarks mixed evenly."""
    found, _ = training_prompts(config(args))
    by_task = {task: [prompt for prompt in found if prompt.task == task] for task in TASKS}
    return [prompt for row in zip(*by_task.values(), strict=False) for prompt in row]
