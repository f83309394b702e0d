"""``agpo-bench methods`` and ``agpo-bench tasks``: what exists, in one line each or in full."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from agpo_bench.threads import limit_threads


def list_methods(*, name: str | None, diff: tuple[str, str] | None) -> None:
    """The method x part table, one whole recipe with its equations, or what differs between two."""
    limit_threads(1)
    from agpo_bench.methods import describe
    from agpo_bench.methods.recipe import load_method

    if diff is not None:
        if name is not None:
            raise ValueError(f"--diff compares two methods; leave out {name!r}")
        first, second = load_method(diff[0]), load_method(diff[1])
        table = _table("what", first.name, second.name)
        differences = describe.diff(first, second)
        for one in differences:
            table.add_row(one.where, one.first, one.second)
        _show(table) if differences else typer.echo(f"{first.name} and {second.name} have the same parts")
    elif name is not None:
        typer.echo(describe.describe(load_method(name)))
    else:
        rows = describe.method_table()
        table = _table("method", "title", *rows[0].parts)
        for row in rows:
            table.add_row(row.name, row.title, *row.parts.values())
        _show(table)


def write_page(file: Path, *, runs: Path | None) -> None:
    """The page of all methods, with what the runs of a folder did where one is given."""
    limit_threads(1)
    from agpo_bench.files import write_whole
    from agpo_bench.methods.describe import methods_page

    behaviour = {}
    if runs is not None:
        from agpo_bench.reporting.behaviour import measured_behaviour

        behaviour = measured_behaviour(runs)
    write_whole(file, methods_page(behaviour))
    typer.echo(f"{file}: {len(behaviour)} methods with measured behaviour" if runs else str(file))


def list_tasks() -> None:
    """One line a benchmark."""
    from agpo_bench.data.benchmarks import load_task, task_names

    table = _table("task", "title", "language", "grader", "train split", "licence")
    for name in task_names():
        task = load_task(name)
        has_train = "yes" if "train" in {*task.hub.splits, *task.files} else "no"
        table.add_row(name, task.title, task.language, task.grader.kind, has_train, task.licence)
    _show(table)


def _table(*headings: str) -> Table:
    return Table(*headings, box=None, pad_edge=False)


def _show(table: Table) -> None:
    """On a terminal fitted to its width; in a pipe as wide as it is."""
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=400, highlight=False)).print(table)
