"""Intervals and tests, in float64 and with seeds passed in.

Two questions are kept apart. *Across seeds*: would another training run come out the same (Student t, Welch)?
*Across items*: would another test set (clustered intervals, McNemar, paired bootstrap)?
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy import stats


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class Comparison(NamedTuple):
    """A difference and how surprising it would be if there were none."""

    difference: float
    """First minus second."""
    statistic: float
    degrees_of_freedom: float
    p_value: float
    """Two-sided."""


def student_interval(values: Sequence[float], *, confidence: float = 0.95) -> Interval | None:
    """Mean ± t(n-1) s / sqrt(n), ddof 1; None for fewer than two values. For n = 3 the factor on s is 2.48414."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2:
        return None
    half = float(stats.t.ppf((1 + confidence) / 2, sample.size - 1) * sample.std(ddof=1) / np.sqrt(sample.size))
    return Interval(float(sample.mean()) - half, float(sample.mean()) + half)


def clustered_interval(scores: Sequence[float], questions: Sequence[str], *, confidence: float = 0.95) -> Interval:
    """Normal interval of the mean score whose error counts questions, not draws, as independent.

    se^2 = sum_q (sum_{i in q} (x_i - mean))^2 / n^2, times Q / (Q - 1) for Q questions.
    """
    sample = np.asarray(scores, dtype=np.float64)
    labels, index = np.unique(np.asarray(questions), return_inverse=True)
    if labels.size < 2:
        raise ValueError(f"{labels.size} question gives no spread between questions; a clustered interval needs 2")
    sums = np.bincount(index, weights=sample - sample.mean(), minlength=labels.size)
    error = float(np.sqrt((sums**2).sum() * labels.size / (labels.size - 1)) / sample.size)
    half = float(stats.norm.ppf((1 + confidence) / 2)) * error
    return Interval(float(sample.mean()) - half, float(sample.mean()) + half)


def welch(first: Sequence[float], second: Sequence[float]) -> Comparison | None:
    """Two-sided Welch test of the means over seeds; None where a side has fewer than two values or nothing varies."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.size < 2 or b.size < 2 or a.var(ddof=1) + b.var(ddof=1) == 0:
        return None
    return welch_from_summary(
        mean=(float(a.mean()), float(b.mean())),
        std=(float(a.std(ddof=1)), float(b.std(ddof=1))),
        size=(a.size, b.size),
    )


def welch_from_summary(*, mean: tuple[float, float], std: tuple[float, float], size: tuple[int, int]) -> Comparison:
    """Welch's test from published means, sample deviations (ddof 1) and numbers of seeds."""
    parts = [s**2 / n for s, n in zip(std, size, strict=True)]
    if sum(parts) == 0:
        raise ValueError("Welch's test needs a deviation on at least one side; both are 0")
    shares = [part / sum(parts) for part in parts]  # dividing first keeps tiny variances from underflowing
    freedom = 1 / sum(share**2 / (n - 1) for share, n in zip(shares, size, strict=True))
    statistic = (mean[0] - mean[1]) / float(np.sqrt(sum(parts)))
    return Comparison(mean[0] - mean[1], statistic, freedom, float(2 * stats.t.sf(abs(statistic), freedom)))


def mcnemar(first: Sequence[float], second: Sequence[float]) -> float:
    """Exact two-sided McNemar p-value for paired 0/1 scores: a sign test on the items where the two disagree."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"a paired test needs the same items: {a.size} scores against {b.size}")
    if not set(np.unique(np.concatenate([a, b]))) <= {0.0, 1.0}:
        raise ValueError("McNemar's test is for scores of 0 and 1; use paired_bootstrap for partial credit")
    gained, lost = int((a > b).sum()), int((a < b).sum())
    return float(stats.binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0


def paired_bootstrap(
    strata: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    generator: np.random.Generator,
    resamples: int = 10_000,
) -> Comparison:
    """Two-sided p-value of a mean paired difference under resampled items (differences centred under the null).

    ``strata`` holds one pair of scores a benchmark: items are resampled within each, and the statistic is the
    unweighted mean over benchmarks. The smallest possible p-value is 1 / (resamples + 1).
    """
    observed, means = 0.0, np.zeros(resamples)
    for first, second in strata:
        a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
        if a.shape != b.shape or not a.size:
            raise ValueError(f"a paired test needs the same items: {a.size} scores against {b.size}")
        difference = a - b
        observed += float(difference.mean()) / len(strata)
        # Items with equal differences are alike: how often each value is drawn is multinomial, and cheap.
        values, counts = np.unique(difference - difference.mean(), return_counts=True)
        drawn = generator.multinomial(a.size, counts / a.size, size=resamples)
        means += drawn @ values / a.size / len(strata)
    hits = int((np.abs(means) >= abs(observed) - 1e-12).sum())
    return Comparison(observed, float("nan"), float("nan"), (hits + 1) / (resamples + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment, in the order given: each p times the hypotheses left, kept monotone, at most 1."""
    order = np.argsort(np.asarray(p_values, dtype=np.float64), kind="stable")
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * float(p_values[index])))
        adjusted[index] = running
    return adjusted


def stars(p_value: float) -> str:
    """``***`` below .001, ``**`` below .01, ``*`` below .05."""
    return "*" * sum(p_value < level for level in (0.05, 0.01, 0.001))


def grim(printed: str, *, num_items: int, num_seeds: int) -> bool:
    """Whether a printed mean in percent can come from ``num_seeds`` runs of 0/1 scores on ``num_items`` items.

    GRIM (Brown and Heathers 2017): the mean is k / (n s) for a whole k. Any rounding of halves is accepted.
    """
    decimals = len(printed.partition(".")[2])
    value, half = Fraction(printed), Fraction(1, 2 * 10**decimals)
    total = num_items * num_seeds
    lowest = -((-(value - half) * total) // 100)  # smallest whole k with 100 k / total >= value - half
    return Fraction(100) * lowest / total <= value + half
