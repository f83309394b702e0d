"""Figures of training runs that a table may print, each with its definition.

All are read from ``metrics.jsonl`` (one line a rollout batch, see ``StepRecord``) and ``timing.jsonl``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agpo_bench import paths
from agpo_bench.files import read_lines
from agpo_bench.reporting.collect import TrainedRun
from agpo_bench.reporting.spec import RunColumn

VARIANCE_WINDOW_STEPS = 1000
"""Sect. 4.5: the gradient norm's variance is taken over windows of this many steps; a shorter run is one window."""

TARGET_WINDOW_STEPS = 5
"""A target counts as reached when the mean of so many steps in a row reaches it: one lucky batch does not."""


@dataclass(frozen=True)
class RunStatistic:
    """A value and the file it was read from."""

    value: float
    file: Path


@lru_cache(maxsize=256)
def _read(file: Path, size: int, modified: int) -> tuple[dict[str, Any], ...]:
    del size, modified  # part of the key: a file that grew is read again
    return tuple(read_lines(file))


def _lines(file: Path) -> tuple[dict[str, Any], ...]:
    if not file.is_file():
        return ()
    found = file.stat()
    return _read(file, found.st_size, found.st_mtime_ns)


def metric_names(run: TrainedRun) -> set[str]:
    """Every metric that some step of the run logged."""
    return {name for row in _lines(run.directory / paths.METRICS_FILE) for name in row}


