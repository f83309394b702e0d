"""Advantages. Shapes: P prompts, G rollouts a prompt, B = P*G sequences, T tokens. Statistics are float64.

Rollouts that failed for want of infrastructure are in no mean. A group whose rewards are all equal has advantages that
are exactly 0: equality is tested by max - min, because a computed deviation of equal rewards can be 3e-8 and not 0.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.batch import AdvantageInputs, Advantages, UpdateObserved
from agpo_bench.methods.part import Part, PartState
from agpo_bench.methods.probe import Dispersion, dispersion, is_constant


def valid_mean(values_PG: Tensor, valid_PG: Tensor) -> Tensor:
    """Mean of each group's valid entries, (P, 1); 0 for a group without any."""
    total_P1 = values_PG.masked_fill(~valid_PG, 0.0).sum(dim=1, keepdim=True)
    return total_P1 / valid_PG.sum(dim=1, keepdim=True).clamp(min=1)


def zero_where(values_PG: Tensor, mask_PG: Tensor) -> Tensor:
    """Exactly 0 where the mask holds, whatever the value (NaN included)."""
    return torch.where(mask_PG, torch.zeros_like(values_PG), values_PG)


def whiten(values: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """(value - mean) / (std + eps) over all entries where the mask holds, 0 elsewhere; all 0 if they are equal."""
    mask = mask.bool()
    picked = values[mask]
    if picked.numel() < 2 or float(picked.max() - picked.min()) <= 1e-12:
        return torch.zeros_like(values)
    return ((values - picked.mean()) / (picked.std(correction=1) + eps)).masked_fill(~mask, 0.0)


class AdvantagePart(Part):
    """From rewards to advantages."""

    slot: ClassVar[str] = "advantage"

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Advantages; ``penalty_BT`` is the KL penalty that belongs to the reward (<= 0 on average)."""
        raise NotImplementedError

    def observe(self, state: PartState, observed: UpdateObserved) -> PartState:
        """Note the step's outcome."""
        return state

    def prompt_weights(self, state: PartState, prompt_ids: tuple[str, ...]) -> list[float]:
        """Relative weights with which the next prompts should be drawn."""
        return [1.0] * len(prompt_ids)


def sequence_rewards(inputs: AdvantageInputs, penalty_BT: Tensor | None) -> Tensor:
    """Reward of each rollout, the summed KL penalty included; (P, G) float64."""
    rewards_PG = inputs.rewards_PG.double()
    return rewards_PG if penalty_BT is None else rewards_PG + penalty_BT.sum(dim=1).reshape(rewards_PG.shape)


class GroupZScore(AdvantagePart):
    """A = (r - mean r) / (s + eps) within the group (GRPO; AGPO Eq. 1), s the Bessel std, the scaled MAD or the IQR.

    Departure: on 0/1 rewards MAD and IQR are 0 in most groups whose rewards differ (G = 8: MAD unless c = 4), where
    Eq. 1 would give advantages near 1e8. ``fallback`` says what happens there: the std (default, counted as
    ``disp/fallback_frac``), zero, or a floor of 0.1.
    """

    use: Literal["group_zscore"] = "group_zscore"
    dispersion: Dispersion = "std"
    eps: float = Field(default=1e-8, ge=0)
    fallback: Literal["std", "zero", "floor"] = "std"
    min_group_size: ClassVar[int] = 2

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Group-wise z-scores."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        valid_PG = inputs.is_valid_PG
        constant_P = is_constant(rewards_PG, valid_PG)
        scales, fallbacks = [], 0
        for rewards_G, valid_G, constant in zip(rewards_PG, valid_PG, constant_P.tolist(), strict=True):
            scale = 0.0 if constant else dispersion(rewards_G[valid_G], self.dispersion)
            if scale <= self.eps and not constant:
                fallbacks += 1
                if self.fallback == "std":
                    scale = dispersion(rewards_G[valid_G], "std")
                else:
                    scale = math.inf if self.fallback == "zero" else 0.1
            scales.append(scale)
        scale_P1 = torch.tensor(scales, dtype=torch.float64, device=rewards_PG.device)[:, None]
        advantage_PG = (rewards_PG - valid_mean(rewards_PG, valid_PG)) / (scale_P1 + self.eps)
        return Advantages(
            advantage_PG=zero_where(advantage_PG, constant_P[:, None] | ~valid_PG),
            is_trained_PG=valid_PG,
            log={"disp/fallback_frac": fallbacks / len(scales)},
        )


class GroupMean(AdvantagePart):
    """A = r - mean r within the group, not scaled (Dr.GRPO, GAPO)."""

    use: Literal["group_mean"] = "group_mean"
    min_group_size: ClassVar[int] = 2

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Centred rewards."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        valid_PG = inputs.is_valid_PG
        centred_PG = rewards_PG - valid_mean(rewards_PG, valid_PG)
        dead_PG = is_constant(rewards_PG, valid_PG)[:, None] | ~valid_PG
        return Advantages(advantage_PG=zero_where(centred_PG, dead_PG), is_trained_PG=valid_PG)


class LeaveOneOut(AdvantagePart):
    """A_i = r_i - mean of the other rewards = k / (k - 1) (r_i - mean r) (RLOO, arXiv 2402.14740)."""

    use: Literal["leave_one_out"] = "leave_one_out"
    min_group_size: ClassVar[int] = 2

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Rewards against the mean of the others."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        valid_PG = inputs.is_valid_PG
        k_P1 = valid_PG.sum(dim=1, keepdim=True).double()
        advantage_PG = (rewards_PG - valid_mean(rewards_PG, valid_PG)) * k_P1 / (k_P1 - 1.0).clamp(min=1.0)
        dead_PG = is_constant(rewards_PG, valid_PG)[:, None] | ~valid_PG
        return Advantages(advantage_PG=zero_where(advantage_PG, dead_PG), is_trained_PG=valid_PG)


class Raw(AdvantagePart):
    """A = r: no baseline."""

    use: Literal["raw"] = "raw"

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """The rewards themselves."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        return Advantages(advantage_PG=zero_where(rewards_PG, ~inputs.is_valid_PG), is_trained_PG=inputs.is_valid_PG)


class VirtualReward(AdvantagePart):
    """z-scores against a group enlarged by ``num_virtual`` rewards of the maximum (NGRPO).

    mu' = (sum r + m r_max) / (k + m), s' the Bessel std of the k + m values, A = (r - mu') / (s' + eps). A group
    that is all wrong keeps a negative signal; one that is all right gives exactly 0.
    """

    use: Literal["virtual_reward"] = "virtual_reward"
    num_virtual: int = Field(default=1, ge=1)
    reward_max: float = 1.0
    eps: float = Field(default=1e-6, ge=0)

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """z-scores against the enlarged group."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        virtual_PM = rewards_PG.new_full((len(rewards_PG), self.num_virtual), self.reward_max)
        enlarged = torch.cat([rewards_PG, virtual_PM], dim=1)
        valid = torch.cat([inputs.is_valid_PG, torch.ones_like(virtual_PM, dtype=torch.bool)], dim=1)
        mean_P1 = valid_mean(enlarged, valid)
        squares = (enlarged - mean_P1).square().masked_fill(~valid, 0.0).sum(dim=1, keepdim=True)
        std_P1 = (squares / (valid.sum(dim=1, keepdim=True) - 1).clamp(min=1)).sqrt()
        advantage_PG = (rewards_PG - mean_P1) / (std_P1 + self.eps)
        dead_PG = is_constant(enlarged, valid)[:, None] | ~inputs.is_valid_PG
        return Advantages(advantage_PG=zero_where(advantage_PG, dead_PG), is_trained_PG=inputs.is_valid_PG)


class MedianCentred(AdvantagePart):
    """Median baseline with one extra rollout (MC-GRPO).

    k + 1 rollouts; m the (lower) median, A = (r - m) / (scale + eps), then every nonzero A is multiplied by
    (k + 1) / (number of nonzero). One rollout at the median, the pivot, leaves the batch; k are trained.
    ``scale``: ``mad`` = median |r - m| unscaled (the released code), ``std`` (Bessel) or ``none`` (1).
    On 0/1 rewards an odd group always has a strict majority, so the MAD is always 0 and |A| is about 1 / eps.
    """

    use: Literal["median"] = "median"
    scale: Literal["mad", "std", "none"] = "mad"
    eps: float = Field(default=1e-3, ge=0)
    scale_min: float = Field(default=0.0, ge=0)
    """Floor of the scale before eps is added."""
    min_group_size: ClassVar[int] = 2
    extra_rollouts: ClassVar[int] = 1

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Median-centred advantages without the pivot."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        advantage_PG = torch.zeros_like(rewards_PG)
        trained_PG = inputs.is_valid_PG.clone()
        for p in range(len(rewards_PG)):
            members = inputs.is_valid_PG[p].nonzero().flatten()
            if not len(members):
                continue
            rewards_G = rewards_PG[p, members]
            order = torch.sort(rewards_G, stable=True).indices
            pivot = int(order[(len(members) - 1) // 2])
            trained_PG[p, members[pivot]] = False
            if float(rewards_G.max() - rewards_G.min()) <= 1e-9:
                continue
            centred_G = rewards_G - rewards_G[pivot]
            scale = 1.0
            if self.scale == "mad":
                scale = float(centred_G.abs().sort().values[(len(members) - 1) // 2])
            elif self.scale == "std":
                scale = dispersion(rewards_G, "std")
            centred_G = centred_G / (max(scale, self.scale_min) + (0.0 if self.scale == "none" else self.eps))
            nonzero = int((centred_G != 0).sum())
            advantage_PG[p, members] = centred_G * (len(members) / max(1, nonzero))
        return Advantages(advantage_PG=advantage_PG, is_trained_PG=trained_PG)


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the chance that k of n samples, c of them right, hold a right one."""
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


class PassK(AdvantagePart):
    """Analytic advantage of Pass@k training (arXiv 2508.10751).

    Rbar = 1 - C(N-c, k) / C(N, k), sigma = sqrt(Rbar (1 - Rbar)); right: (1 - Rbar) / (sigma + 1e-6); wrong:
    (1 - Rbar - C(N-c-1, k-1) / C(N-1, k-1)) / (sigma + 1e-6). 0 when no rollout is right or Rbar is 1. A rollout counts
    as right when its score exceeds one half.
    """

    use: Literal["pass_k"] = "pass_k"
    k: int = Field(default=4, ge=1)
    min_group_size: ClassVar[int] = 2

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Two values a group."""
        right_PG = (inputs.rewards_PG > 0.5) & inputs.is_valid_PG
        advantage_PG = torch.zeros_like(inputs.rewards_PG, dtype=torch.float64)
        for p in range(len(right_PG)):
            n, c = int(inputs.is_valid_PG[p].sum()), int(right_PG[p].sum())
            k = min(self.k, n)
            if c == 0 or n - c < k:  # Rbar is 0 or 1
                continue
            mean = pass_at_k(n, c, k)
            sigma = math.sqrt(mean * (1.0 - mean)) + 1e-6
            wrong = (1.0 - mean - math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1)) / sigma
            advantage_PG[p] = wrong
            advantage_PG[p, right_PG[p]] = (1.0 - mean) / sigma
        return Advantages(advantage_PG=zero_where(advantage_PG, ~inputs.is_valid_PG), is_trained_PG=inputs.is_valid_PG)


class TrackedValue(AdvantagePart):
    """A Beta(a, b) value tracker a prompt in place of a group baseline (SPO, single-stream).

    A = r - a / (a + b), before the tracker sees r, then standardised over the batch; after the update
    a <- rho a + r, b <- rho b + 1 - r. A prompt not seen before starts at a = b = 1/2.
    Prompts are drawn with weight sqrt(p (1 - p)) + ``exploration``.
    Departure: the paper forgets by rho = 2^(-D / 0.06) with D the policy's drift on the prompt's last response; this
    is its constant mode, rho = 0.875.
    """

    use: Literal["tracked_value"] = "tracked_value"
    rho: float = Field(default=0.875, gt=0, le=1)
    exploration: float = Field(default=0.05, ge=0)
    needs_prompt_weights: ClassVar[bool] = True

    def start(self) -> PartState:
        """No prompt seen."""
        return {"tracker": {}}

    @staticmethod
    def _value(state: PartState, prompt_id: str) -> float:
        a, b = state["tracker"].get(prompt_id, (0.5, 0.5))
        return float(a / (a + b))

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Rewards against each prompt's tracked value."""
        rewards_PG = sequence_rewards(inputs, penalty_BT)
        values_P = torch.tensor([self._value(state, name) for name in inputs.prompt_ids], dtype=torch.float64)
        centred_PG = rewards_PG - values_P[:, None].to(rewards_PG.device)
        return Advantages(advantage_PG=whiten(centred_PG, inputs.is_valid_PG), is_trained_PG=inputs.is_valid_PG)

    def observe(self, state: PartState, observed: UpdateObserved) -> PartState:
        """Let the trackers see the step's scores."""
        assert observed.scores_PG is not None
        tracker = dict(state["tracker"])
        valid_PG = observed.is_valid_PG
        for row, (prompt_id, scores_G) in enumerate(zip(observed.prompt_ids, observed.scores_PG.tolist(), strict=True)):
            a, b = tracker.get(prompt_id, (0.5, 0.5))
            for index, score in enumerate(scores_G):
                if valid_PG is None or bool(valid_PG[row, index]):
                    a, b = self.rho * a + score, self.rho * b + 1.0 - score
            tracker[prompt_id] = [a, b]
        return {"tracker": tracker}

    def prompt_weights(self, state: PartState, prompt_ids: tuple[str, ...]) -> list[float]:
        """sqrt(p (1 - p)) + exploration."""
        values = [self._value(state, prompt_id) for prompt_id in prompt_ids]
        return [math.sqrt(value * (1.0 - value)) + self.exploration for value in values]


PARTS: tuple[type[AdvantagePart], ...] = (
    GroupZScore,
    GroupMean,
    LeaveOneOut,
    Raw,
    VirtualReward,
    MedianCentred,
    PassK,
    TrackedValue,
)
