"""Figures of training metrics over tokens used."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from agpo_bench.reporting.collect import Collection, TrainedRun
from agpo_bench.reporting.run_statistics import metric_series
from agpo_bench.reporting.spec import FigureSpec

GRID_POINTS = 200
"""Runs log at different token counts; they are interpolated linearly to this many common points before averaging."""

# Okabe and Ito's palette: told apart by colour-blind readers and in print.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")


def draw(spec: FigureSpec, collection: Collection, *, caption: str, out: Path) -> list[Path]:
    """Write the figure as PNG and PDF (``out`` without suffix) and return the files; none if no run has the metrics."""
    mpl.rcParams["pdf.fonttype"] = 42
    mpl.rcParams["svg.hashsalt"] = "agpo-bench"
    by_method = {
        method: [run for run in collection.runs if run.method == method] for method in _ordered(spec, collection)
    }
    panels = [
        p for p in spec.panels if any(metric_series(r, p.metric)[0].size for rs in by_method.values() for r in rs)
    ]
    if not panels:
        return []
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.9 * rows + 0.9), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for index, (method, runs) in enumerate(by_method.items()):
            band = _band(runs, panel.metric)
            if band is None:
                continue
            tokens, mean, deviation = band
            colour = _COLOURS[index % len(_COLOURS)]
            style = _STYLES[index // len(_COLOURS) % len(_STYLES)]
            axis.plot(tokens, mean, style, color=colour, label=collection.title(method), linewidth=1.6)
            axis.fill_between(tokens, mean - deviation, mean + deviation, color=colour, alpha=0.18, linewidth=0)
        axis.set_ylabel(panel.label)
        axis.set_xlabel("tokens used")
        axis.grid(visible=True, alpha=0.3)
        axis.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(4, max(1, len(labels))), frameon=False)
    figure.supxlabel(_wrapped(caption, 110 if columns > 1 else 60), fontsize=7)
    files = [out.with_suffix(".png"), out.with_suffix(".pdf")]
    figure.savefig(files[0], dpi=160)
    figure.savefig(files[1], metadata={"CreationDate": None})
    return files


def _ordered(spec: FigureSpec, collection: Collection) -> list[str]:
    ran = sorted({run.method for run in collection.runs})
    return [m for m in spec.methods if m in ran] + [m for m in ran if m not in spec.methods]


def _band(runs: list[TrainedRun], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Common token grid, mean over seeds and sample deviation (0 for one seed)."""
    series = [pair for run in runs if (pair := metric_series(run, metric))[0].size]
    if not series:
        return None
    start = max(tokens[0] for tokens, _ in series)
    stop = min(tokens[-1] for tokens, _ in series)
    grid = np.linspace(start, max(start, stop), GRID_POINTS)
    values = np.stack([np.interp(grid, tokens, value) for tokens, value in series])
    deviation = values.std(axis=0, ddof=1) if len(series) > 1 else np.zeros(GRID_POINTS)
    return grid, values.mean(axis=0), deviation


def _wrapped(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))
