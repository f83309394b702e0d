"""``agpo-bench data``: what benchmarks there are, their files, their items, and what a training set holds of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from agpo_bench.threads import limit_threads

if TYPE_CHECKING:
    from agpo_bench.data.contamination.batch import Text
    from agpo_bench.data.contamination.check import Finding, Report
    from agpo_bench.data.contamination.survey import Survey
    from agpo_bench.data.sources import DataSource


def list_data(data: str | None) -> None:
    """One line a split: items where they can be counted here, else where they come from."""
    from agpo_bench.data.benchmarks import load_task, open_source, task_names

    source = open_source(data) if data is not None else None
    table = _table("task", "split", "items" if source else "on this machine", "licence", "hub data set")
    for name in task_names():
        task = load_task(name)
        where = f"{task.hub.dataset}@{task.hub.revision}"
        if source is None or source.kind == "hub":
            held = "in the hub cache" if _is_cached(task.hub.dataset) else "no"
            for split in task.hub.splits:
                table.add_row(name, split, held, task.licence, where)
            continue
        splits = source.splits(task)
        for split in splits:
            num = f"{len(source.stored(task, split)):,}"
            table.add_row(name, split, num, task.licence, where if source.kind == "folder" else "-")
        if not splits:
            table.add_row(name, "none", "-", task.licence, where)
    if source is not None:
        typer.echo(f"{source.description}:")
    _show(table)


def _is_cached(dataset: str) -> bool:
    from huggingface_hub.constants import HF_HUB_CACHE

    return (Path(HF_HUB_CACHE) / f"datasets--{dataset.replace('/', '--')}").is_dir()


def fetch_data(*, tasks: str, out: Path, mirror: Path | None) -> None:
    """Copy the benchmarks from the hub into a folder; says what came and what did not."""
    from agpo_bench.data.benchmarks import select_tasks
    from agpo_bench.data.fetch import Fetched, fetch
    from agpo_bench.data.sources import HubSource

    def tell(one: Fetched) -> None:
        state = one.error or f"{one.num_items:,} items{', there already' if one.was_there else ''}"
        typer.echo(f"{one.file}: {state}")

    results = fetch(select_tasks(tasks), out, source=HubSource(mirror=mirror), on_file=tell)
    failed = [one for one in results if one.error]
    typer.echo(f"{len(results) - len(failed)} of {len(results)} files are in {out}; use them with --data {out}")
    if failed:
        raise typer.Exit(1)


def show_item(*, item_id: str, data: str, response: str | None) -> None:
    """An item as the model sees it, its gold, and a verdict on a response: the gold's own where none is given."""
    from agpo_bench.data.benchmarks import SPLITS, grader_for, load_task, open_source
    from agpo_bench.data.sources import LoadedSplit

    task_name, _, rest = item_id.partition("/")
    split, _, row = rest.partition("/")
    if split not in SPLITS or not row.isdigit():
        raise ValueError(f"item {item_id!r} is not of the form task/split/row, as in gsm8k/test/0")
    task, source = load_task(task_name), open_source(data)
    items = source.stored(task, split)
    item = next((item for item in items if item.prompt_id == f"{task.name}/{split}/{row}"), None)
    if item is None:
        raise ValueError(f"{task.name}/{split} has no row {row} that can be read; it has {len(items)} items")
    reference = item.reference
    grader = f"{task.grader.kind} {task.grader.options or ''}".strip()
    prompt = LoadedSplit(task=task, split=split, source=source, items=(item,)).render(item)
    lines = [f"{item.prompt_id} ({task.title}, {source.description})", "", "prompt:", prompt, ""]
    if reference.tests:
        lines.append(f"tests: {len(reference.tests)}")
    else:
        lines.append(f"gold: {reference.gold}")
    lines.append(f"grader: {grader}")
    if response is None and not reference.tests:
        response = f"\\boxed{{{reference.gold}}}"
    if response is not None:
        verdict = grader_for(task.name).grade(response, reference)
        lines += ["", f"response: {response}", f"score {verdict.score:g}, answer {verdict.answer!r}: {verdict.reason}"]
        lines += [f"  {name}: {value:g}" for name, value in verdict.alternatives.items()]
    typer.echo("\n".join(lines))


