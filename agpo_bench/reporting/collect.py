"""Read what training and evaluation left on disk: the only input of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from agpo_bench import paths
from agpo_bench.config import config_from
from agpo_bench.evaluation.results import EvalResult
from agpo_bench.planning.needs import needs_of_recipe
from agpo_bench.reporting.item_scores import ItemScores, disagreements, read_all

Key = tuple[str, int | None, str]
"""Method, seed, task. The model before training has method ``initial`` and seed None."""

_DEPTHS = ("*/seed-*", "*/*/seed-*", "*/*/*/seed-*")
"""Runs lie at ``<method>/seed-<n>``; a folder of several experiments may be given instead of one."""


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
    provenance: Mapping[str, Any]
    """Versions, commit, host and hashes as the run wrote them; empty for a run that did not."""

    contamination: Mapping[str, Any] = field(default_factory=dict)
    """What the training problems have in common with the test items; empty for a run that did not say."""

    @property
    def model(self) -> str:
        """The model it started from."""
        return str(self.config["model"])

    @property
    def budget(self) -> int:
        """Generated tokens it was given."""
        return int(self.config["budget"])

    @property
    def tokens_used(self) -> int:
        """Generated tokens the ledger counted, all phases together."""
        return int(self.ledger["used"])

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent: only then is anything about the run final."""
        return self.tokens_used >= self.budget

    @property
    def updates_per_rollout(self) -> int:
        """Optimiser updates a rollout batch."""
        return config_from(self.config).updates_per_rollout

    @property
    def worst_batch_tokens(self) -> int:
        """Tokens of one rollout batch if every response runs to the limit, the probe included."""
        config, needs = config_from(self.config), needs_of_recipe(self.recipe, name=self.method)
        size = config.group_size
        num_prompts = config.prompts_per_batch * (size if needs.own_group_size == 1 else 1)
        return num_prompts * (needs.rollouts_per_prompt(size) + needs.probe_size(size)) * config.max_new_tokens


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """One result file and what it says."""

    result: EvalResult
    file: Path
    scores: ItemScores | None = None
    """From the samples beside it; None when they are gone."""
    problem: str = ""
    """Why the result is no final number; empty when it is one."""

    @property
    def samples_file(self) -> Path:
        """The samples the result was made from."""
        return self.file.with_name(paths.SAMPLES_FILE)


@dataclass(frozen=True, kw_only=True)
class Collection:
    """All runs that started from one model, and every result of theirs."""

    root: Path
    model: str
    runs: tuple[TrainedRun, ...]
    evaluated: Mapping[Key, Evaluated]

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

    def runs_of(self, method: str) -> list[TrainedRun]:
        """Runs of one method by seed."""
        return sorted((run for run in self.runs if run.method == method), key=lambda run: run.seed)

    def run(self, method: str, seed: int | None) -> TrainedRun | None:
        """One run; None for the initial model."""
        return next((run for run in self.runs if (run.method, run.seed) == (method, seed)), None)


def collect(root: Path) -> tuple[Collection, ...]:
    """Read every run and every result below ``root``, grouped by the model the runs started from.

    A file that cannot be read is named, never skipped. Numbers are recomputed from the samples beside each result; a
    result that disagrees with its samples, or belongs to a run that is not finished, is kept with its ``problem``.
    """
    if not root.is_dir():
        raise ValueError(f"no runs in {root}: the folder does not exist; train first or pass --runs DIR")
    found = sorted({path.parent for depth in _DEPTHS for path in root.glob(f"{depth}/{paths.CONFIG_FILE}")})
    runs: dict[tuple[str, str, int], TrainedRun] = {}
    results: dict[tuple[str, Key], Evaluated] = {}
    for run in map(_read_run, found):
        other = runs.setdefault((run.model, run.method, run.seed), run)
        if other is not run:
            raise ValueError(
                f"{other.directory} and {run.directory} are two runs of {run.method} with seed {run.seed} from one "
                "model; pass --runs with the folder of one experiment"
            )
        for file in sorted((run.directory / paths.EVAL_DIRECTORY).glob(f"*/{paths.RESULTS_FILE}")):
            result = _read_result(file)
            key = (run.method, run.seed, result.task)
            results[run.model, key] = Evaluated(result=result, file=file, problem=_unfinished(run, result))
    for experiment in sorted({root, *(run.directory.parent.parent for run in runs.values())}):
        for file in sorted(experiment.glob(f"{paths.INITIAL_MODEL}*/{paths.EVAL_DIRECTORY}/*/{paths.RESULTS_FILE}")):
            result = _read_result(file)
            results[result.model, (paths.INITIAL_MODEL, None, result.task)] = Evaluated(result=result, file=file)
    if not results:
        raise ValueError(f"no results in {root}: run `agpo-bench eval --out {root}` first")
    results = _with_scores(results)
    return tuple(
        Collection(
            root=root,
            model=model,
            runs=tuple(run for run in runs.values() if run.model == model),
            evaluated={key: one for (name, key), one in results.items() if name == model},
        )
        for model in sorted({model for model, _ in results} | {run.model for run in runs.values()})
    )


def _unfinished(run: TrainedRun, result: EvalResult) -> str:
    if not run.is_finished:
        return f"the run is not finished ({run.tokens_used:,} of {run.budget:,} tokens)"
    if result.tokens_used < run.tokens_used:
        return f"evaluated at {result.tokens_used:,} tokens, before the run's end at {run.tokens_used:,}"
    return ""


def _with_scores(results: Mapping[tuple[str, Key], Evaluated]) -> dict[tuple[str, Key], Evaluated]:
    scores = read_all({key: one.samples_file for key, one in results.items() if one.samples_file.is_file()})
    return {key: _checked(one, scores.get(key)) for key, one in results.items()}


def _checked(one: Evaluated, scores: ItemScores | None) -> Evaluated:
    problem = one.problem
    if not one.result.is_complete:
        problem = problem or f"incomplete: {one.result.error_count} responses could not be graded"
    if one.result.accuracy is None:
        problem = problem or "no response could be graded"
    if scores is not None:
        problem = problem or next(iter(disagreements(one.result, scores)), "")
    return replace(one, scores=scores, problem=problem)


def _read_run(directory: Path) -> TrainedRun:
    config = yaml.safe_load((directory / paths.CONFIG_FILE).read_text(encoding="utf-8"))
    recipe_file = directory / paths.RECIPE_FILE
    if not recipe_file.is_file():
        raise ValueError(f"{directory} has a {paths.CONFIG_FILE} and no {paths.RECIPE_FILE}; delete the run or redo it")
    recipe = yaml.safe_load(recipe_file.read_text(encoding="utf-8"))
    return TrainedRun(
        method=directory.parent.name,
        title=recipe.get("title") or recipe["name"],
        seed=int(directory.name.removeprefix("seed-")),
        directory=directory,
        config=config,
        recipe=recipe,
        ledger=_json(directory / paths.LEDGER_FILE) or {"used": 0, "phases": {}},
        provenance=_json(directory / paths.PROVENANCE_FILE),
        contamination=_json(directory / paths.CONTAMINATION_FILE),
    )


def _json(file: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return content


def _read_result(file: Path) -> EvalResult:
    try:
        return EvalResult.model_validate_json(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not a result of this version ({error}); delete it and evaluate again") from None
