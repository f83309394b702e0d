"""Distance to a frozen reference policy. Shapes: B sequences, T tokens.

With x = log pi_ref - log pi at a sampled token: k1 = -x, k2 = x^2 / 2, k3 = e^x - 1 - x (Schulman). All estimate
KL(pi || pi_ref) in nats a token; what differs in a loss is the gradient. k1's has mean zero, k3's is biased, those of
k2 and of k3 times the differentiable ratio are the gradient of the KL.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.batch import AdvantageInputs, LossBatch, UpdateObserved
from agpo_bench.methods.part import Part, PartState
from agpo_bench.methods.ratio import token_log_ratio

Estimator = Literal["k1", "k2", "k3", "k3_ratio"]


def kl_estimate(logprob: Tensor, ref_logprob: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """k1, k2 or k3 a token, same shape."""
    x = ref_logprob - logprob
    if estimator == "k1":
        return -x
    if estimator == "k2":
        return x.square() / 2
    return torch.expm1(x) - x


class KlPart(Part):
    """Whether and where the reference pulls."""

    slot: ClassVar[str] = "kl"
    is_in_reward: ClassVar[bool] = False

    def coefficient_now(self, state: PartState) -> float:
        """The coefficient of this step."""
        return 0.0

    def loss(self, batch: LossBatch) -> Tensor | None:
        """KL a token to be added to the loss with the coefficient; None when nothing is added."""
        return None

    def reward_penalty(self, inputs: AdvantageInputs, state: PartState) -> Tensor | None:
        """Reward a token, -coefficient * (log pi_old - log pi_ref), (B, T) float64; None when nothing is subtracted."""
        return None

    def observe(self, state: PartState, observed: UpdateObserved) -> PartState:
        """Step the coefficient."""
        return state


class NoKl(KlPart):
    """No reference."""

    use: Literal["none"] = "none"


class LossKl(KlPart):
    """coefficient * KL(pi || pi_ref) in the loss, aggregated like the surrogate (GRPO Eq. 3, AGPO Eq. 7).

    Departure: the first GRPO puts k3 into the loss; its gradient is not that of the KL. Default ``k3_ratio``: k3 times
    the differentiable ratio pi / pi_old, whose gradient is. k1 is offered to reproduce the released AGPO code: the
    mean of its gradient is zero.
    """

    use: Literal["loss"] = "loss"
    coefficient: float = Field(default=0.03, gt=0)
    estimator: Estimator = "k3_ratio"
    needs_reference: ClassVar[bool] = True

    def coefficient_now(self, state: PartState) -> float:
        """Fixed."""
        return self.coefficient

    def loss(self, batch: LossBatch) -> Tensor | None:
        """KL a token; 0 on padding."""
        assert batch.ref_logprob_BT is not None
        mask_BT = batch.mask_BT.bool()
        logprob_BT = batch.logprob_BT.masked_fill(~mask_BT, 0.0)
        ref_logprob_BT = batch.ref_logprob_BT.masked_fill(~mask_BT, 0.0)
        if self.estimator != "k3_ratio":
            return kl_estimate(logprob_BT, ref_logprob_BT, self.estimator)
        return token_log_ratio(batch).exp() * kl_estimate(logprob_BT, ref_logprob_BT, "k3")


class RewardKl(KlPart):
    """-coefficient * (log pi_old - log pi_ref) added to each token's reward (k1 in the reward; PPO, RLOO)."""

    use: Literal["reward"] = "reward"
    coefficient: float = Field(default=0.03, gt=0)
    needs_reference: ClassVar[bool] = True
    needs_token_inputs: ClassVar[bool] = True
    is_in_reward: ClassVar[bool] = True

    def coefficient_now(self, state: PartState) -> float:
        """Fixed."""
        return self.coefficient

    def reward_penalty(self, inputs: AdvantageInputs, state: PartState) -> Tensor | None:
        """Reward a token; 0 on padding."""
        assert inputs.old_logprob_BT is not None and inputs.ref_logprob_BT is not None and inputs.mask_BT is not None
        k1_BT = inputs.old_logprob_BT.double() - inputs.ref_logprob_BT.double()
        return (-self.coefficient_now(state) * k1_BT).masked_fill(~inputs.mask_BT.bool(), 0.0)


class AdaptiveRewardKl(RewardKl):
    """As ``reward``, with Ziegler's controller of the coefficient (arXiv 1909.08593, Sect. 2.2).

    e = clip(KL / target - 1, -0.2, 0.2); coefficient <- coefficient (1 + e n / horizon), with n the episodes of the
    batch and KL the mean over sequences of sum_t (log pi_old - log pi_ref) in nats.
    """

    use: Literal["reward_adaptive"] = "reward_adaptive"  # type: ignore[assignment]
    coefficient: float = Field(default=0.2, gt=0)
    """The first value."""
    target_kl_per_sequence: float = Field(default=6.0, gt=0)
    horizon_episodes: int = Field(default=10_000, ge=1)

    def start(self) -> PartState:
        """At the first value."""
        return {"coefficient": self.coefficient}

    def coefficient_now(self, state: PartState) -> float:
        """As the controller left it."""
        return float(state["coefficient"])

    def observe(self, state: PartState, observed: UpdateObserved) -> PartState:
        """Step the coefficient once a rollout batch."""
        assert observed.ref_kl_per_sequence is not None
        error = min(0.2, max(-0.2, observed.ref_kl_per_sequence / self.target_kl_per_sequence - 1.0))
        growth = 1.0 + error * observed.num_episodes / self.horizon_episodes
        return {"coefficient": float(state["coefficient"]) * growth}


PARTS: tuple[type[KlPart], ...] = (NoKl, LossKl, RewardKl, AdaptiveRewardKl)
