"""A parked reference: the same scores, and on the device only while it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.policy import Policy, ScoredSequence
from agpo_bench.training.run import train
from tests.rollout import tiny_models

SEQUENCE = ScoredSequence(prompt_ids=(5, 6, 7), response_ids=(8, 9, 2), temperature=1.0)


def test_a_parked_policy_scores_as_before_and_its_weights_return_to_the_host() -> None:
    reference = Policy(tiny_models.load("qwen2")).frozen_copy()
    before = reference.score([SEQUENCE], max_tokens=64).logprob_BT
    reference.park()
    waiting = [parameter.data_ptr() for parameter in reference.parameters()]
    with reference.at_hand():
        assert torch.equal(reference.score([SEQUENCE], max_tokens=64).logprob_BT, before)
    assert [parameter.data_ptr() for parameter in reference.parameters()] == waiting


def test_a_run_with_a_parked_reference_takes_the_same_steps(
    small_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    for method in ("grpo", "dpo"):
        lines = []
        for is_parked in (False, True):
            run = tmp_path / f"{method}-{is_parked}"
            train(small_config(park_reference=is_parked), load_method(method), directory=run)
            lines.append((run / "metrics.jsonl").read_text())
        assert lines[0] == lines[1]
