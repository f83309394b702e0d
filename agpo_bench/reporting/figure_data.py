"""What a figure shows, as numbers: the same for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agpo_bench.data.benchmarks import load_task
from agpo_bench.reporting.captions import training_sentences
from agpo_bench.reporting.collect import Collection, TrainedRun
from agpo_bench.reporting.run_statistics import metric_names, metric_series, running_mean
from agpo_bench.reporting.spec import CurveSpec, FigureSpec, HeatmapSpec, Panel

GRID_POINTS = 120
"""Runs log at different token counts; they are interpolated linearly to this many common points before averaging."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: mean over seeds and a band of one sample deviation (0 for one seed)."""

    label: str
    x: np.ndarray
    y: np.ndarray
    deviation: np.ndarray
    num_seeds: int


@dataclass(frozen=True, kw_only=True)
class PanelData:
    """One pair of axes."""

    label: str
    x_label: str
    scale: Literal["linear", "log2"] = "linear"
    series: tuple[Series, ...]


@dataclass(frozen=True, kw_only=True)
class Heat:
    """A matrix; positive means better than the baseline."""

    row_labels: tuple[str, ...]
    column_labels: tuple[str, ...]
    values: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure ready to be drawn."""

    name: str
    title: str
    caption: str
    panels: tuple[PanelData, ...] = ()
    heat: Heat | None = None

    @property
    def description(self) -> str:
        """What a reader who does not see the figure is told: the ends of every line, or the extremes."""
        if self.heat is not None:
            finite = self.heat.values[np.isfinite(self.heat.values)]
            return f"Differences from {finite.min():+.1f} to {finite.max():+.1f} points." if finite.size else "Empty."
        return " ".join(
            f"{panel.label}: "
            + "; ".join(f"{one.label} from {one.y[0]:.4g} to {one.y[-1]:.4g}" for one in panel.series)
            + "."
            for panel in self.panels
        )


def metrics_figure(name: str, spec: FigureSpec, collection: Collection) -> Figure | None:
    """Training metrics; None when no run logged any of them."""
    ran = sorted({run.method for run in collection.runs})
    methods = [m for m in spec.methods if m in ran]
    if not spec.only_named:
        methods += [m for m in ran if m not in spec.methods]
    panels = tuple(panel for p in spec.panels if (panel := _metrics_panel(p, methods, collection)).series)
    if not panels:
        return None
    caption = " ".join([spec.caption, *training_sentences([collection]), _bands(panels)]).strip()
    return Figure(name=name, title=spec.title, caption=caption, panels=panels)


def curve_figure(name: str, spec: CurveSpec, collection: Collection) -> Figure | None:
    """Maj@k or pass@k over k; None when no result has two of them."""
    ran = collection.methods
    methods = ["initial", *(m for m in spec.methods if m in ran), *(m for m in ran if m not in spec.methods)]
    panels = []
    for task in spec.tasks:
        series = [one for method in methods if (one := _curve(spec, collection, method, task)) is not None]
        if series:
            label = f"{load_task(task).title} (%)"
            panels.append(PanelData(label=label, x_label="k", scale="log2", series=tuple(series)))
    if not panels:
        return None
    caption = " ".join([spec.caption, *training_sentences([collection]), _bands(panels)]).strip()
    return Figure(name=name, title=spec.title, caption=caption, panels=tuple(panels))


def heatmap_figure(name: str, spec: HeatmapSpec, collection: Collection) -> Figure | None:
    """Solve-rate differences by difficulty; None without the baseline or another method."""
    ran = collection.methods
    methods = [m for m in (spec.methods or ran) if m in ran and m != spec.baseline]
    tasks = sorted({t for _, _, t in collection.evaluated}) if spec.task == "all" else [spec.task]
    rates = {method: _solve_rates(collection, method, tasks) for method in ["initial", spec.baseline, *methods]}
    base = rates[spec.baseline]
    methods = [method for method in methods if rates[method]]
    items = sorted(set(base).intersection(*(rates[method] for method in methods))) if base and methods else []
    if len(items) < spec.bins:
        return None
    # Difficulty is the mean solve rate of all models shown, so that no single one decides the order.
    known = [rate for rate in rates.values() if rate]
    difficulty = {item: float(np.mean([rate[item] for rate in known if item in rate])) for item in items}
    ordered = sorted(items, key=lambda item: (-difficulty[item], item))
    bins = np.array_split(np.arange(len(ordered)), spec.bins)
    values = np.array(
        [[100 * np.mean([rates[m][ordered[i]] - base[ordered[i]] for i in part]) for m in methods] for part in bins]
    )
    labels = tuple(f"{100 * np.mean([difficulty[ordered[i]] for i in part]):.0f} % solved" for part in bins)
    caption = " ".join(
        [
            spec.caption,
            f"{len(items):,} items in {spec.bins} bins of equal size by their mean solve rate over all models shown,",
            f"easiest on top; each cell is the mean solve rate minus that of {collection.title(spec.baseline)},",
            "in points, averaged over seeds. Solve rates are over sampled draws where there are any, else greedy.",
            *training_sentences([collection]),
        ]
    )
    heat = Heat(row_labels=labels, column_labels=tuple(map(collection.title, methods)), values=values)
    return Figure(name=name, title=spec.title, caption=caption.strip(), heat=heat)


def _metrics_panel(panel: Panel, methods: Sequence[str], collection: Collection) -> PanelData:
    series = []
    for method in methods:
        runs = collection.runs_of(method)
        for metric in panel.metrics:
            label = collection.title(method)
            if len(panel.metrics) > 1:
                label = metric.rpartition("_")[2] if len(methods) == 1 else f"{label}, {metric}"
            found = _over_suffix(runs, metric) if panel.is_over_suffix else _over_tokens(runs, metric, panel.window)
            if found is not None:
                x, y, deviation, num_seeds = found
                series.append(Series(label=label, x=x, y=y, deviation=deviation, num_seeds=num_seeds))
    x_label = "right answers in the group (c)" if panel.is_over_suffix else "tokens used"
    return PanelData(label=panel.label, x_label=x_label, series=tuple(series))


_Line = tuple[np.ndarray, np.ndarray, np.ndarray, int]


def _over_tokens(runs: Sequence[TrainedRun], metric: str, window: int) -> _Line | None:
    """Common token grid, mean over seeds and sample deviation."""
    series = [pair for run in runs if (pair := metric_series(run, metric))[0].size]
    if not series:
        return None
    start = max(tokens[0] for tokens, _ in series)
    stop = min(tokens[-1] for tokens, _ in series)
    grid = np.linspace(start, max(start, stop), GRID_POINTS)
    return _stacked(grid, [np.interp(grid, tokens, running_mean(value, window)) for tokens, value in series])


def _over_suffix(runs: Sequence[TrainedRun], pattern: str) -> _Line | None:
    """Mean over steps of every metric ``<stem><number>``, over the numbers that all seeds logged."""
    stem = pattern.removesuffix("*")
    found = []
    for run in runs:
        names = [name for name in metric_names(run) if name.startswith(stem) and name.removeprefix(stem).isdigit()]
        found.append({int(name.removeprefix(stem)): metric_series(run, name)[1].mean() for name in names})
    common = sorted(set(found[0]).intersection(*found)) if found else []
    if len(common) < 2:
        return None
    return _stacked(np.array(common, dtype=np.float64), [np.array([one[c] for c in common]) for one in found])


def _curve(spec: CurveSpec, collection: Collection, method: str, task: str) -> Series | None:
    found = [one for (name, _, t), one in collection.evaluated.items() if (name, t) == (method, task)]
    values = [dict(one.result.maj if spec.measure == "maj" else one.result.pass_at) for one in found if not one.problem]
    common = sorted(set(values[0]).intersection(*values)) if values else []
    if len(common) < 2:
        return None
    x, y, deviation, seeds = _stacked(
        np.array(common, dtype=np.float64), [np.array([100 * one[k] for k in common]) for one in values]
    )
    return Series(label=collection.title(method), x=x, y=y, deviation=deviation, num_seeds=seeds)


def _solve_rates(collection: Collection, method: str, tasks: Sequence[str]) -> dict[tuple[str, int], float]:
    by_item: dict[tuple[str, int], list[float]] = {}
    for (name, _, task), one in collection.evaluated.items():
        if name != method or task not in tasks or one.scores is None or one.problem:
            continue
        for item, rate in zip(one.scores.doc_id_I.tolist(), one.scores.solve_rates().tolist(), strict=True):
            by_item.setdefault((task, item), []).append(rate)
    return {item: float(np.mean(rates)) for item, rates in by_item.items() if not np.isnan(rates).any()}


def _stacked(x: np.ndarray, rows: Sequence[np.ndarray]) -> _Line:
    values = np.stack(rows)
    deviation = values.std(axis=0, ddof=1) if len(rows) > 1 else np.zeros_like(x)
    return x, values.mean(axis=0), deviation, len(rows)


def _bands(panels: Sequence[PanelData]) -> str:
    if any(one.num_seeds > 1 for panel in panels for one in panel.series):
        return "Lines are means over seeds, bands one sample standard deviation (ddof 1)."
    return "One seed a line."
