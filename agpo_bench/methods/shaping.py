"""Changes to advantages after their baseline. Shapes: P prompts, G rollouts a prompt, B = P*G sequences, T tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.advantage import valid_mean, zero_where
from agpo_bench.methods.batch import AdvantageInputs, Advantages
from agpo_bench.methods.part import Part, PartState


class ShapingPart(Part):
    """A change of the advantages."""

    slot: ClassVar[str] = "shaping"

    def __call__(
        self, state: PartState, advantages: Advantages, inputs: AdvantageInputs
    ) -> tuple[PartState, Advantages]:
        """The changed advantages."""
        return state, advantages


class NoShaping(ShapingPart):
    """Advantages stay as they are."""

    use: Literal["none"] = "none"


class Focal(ShapingPart):
    """A <- (1 - c / k)^gamma A for the whole group, c / k its mean score (F-GRPO, arXiv 2602.06717)."""

    use: Literal["focal"] = "focal"
    gamma: float = Field(default=1.0, ge=0)
    min_group_size: ClassVar[int] = 2

    def __call__(
        self, state: PartState, advantages: Advantages, inputs: AdvantageInputs
    ) -> tuple[PartState, Advantages]:
        """Down-weight easy groups."""
        mean_P1 = valid_mean(inputs.scores_PG.double(), inputs.is_valid_PG)
        weight_P1 = (1.0 - mean_P1).clamp(0.0, 1.0) ** self.gamma
        return state, replace(advantages, advantage_PG=advantages.advantage_PG * weight_P1)


def top_entropy_mean(entropy_BT: Tensor, mask_BT: Tensor, share: float) -> Tensor:
    """Mean of each sequence's highest ``share`` of token entropies (at least one token); (B,) float64."""
    means = []
    for entropy_T, mask_T in zip(entropy_BT.double(), mask_BT.bool(), strict=True):
        tokens = entropy_T[mask_T]
        count = max(1, math.ceil(share * len(tokens)))
        means.append(float(tokens.topk(min(count, len(tokens))).values.mean()) if len(tokens) else 0.0)
    return torch.tensor(means, dtype=torch.float64, device=entropy_BT.device)


class FourQuadrant(ShapingPart):
    """A bonus by outcome and entropy, RECONSTRUCTED from MGE-PO's description of its advantage shaping.

    h_i = mean of the top ``share`` of the rollout's token entropies; z_i = (h_i - mean) / std over all rollouts seen so
    far, this batch included; u_i = logistic(-z_i) (near 1: confident); g_i = 0 for a truncated rollout, else 1;
    A <- A + g_i [r (right_confident u + right_uncertain (1 - u))
    - (1 - r)(wrong_uncertain (1 - u) + wrong_confident u)], then the batch mean of A is subtracted.
    Departure: assumed, because not stated: slope 1 of the logistic, an unweighted running mean and std, share 0.1.
    """

    use: Literal["four_quadrant"] = "four_quadrant"
    share: float = Field(default=0.1, gt=0, le=1)
    right_confident: float = 0.5
    right_uncertain: float = 0.0
    wrong_uncertain: float = 0.3
    wrong_confident: float = 0.0
    needs_token_inputs: ClassVar[bool] = True
    needs_token_entropy: ClassVar[bool] = True

    def start(self) -> PartState:
        """No rollout seen."""
        return {"count": 0, "mean": 0.0, "sum_squares": 0.0}

    def __call__(
        self, state: PartState, advantages: Advantages, inputs: AdvantageInputs
    ) -> tuple[PartState, Advantages]:
        """Add the bonus; step the running mean and sum of squared deviations (Chan's parallel form)."""
        assert inputs.entropy_BT is not None and inputs.mask_BT is not None
        shape = advantages.advantage_PG.shape
        entropy_PG = top_entropy_mean(inputs.entropy_BT, inputs.mask_BT, self.share).reshape(shape)
        seen = entropy_PG[inputs.is_valid_PG]
        count, mean, squares = int(state["count"]), float(state["mean"]), float(state["sum_squares"])
        if len(seen):
            batch_mean = float(seen.mean())
            total = count + len(seen)
            gap = batch_mean - mean
            squares += float(((seen - batch_mean) ** 2).sum()) + gap**2 * count * len(seen) / total
            mean += gap * len(seen) / total
            count = total
        std = math.sqrt(squares / (count - 1)) if count > 1 else 0.0
        confident_PG = torch.sigmoid(-(entropy_PG - mean) / (std + 1e-8))
        scores_PG = inputs.scores_PG.double()
        bonus_PG = scores_PG * (self.right_confident * confident_PG + self.right_uncertain * (1 - confident_PG)) - (
            1 - scores_PG
        ) * (self.wrong_uncertain * (1 - confident_PG) + self.wrong_confident * confident_PG)
        shaped_PG = advantages.advantage_PG + bonus_PG * inputs.is_finished_PG
        valid_PG = inputs.is_valid_PG
        if bool(valid_PG.any()):
            shaped_PG = shaped_PG - shaped_PG[valid_PG].mean()
        state = {"count": count, "mean": mean, "sum_squares": squares}
        log = {**advantages.log, "shaping/entropy_mean": mean, "shaping/entropy_std": std}
        return state, replace(advantages, advantage_PG=zero_where(shaped_PG, ~valid_PG), log=log)


PARTS: tuple[type[ShapingPart], ...] = (NoShaping, Focal, FourQuadrant)
