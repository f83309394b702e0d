"""From the grader's scores to rewards. Shapes: P prompts, G rollouts a prompt."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.advantage import pass_at_k
from agpo_bench.methods.part import Part


class RewardPart(Part):
    """A transformation of a group's scores."""

    slot: ClassVar[str] = "reward"

    def __call__(self, scores_PG: Tensor, lengths_PG: Tensor, is_valid_PG: Tensor, max_new_tokens: int) -> Tensor:
        """Rewards (float64) of the same shape."""
        raise NotImplementedError


class ScoreReward(RewardPart):
    """r = the grader's score."""

    use: Literal["score"] = "score"

    def __call__(self, scores_PG: Tensor, lengths_PG: Tensor, is_valid_PG: Tensor, max_new_tokens: int) -> Tensor:
        """The scores."""
        return scores_PG.double()


class SoftOverlong(RewardPart):
    """r = score + penalty for length (DAPO Eq. 13).

    0 up to L_max - L_c tokens, then falling linearly to -1 at L_max; L_c = ``buffer_fraction`` * L_max. The paper has
    L_max 20480 and L_c 4096, a fifth; L_max is here the run's sampling limit.
    """

    use: Literal["soft_overlong"] = "soft_overlong"
    buffer_fraction: float = Field(default=0.2, gt=0, le=1)

    def __call__(self, scores_PG: Tensor, lengths_PG: Tensor, is_valid_PG: Tensor, max_new_tokens: int) -> Tensor:
        """Scores less the penalty."""
        buffer = self.buffer_fraction * max_new_tokens
        penalty_PG = ((max_new_tokens - buffer) - lengths_PG.double()) / buffer
        return scores_PG.double() + penalty_PG.clamp(-1.0, 0.0)


class SignWeighted(RewardPart):
    """r = ``right`` * score + ``wrong`` * (1 - score) (PSR / NSR, arXiv 2506.01347).

    (1, 0) reinforces right answers only, (0, -1) wrong ones only, (0.1, -1) is W-REINFORCE.
    """

    use: Literal["sign_weighted"] = "sign_weighted"
    right: float = 0.1
    wrong: float = -1.0

    def __call__(self, scores_PG: Tensor, lengths_PG: Tensor, is_valid_PG: Tensor, max_new_tokens: int) -> Tensor:
        """Weighted scores."""
        scores_PG = scores_PG.double()
        return self.right * scores_PG + self.wrong * (1.0 - scores_PG)


class Pkpo(RewardPart):
    """Rewards whose policy gradient is an unbiased estimate of the gradient of pass@k (PKPO, arXiv 2505.15201).

    n rollouts, c right, rho(n, c, k) = 1 - C(n-c, k) / C(n, k): k / n for a right rollout, (k / n) rho(n-1, c, k-1) for
    a wrong one. A rollout counts as right when its score exceeds one half.
    """

    use: Literal["pkpo"] = "pkpo"
    k: int = Field(default=4, ge=1)
    min_group_size: ClassVar[int] = 2

    def __call__(self, scores_PG: Tensor, lengths_PG: Tensor, is_valid_PG: Tensor, max_new_tokens: int) -> Tensor:
        """Two values a group."""
        right_PG = (scores_PG > 0.5) & is_valid_PG
        rewards_PG = torch.zeros_like(scores_PG, dtype=torch.float64)
        for p in range(len(scores_PG)):
            n, c = int(is_valid_PG[p].sum()), int(right_PG[p].sum())
            if n == 0:
                continue
            k = min(self.k, n)
            wrong = k / n * pass_at_k(n - 1, c, k - 1) if c < n else 0.0
            rewards_PG[p] = wrong
            rewards_PG[p, right_PG[p]] = k / n
        return rewards_PG


PARTS: tuple[type[RewardPart], ...] = (ScoreReward, SoftOverlong, SignWeighted, Pkpo)