def check_data(*, train: str, evaluation: str, data: str, report: Path | None, examples: int) -> None:
    """Compare a training set with test items and say what was found where."""
    limit_threads(1)
    from agpo_bench.data.benchmarks import open_source, select_tasks
    from agpo_bench.data.contamination.check import check_texts
    from agpo_bench.data.contamination.gather import evaluation_texts
    from agpo_bench.data.contamination.survey import survey
    from agpo_bench.files import write_whole

    source = open_source(data)
    tests, missing = evaluation_texts(source, select_tasks(evaluation))
    if not tests:
        raise ValueError(f"no test items to compare with: {next(iter(missing.values()))}")
    training = _training(train)
    result = check_texts(training, tests, training_name=train, evaluation_name=f"test items of {source.description}")
    _print_report(result, examples=examples)
    for task, reason in missing.items():
        typer.echo(f"not compared: {task} ({reason})")
    _print_survey(survey(source, tests))
    if report is not None:
        write_whole(report, result.model_dump_json(indent=1) + "\n")
        typer.echo(f"\nevery finding: {report}")


def _training(train: str) -> list[Text]:
    """A file or folder of training data, or the train splits of a source."""
    from agpo_bench.data.benchmarks import load_task, open_source, task_names
    from agpo_bench.data.contamination.gather import file_texts, split_texts

    if train != "embedded" and not train.startswith("hub"):
        return file_texts(Path(train).expanduser())
    source: DataSource = open_source(train)
    names = [name for name in task_names() if "train" in source.splits(load_task(name))]
    return [text for name in names for text in split_texts(source, name, "train")]


def _print_report(result: Report, *, examples: int) -> None:
    from agpo_bench.data.contamination.check import STAGES

    typer.echo(f"{result.training}: {result.summary}.")
    share = 100 * result.num_removed / result.num_training
    typer.echo(
        f"To be removed: {result.num_removed:,} ({share:.2f} %). {result.num_exact_only:,} test items are too short or "
        "too common for anything but exact comparison.\n"
    )
    table = _table("stage", "training texts", "test items", "pairs")
    for stage in STAGES:
        count = result.counts[stage]
        table.add_row(stage, f"{count.training_texts:,}", f"{count.evaluation_items:,}", f"{count.pairs:,}")
    _show(table)
    table = _table("test items of", *STAGES)
    for task, stages in result.by_task.items():
        table.add_row(task, *(f"{stages[stage]:,}" for stage in STAGES))
    typer.echo("")
    _show(table)
    for stage in STAGES:
        found = [one for one in result.findings if one.stage == stage][:examples]
        if found:
            typer.echo(f"\n{stage}:")
        for one in found:
            typer.echo(f"  {one.train_id} holds {one.eval_id} (score {one.score:.2f})")
            for span in one.spans[:2]:
                typer.echo(f"    {span.length} tokens from {span.train_start}: {' '.join(span.words.split())}")


def _print_survey(found: Survey) -> None:
    typer.echo("\nThe benchmarks' own splits against their test items:")
    table = _table("split", "items", "verbatim", "respelt", "near", "variant")
    for name, report in found.splits.items():
        counts = [f"{count.training_texts:,}" for count in report.counts.values()]
        table.add_row(name, f"{report.num_training:,}", *counts)
    _show(table)
    typer.echo("\nTest items that repeat an earlier one:")
    table = _table("task", "verbatim", "respelt", "rows")
    for task, repeats in found.repeated.items():
        kinds = [sum(one.stage == stage for one in repeats) for stage in ("verbatim", "respelt")]
        table.add_row(task, *map(str, kinds), _rows([one.train_id for one in repeats]))
    _show(table)
    typer.echo("\nTest items that a few-shot prompt shows:")
    for name, leaks in found.few_shot.items():
        typer.echo(f"  {name}: {_rows(_leaked(leaks)) or 'none'}")


def _leaked(findings: Sequence[Finding]) -> list[str]:
    return sorted({one.eval_id for one in findings}, key=lambda text_id: int(text_id.rsplit("/", 1)[1]))


def _rows(ids: Sequence[str]) -> str:
    rows = [text_id.rsplit("/", 1)[1] for text_id in ids]
    return ", ".join(rows[:20]) + (f" and {len(rows) - 20} more" if len(rows) > 20 else "")


def _table(*headings: str) -> Table:
    return Table(*headings, box=None, pad_edge=False)


def _show(table: Table) -> None:
    """On a terminal fitted to its width; in a pipe as wide as it is."""
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=400, highlight=False)).print(table)
