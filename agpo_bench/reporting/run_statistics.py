"""Figures of training runs that a table may print, each with its definition.

All are read from ``metrics.jsonl`` (one line an optimiser step group, see ``StepRecord``) and ``timing.jsonl``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agpo_bench import paths
from agpo_bench.files import read_lines
from agpo_bench.reporting.collect import TrainedRun

VARIANCE_WINDOW_STEPS = 1000
"""Sect. 4.5: the gradient norm's variance is taken over windows of this many steps; a shorter run is one window."""


@dataclass(frozen=True)
class RunStatistic:
    """A value and the file it was read from."""

    value: float
    file: Path


def _lines(file: Path) -> list[dict[str, Any]]:
    return list(read_lines(file)) if file.is_file() else []


def metric_series(run: TrainedRun, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Tokens used and the metric's value at every step that has it, both float64."""
    rows = [row for row in _lines(run.directory / paths.METRICS_FILE) if row.get(metric) is not None]
    tokens = np.array([row["tokens/used"] for row in rows], dtype=np.float64)
    return tokens, np.array([row[metric] for row in rows], dtype=np.float64)


def _mean_of(metric: str) -> Callable[[TrainedRun], float | None]:
    def mean(run: TrainedRun) -> float | None:
        _, values = metric_series(run, metric)
        return float(values.mean()) if values.size else None

    return mean


def _percent_of(metric: str) -> Callable[[TrainedRun], float | None]:
    def percent(run: TrainedRun) -> float | None:
        _, values = metric_series(run, metric)
        return 100 * float(values.mean()) if values.size else None

    return percent


def gradient_norm_variance(run: TrainedRun) -> float | None:
    """Population variance of the L2 gradient norm before clipping, averaged over windows of 1,000 steps."""
    _, values = metric_series(run, "grad/norm")
    if not values.size:
        return None
    windows = np.array_split(values, max(1, values.size // VARIANCE_WINDOW_STEPS))
    return float(np.mean([window.var() for window in windows]))


def percent_steps_at_bound(run: TrainedRun) -> float | None:
    """Share of steps whose clip radius sat on its lower or upper bound, in percent."""
    _, low = metric_series(run, "ctrl/eps_at_min")
    _, high = metric_series(run, "ctrl/eps_at_max")
    return 100 * float((low + high).mean()) if low.size else None


def tokens_used(run: TrainedRun) -> float | None:
    """All sampled tokens the ledger counted."""
    return float(run.tokens_used)


def tokens_per_second(run: TrainedRun) -> float | None:
    """Sampled tokens of all phases, probes included, over wall-clock seconds of the steps."""
    timing = _lines(run.directory / "timing.jsonl")
    seconds = sum(row["time/step"] for row in timing)
    return run.tokens_used / seconds if seconds else None


def training_tokens_per_second(run: TrainedRun) -> float | None:
    """Sampled tokens that entered a gradient over wall-clock seconds of the steps."""
    timing = _lines(run.directory / "timing.jsonl")
    seconds = sum(row["time/step"] for row in timing)
    trained = run.ledger.get("phases", {}).get("train")
    return float(trained) / seconds if seconds and trained else None


STATISTICS: dict[str, tuple[Callable[[TrainedRun], float | None], str]] = {
    "tokens_used": (tokens_used, paths.LEDGER_FILE),
    "tokens_per_second": (tokens_per_second, "timing.jsonl"),
    "training_tokens_per_second": (training_tokens_per_second, "timing.jsonl"),
    "reference_kl_per_token": (_mean_of("kl/ref_k3"), paths.METRICS_FILE),
    "reference_kl_per_sequence": (_mean_of("kl/ref_per_seq"), paths.METRICS_FILE),
    "percent_clipped_tokens": (_percent_of("clip/active_tokens"), paths.METRICS_FILE),
    "percent_steps_with_clipping": (_percent_of("clip/active_steps"), paths.METRICS_FILE),
    "percent_steps_at_bound": (percent_steps_at_bound, paths.METRICS_FILE),
    "gradient_norm_variance": (gradient_norm_variance, paths.METRICS_FILE),
}


def run_statistic(name: str, run: TrainedRun) -> RunStatistic | None:
    """One statistic of one run, or None where the run has nothing to compute it from."""
    if name not in STATISTICS:
        raise ValueError(f"no run statistic {name!r}; there are {', '.join(STATISTICS)}")
    compute, file = STATISTICS[name]
    value = compute(run)
    return None if value is None else RunStatistic(value, run.directory / file)
