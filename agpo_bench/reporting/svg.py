"""Figures as inline SVG for the page: text stays text, colours are CSS variables, hover values are data attributes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape

import numpy as np

from agpo_bench.reporting.figure_data import Figure, Heat, PanelData, Series

WIDTH, HEIGHT = 460, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 26, 40
NUM_COLOURS = 7
_Scale = Callable[[float], np.ndarray]
_DASHES = ("", "6 3", "2 3", "8 3 2 3")


def legend(figure: Figure) -> list[tuple[int, str, str]]:
    """(colour number, dash pattern, label) of every line, in order."""
    labels = dict.fromkeys(one.label for panel in figure.panels for one in panel.series)
    return [(i % NUM_COLOURS, _DASHES[i // NUM_COLOURS % len(_DASHES)], label) for i, label in enumerate(labels)]


def draw_svg(figure: Figure) -> list[str]:
    """One ``<svg>`` a panel, or one for a heat map."""
    if figure.heat is not None:
        return [_heat_svg(figure, figure.heat)]
    colours = {label: (number, dash) for number, dash, label in legend(figure)}
    return [_panel_svg(panel, colours) for panel in figure.panels]


def engineering(value: float) -> str:
    """A short number: 150k, 2.5M, 0.04; never a minus zero."""
    if abs(value) < 1e-12:
        return "0"
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.3g}"


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About ``count`` round numbers inside the range."""
    if high <= low:
        return [low]
    raw = (high - low) / count
    unit = 10.0 ** np.floor(np.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw)
    first = np.ceil(low / step - 1e-9) * step
    return [float(round(v, 12)) for v in np.arange(first, high + step * 1e-6, step)]


def _panel_svg(panel: PanelData, colours: dict[str, tuple[int, str]]) -> str:
    log = panel.scale == "log2"
    xs = np.concatenate([one.x for one in panel.series])
    lows = np.concatenate([one.y - one.deviation for one in panel.series])
    highs = np.concatenate([one.y + one.deviation for one in panel.series])
    x_low, x_high = _padded(np.log2(xs) if log else xs, 0.0)
    y_low, y_high = _padded(np.concatenate([lows, highs]), 0.05)

    def px(x: np.ndarray | float) -> np.ndarray:
        value = np.log2(x) if log else np.asarray(x)
        scaled: np.ndarray = _LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)
        return scaled

    def py(y: np.ndarray | float) -> np.ndarray:
        scaled: np.ndarray = _TOP + (y_high - np.asarray(y)) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)
        return scaled

    x_ticks = sorted(set(xs.tolist())) if log or xs.size < 40 else ticks(x_low, x_high)
    parts = [_grid(px, py, x_ticks, ticks(y_low, y_high))]
    for one in panel.series:
        colour, dash = colours[one.label]
        if one.num_seeds > 1:
            top, bottom = py(one.y + one.deviation), py(one.y - one.deviation)
            around = _points(np.r_[px(one.x), px(one.x)[::-1]], np.r_[top, bottom[::-1]])
            parts.append(f'<polygon class="band c{colour}" points="{around}"/>')
        line = _points(px(one.x), py(one.y))
        parts.append(f'<polyline class="line c{colour}" stroke-dasharray="{dash}" points="{line}"/>')
    label = escape(panel.label)
    parts.append(f'<text class="axis" x="{_LEFT}" y="15">{label}</text>')
    x_label = escape(panel.x_label)
    parts.append(f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{x_label}</text>')
    parts.append(f'<line class="cursor" x1="0" x2="0" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}" visibility="hidden"/>')
    told = "; ".join(f"{one.label} from {one.y[0]:.4g} to {one.y[-1]:.4g}" for one in panel.series)
    values = [
        {
            "label": one.label,
            "colour": colours[one.label][0],
            "px": np.round(px(one.x), 1).tolist(),
            "x": [engineering(v) for v in one.x.tolist()],
            "y": _hover_values(one),
        }
        for one in panel.series
    ]
    data = escape(json.dumps({"x": panel.x_label, "series": values}, separators=(",", ":"), allow_nan=False))
    return (
        f'<svg class="panel" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" aria-label="{label}: '
        f'{escape(told)}" data-hover="{data}"><title>{label}</title><desc>{escape(told)}</desc>'
        + "".join(parts)
        + "</svg>"
    )


def _hover_values(one: Series) -> list[str]:
    deviations = one.deviation if one.num_seeds > 1 else [None] * one.y.size
    return [
        f"{y:.4g}" + ("" if deviation is None else f" ± {deviation:.2g}")
        for y, deviation in zip(one.y, deviations, strict=True)
    ]


def _grid(px: _Scale, py: _Scale, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> str:
    parts = []
    for y in y_ticks:
        at = float(py(y))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">{engineering(y)}</text>')
    for x in x_ticks:
        at = float(px(x))
        bottom = HEIGHT - _BOTTOM
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 14}" text-anchor="middle">{engineering(x)}</text>')
    return "".join(parts)


def _heat_svg(figure: Figure, heat: Heat) -> str:
    rows, columns = heat.values.shape
    left, top, cell_height = 96, 26, 15
    cell_width = max(44, min(90, 560 // columns))
    width, height = max(380, left + cell_width * columns + 10), top + cell_height * rows + 96
    limit = float(np.nanmax(np.abs(heat.values))) or 1.0
    parts = [
        f'<text class="axis" x="{left}" y="14">blue: better, red: worse; full colour: {limit:.1f} points</text>',
    ]
    for r in range(rows):
        y = top + r * cell_height
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + 11}" text-anchor="end">{escape(heat.row_labels[r])}</text>'
        )
        for c in range(columns):
            value = float(heat.values[r, c])
            name = "up" if value >= 0 else "down"
            told = escape(f"{heat.column_labels[c]}, {heat.row_labels[r]}: {value:+.1f} points")
            parts.append(
                f'<rect class="{name}" x="{left + c * cell_width}" y="{y}" width="{cell_width - 1}" '
                f'height="{cell_height - 1}" fill-opacity="{abs(value) / limit:.3f}" data-tip="{told}"><title>{told}'
                "</title></rect>"
            )
    for c, label in enumerate(heat.column_labels):
        x, y = left + (c + 0.5) * cell_width, top + rows * cell_height + 12
        parts.append(
            f'<text class="tick" x="{x:.0f}" y="{y}" text-anchor="end" transform="rotate(-35 {x:.0f} {y})">'
            f"{escape(label)}</text>"
        )
    told = escape(figure.description)
    return (
        f'<svg class="heat" viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img" '
        f'aria-label="{escape(figure.title)}. {told}"><title>{escape(figure.title)}</title><desc>{told}</desc>'
        + "".join(parts)
        + "</svg>"
    )


def _padded(values: np.ndarray, share: float) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a constant, up to the noise of averaging it
        return low - (abs(low) * 0.1 or 0.5), high + (abs(high) * 0.1 or 0.5)
    return low - share * (high - low), high + share * (high - low)


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(a) and np.isfinite(b))
