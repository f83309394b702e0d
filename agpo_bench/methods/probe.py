"""The probe: statistics of one group of rollouts a prompt, sampled before training and not trained on by default.

Shapes: P prompts, G rollouts a prompt. Everything is float64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.part import Part

Dispersion = Literal["std", "mad", "iqr"]
SkewEstimator = Literal["g1", "adjusted", "bessel", "released"]
SIGNALS = ("sigma", "kappa", "vote_entropy", "step_kl")
"""Order of the bits of ``signals_mask``: {sigma_hat, |kappa_3|, E_probe, D_step}."""

MAD_TO_STD = 1.4826
IQR_TO_STD = 1.349
EQUAL_TOLERANCE = 1e-9
"""Rewards whose largest and smallest differ by no more are equal: the guard against rounding residue."""


def is_constant(values_PG: Tensor, is_valid_PG: Tensor | None = None) -> Tensor:
    """Whether each group's (valid) rewards are all equal, by max - min and never by a computed deviation; (P,) bool."""
    valid_PG = torch.ones_like(values_PG, dtype=torch.bool) if is_valid_PG is None else is_valid_PG
    low_P = values_PG.masked_fill(~valid_PG, math.inf).amin(dim=1)
    high_P = values_PG.masked_fill(~valid_PG, -math.inf).amax(dim=1)
    return high_P - low_P <= EQUAL_TOLERANCE


def _group(values_G: Tensor, valid_G: Tensor | None) -> Tensor:
    return values_G.double() if valid_G is None else values_G[valid_G].double()


def dispersion(values_G: Tensor, mode: Dispersion) -> float:
    """Spread of one group: Bessel std, 1.4826 * MAD (midpoint median) or IQR / 1.349 (linear quantiles).

    Zero for fewer than two values and for equal ones. AGPO Sect. 3.1.
    """
    values_G = values_G.double()
    if values_G.numel() < 2 or float(values_G.max() - values_G.min()) <= EQUAL_TOLERANCE:
        return 0.0
    if mode == "std":
        return float(values_G.std(correction=1))
    if mode == "mad":
        return float(MAD_TO_STD * (values_G - values_G.quantile(0.5)).abs().quantile(0.5))
    return float((values_G.quantile(0.75) - values_G.quantile(0.25)) / IQR_TO_STD)


def skewness(values_G: Tensor, estimator: SkewEstimator) -> float:
    """Third standardised moment of one group; 0 for equal values.

    ``g1``: m3 / m2^1.5 with population moments. ``adjusted``: g1 * sqrt(n(n-1)) / (n-2). ``bessel``: mean cube of
    (r - mean) / s with Bessel s. ``released``: ``bessel`` times sqrt(n(n-1)) / (n-2), the paper's released form.
    """
    values_G = values_G.double()
    n = values_G.numel()
    if n < 3 or float(values_G.max() - values_G.min()) <= EQUAL_TOLERANCE:
        return 0.0
    centred_G = values_G - values_G.mean()
    g1 = float((centred_G**3).mean() / (centred_G**2).mean() ** 1.5)
    adjustment = math.sqrt(n * (n - 1)) / (n - 2)
    bessel = g1 * math.pow((n - 1) / n, 1.5)
    return {"g1": g1, "adjusted": g1 * adjustment, "bessel": bessel, "released": bessel * adjustment}[estimator]


def vote_entropy(answers_G: Sequence[Hashable | None], no_answer: Literal["shared", "separate", "dropped"]) -> float:
    """Entropy (nats) of the histogram of one group's extracted answers, AGPO Eq. 8.

    ``answers_G`` holds canonical vote keys: equal keys are one vote. None means that no answer was found; such
    rollouts share one class (default), are a class each, or are dropped. Not normalised by ln G.
    """
    counts: Counter[Hashable] = Counter(answer for answer in answers_G if answer is not None)
    missing = sum(answer is None for answer in answers_G)
    if no_answer == "shared" and missing:
        counts[None] = missing
    sizes = sorted(counts.values())
    if no_answer == "separate":
        sizes = [1] * missing + sizes
    total = sum(sizes)
    return math.fsum(-size / total * math.log(size / total) for size in sizes) + 0.0


