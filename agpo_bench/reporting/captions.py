"""Captions: what was trained on what, for how many tokens, and how the numbers were made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agpo_bench.reporting.collect import Collection
from agpo_bench.reporting.spec import AccuracyColumns, AverageColumn, TableSpec


def table_caption(spec: TableSpec, collection: Collection, tasks: Sequence[str]) -> str:
    """One paragraph: data source, model, budget, updates a rollout batch, seeds, items, and the estimators."""
    sentences = [spec.title + "."]
    if spec.caption:
        sentences.append(spec.caption)
    if any(isinstance(column, AccuracyColumns | AverageColumn) for column in spec.columns):
        sentences += _scores(collection, tasks)
    sentences += training_sentences(collection)
    if spec.difference_to is not None:
        sentences.append(f"Entries are differences to {collection.title(spec.difference_to)}, taken before rounding.")
    if spec.show_std and any(len(collection.seeds(method)) > 1 for method in collection.methods):
        sentences.append("Mean ± sample standard deviation (ddof 1) over seeds.")
    sentences.append("Best in bold, second best in italics; equal at printed precision are marked alike.")
    return " ".join(sentences)


def _scores(collection: Collection, tasks: Sequence[str]) -> Iterable[str]:
    results = {task: [one.result for (_, _, t), one in collection.evaluated.items() if t == task] for task in tasks}
    present = {task: found for task, found in results.items() if found}
    if not present:
        return
    yield "Score (%), greedy decoding."
    yield _grouped("Data", {task: sorted({r.data_source for r in found}) for task, found in present.items()})
    yield _grouped("Items", {task: sorted({f"{r.num_items:,}" for r in found}) for task, found in present.items()})
    if any(r.limit for found in present.values() for r in found):
        yield "Only the first items of each test set were used: not comparable with published scores."
    modes = sorted({r.grading_mode for found in present.values() for r in found})
    if modes != ["official"]:
        yield f"Grading: {', '.join(modes)}."


def training_sentences(collection: Collection) -> Iterable[str]:
    """Model, budget, updates a rollout batch and seeds of the runs."""
    if not collection.runs:
        return
    yield f"Model: {', '.join(sorted({str(run.config['model']) for run in collection.runs}))}."
    budgets = sorted({int(run.config["budget"]) for run in collection.runs})
    used = sorted(run.tokens_used for run in collection.runs)
    spread = f"{used[0]:,}" if used[0] == used[-1] else f"{used[0]:,} to {used[-1]:,}"
    yield f"Budget: {' or '.join(f'{budget:,}' for budget in budgets)} generated tokens a run ({spread} used)."
    updates = sorted({run.updates_per_rollout for run in collection.runs})
    yield f"Updates a rollout batch: {', '.join(map(str, updates))}."
    seeds = sorted({run.seed for run in collection.runs})
    yield f"Seeds: {', '.join(map(str, seeds))}."
    notes = {str(run.recipe["caption"]) for run in collection.runs if run.recipe.get("caption")}
    yield from sorted(notes)


def _grouped(word: str, values: dict[str, list[str]]) -> str:
    """``Data: x (gsm8k), y (math).``, or ``Data: x.`` where all tasks agree."""
    texts: dict[str, list[str]] = {}
    for task, found in values.items():
        texts.setdefault(" / ".join(found), []).append(task)
    if len(texts) == 1:
        return f"{word}: {next(iter(texts))}."
    return f"{word}: " + "; ".join(f"{text} ({', '.join(tasks)})" for text, tasks in texts.items()) + "."
