"""The three commands on a real pretrained model and a real benchmark: a few tokens of what the README shows."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agpo_bench.config import load_config
from agpo_bench.data.benchmarks import load_prompts, open_source, task_names
from agpo_bench.evaluation.results import read_result, read_samples
from agpo_bench.files import read_lines
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.checkpoint import newest_checkpoint
from agpo_bench.training.run import train
from agpo_bench.training.setup import training_prompts
from tests.command import run_command
from tests.marks import needs_smollm2


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(1800)
@needs_smollm2
def test_smollm2_trains_on_gsm8k_is_evaluated_and_reported_for_what_it_is(shared: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "runs", str(shared / "data")
    # Two prompts, groups of 4 for the probe and 4 for training, 16 tokens each: 256 at most a batch.
    run_command(
        *("train", "--method", "agpo", "--preset", "smollm2", "--data", data, "--tasks", "gsm8k"),
        *("--budget", "300", "--set", "max_new_tokens=16", "--out", str(out)),
    )
    run = out / "agpo" / "seed-42"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps[-1]["tokens/used"] >= 300
    assert steps[-1]["tokens/used"] - 300 < 256
    assert steps[0]["kl/ref_k3"] == pytest.approx(0.0, abs=1e-6)
    assert steps[0]["clip/first_pass_ratio_err"] < 1e-3

    run_command("eval", "--tasks", "gsm8k", "--limit", "2", "--max-new-tokens", "16", "--out", str(out))
    for folder in (run, out / "initial"):
        result = read_result(folder / "eval" / "gsm8k" / "results.json")
        assert result is not None
        assert (result.num_items, result.limit, result.error_count) == (2, 2, 0)
        assert len(list(read_samples(folder / "eval" / "gsm8k" / "samples.jsonl"))) == 2

    run_command("report", "--runs", str(out), "--format", "md")
    text = (out / "report" / "report.md").read_text(encoding="utf-8")
    assert "smollm2" in text.lower()
    assert "300 generated tokens" in text
    assert "Items a benchmark: 2" in text
    assert "embedded sample" not in text


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(1800)
@needs_smollm2
def test_smollm2_answers_an_item_of_each_of_the_nine_real_benchmarks(shared: Path, tmp_path: Path) -> None:
    words = ("--tasks", "all", "--data", str(shared / "data"), "--limit", "1", "--max-new-tokens", "16")
    table = run_command("eval", "--model", "smollm2", *words, "--out", str(tmp_path))
    source = open_source(str(shared / "data"))
    for task in task_names():
        assert task in table.splitlines()[0]
        folder = tmp_path / "initial" / "eval" / task
        result = read_result(folder / "results.json")
        assert result is not None
        assert (result.num_items, result.limit, result.error_count, result.split) == (1, 1, 0, "test")
        assert result.data_source == "benchmark files of folder data (checksums verified)"
        (item,) = read_lines(folder / "items.jsonl")
        (sample,) = read_samples(folder / "samples.jsonl")
        assert item["prompt"] == load_prompts(task, split="test", source=source)[0].text
        assert sample.text and sample.num_tokens <= 16
    assert "Data: benchmark files of folder data (checksums verified)" in " ".join(table.split())


REAL: dict[str, Any] = {
    "tasks": "gsm8k,math,cmath",
    "dedup": "off",  # the command above looks for test items
    "budget": 200,
    "prompts_per_batch": 3,
    "group_size": 2,
    "max_new_tokens": 16,
    "minibatches_per_epoch": 1,
    "num_threads": 1,
}
BATCH = 3 * 2 * 16
"""Most tokens of a rollout batch."""


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(1800)
@needs_smollm2
@pytest.mark.parametrize("name", ["grpo", "ppo", "dpo"])
def test_smollm2_takes_a_few_steps_on_a_mixture_of_real_problems(shared: Path, tmp_path: Path, name: str) -> None:
    config = load_config("smollm2", data=str(shared / "data"), checkpoint_every_steps=100, **REAL)
    prompts, _ = training_prompts(config)
    counts = Counter(prompt.task for prompt in prompts)
    assert set(counts) == {"gsm8k", "math", "cmath"} and min(counts.values()) >= 500
    outcome = train(config, load_method(name), directory=tmp_path)
    steps = _lines(tmp_path)
    assert outcome.is_finished and 200 <= outcome.tokens_used < 200 + BATCH
    assert steps[-1]["tokens/used"] == outcome.tokens_used and len(steps) == outcome.num_steps >= 3
    assert all(value is not None and math.isfinite(value) for step in steps for value in step.values())
    assert {key.removeprefix("reward/task/") for step in steps for key in step if "/task/" in key} <= set(counts)
    if name == "dpo":
        # A small model's two answers are rarely one right and one wrong; what has no pair is counted, not trained on.
        assert all(step["pairs/count"] + step["pairs/prompts_without"] == 3 for step in steps)
        assert steps[-1]["updates"] == 2 * sum(step["pairs/count"] > 0 for step in steps)
        for step in steps:
            assert ("loss/policy" in step) == (step["pairs/count"] > 0)
            if step["updates"] == 0:
                assert step["kl/initial_k1"] == pytest.approx(0.0, abs=1e-7)
        return
    assert steps[-1]["updates"] == 2 * len(steps)
    assert steps[0]["kl/ref_k3"] == pytest.approx(0.0, abs=1e-6)
    assert all(step["clip/first_pass_ratio_err"] < 1e-3 for step in steps)
    assert all("loss/policy" in step and step["grad/skipped"] == 0 for step in steps)
    if name == "ppo":
        # The value head starts at 0, so its first error is the mean squared return, and it learns.
        assert all(step["loss/value"] >= 0 and step["grad/norm"] > 0 for step in steps)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(1800)
@needs_smollm2
def test_a_killed_smollm2_run_resumes_to_the_same_metrics(shared: Path, tmp_path: Path) -> None:
    settings = {"data": str(shared / "data"), **REAL, "budget": 150}
    config, method = load_config("smollm2", **settings), load_method("grpo")
    words = [sys.executable, "-m", "agpo_bench", "train", "--preset", "smollm2", "--method", "grpo"]
    for field, value in settings.items():
        words += ["--set", f"{field}={value}"]
    killed = tmp_path / "killed" / "grpo" / "seed-42"
    with subprocess.Popen([*words, "--out", str(tmp_path / "killed")], stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 900
        while newest_checkpoint(killed) is None and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    train(config, method, directory=killed, resume=True)
    train(config, method, directory=tmp_path / "whole")
    assert (killed / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert len(_lines(killed)) >= 2
