"""A small folder of runs as training and evaluation would leave it, with scores chosen by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agpo_bench.config import load_config
from agpo_bench.evaluation.results import PROTOCOL_VERSION, EvalResult, write_result

RunWriter = Callable[..., Path]


def _result(**fields: Any) -> EvalResult:
    base: dict[str, Any] = {
        "task": "gsm8k",
        "title": "GSM8K",
        "language": "en",
        "data_source_kind": "embedded",
        "data_source": "embedded sample",
        "data_checksum": "0" * 64,
        "split": "test",
        "num_items": 200,
        "num_draws": 0,
        "stderr": 0.03,
        "parse_rate": 1.0,
        "truncation_rate": 0.0,
        "error_count": 0,
        "tokens_eval": 1000,
        "grading_mode": "official",
        "protocol_version": PROTOCOL_VERSION,
        "task_version": 1,
        "num_few_shot": 0,
        "few_shot_source": "none",
        "max_new_tokens": 40,
        "temperature": None,
        "top_p": None,
        "sampling_seed": 0,
        "limit": None,
        "is_complete": True,
        "method": "initial",
        "title_method": "Initial model",
        "seed": None,
        "tokens_used": 0,
        "budget": None,
        "updates_per_rollout": None,
        "model": "embedded",
        "model_fingerprint": "f" * 64,
        "generation_key": "k",
        "versions": {},
        "git_commit": None,
    }
    fields.setdefault("accuracy", fields["score_sum"] / fields.get("num_items", 200))
    return EvalResult.model_validate({**base, **fields})


@pytest.fixture
def write_run() -> RunWriter:
    """Write one run: its config, recipe, ledger, metrics, and one result a task (score sums by task)."""

    def write(root: Path, method: str, seed: int | None, scores: dict[str, float], **fields: Any) -> Path:
        directory = root / method if seed is None else root / method / f"seed-{seed}"
        if seed is not None:
            directory.mkdir(parents=True)
            config = load_config("embedded", seed=seed).model_dump(mode="json")
            (directory / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
            recipe = {"name": method, "title": method.upper()}
            (directory / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
            ledger = {"budget": 150_000, "used": 150_100, "phases": {"train": 150_100}}
            (directory / "ledger.json").write_text(json.dumps(ledger), encoding="utf-8")
            lines = [{"step": s, "tokens/used": 50_000 * s, "ctrl/eps": 0.2, "grad/norm": float(s)} for s in (1, 2, 3)]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (directory / "metrics.jsonl").write_text(text + '{"torn', encoding="utf-8")
            (directory / "timing.jsonl").write_text('{"step": 1, "time/step": 50.0}\n', encoding="utf-8")
        for task, score_sum in scores.items():
            result = _result(
                task=task, score_sum=score_sum, method=method, title_method=method.upper(), seed=seed, **fields
            )
            write_result(directory / "eval" / task / "results.json", result)
        return directory

    return write


@pytest.fixture
def runs(tmp_path: Path, write_run: RunWriter) -> Path:
    """Initial model, GRPO with three seeds, AGPO with three seeds, on two tasks of 200 items."""
    root = tmp_path / "runs"
    write_run(root, "initial", None, {"gsm8k": 80, "cmath": 100})
    for seed, gsm8k, cmath in ((42, 100, 121), (1337, 104, 119), (2026, 108, 120)):
        write_run(root, "grpo", seed, {"gsm8k": gsm8k, "cmath": cmath})
    for seed, gsm8k, cmath in ((42, 103, 140), (1337, 105, 130), (2026, 104, 120)):
        write_run(root, "agpo", seed, {"gsm8k": gsm8k, "cmath": cmath})
    return root
