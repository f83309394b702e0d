"""A run small enough to take in a second, on the shipped model and its generated problems: no part is replaced."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig, load_config
from agpo_bench.methods.method import Method
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import StepResult
from agpo_bench.training.session import Session

torch.set_num_threads(1)

SMALL: dict[str, Any] = {
    "tasks": "gsm8k,math",
    "budget": 4000,
    "prompts_per_batch": 4,
    "group_size": 4,
    "max_new_tokens": 24,
    "minibatches_per_epoch": 2,
    "micro_batch_tokens": 1024,
    "monitor_rollouts": None,
    "checkpoint_every_steps": 2,
}


@pytest.fixture(scope="session")
def small_config() -> Callable[..., RunConfig]:
    """The small run, with fields changed."""
    return lambda **fields: load_config("embedded", **(SMALL | fields))


@pytest.fixture(scope="session")
def take_steps() -> Callable[..., tuple[Session, list[StepResult]]]:
    """Build a session and take a number of steps in memory; nothing is refused for being pointless."""
    from agpo_bench.training.online import OnlineLoop
    from agpo_bench.training.preference import PreferenceLoop
    from agpo_bench.training.setup import build_session

    def take(config: RunConfig, method: Method | str, *, steps: int) -> tuple[Session, list[StepResult]]:
        method = load_method(method) if isinstance(method, str) else method
        session = build_session(config, method)
        loop = PreferenceLoop(session) if method.loop == "preference" else OnlineLoop(session)
        return session, [loop.step() for _ in range(steps)]

    return take


@pytest.fixture(scope="session")
def read_jsonl() -> Callable[[Path], list[dict[str, Any]]]:
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]
