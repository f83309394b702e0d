"""Read what training and evaluation left on disk: the only input of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agpo_bench import paths
from agpo_bench.config import config_from
from agpo_bench.evaluation.results import EvalResult


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """One training run as its files describe it."""

    method: str
    title: str
    seed: int
    directory: Path
    config: Mapping[str, Any]
    recipe: Mapping[str, Any]
    ledger: Mapping[str, Any]

    @property
    def tokens_used(self) -> int:
        """Generated tokens the ledger counted, all phases together."""
        return int(self.ledger["used"])

    @property
    def updates_per_rollout(self) -> int:
        """Optimiser updates a rollout batch."""
        return config_from(self.config).updates_per_rollout


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One result file and what it says."""

    result: EvalResult
    file: Path


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Everything found under one ``runs`` folder."""

    root: Path
    runs: tuple[TrainedRun, ...]
    evaluated: Mapping[tuple[str, int | None, str], Evaluated]
    """Keyed by (method, seed, task); the model before training has method ``initial`` and seed None."""

    @property
    def methods(self) -> list[str]:
        """Methods with at least one result, without the initial model, in order of name."""
        return sorted({method for method, _, _ in self.evaluated if method != paths.INITIAL_MODEL})

    def seeds(self, method: str) -> list[int]:
        """Seeds of a method that have at least one result."""
        return sorted({seed for name, seed, _ in self.evaluated if name == method and seed is not None})

    def title(self, method: str) -> str:
        """The name a reader knows the method by."""
        if method == paths.INITIAL_MODEL:
            return "Initial model"
        for run in self.runs:
            if run.method == method:
                return run.title
        return method


def collect(root: Path) -> Collection:
    """Read every run and every result below ``root``. A file that cannot be read is named, never skipped."""
    if not root.is_dir():
        raise ValueError(f"no runs in {root}: the folder does not exist; train first or pass --runs DIR")
    runs = [_read_run(path.parent) for path in sorted(root.glob(f"*/seed-*/{paths.CONFIG_FILE}"))]
    evaluated: dict[tuple[str, int | None, str], Evaluated] = {}
    for run in runs:
        for file in sorted((run.directory / paths.EVAL_DIRECTORY).glob(f"*/{paths.RESULTS_FILE}")):
            result = _read_result(file)
            evaluated[run.method, run.seed, result.task] = Evaluated(result=result, file=file)
    for file in sorted((root / paths.INITIAL_MODEL / paths.EVAL_DIRECTORY).glob(f"*/{paths.RESULTS_FILE}")):
        result = _read_result(file)
        evaluated[paths.INITIAL_MODEL, None, result.task] = Evaluated(result=result, file=file)
    if not evaluated:
        raise ValueError(f"no results in {root}: run `agpo-bench eval --out {root}` first")
    return Collection(root=root, runs=tuple(runs), evaluated=evaluated)


def _read_run(directory: Path) -> TrainedRun:
    config = yaml.safe_load((directory / paths.CONFIG_FILE).read_text(encoding="utf-8"))
    recipe = yaml.safe_load((directory / paths.RECIPE_FILE).read_text(encoding="utf-8"))
    ledger_file = directory / paths.LEDGER_FILE
    ledger = json.loads(ledger_file.read_text(encoding="utf-8")) if ledger_file.is_file() else {"used": 0}
    return TrainedRun(
        method=directory.parent.name,
        title=recipe.get("title") or recipe["name"],
        seed=int(directory.name.removeprefix("seed-")),
        directory=directory,
        config=config,
        recipe=recipe,
        ledger=ledger,
    )


def _read_result(file: Path) -> EvalResult:
    try:
        return EvalResult.model_validate_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not a result of this version ({error}); delete it and evaluate again") from None