@dataclass(frozen=True, kw_only=True)
class ProbeStatistics:
    """The probe's signals, one value a prompt (float64, masked signals are 0), in the order of the batch.

    The batch value of a signal is its mean over prompts. Several ranks concatenate in rank order and then take the
    mean, so the controllers read the same bits whatever the world size.
    """

    sigma_P: Tensor
    kappa_abs_P: Tensor
    vote_entropy_P: Tensor

    @property
    def sigma(self) -> float:
        """Mean dispersion of the probe rewards."""
        return float(self.sigma_P.mean())

    @property
    def kappa_abs(self) -> float:
        """Mean absolute skewness; the absolute value is taken per group."""
        return float(self.kappa_abs_P.mean())

    @property
    def vote_entropy(self) -> float:
        """Mean entropy of the votes (nats)."""
        return float(self.vote_entropy_P.mean())

    @classmethod
    def concatenate(cls, parts: Sequence[ProbeStatistics]) -> ProbeStatistics:
        """The statistics of several ranks or sub-batches as one."""
        return cls(
            sigma_P=torch.cat([part.sigma_P for part in parts]),
            kappa_abs_P=torch.cat([part.kappa_abs_P for part in parts]),
            vote_entropy_P=torch.cat([part.vote_entropy_P for part in parts]),
        )

    def prompt(self, index: int) -> ProbeStatistics:
        """The statistics of one prompt."""
        pick = slice(index, index + 1)
        return ProbeStatistics(
            sigma_P=self.sigma_P[pick], kappa_abs_P=self.kappa_abs_P[pick], vote_entropy_P=self.vote_entropy_P[pick]
        )


class ProbePart(Part):
    """Whether and how a probe group is measured."""

    slot: ClassVar[str] = "probe"

    def keeps(self, signal: str) -> bool:
        """Whether a signal of ``SIGNALS`` reaches the controllers."""
        return False


class NoProbe(ProbePart):
    """No probe: nothing is sampled beside the training rollouts."""

    use: Literal["none"] = "none"


class GroupProbe(ProbePart):
    """One probe group a prompt at the base temperature; statistics only (AGPO Sect. 3.1-3.3, Eqs. 5 and 8).

    sigma = dispersion(r), |kappa| = 1[sigma >= sigma_min] * |clip(skew(r), -kappa_max, kappa_max)|,
    E = -sum_y p(y) ln p(y) over the votes; each per prompt, then averaged over the batch.
    Departure: the paper does not say which skewness it means; default g1. It does not say where a missing answer
    votes; default one class shared by all of them.
    """

    use: Literal["group"] = "group"
    size: int | None = Field(default=None, ge=2)
    """Rollouts of the probe group; None means as many as the training group."""
    dispersion: Dispersion = "std"
    skew: SkewEstimator = "g1"
    sigma_min: float = Field(default=1e-6, gt=0)
    kappa_max: float = Field(default=10.0, gt=0)
    no_answer: Literal["shared", "separate", "dropped"] = "shared"
    signals_mask: str = Field(default="1111", pattern="^[01]{4}$")
    """Bits keep {sigma, |kappa|, vote entropy, step KL}. A masked probe signal is 0 in Eq. 4 and in Eq. 9."""
    scope: Literal["batch", "prompt"] = "batch"
    """``batch``: one radius and one temperature an update (paper). ``prompt``: one a prompt (released code)."""
    reuse: bool = False
    """Train on the probe groups too, as further groups of their prompts. A departure from the paper (False): twice the
    gradient data for the tokens, and a clip radius that depends on rollouts it is applied to."""

    needs_probe: ClassVar[bool] = True
    min_group_size: ClassVar[int] = 2

    def keeps(self, signal: str) -> bool:
        """Whether a signal of ``SIGNALS`` reaches the controllers."""
        return self.signals_mask[SIGNALS.index(signal)] == "1"

    def __call__(
        self,
        rewards_PG: Tensor,
        answers_PG: Sequence[Sequence[Hashable | None]],
        *,
        is_valid_PG: Tensor | None = None,
    ) -> ProbeStatistics:
        """Measure the probe groups; rollouts that failed for want of infrastructure are left out."""
        sigmas, kappas, entropies = [], [], []
        for index, answers_G in enumerate(answers_PG):
            valid_G = None if is_valid_PG is None else is_valid_PG[index]
            rewards_G = _group(rewards_PG[index], valid_G)
            sigma = dispersion(rewards_G, self.dispersion)
            skew = max(-self.kappa_max, min(self.kappa_max, skewness(rewards_G, self.skew)))
            votes = [a for i, a in enumerate(answers_G) if valid_G is None or bool(valid_G[i])]
            sigmas.append(sigma if self.keeps("sigma") else 0.0)
            # Eq. 5: the gate reads the literal dispersion, so MAD and IQR can silence the skewness too.
            kappas.append(abs(skew) if sigma >= self.sigma_min and self.keeps("kappa") else 0.0)
            entropies.append(vote_entropy(votes, self.no_answer) if self.keeps("vote_entropy") else 0.0)
        return ProbeStatistics(
            sigma_P=torch.tensor(sigmas, dtype=torch.float64),
            kappa_abs_P=torch.tensor(kappas, dtype=torch.float64),
            vote_entropy_P=torch.tensor(entropies, dtype=torch.float64),
        )


PARTS: tuple[type[ProbePart], ...] = (NoProbe, GroupProbe)