def metric_series(run: TrainedRun, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens used and the metric's value at every step that has it, both float64."""
    rows = [row for row in _lines(run.directory / paths.METRICS_FILE) if row.get(metric) is not None]
    tokens = np.array([row["tokens/used"] for row in rows], dtype=np.float64)
    return tokens, np.array([row[metric] for row in rows], dtype=np.float64)


def _mean_of(metric: str, factor: float = 1.0) -> Callable[[TrainedRun], float | None]:
    def mean(run: TrainedRun) -> float | None:
        _, values = metric_series(run, metric)
        return factor * float(values.mean()) if values.size else None

    return mean


def gradient_norm_variance(run: TrainedRun) -> float | None:
    """Population variance of the L2 gradient norm before clipping, averaged over windows of 1,000 steps.

    The norm of a step is the mean over its updates.
    """
    _, values = metric_series(run, "grad/norm")
    if not values.size:
        return None
    windows = np.array_split(values, max(1, values.size // VARIANCE_WINDOW_STEPS))
    return float(np.mean([window.var() for window in windows]))


def percent_steps_at_bound(run: TrainedRun) -> float | None:
    """Share of steps whose clip radius sat on its lower or upper bound, in percent."""
    _, low = metric_series(run, "ctrl/eps_at_min")
    _, high = metric_series(run, "ctrl/eps_at_max")
    return 100 * float((low + high).mean()) if low.size and low.size == high.size else None


def tokens_used(run: TrainedRun) -> float | None:
    """All sampled tokens the ledger counted."""
    return float(run.tokens_used)


def _step_seconds(run: TrainedRun) -> float:
    """Wall-clock seconds of all steps; a step taken again after a kill counts once, by its newest line."""
    timing = {row["step"]: row["time/step"] for row in _lines(run.directory / paths.TIMING_FILE)}
    return float(sum(timing.values()))


def tokens_per_second(run: TrainedRun) -> float | None:
    """Sampled tokens of all phases, probes included, over wall-clock seconds of the steps."""
    seconds = _step_seconds(run)
    return run.tokens_used / seconds if seconds else None


def training_tokens_per_second(run: TrainedRun) -> float | None:
    """Sampled tokens that entered a gradient over wall-clock seconds of the steps."""
    seconds = _step_seconds(run)
    trained = run.ledger.get("phases", {}).get("train")
    return float(trained) / seconds if seconds and trained else None


def hours(run: TrainedRun) -> float | None:
    """Wall-clock hours of all steps."""
    return _step_seconds(run) / 3600 or None


STATISTICS: dict[str, tuple[Callable[[TrainedRun], float | None], str]] = {
    "tokens_used": (tokens_used, paths.LEDGER_FILE),
    "tokens_per_second": (tokens_per_second, paths.TIMING_FILE),
    "training_tokens_per_second": (training_tokens_per_second, paths.TIMING_FILE),
    "hours": (hours, paths.TIMING_FILE),
    "reference_kl_per_token": (_mean_of("kl/ref_k3"), paths.METRICS_FILE),
    "reference_kl_per_sequence": (_mean_of("kl/ref_per_seq"), paths.METRICS_FILE),
    "percent_clipped_tokens": (_mean_of("clip/active_tokens", 100), paths.METRICS_FILE),
    "percent_updates_with_clipping": (_mean_of("clip/active_steps", 100), paths.METRICS_FILE),
    "percent_steps_at_bound": (percent_steps_at_bound, paths.METRICS_FILE),
    "gradient_norm_variance": (gradient_norm_variance, paths.METRICS_FILE),
    "entropy": (_mean_of("ctrl/H"), paths.METRICS_FILE),
    "response_length": (_mean_of("len/mean"), paths.METRICS_FILE),
}
_HOURS_TO_TARGET = "hours_to_target"


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the ``window`` steps around each, fewer at the ends."""
    if window <= 1 or values.size < 2:
        return values
    sums = np.r_[0.0, np.cumsum(values)]
    index = np.arange(values.size)
    low, high = np.maximum(index - window // 2, 0), np.minimum(index + (window + 1) // 2, values.size)
    smooth: np.ndarray = (sums[high] - sums[low]) / (high - low)
    return smooth


def trailing_mean(values: np.ndarray, window: int = TARGET_WINDOW_STEPS) -> np.ndarray:
    """Mean of the newest ``window`` steps; nothing before there are so many."""
    if values.size < window:
        return values[:0]
    sums = np.r_[0.0, np.cumsum(values)]
    mean: np.ndarray = (sums[window:] - sums[:-window]) / window
    return mean


def common_target(runs: Sequence[TrainedRun], metric: str) -> float | None:
    """The highest level that every run's trailing mean reaches."""
    peaks = [trailing_mean(metric_series(run, metric)[1]) for run in runs]
    return min(float(peak.max()) for peak in peaks) if peaks and all(peak.size for peak in peaks) else None


def hours_to(run: TrainedRun, *, metric: str, target: float) -> float | None:
    """Wall-clock hours until the trailing mean of ``metric`` first reaches ``target``; None if it never does."""
    rows = [row for row in _lines(run.directory / paths.METRICS_FILE) if row.get(metric) is not None]
    reached = trailing_mean(np.array([row[metric] for row in rows], dtype=np.float64)) >= target
    if not reached.any():
        return None
    last_step = rows[int(reached.argmax()) + TARGET_WINDOW_STEPS - 1]["step"]
    timing = {row["step"]: row["time/step"] for row in _lines(run.directory / paths.TIMING_FILE)}
    return float(sum(seconds for step, seconds in timing.items() if step <= last_step)) / 3600


def run_statistic(column: RunColumn, run: TrainedRun, *, target: float | None = None) -> RunStatistic | None:
    """One statistic of one run, or None where the run has nothing to compute it from."""
    if column.statistic == _HOURS_TO_TARGET:
        if column.metric is None or column.target is None:
            raise ValueError(f"{_HOURS_TO_TARGET} needs a metric and a target")
        value = None if target is None else hours_to(run, metric=column.metric, target=target)
        return None if value is None else RunStatistic(value, run.directory / paths.TIMING_FILE)
    if column.statistic not in STATISTICS:
        raise ValueError(
            f"no run statistic {column.statistic!r}; there are {', '.join([*STATISTICS, _HOURS_TO_TARGET])}"
        )
    compute, file = STATISTICS[column.statistic]
    value = compute(run)
    return None if value is None else RunStatistic(value, run.directory / file)
