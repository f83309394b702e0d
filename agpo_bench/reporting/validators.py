"""What a reader must know before trusting a table: printed under it, every time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from agpo_bench import paths
from agpo_bench.evaluation.results import EvalResult
from agpo_bench.reporting.collect import Collection

MAX_TRUNCATION_RATE = 0.05
MIN_PARSE_RATE = 0.9
MIN_SEEDS = 3
MAX_BUDGET_SPREAD = 0.02
"""Largest relative difference of tokens used between runs of one table that passes without a remark."""


def warnings(collection: Collection, tasks: Sequence[str]) -> list[str]:
    """Sentences about what limits the comparison, most serious first; empty when there is nothing to say."""
    results = [one.result for (_, _, task), one in collection.evaluated.items() if task in tasks]
    return [
        *_incomplete(collection, tasks),
        *_mixed(results),
        *_budgets(collection),
        *_missing_initial(collection, tasks),
        *_seeds(collection),
        *_rates(collection, tasks),
    ]


def _incomplete(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    for (method, seed, task), one in sorted(collection.evaluated.items(), key=lambda item: str(item[0])):
        if task in tasks and not one.result.is_complete:
            where = collection.title(method) + (f", seed {seed}" if seed is not None else "")
            failed = one.result.error_count
            yield f"{where}: {task} is incomplete ({failed} items failed to grade); no number is printed."


def _mixed(results: Sequence[EvalResult]) -> Iterable[str]:
    for field, words in (
        ("data_source", "data sources"),
        ("data_checksum", "versions of the data"),
        ("num_items", "numbers of items"),
        ("protocol_version", "protocol versions"),
        ("grading_mode", "grading rules"),
        ("num_few_shot", "few-shot settings"),
        ("max_new_tokens", "length limits"),
    ):
        seen: dict[str, set[str]] = defaultdict(set)
        for result in results:
            seen[result.task].add(str(getattr(result, field)))
        for task, values in sorted(seen.items()):
            if len(values) > 1:
                yield f"Column {task} mixes {words}: {', '.join(sorted(values))}. Its rows do not compare."
    fingerprints = {r.model_fingerprint for r in results if r.method == paths.INITIAL_MODEL}
    if len(fingerprints) > 1:
        yield "The initial model's results come from different weights."


def _budgets(collection: Collection) -> Iterable[str]:
    used = {f"{run.method}/seed-{run.seed}": run.tokens_used for run in collection.runs}
    if used and max(used.values()) - min(used.values()) > MAX_BUDGET_SPREAD * max(used.values()):
        least, most = min(used, key=lambda key: used[key]), max(used, key=lambda key: used[key])
        yield f"Unequal budgets: {least} used {used[least]:,} tokens, {most} used {used[most]:,}."


def _missing_initial(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    missing = [task for task in tasks if (paths.INITIAL_MODEL, None, task) not in collection.evaluated]
    if missing:
        yield f"The initial model was not evaluated on {', '.join(missing)}: gains cannot be read off."


def _seeds(collection: Collection) -> Iterable[str]:
    by_method = {method: collection.seeds(method) for method in collection.methods}
    few = [collection.title(method) for method, seeds in by_method.items() if len(seeds) < MIN_SEEDS]
    if few:
        yield f"Fewer than {MIN_SEEDS} seeds for {', '.join(few)}: differences of this size can be chance."
    if len({tuple(seeds) for seeds in by_method.values()}) > 1:
        yield "The methods were run with different seeds: " + "; ".join(
            f"{collection.title(method)} {', '.join(map(str, seeds))}" for method, seeds in by_method.items()
        )


def _rates(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    by_task: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (method, seed, task), one in sorted(collection.evaluated.items(), key=lambda item: str(item[0])):
        where = collection.title(method) + (f" seed {seed}" if seed is not None else "")
        if task in tasks and one.result.truncation_rate > MAX_TRUNCATION_RATE:
            by_task[task, "cut by the length limit"].append(f"{where} {100 * one.result.truncation_rate:.0f} %")
        parse_rate = one.result.parse_rate
        if task in tasks and parse_rate is not None and parse_rate < MIN_PARSE_RATE:
            by_task[task, "without a readable answer"].append(f"{where} {100 * (1 - parse_rate):.0f} %")
    for (task, what), places in by_task.items():
        shown = ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")
        yield f"{task}: many responses {what} ({shown})."
