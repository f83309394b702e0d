"""What both sides of every comparison share: the model, the prompts, the settings."""

from __future__ import annotations

import argparse
from dataclasses import replace

from agpo_bench.config import RunConfig, load_config
from agpo_bench.records import Prompt
from agpo_bench.training.model import LoadedModel, load_model
from agpo_bench.training.setup import model_path, training_prompts

TASKS = ("gsm8k", "math", "ocw", "sat", "mmlu_stem", "cmath", "gaokao_cloze", "gaokao_qa")
"""Embedded problems whose grading costs nothing to speak of: running programs would hide what is compared."""
NUM_PROMPTS = 32
GROUP_SIZE = 8
MAX_NEW_TOKENS = 40
TOP_P = 0.95
BETA = 0.03
MINIBATCHES = 4
EPOCHS = 2
LEARNING_RATE = 1e-6
"""Small, so that both sides keep the answer lengths they start with."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """What every comparison can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--side", help="run one side in this process and print its measurement")
    parser.add_argument("--model", default="embedded", help="model directory, or embedded")
    parser.add_argument("--lengths", choices=("real", "full"), default="real", help="end at the terminator, or never")
    parser.add_argument("--batches", type=int, default=5, help="rollout batches a process, after a first one")
    parser.add_argument("--repeats", type=int, default=3, help="processes a side")
    return parser


def side_options(args: argparse.Namespace) -> list[str]:
    """The same settings for a child process."""
    return ["--model", args.model, "--lengths", args.lengths, "--batches", str(args.batches)]


def config(model: str) -> RunConfig:
    """The embedded preset with the settings above spelt out."""
    return load_config(
        "embedded",
        model=model,
        tasks=TASKS,
        prompts_per_batch=NUM_PROMPTS,
        group_size=GROUP_SIZE,
        max_new_tokens=MAX_NEW_TOKENS,
        top_p=TOP_P,
        epochs_per_batch=EPOCHS,
        minibatches_per_epoch=MINIBATCHES,
        learning_rate=LEARNING_RATE,
        learning_rate_schedule="constant",
        budget="1G",
        checkpoint_every_steps=1_000_000,
    )


def load(model: str, *, lengths: str) -> LoadedModel:
    """The model; at full lengths nothing terminates a response."""
    loaded = load_model(model_path(model))
    return loaded if lengths == "real" else replace(loaded, terminators=frozenset())


def prompts(model: str) -> list[Prompt]:
    """Training problems, the benchmarks mixed evenly."""
    found, _ = training_prompts(config(model))
    by_task = {task: [prompt for prompt in found if prompt.task == task] for task in TASKS}
    return [prompt for row in zip(*by_task.values(), strict=False) for prompt in row]
