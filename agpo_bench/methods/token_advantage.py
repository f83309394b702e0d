"""Advantages a token: returns, and estimates from a critic.

Shapes: P prompts, G rollouts a prompt, B = P*G sequences, T tokens.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.advantage import AdvantagePart, valid_mean, whiten, zero_where
from agpo_bench.methods.batch import AdvantageInputs, Advantages
from agpo_bench.methods.part import PartState


def token_rewards(rewards_PG: Tensor, mask_BT: Tensor, penalty_BT: Tensor | None) -> Tensor:
    """Reward of each token: the rollout's on its last response token (never on padding), plus the penalty; (B, T)."""
    mask_BT = mask_BT.bool()
    positions_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    last_B1 = positions_T.where(mask_BT, torch.full_like(positions_T, -1)).amax(dim=1, keepdim=True)
    is_last_BT = positions_T[None, :] == last_B1
    tokens_BT = is_last_BT * rewards_PG.double().reshape(-1, 1)
    return tokens_BT if penalty_BT is None else tokens_BT + penalty_BT


def rollout_mean(values_BT: Tensor, mask_BT: Tensor, shape: torch.Size) -> Tensor:
    """Mean over each rollout's tokens, reshaped to (P, G)."""
    mask_BT = mask_BT.bool()
    total_B = values_BT.masked_fill(~mask_BT, 0.0).sum(dim=1)
    return (total_B / mask_BT.sum(dim=1).clamp(min=1)).reshape(shape)


class ReturnToGo(AdvantagePart):
    """Return-to-go of the token rewards, whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262).

    The rollout's reward sits on its last token, the KL penalty on every token. ``baseline: group_mean`` subtracts the
    group's mean reward first (REINFORCE++-baseline).
    """

    use: Literal["return_to_go"] = "return_to_go"
    baseline: Literal["none", "group_mean"] = "none"
    gamma: float = Field(default=1.0, gt=0, le=1)
    needs_token_inputs: ClassVar[bool] = True

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Whitened returns."""
        assert inputs.mask_BT is not None
        rewards_PG = zero_where(inputs.rewards_PG.double(), ~inputs.is_valid_PG)
        if self.baseline == "group_mean":
            rewards_PG = rewards_PG - valid_mean(rewards_PG, inputs.is_valid_PG)
        rewards_BT = token_rewards(rewards_PG, inputs.mask_BT, penalty_BT)
        returns_BT = torch.zeros_like(rewards_BT)
        running_B = rewards_BT.new_zeros(len(rewards_BT))
        for t in reversed(range(rewards_BT.shape[1])):
            running_B = rewards_BT[:, t] + self.gamma * running_B
            returns_BT[:, t] = running_B
        mask_BT = inputs.mask_BT.bool() & inputs.is_valid_PG.reshape(-1, 1)
        advantage_BT = whiten(returns_BT, mask_BT)
        return Advantages(
            advantage_PG=rollout_mean(advantage_BT, inputs.mask_BT, rewards_PG.shape),
            is_trained_PG=inputs.is_valid_PG,
            advantage_BT=advantage_BT,
        )


def generalised_advantage(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float
) -> Tensor:
    """GAE (arXiv 1506.02438, Eq. 16): delta_t = R_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}.

    The value after the last response token is 0, for truncated responses too; padding changes nothing.
    """
    mask_BT = mask_BT.double()
    values_BT = values_BT.double() * mask_BT
    advantage_BT = torch.zeros_like(values_BT)
    running_B = values_BT.new_zeros(len(values_BT))
    next_value_B = running_B
    for t in reversed(range(values_BT.shape[1])):
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        running_B = (delta_B + gamma * lam * running_B) * mask_BT[:, t]
        advantage_BT[:, t] = running_B
        next_value_B = values_BT[:, t]
    return advantage_BT


class Gae(AdvantagePart):
    """Generalised advantage estimates from a critic, whitened over the batch's tokens (PPO).

    return = A + V before whitening; it is the critic's target.
    """

    use: Literal["gae"] = "gae"
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    whiten: bool = True
    needs_token_inputs: ClassVar[bool] = True
    needs_critic: ClassVar[bool] = True

    def __call__(self, inputs: AdvantageInputs, penalty_BT: Tensor | None, state: PartState) -> Advantages:
        """Advantages and returns a token."""
        assert inputs.mask_BT is not None and inputs.value_BT is not None
        rewards_PG = zero_where(inputs.rewards_PG.double(), ~inputs.is_valid_PG)
        mask_BT = inputs.mask_BT.bool()
        rewards_BT = token_rewards(rewards_PG, mask_BT, penalty_BT)
        advantage_BT = generalised_advantage(rewards_BT, inputs.value_BT, mask_BT, gamma=self.gamma, lam=self.lam)
        return_BT = (advantage_BT + inputs.value_BT.double()).masked_fill(~mask_BT, 0.0)
        if self.whiten:
            advantage_BT = whiten(advantage_BT, mask_BT & inputs.is_valid_PG.reshape(-1, 1))
        return Advantages(
            advantage_PG=rollout_mean(advantage_BT, mask_BT, rewards_PG.shape),
            is_trained_PG=inputs.is_valid_PG,
            advantage_BT=advantage_BT,
            return_BT=return_BT,
        )


PARTS: tuple[type[AdvantagePart], ...] = (ReturnToGo, Gae)
