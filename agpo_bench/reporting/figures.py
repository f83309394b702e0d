"""Figures as PNG and PDF."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from agpo_bench.reporting.figure_data import Figure, Heat, PanelData

# Okabe and Ito's palette: told apart by colour-blind readers and in print.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")


def draw(figure: Figure, out: Path) -> list[Path]:
    """Write ``out`` (without suffix) as PNG and PDF and return the files."""
    mpl.rcParams["pdf.fonttype"] = 42
    canvas = _heat_canvas(figure.heat) if figure.heat is not None else _line_canvas(figure.panels)
    width = int(canvas.get_figwidth() * 15)
    canvas.supxlabel("\n".join(textwrap.wrap(figure.caption, width)), fontsize=7)
    files = [out.with_suffix(".png"), out.with_suffix(".pdf")]
    canvas.savefig(files[0], dpi=160)
    canvas.savefig(files[1], metadata={"CreationDate": None})
    return files


def _line_canvas(panels: tuple[PanelData, ...]) -> Canvas:
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    canvas = Canvas(figsize=(4.6 * columns, 2.9 * rows + 0.9), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False)
    labels = list(dict.fromkeys(one.label for panel in panels for one in panel.series))
    handles: dict[str, Any] = {}
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        for one in panel.series:
            index = labels.index(one.label)
            colour, style = PALETTE[index % len(PALETTE)], _STYLES[index // len(PALETTE) % len(_STYLES)]
            (handles[one.label],) = axis.plot(one.x, one.y, style, color=colour, label=one.label, linewidth=1.6)
            low, high = one.y - one.deviation, one.y + one.deviation
            axis.fill_between(one.x, low, high, color=colour, alpha=0.18, linewidth=0)
        axis.set_ylabel(panel.label)
        axis.set_xlabel(panel.x_label)
        axis.grid(visible=True, alpha=0.3)
        if panel.scale == "log2":
            ticks = sorted({float(x) for one in panel.series for x in one.x})
            axis.set_xscale("log", base=2)
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        else:
            axis.xaxis.set_major_formatter(mpl.ticker.EngFormatter(sep=""))
    canvas.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside upper center",
        ncols=min(4, max(1, len(labels))),
        frameon=False,
    )
    return canvas


def _heat_canvas(heat: Heat) -> Canvas:
    canvas = Canvas(figsize=(max(4.6, 1.6 + 0.9 * len(heat.column_labels)), 5.2), layout="constrained")
    axis = canvas.subplots()
    limit = float(np.nanmax(np.abs(heat.values))) or 1.0
    image = axis.imshow(heat.values, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    axis.set_xticks(range(len(heat.column_labels)), heat.column_labels, rotation=30, ha="right")
    step = max(1, len(heat.row_labels) // 10)
    axis.set_yticks(range(0, len(heat.row_labels), step), heat.row_labels[::step])
    canvas.colorbar(image, label="difference of solve rates (points)")
    return canvas
