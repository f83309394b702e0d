"""The value model of PPO. Shapes: B sequences, T tokens."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from agpo_bench.methods.batch import LossBatch
from agpo_bench.methods.part import Part


class CriticPart(Part):
    """Whether there is a critic, and its loss."""

    slot: ClassVar[str] = "critic"

    def __call__(self, batch: LossBatch) -> Tensor | None:
        """Loss a token, the coefficient included, to be averaged over tokens; None without a critic."""
        return None


class NoCritic(CriticPart):
    """No value model."""

    use: Literal["none"] = "none"


class ValueHead(CriticPart):
    """A linear head that reads the hidden state before each token (PPO).

    loss_t = coefficient * 1/2 max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2), token mean.
    ``trunk: shared`` puts the head on the policy's own transformer, ``separate`` on a copy of the initial model.
    """

    use: Literal["value_head"] = "value_head"
    trunk: Literal["shared", "separate"] = "shared"
    coefficient: float = Field(default=0.1, gt=0)
    value_clip: float | None = Field(default=0.2, gt=0)
    needs_critic: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> Tensor | None:
        """Loss a token; 0 on padding."""
        assert batch.value_BT is not None and batch.return_BT is not None
        mask_BT = batch.mask_BT.bool()
        error_BT = (batch.value_BT - batch.return_BT).square()
        if self.value_clip is not None:
            assert batch.old_value_BT is not None
            low_BT, high_BT = batch.old_value_BT - self.value_clip, batch.old_value_BT + self.value_clip
            clipped_BT = torch.minimum(torch.maximum(batch.value_BT, low_BT), high_BT)
            error_BT = torch.maximum(error_BT, (clipped_BT - batch.return_BT).square())
        return (self.coefficient * 0.5 * error_BT).masked_fill(~mask_BT, 0.0)


PARTS: tuple[type[CriticPart], ...] = (NoCritic, ValueHead)
