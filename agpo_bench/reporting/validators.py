"""What a reader must know before trusting a table: printed under it, every time.

*Mismatches* make rows incomparable; a report refuses them unless told to. *Remarks* limit what can be concluded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agpo_bench import paths
from agpo_bench.data.benchmarks import load_task
from agpo_bench.evaluation.results import EvalResult
from agpo_bench.reporting.collect import Collection, TrainedRun
from agpo_bench.reporting.significance import grim
from agpo_bench.reporting.tables import Table

MAX_TRUNCATION_RATE = 0.05
MIN_PARSE_RATE = 0.9
MIN_SEEDS = 3
_MUST_AGREE = (
    ("data_source", "data sources"),
    ("data_checksum", "versions of the data"),
    ("split", "splits"),
    ("num_items", "numbers of items"),
    ("limit", "item limits"),
    ("protocol_version", "protocol versions"),
    ("task_version", "versions of the task"),
    ("grading_mode", "grading rules"),
    ("num_few_shot", "few-shot settings"),
    ("few_shot_source", "few-shot sources"),
    ("max_new_tokens", "length limits"),
)
_DRAWS_MUST_AGREE = (
    ("num_draws", "numbers of draws"),
    ("temperature", "temperatures of the draws"),
    ("top_p", "nucleus masses of the draws"),
)
_MAY_DIFFER = {
    *("seed", "num_threads", "device", "micro_batch_tokens", "sampler_rows"),
    *("checkpoint_every_steps", "keep_checkpoints", "monitor_rollouts", "track_reference_kl"),
}
"""Fields of a run's config that change speed, memory or what is logged, and not what is learnt."""


def mismatches(collection: Collection, tasks: Sequence[str], *, uses_draws: bool) -> list[str]:
    """What makes rows of one table incomparable; a report is refused for it."""
    results = [one.result for (_, _, task), one in collection.evaluated.items() if task in tasks]
    fields = (*_MUST_AGREE, *(_DRAWS_MUST_AGREE if uses_draws else ()))
    return [
        *_mixed(results, fields),
        *_configs(collection),
        *_recipes(collection),
        *_wrong_model(collection),
        *_data(collection),
    ]


def warnings(collection: Collection, tasks: Sequence[str]) -> list[str]:
    """Sentences about what limits the comparison, most serious first; empty when there is nothing to say."""
    return [
        *_problems(collection, tasks),
        *_impossible_sums(collection, tasks),
        *_budgets(collection),
        *_missing_initial(collection, tasks),
        *_leaked(collection, tasks),
        *_contaminated(collection, tasks),
        *_seeds(collection),
        *_not_evaluated(collection),
        *_rates(collection, tasks),
        *_unchecked(collection, tasks),
        *_commits(collection),
    ]


def impossible_means(table: Table) -> list[str]:
    """GRIM on what is printed: every mean must be one that its items and seeds can give."""
    found = []
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell.num_items is None or cell.baseline is not None or cell.mean is None:
                continue
            if not grim(cell.printed_mean(), num_items=cell.num_items, num_seeds=len(cell.per_seed)):
                found.append(
                    f"{row.title}, {column.title}: no mean of {len(cell.per_seed)} seeds over {cell.num_items:,} items "
                    f"scored 0/1 rounds to {cell.printed_mean()}."
                )
    return found


def _sorted(collection: Collection, tasks: Sequence[str]) -> list[tuple[str, str, Any]]:
    """(where, task, Evaluated) of the tasks asked, in a fixed order."""
    found = []
    for (method, seed, task), one in sorted(collection.evaluated.items(), key=lambda item: str(item[0])):
        if task in tasks:
            found.append((collection.title(method) + (f" seed {seed}" if seed is not None else ""), task, one))
    return found


