"""What a run shows while it works: one bar of tokens used, and the figures of the last step."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

SHOWN = {
    "reward/mean": "reward",
    "ctrl/eps": "ε",
    "ctrl/tau": "τ",
    "ctrl/H": "H",
}
"""Metrics behind the bar and their short names."""


class ProgressBar:
    """Tokens used of the budget. On a terminal a live bar; elsewhere one plain line every tenth of the budget."""

    def __init__(self, label: str, *, budget: int, used: int = 0, console: Console | None = None) -> None:
        self._label = label
        self._budget = budget
        self._console = console or Console(stderr=True)
        self._is_live = self._console.is_terminal
        self._first_used = self._used = used
        self._started = time.perf_counter()
        self._next_line = 0.1 * budget * (1 + used * 10 // budget)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} tokens"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, disable=not self._is_live)
        self._task: TaskID = self._progress.add_task(label, total=budget, completed=used, figures="")

    def start(self) -> None:
        """Begin to draw."""
        self._progress.start()

    def stop(self) -> None:
        """Leave the bar as it is and release the terminal."""
        self._progress.stop()

    def show(self, *, used: int, metrics: Mapping[str, object]) -> None:
        """Show the state after a step."""
        self._used = used
        speed = (used - self._first_used) / max(1e-9, time.perf_counter() - self._started)
        shown = [f"{name} {value:.3f}" for key, name in SHOWN.items() if isinstance(value := metrics.get(key), float)]
        figures = "  ".join([*shown, f"{speed:,.0f} tok/s"])
        self._progress.update(self._task, completed=min(used, self._budget), figures=figures)
        if not self._is_live and used >= self._next_line:
            line = f"{self._label}: {used:,}/{self._budget:,} tokens  {figures}"
            self._console.print(line, highlight=False, soft_wrap=True)
            self._next_line = 0.1 * self._budget * (1 + used * 10 // self._budget)
