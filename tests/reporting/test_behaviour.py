"""The sentence that the page of methods prints from a folder of runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agpo_bench.reporting.behaviour import measured_behaviour

RunWriter = Callable[..., Path]


def test_a_method_is_told_by_its_mean_over_benchmarks_seeds_and_last_controls(
    write_run: RunWriter, tmp_path: Path
) -> None:
    write_run(tmp_path, "initial", None, {"gsm8k": 80, "math": 100})
    write_run(tmp_path, "agpo", 42, {"gsm8k": 100, "math": 120})
    write_run(tmp_path, "agpo", 1337, {"gsm8k": 120, "math": 140})
    sentence = measured_behaviour(tmp_path)["agpo"]
    # Seed means 55 and 65 %: 60 +- 10 / sqrt 2; the initial model (40 + 50) / 2.
    assert "accuracy 60.0 ± 7.1 % (initial model 45.0), mean over 2 benchmarks, 2 seeds" in sentence
    assert sentence.startswith("embedded sample, ")
    # The last of the six steps.
    assert sentence.endswith("; at the end eps 0.150, tau 1.250, H 1.000.")


def test_a_seed_without_every_benchmark_is_not_averaged(write_run: RunWriter, tmp_path: Path) -> None:
    write_run(tmp_path, "initial", None, {"gsm8k": 80, "math": 100})
    write_run(tmp_path, "agpo", 42, {"gsm8k": 100, "math": 120})
    write_run(tmp_path, "grpo", 42, {"gsm8k": 200})
    told = measured_behaviour(tmp_path)
    assert "accuracy 55.0 % (initial model 45.0), mean over 2 benchmarks, 1 seed" in told["agpo"]
    assert "no seed has a final result on every benchmark" in told["grpo"]


def test_a_folder_without_results_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="agpo-bench eval"):
        measured_behaviour(tmp_path)
