"""The checkpoint that a run earned most before is evaluated as such, and apart from the newest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agpo_bench.evaluation.results import read_result
from agpo_bench.training.checkpoint import best_checkpoint, newest_checkpoint
from agpo_bench.training.model import load_model
from tests.command import run_command


@pytest.mark.slow
def test_the_best_checkpoint_of_a_run_that_went_bad_is_evaluated_and_not_its_last(tmp_path: Path) -> None:
    settings = {"prompts_per_batch": 8, "group_size": 4, "max_new_tokens": 24, "checkpoint_every_steps": 1}
    # A rate at which the model forgets to answer within three steps.
    settings |= {"learning_rate": 0.01, "keep_best": "reward", "keep_best_steps": 1}
    changes = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run_command("train", "--method", "grpo", "--tasks", "gsm8k", "--budget", "4k", "--out", str(tmp_path), *changes)
    directory = tmp_path / "grpo" / "seed-42"
    best, newest = best_checkpoint(directory), newest_checkpoint(directory)
    assert best is not None and newest is not None and best != newest
    rewards = [json.loads(line)["reward/mean"] for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert rewards[int(best.name) - 1] == max(rewards) > rewards[-1] + 0.2

    words = ("eval", "--run", str(directory), "--tasks", "gsm8k", "--limit", "10")
    assert f"best checkpoint: {best}, " in run_command(*words, "--checkpoint", "best")
    assert f"newest checkpoint: {newest}, " in run_command(*words)
    fingerprints = set()
    for checkpoint, folder in ((best, directory / "best"), (newest, directory)):
        result = read_result(folder / "eval" / "gsm8k" / "results.json")
        assert result is not None and result.model_fingerprint == load_model(checkpoint / "model").fingerprint
        fingerprints.add(result.model_fingerprint)
    assert len(fingerprints) == 2
