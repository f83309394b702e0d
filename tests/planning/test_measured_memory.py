"""The plan against peak memory of real runs, each a process of its own (``benchmarks/plan_vs_memory.py`` has more)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "plan_vs_memory.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plan_vs_memory", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_plan_is_within_a_tenth_of_the_measured_peak(script: ModuleType, tmp_path: Path) -> None:
    cases = {case.name: case for case in script.CASES}
    chosen = [
        cases["5M Llama, GRPO, 512 tokens"],
        cases["23M Llama, GRPO, 512 tokens"],
        cases["23M Llama, PPO with a critic of its own"],
    ]
    floor = script.measured(script.floor_of(chosen[0]), tmp_path, environment=script.LIVE)
    for case in chosen:
        peak = script.measured(case, tmp_path, environment=script.LIVE) - floor
        assert script.planned(case, script.model_of(case, tmp_path)) == pytest.approx(peak, rel=0.1), case.name


@pytest.mark.slow
def test_the_plan_of_adapters_is_within_a_tenth_of_the_measured_peak(script: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    (case,) = (one for one in script.CASES if one.name == "23M Llama, GRPO, LoRA")
    floor = script.measured(script.floor_of(case), tmp_path, environment=script.LIVE)
    peak = script.measured(case, tmp_path, environment=script.LIVE) - floor
    assert script.planned(case, script.model_of(case, tmp_path)) == pytest.approx(peak, rel=0.1)