def _problems(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    by_problem: dict[tuple[str, str], list[str]] = defaultdict(list)
    for where, task, one in _sorted(collection, tasks):
        if one.problem:
            by_problem[where, one.problem].append(task)
    for (where, problem), found in by_problem.items():
        yield f"{where} ({', '.join(found)}): {problem}; no number is printed."


def _impossible_sums(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    """GRIM at the source: a sum of 0/1 scores is a whole number between 0 and the items."""
    for where, task, one in _sorted(collection, tasks):
        result = one.result
        is_binary = load_task(task).grader.kind != "program"
        if is_binary and not (result.score_sum.is_integer() and 0 <= result.score_sum <= result.num_items):
            yield f"{where}, {task}: a score sum of {result.score_sum} cannot come from {result.num_items} 0/1 items."


def _mixed(results: Sequence[EvalResult], fields: Sequence[tuple[str, str]]) -> Iterable[str]:
    for field, words in fields:
        seen: dict[str, set[str]] = defaultdict(set)
        for result in results:
            seen[result.task].add(str(getattr(result, field)))
        by_values: dict[str, list[str]] = defaultdict(list)
        for task, values in sorted(seen.items()):
            if len(values) > 1:
                by_values[", ".join(sorted(values))].append(task)
        for found, names in by_values.items():
            yield f"Column {', '.join(names)} mixes {words}: {found}. Its rows do not compare."
    fingerprints = {r.model_fingerprint for r in results if r.method == paths.INITIAL_MODEL}
    if len(fingerprints) > 1:
        yield "The initial model's results come from different weights."


def _configs(collection: Collection) -> Iterable[str]:
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for run in collection.runs:
        for field, value in run.config.items():
            if field not in _MAY_DIFFER:
                values[field][str(value)].append(f"{run.method}/seed-{run.seed}")
    for field, seen in sorted(values.items()):
        if len(seen) > 1:
            told = "; ".join(f"{value} ({runs[0]}{' …' if len(runs) > 1 else ''})" for value, runs in seen.items())
            yield f"The runs were trained with different {field}: {told}."


def _recipes(collection: Collection) -> Iterable[str]:
    for method in sorted({run.method for run in collection.runs}):
        recipes: list[Mapping[str, Any]] = [run.recipe for run in collection.runs_of(method)]
        if any(recipe != recipes[0] for recipe in recipes):
            yield f"The seeds of {collection.title(method)} were trained by different recipes."


def _wrong_model(collection: Collection) -> Iterable[str]:
    found = {run.provenance.get("model_sha256") for run in collection.runs} - {None}
    if len(found) > 1:
        yield "The runs started from different weights under one model name."


def _data(collection: Collection) -> Iterable[str]:
    """Training problems by their checksums; runs that did not write them are not judged."""
    seen: dict[str, set[str]] = defaultdict(set)
    for run in collection.runs:
        for task, checksum in run.provenance.get("training_data_sha256", {}).items():
            seen[task].add(checksum)
    mixed = sorted(task for task, checksums in seen.items() if len(checksums) > 1)
    if mixed:
        yield f"The runs were trained on different problems of {', '.join(mixed)}."


def _budgets(collection: Collection) -> Iterable[str]:
    """A run ends with the rollout batch that spends its budget, so totals may differ by one batch and no more."""
    finished = [run for run in collection.runs if run.is_finished]
    if len({run.budget for run in finished}) > 1:
        least, most = min(finished, key=lambda run: run.budget), max(finished, key=lambda run: run.budget)
        yield f"Unequal budgets: {_tokens(least, least.budget)}, {_tokens(most, most.budget)}."
    elif finished:
        least, most = (choose(finished, key=lambda run: run.tokens_used) for choose in (min, max))
        batch = max(run.worst_batch_tokens for run in finished)
        if most.tokens_used - least.tokens_used > batch:
            yield (
                f"Unequal totals: {_tokens(least, least.tokens_used)}, {_tokens(most, most.tokens_used)}: more than "
                f"one rollout batch ({batch:,} tokens at most) apart."
            )


def _tokens(run: TrainedRun, count: int) -> str:
    return f"{run.method}/seed-{run.seed} {count:,} tokens"


def _missing_initial(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    missing = [task for task in tasks if (paths.INITIAL_MODEL, None, task) not in collection.evaluated]
    if missing:
        yield f"The initial model was not evaluated on {', '.join(missing)}: gains cannot be read off."


def _leaked(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    leaked = {task: one.result.num_leaked for _, task, one in _sorted(collection, tasks) if one.result.num_leaked}
    for task, count in leaked.items():
        yield f"{task}: {count} items are shown with their solution among the few-shot examples."


def _contaminated(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    by_remark: dict[str, list[str]] = defaultdict(list)
    for run in collection.runs:
        where = f"{run.title} seed {run.seed}"
        found = run.contamination
        if found.get("dedup") == "off":
            by_remark["trained without comparing the problems with the test items"].append(where)
        if found.get("dedup") == "report" and found["num_copies"]:
            by_remark[f"trained on {found['num_copies']} problems that are copies of test items"].append(where)
        if missing := sorted(set(found.get("not_compared", ())) & set(tasks)):
            by_remark[f"training problems not compared with the test items of {', '.join(missing)}"].append(where)
    for remark, places in by_remark.items():
        shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        yield f"{shown}: {remark}."


def _seeds(collection: Collection) -> Iterable[str]:
    by_method = {method: collection.seeds(method) for method in collection.methods}
    few = [collection.title(method) for method, seeds in by_method.items() if len(seeds) < MIN_SEEDS]
    if few:
        yield f"Fewer than {MIN_SEEDS} seeds for {', '.join(few)}: differences of this size can be chance."
    if len({tuple(seeds) for seeds in by_method.values()}) > 1:
        yield "The methods were run with different seeds: " + "; ".join(
            f"{collection.title(method)} {', '.join(map(str, seeds))}" for method, seeds in by_method.items()
        )


def _not_evaluated(collection: Collection) -> Iterable[str]:
    evaluated = {(method, seed) for method, seed, _ in collection.evaluated}
    missing = [f"{run.title} seed {run.seed}" for run in collection.runs if (run.method, run.seed) not in evaluated]
    if missing:
        yield f"Trained but not evaluated, so in no column of scores: {', '.join(sorted(missing))}."


def _rates(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    by_task: dict[tuple[str, str], list[str]] = defaultdict(list)
    for where, task, one in _sorted(collection, tasks):
        if one.result.truncation_rate > MAX_TRUNCATION_RATE:
            by_task[task, "cut by the length limit"].append(f"{where} {100 * one.result.truncation_rate:.0f} %")
        parse_rate = one.result.parse_rate
        if parse_rate is not None and parse_rate < MIN_PARSE_RATE:
            by_task[task, "without a readable answer"].append(f"{where} {100 * (1 - parse_rate):.0f} %")
    for (task, what), places in by_task.items():
        shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        yield f"{task}: many responses {what} ({shown})."


def _unchecked(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    found = _sorted(collection, tasks)
    missing = sum(one.scores is None for _, _, one in found)
    if missing:
        yield f"{missing} of {len(found)} results have no samples beside them: their means could not be recomputed."


def _commits(collection: Collection) -> Iterable[str]:
    commits = {str(run.provenance.get("git_commit"))[:12] for run in collection.runs if run.provenance}
    commits |= {str(one.result.git_commit)[:12] for one in collection.evaluated.values() if one.result.git_commit}
    if len(commits - {"None"}) > 1:
        yield f"Made by different versions of the code: commits {', '.join(sorted(commits))}."
