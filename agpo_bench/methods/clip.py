"""How far the ratio may leave 1. Shapes: P prompts, G rollouts a prompt, B sequences, T tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from agpo_bench.methods.batch import ClipBounds, ClipObserved, LossBatch, UpdateObserved
from agpo_bench.methods.part import Part, PartState
from agpo_bench.methods.probe import ProbeStatistics
from agpo_bench.methods.replay import read_schedule


@dataclass(frozen=True, kw_only=True)
class Band:
    """Bounds as the surrogate applies them, broadcastable to (B, T): lower <= ratio <= upper."""

    lower: Tensor
    upper: Tensor
    dual: Tensor | None = None
    """For a negative advantage the ratio that multiplies it is capped here (dual clip); None for no cap."""


def _constant(low: float, high: float, scores_PG: Tensor, log: dict[str, float]) -> ClipBounds:
    return ClipBounds(
        low_PG=torch.full_like(scores_PG, low, dtype=torch.float64),
        high_PG=torch.full_like(scores_PG, high, dtype=torch.float64),
        log=log,
    )


class ClipPart(Part):
    """A rule for the clip bounds of one step."""

    slot: ClassVar[str] = "clip"

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """Choose this step's bounds."""
        raise NotImplementedError

    def band(self, batch: LossBatch) -> Band:
        """The bounds of a micro-batch as ratios: [1 - low, 1 + high]."""
        return Band(lower=1.0 - batch.clip_low_B1, upper=1.0 + batch.clip_high_B1)

    def observe(self, state: PartState, observed: UpdateObserved) -> PartState:
        """Note what the updates of the step did."""
        return state


class NoClip(ClipPart):
    """The ratio is not clipped."""

    use: Literal["none"] = "none"

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """Bounds that nothing reaches."""
        return state, _constant(math.inf, math.inf, observed.scores_PG, {})

    def band(self, batch: LossBatch) -> Band:
        """From 0 to infinity."""
        infinite = torch.full_like(batch.clip_high_B1, math.inf)
        return Band(lower=torch.zeros_like(infinite), upper=infinite)


class FixedClip(ClipPart):
    """The band [1 - low, 1 + high] (PPO Eq. 7; unequal bounds: DAPO's clip-higher)."""

    use: Literal["fixed"] = "fixed"
    low: float = Field(default=0.2, ge=0, le=1)
    high: float = Field(default=0.2, ge=0)

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """The same bounds at every step."""
        return state, _constant(self.low, self.high, observed.scores_PG, {"ctrl/eps": self.high})


