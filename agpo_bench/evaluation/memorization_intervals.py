r"""How sure the memorization probe is: differences of means, items made alike resampled together.

Items of one template (equal but for numbers and names) are continued alike, so they are drawn as one: C clusters with
sums s_c over n_c items give the mean :math:`\sum s_c / \sum n_c`, and a resample draws C clusters with replacement. The
interval is the 99 % percentile interval of 10,000 seeded resamples: several probes are looked at together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

_RESAMPLES = 10_000
_CHUNK = 500


class Scored(NamedTuple):
    """One item of a probe."""

    score: float
    control: float
    """Score of the item's own control, the mean where it has several; 0 where the control is other items."""
    template: str
    """Items with the same are resampled together."""
    num_controls: int = 1


class Difference(BaseModel):
    """Items against their control."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    items: float
    """Mean score of the items; for ``answer_fresh`` and ``order_fresh`` the mean of their own differences."""
    control: float
    difference: float
    low: float
    """Lower end of the 99 % interval of the difference."""
    high: float
    num_items: int
    num_control: int
    num_templates: int
    """Clusters of items that the interval rests on."""


def paired(items: Sequence[Scored], rng: np.random.Generator) -> Difference | None:
    """The mean over items of score less own control; None with fewer than two templates."""
    differences = [one.score - one.control for one in items]
    means = _resampled_means(differences, items, rng)
    if means is None:
        return None
    scores, controls = [one.score for one in items], [one.control for one in items]
    num_controls = sum(one.num_controls for one in items)
    return _difference(scores, controls, means, num_controls=num_controls, items=items)


def unpaired(items: Sequence[Scored], controls: Sequence[Scored], rng: np.random.Generator) -> Difference | None:
    """The difference of the means of two sets, each of score less own control; None with fewer than two templates."""
    first, second = ([one.score - one.control for one in side] for side in (items, controls))
    means = _resampled_means(first, items, rng), _resampled_means(second, controls, rng)
    if means[0] is None or means[1] is None:
        return None
    return _difference(first, second, means[0] - means[1], num_controls=len(controls), items=items)


def _resampled_means(
    values: Sequence[float], items: Sequence[Scored], rng: np.random.Generator
) -> NDArray[np.float64] | None:
    templates = {template: number for number, template in enumerate(dict.fromkeys(one.template for one in items))}
    if len(templates) < 2:
        return None
    cluster = np.array([templates[one.template] for one in items])
    sums, sizes = np.bincount(cluster, np.asarray(values, dtype=np.float64)), np.bincount(cluster)
    means = []
    for _ in range(_RESAMPLES // _CHUNK):
        drawn = rng.integers(len(sums), size=(_CHUNK, len(sums)))
        means.append(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1))
    return np.concatenate(means)


def _difference(
    scores: Sequence[float],
    controls: Sequence[float],
    resampled: NDArray[np.float64],
    *,
    num_controls: int,
    items: Sequence[Scored],
) -> Difference:
    low, high = np.quantile(resampled, [0.005, 0.995])
    first, second = float(np.mean(scores)), float(np.mean(controls))
    return Difference(
        items=first,
        control=second,
        difference=first - second,
        low=float(low),
        high=float(high),
        num_items=len(items),
        num_control=num_controls,
        num_templates=len({one.template for one in items}),
    )
