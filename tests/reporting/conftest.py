"""A small folder of runs as training and evaluation would leave it, with scores chosen by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from agpo_bench.config import load_config
from agpo_bench.data.benchmarks import load_task
from agpo_bench.evaluation.results import (
    PROTOCOL_VERSION,
    AskedItem,
    EvalResult,
    Sample,
    write_items,
    write_result,
    write_samples,
)

RunWriter = Callable[..., Path]


def make_result(**fields: Any) -> EvalResult:
    """A result as an evaluation of 200 items would leave it; ``score_sum`` has no default."""
    base: dict[str, Any] = {
        "task": "gsm8k",
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
    fields.setdefault("title", load_task(fields.get("task", "gsm8k")).title)
    fields.setdefault("accuracy", fields["score_sum"] / fields.get("num_items", 200))
    return EvalResult.model_validate({**base, **fields})


def sample(item: int, draw: int, *, is_right: bool, task: str = "gsm8k", **fields: Any) -> Sample:
    """One line of samples.jsonl."""
    base: dict[str, Any] = {
        "doc_id": item,
        "prompt_id": f"{task}/test/{item}",
        "doc_hash": f"{item:064x}",
        "prompt_hash": f"{item:064x}",
        "draw": draw,
        "draw_key": f"{item:032x}{draw:032x}",
        "text": f"It is {item}.",
        "answer": str(item),
        "score": float(is_right),
        "reason": "equal" if is_right else "unequal",
        "is_error": False,
        "is_truncated": False,
        "is_leaked": False,
        "num_tokens": 5,
    }
    return Sample.model_validate({**base, **fields})


def write_task(directory: Path, result: EvalResult, *, rights: list[bool] | None = None) -> None:
    """A result with the samples and items it was made from: the first ``score_sum`` items are right."""
    folder = directory / "eval" / result.task
    rights = rights or [item < result.score_sum for item in range(result.num_items)]
    lines = [sample(item, 0, is_right=is_right, task=result.task) for item, is_right in enumerate(rights)]
    write_samples(folder / "samples.jsonl", lines)
    write_items(
        folder / "items.jsonl",
        [
            AskedItem(doc_id=i, prompt_id=f"{result.task}/test/{i}", prompt=f"What is {i}?", gold=str(i))
            for i in range(result.num_items)
        ],
    )
    write_result(folder / "results.json", result)


def metrics(step: int) -> dict[str, float]:
    """One line of metrics.jsonl with every kind of metric that a figure draws."""
    factors = {f"ctrl/eps_factor_{name}": 1 - 0.01 * step for name in ("H", "E", "sigma", "kappa", "D")}
    by_c = {f"clip/active_frac_c{c}": 0.01 * c for c in range(9)}
    return {
        "step": step,
        "tokens/used": 25_000 * (step + 1),
        "ctrl/eps": 0.2 - 0.01 * step,
        "ctrl/eps_at_min": 0.0,
        "ctrl/eps_at_max": 0.0,
        "ctrl/tau": 1.0 + 0.05 * step,
        "ctrl/H": 1.5 - 0.1 * step,
        "grad/norm": float(step),
        "reward/mean": 0.2 + 0.1 * step,
        "reward/task/gsm8k": 0.3 + 0.1 * step,
        "kl/step_k1": 0.01,
        "kl/ref_k3": 0.02 * step,
        "clip/active_tokens": 0.05,
        "clip/active_steps": 0.5,
        "is/ratio_adv_corr": 0.1,
        "gen/unique_frac": 0.9,
        "len/mean": 20.0,
        **factors,
        **by_c,
    }


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
            text = "".join(json.dumps(metrics(step)) + "\n" for step in range(6))
            (directory / "metrics.jsonl").write_text(text + '{"torn', encoding="utf-8")
            timing = "".join(f'{{"step": {step}, "time/step": 10.0}}\n' for step in range(6))
            (directory / "timing.jsonl").write_text(timing, encoding="utf-8")
            fields = {"tokens_used": 150_100, "budget": 150_000} | fields
        for task, score_sum in scores.items():
            result = make_result(
                task=task, score_sum=score_sum, method=method, title_method=method.upper(), seed=seed, **fields
            )
            write_task(directory, result)
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
