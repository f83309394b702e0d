"""``agpo-bench warm-start``: remake the embedded model and print how it meets its gate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from agpo_bench.threads import limit_threads


def run_warm_start(*, out: Path, seed: int, steps: int | None) -> None:
    """Train into ``out``, tell the loss every 500 steps, and print the gate."""
    limit_threads(1)
    from agpo_bench.training.warm_start import warm_start

    losses: list[float] = []

    def progress(step: int, loss: float) -> None:
        losses.append(loss)
        if step % 500 == 0:
            typer.echo(f"step {step}: loss {sum(losses) / len(losses):.3f}", err=True)
            losses.clear()

    card = warm_start(out, seed=seed, steps=steps, progress=progress)
    gate = card["gate"]
    Console().print(_gate_table(gate["measured"]))
    typer.echo("; ".join(gate["missed"]) or "within every bound of the gate")
    typer.echo(f"{out}: {card['num_parameters']} parameters, fingerprint {card['fingerprint']}")


def _gate_table(measured: dict[str, dict[str, Any]]) -> Table:
    """One row a family, percentages except entropy (nats) and tokens."""
    columns = ("greedy", "sampled", "direct", "worked", "mixed_groups", "pass_at_8", "entropy", "tokens")
    table = Table("family", *columns, box=None, pad_edge=False)
    for task, row in measured.items():
        cells = []
        for name in columns:
            value = row[name]
            scale = 1 if name in ("entropy", "tokens") else 100
            cells.append("–" if value is None else f"{scale * value:.{2 if name == 'entropy' else 1}f}")
        table.add_row(task, *cells)
    return table
