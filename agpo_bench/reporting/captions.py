"""Captions: what was trained on what, for how many tokens, and how the numbers were made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agpo_bench.data.sources import EmbeddedSource
from agpo_bench.evaluation.results import EvalResult
from agpo_bench.reporting.collect import Collection
from agpo_bench.reporting.spec import AccuracyColumns, AverageColumn, FamilyColumns, TableSpec
from agpo_bench.reporting.tables import Table


def tasks_of(spec: TableSpec) -> list[str]:
    """Tasks a table prints scores of, in order."""
    found: dict[str, None] = {}
    for column in spec.columns:
        if isinstance(column, AccuracyColumns | AverageColumn):
            found |= dict.fromkeys(column.tasks)
        if isinstance(column, FamilyColumns):
            found[column.task] = None
    return list(found)


def uses_draws(spec: TableSpec) -> bool:
    """Whether a table prints anything made from sampled draws."""
    return any(isinstance(c, AccuracyColumns | AverageColumn) and c.measure != "greedy" for c in spec.columns)


def table_caption(
    table: Table, collections: Sequence[Collection], tasks: Sequence[str], *, mixed: Sequence[str] = ()
) -> str:
    """One paragraph: data source, model, budget, updates a rollout batch, seeds, items, and the estimators."""
    spec, collection = table.spec, collections[0]
    sentences = [table.heading + "."]
    if spec.caption:
        sentences.append(spec.caption)
    if mixed:
        sentences.append("Mixed on request (--allow-mixed), so rows need not compare: " + " ".join(mixed))
    if tasks:
        sentences += _scores(spec, collection, tasks)
    sentences += training_sentences(collections)
    sentences += _estimators(table, collection)
    return " ".join(sentences)


def _estimators(table: Table, collection: Collection) -> Iterable[str]:
    spec = table.spec
    if spec.difference_to is not None:
        yield f"Entries are differences to {collection.title(spec.difference_to)}, taken before rounding."
    elif spec.relative:
        yield "Entries are 100 (a / b - 1) of the two methods' means, taken before rounding."
    elif spec.comparisons:
        yield "Entries are differences of the two methods' means, taken before rounding."
    if spec.test == "seeds":
        yield "Stars: two-sided Welch test over seeds; * p < .05, ** p < .01, *** p < .001 after Holm over the table."
    if spec.test == "items":
        yield (
            "Stars: paired test on the same items (exact McNemar where a side is one run of 0/1 scores, else a seeded "
            "bootstrap of 10,000 resamples of the seeds' mean, within benchmarks for the average); * p < .05, "
            "** p < .01, *** p < .001 after Holm over the table."
        )
    if table.has_spread:
        yield {
            "std": "Mean ± sample standard deviation (ddof 1) over seeds.",
            "ci95": "Mean ± half-width of the 95 % interval over seeds (Student t, ddof 1).",
            "none": "",
        }[spec.spread]
    if table.has_marks:
        yield "Best in bold, second best in italics; equal at printed precision are marked alike."
    yield from table.doubts


def _scores(spec: TableSpec, collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    results = {task: [one.result for (_, _, t), one in collection.evaluated.items() if t == task] for task in tasks}
    present = {task: found for task, found in results.items() if found}
    if not present:
        return
    yield "Score (%), greedy decoding." if not uses_draws(spec) else _draws(present)
    yield _grouped("Data", {task: sorted({r.data_source for r in found}) for task, found in present.items()})
    yield _grouped(
        "Items a benchmark", {task: sorted({f"{r.num_items:,}" for r in found}) for task, found in present.items()}
    )
    if any(r.limit for found in present.values() for r in found):
        yield "Only the first items of each test set were used: not comparable with published scores."
    modes = sorted({r.grading_mode for found in present.values() for r in found})
    if modes != ["official"]:
        yield f"Grading: {', '.join(modes)}."


def _draws(present: Mapping[str, Sequence[EvalResult]]) -> str:
    settings = sorted(
        {
            f"{r.num_draws} draws an item at temperature {r.temperature:g} and nucleus {r.top_p:g}"
            for found in present.values()
            for r in found
            if r.num_draws and r.temperature is not None and r.top_p is not None
        }
    )
    how = " or ".join(settings) or "no draws"
    return f"Score (%) from {how}: avg@n is their mean, pass@k and Maj@k the unbiased estimates over all subsets."


def training_sentences(collections: Sequence[Collection]) -> Iterable[str]:
    """Model, budget, updates a rollout batch and seeds of the runs."""
    runs = [run for collection in collections for run in collection.runs]
    if not runs:
        return
    yield f"Model: {', '.join(sorted({_MODELS.get(run.model, run.model) for run in runs}))}."
    yield f"Trained on: {'; '.join(sorted({_training_data(run.config) for run in runs}))}."
    budgets = sorted({run.budget for run in runs})
    used = sorted(run.tokens_used for run in runs)
    spread = f"{used[0]:,}" if used[0] == used[-1] else f"{used[0]:,} to {used[-1]:,}"
    yield f"Budget: {' or '.join(f'{budget:,}' for budget in budgets)} generated tokens a run ({spread} used)."
    updates = sorted({run.updates_per_rollout for run in runs})
    yield f"Updates a rollout batch: {', '.join(map(str, updates))}."
    seeds = sorted({run.seed for run in runs})
    yield f"Seeds: {', '.join(map(str, seeds))}."
    yield from sorted({_copies(run.contamination) for run in runs if run.contamination})
    notes = {str(run.recipe["caption"]) for run in runs if run.recipe.get("caption")}
    yield from sorted(notes)


_MODELS = {
    "embedded": "embedded (126k parameters, made for the embedded sample)",
    "smollm2": "smollm2 (SmolLM2-135M-Instruct, 135M parameters)",
}
"""What stands behind the short names that ``--model`` and the presets take."""


def _training_data(config: Mapping[str, Any]) -> str:
    """Where the training problems came from, and of which benchmarks."""
    source = {"embedded": EmbeddedSource.description, "hub": "the hub"}.get(
        str(config["data"]), f"folder {Path(str(config['data'])).name}"
    )
    return f"{source}, {', '.join(config['tasks'])}"


def _copies(contamination: Mapping[str, Any]) -> str:
    """What a run found of the test items among its training problems, and what it did about it."""
    done = {"strict": "equal and near copies left out, variants kept", "report": "all kept"}.get(
        str(contamination["dedup"])
    )
    return f"Training data: {contamination['summary']}{f' ({done})' if done else ''}."


def _grouped(word: str, values: dict[str, list[str]]) -> str:
    """``Data: x (gsm8k), y (math).``, or ``Data: x.`` where all tasks agree."""
    texts: dict[str, list[str]] = {}
    for task, found in values.items():
        texts.setdefault(" / ".join(found), []).append(task)
    if len(texts) == 1:
        return f"{word}: {next(iter(texts))}."
    return f"{word}: " + "; ".join(f"{text} ({', '.join(tasks)})" for text, tasks in texts.items()) + "."