class AdaptiveClip(ClipPart):
    """The adaptive radius (AGPO Eq. 4), symmetric, one value an update.

    eps_t = clip(base H (1 + delta E) / (1 + alpha sigma + zeta |kappa| + gamma D), minimum, maximum), with H the old
    policy's mean token entropy (nats, temperature 1), sigma, |kappa|, E from the probe and D the previous update's
    step KL (Eq. 6, starts at 0).
    Departure: the paper does not clamp D, which can be negative on a sample; ``step_kl_clamp`` offers ``batch`` (clamp
    the global mean at 0) and ``group`` (clamp each prompt's mean, then average: the released code).
    ``entropy: relative`` replaces H by H / EMA(H) within ``entropy_ratio_min/max`` (the released code).
    """

    use: Literal["adaptive"] = "adaptive"
    base: float = Field(default=0.2, gt=0)
    minimum: float = Field(default=0.05, gt=0)
    maximum: float = Field(default=0.4, le=1)
    alpha: float = Field(default=1.0, ge=0)
    gamma: float = Field(default=0.5, ge=0)
    delta: float = Field(default=0.2, ge=0)
    zeta: float = Field(default=0.05, ge=0)
    use_entropy: bool = True
    """False replaces H by 1. The paper has no such switch: its mask cannot silence H."""
    entropy: Literal["raw", "relative"] = "raw"
    entropy_rho: float = Field(default=0.99, ge=0, lt=1)
    entropy_ratio_min: float = 0.5
    entropy_ratio_max: float = 1.5
    step_kl_clamp: Literal["none", "batch", "group"] = "none"
    step_kl_rho: float = Field(default=0.0, ge=0, lt=1)
    """D <- rho D + (1 - rho) new; 0 means the last update's value alone."""

    needs_probe: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = True
    needs_step_kl: ClassVar[bool] = True
    # With one update a rollout the ratio is 1 when it is clipped: the radius could not act.
    min_updates_per_rollout: ClassVar[int] = 2

    @model_validator(mode="after")
    def _check(self) -> AdaptiveClip:
        if self.minimum > self.maximum:
            raise ValueError(f"clip minimum {self.minimum} exceeds maximum {self.maximum}")
        return self

    def start(self) -> PartState:
        """No update yet: D = 0, no mean entropy."""
        return {"step_kl": 0.0, "entropy_mean": None}

    def _entropy_factor(self, state: PartState, entropy: float) -> tuple[PartState, float]:
        if not self.use_entropy:
            return state, 1.0
        if self.entropy == "raw":
            return state, entropy
        mean = entropy if state["entropy_mean"] is None else float(state["entropy_mean"])
        ratio = entropy / max(mean, 1e-8)
        state = {**state, "entropy_mean": self.entropy_rho * mean + (1.0 - self.entropy_rho) * entropy}
        return state, min(self.entropy_ratio_max, max(self.entropy_ratio_min, ratio))

    def _radius(
        self, state: PartState, *, probe: ProbeStatistics, entropy: float, step_kl: float
    ) -> tuple[PartState, float, dict[str, float]]:
        state, factor_entropy = self._entropy_factor(state, entropy)
        votes = 1.0 + self.delta * probe.vote_entropy
        terms = {
            "sigma": self.alpha * probe.sigma,
            "kappa": self.zeta * probe.kappa_abs,
            "D": self.gamma * step_kl,
        }
        # D can be negative on a sample; the denominator must stay positive.
        denominator = max(1.0 + sum(terms.values()), 1e-6)
        raw = self.base * factor_entropy * votes / denominator  # Eq. 4 before its clip
        value = min(self.maximum, max(self.minimum, raw))
        log = {
            "ctrl/H": entropy,
            "ctrl/E": probe.vote_entropy,
            "ctrl/sigma": probe.sigma,
            "ctrl/kappa_abs": probe.kappa_abs,
            "ctrl/D_step": step_kl,
            "ctrl/eps_raw": raw,
            "ctrl/eps": value,
            "ctrl/eps_at_min": float(value <= self.minimum),
            "ctrl/eps_at_max": float(value >= self.maximum),
            "ctrl/eps_factor_H": factor_entropy,
            "ctrl/eps_factor_E": votes,
        }
        for name, term in terms.items():
            log[f"ctrl/eps_factor_{name}"] = max(denominator - term, 1e-6) / denominator
        return state, value, log

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """One radius for the batch; with per-prompt entropies one radius a prompt."""
        assert probe is not None
        if observed.entropy_P is None:
            assert observed.entropy is not None
            state, value, log = self._radius(state, probe=probe, entropy=observed.entropy, step_kl=step_kl)
            return state, _constant(value, value, observed.scores_PG, log)
        values, logs = [], []
        for index, entropy in enumerate(observed.entropy_P.tolist()):
            state, value, log = self._radius(state, probe=probe.prompt(index), entropy=entropy, step_kl=step_kl)
            values.append(value)
            logs.append(log)
        radius_PG = torch.tensor(values, dtype=torch.float64)[:, None].expand(observed.scores_PG.shape)
        mean_log = {key: sum(log[key] for log in logs) / len(logs) for key in logs[0]}
        return state, ClipBounds(low_PG=radius_PG, high_PG=radius_PG, log=mean_log)

    def observe(self, state: PartState, observed: UpdateObserved) -> PartState:
        """Carry D to the next step."""
        value = observed.step_kl_k1
        if self.step_kl_clamp == "batch":
            value = max(0.0, value)
        elif self.step_kl_clamp == "group":
            assert observed.step_kl_k1_P is not None
            value = float(observed.step_kl_k1_P.double().clamp(min=0.0).mean())
        return {**state, "step_kl": self.step_kl_rho * float(state["step_kl"]) + (1.0 - self.step_kl_rho) * value}


class GroupClip(ClipPart):
    """Group-adaptive upper bound (GAPO, arXiv 2609.00444, Eqs. 11-13).

    high(c) = low + (high_max - low) (k - c) / (k - 1) for a correct rollout of a group with c of k correct;
    an incorrect one keeps ``low`` (its advantage is negative, the upper bound cannot act). The lower bound is ``low``.
    For scores between 0 and 1 the fraction is (r - mean) / ((k - 1) / k), clipped to [0, 1]: the same on 0/1 scores.
    """

    use: Literal["group"] = "group"
    low: float = Field(default=3e-3, ge=0, le=1)
    high_max: float = Field(default=5e-3, ge=0)

    min_group_size: ClassVar[int] = 2

    @model_validator(mode="after")
    def _check(self) -> GroupClip:
        if self.high_max < self.low:
            raise ValueError(f"clip high_max {self.high_max} is below low {self.low}")
        return self

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """Bounds a rollout."""
        scores_PG = observed.scores_PG.double()
        valid_PG = (
            torch.ones_like(scores_PG, dtype=torch.bool) if observed.is_valid_PG is None else observed.is_valid_PG
        )
        k_P1 = valid_PG.sum(dim=1, keepdim=True).clamp(min=2).double()
        mean_P1 = scores_PG.masked_fill(~valid_PG, 0.0).sum(dim=1, keepdim=True) / k_P1
        surprise_PG = (scores_PG - mean_P1).masked_fill(~valid_PG, 0.0) / ((k_P1 - 1) / k_P1)
        high_PG = self.low + (self.high_max - self.low) * surprise_PG.clamp(0.0, 1.0)
        low_PG = torch.full_like(scores_PG, self.low)
        return state, ClipBounds(low_PG=low_PG, high_PG=high_PG, log={"ctrl/eps": float(high_PG.mean())})


class PositionClip(ClipPart):
    """Bounds that move with the token's position t = 1, 2, … in log space (CTPO).

    log ratio in [-low t^power, high t^power]; for a negative advantage the ratio is capped at exp(dual t^power).
    """

    use: Literal["position"] = "position"
    low: float = Field(default=0.025, gt=0)
    high: float = Field(default=0.05, gt=0)
    dual: float | None = Field(default=0.05, gt=0)
    power: float = 0.5

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """The bounds at position 1; ``band`` moves them."""
        return state, _constant(self.low, self.high, observed.scores_PG, {"ctrl/eps": self.high})

    def band(self, batch: LossBatch) -> Band:
        """Bounds of each position."""
        positions_T = torch.arange(1, batch.mask_BT.shape[1] + 1, device=batch.mask_BT.device)
        growth_1T = positions_T.to(batch.clip_low_B1.dtype)[None, :] ** self.power
        dual = None if self.dual is None else torch.exp(self.dual * growth_1T)
        return Band(
            lower=torch.exp(-batch.clip_low_B1 * growth_1T),
            upper=torch.exp(batch.clip_high_B1 * growth_1T),
            dual=dual,
        )


class ReplayedClip(ClipPart):
    """The radii of a logged run, step by step and without feedback; past its end the last one holds."""

    use: Literal["replay"] = "replay"
    path: str | None = None
    key: str = "ctrl/eps"

    min_updates_per_rollout: ClassVar[int] = 2

    def start(self) -> PartState:
        """At the log's first line; ValueError when there is no log."""
        read_schedule(self.path, self.key)
        return {"step": 0}

    def __call__(
        self, state: PartState, observed: ClipObserved, *, probe: ProbeStatistics | None, step_kl: float
    ) -> tuple[PartState, ClipBounds]:
        """Return the logged radius of this step."""
        schedule = read_schedule(self.path, self.key)
        step = int(state["step"])
        value = schedule[min(step, len(schedule) - 1)]
        return {"step": step + 1}, _constant(value, value, observed.scores_PG, {"ctrl/eps": value})


PARTS: tuple[type[ClipPart], ...] = (NoClip, FixedClip, AdaptiveClip, GroupClip, PositionClip, ReplayedClip)
