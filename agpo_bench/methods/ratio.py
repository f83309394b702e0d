"""The importance ratio, as its logarithm. Shapes: B sequences, T tokens.

l_t = log pi(a_t) - log pi_old(a_t), both at the same temperature; padding contributes 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from agpo_bench.methods.batch import LossBatch
from agpo_bench.methods.part import Part

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20 before they are exponentiated, so that a broken update gives a number and not inf."""


def token_log_ratio(batch: LossBatch) -> Tensor:
    """l_t, 0 on padding; (B, T)."""
    return (batch.logprob_BT - batch.old_logprob_BT).masked_fill(~batch.mask_BT.bool(), 0.0)


class RatioPart(Part):
    """The level at which policies are compared."""

    slot: ClassVar[str] = "ratio"
    is_sequence_level: ClassVar[bool] = False

    def __call__(self, batch: LossBatch) -> Tensor:
        """Log-ratio, (B, T) or (B, 1)."""
        raise NotImplementedError


class TokenRatio(RatioPart):
    """r_t = exp(l_t) (PPO; the proxy that AGPO Sect. 3.4 says is used in practice)."""

    use: Literal["token"] = "token"

    def __call__(self, batch: LossBatch) -> Tensor:
        """(B, T)."""
        return token_log_ratio(batch).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


class SequenceRatio(RatioPart):
    """r = exp(sum_t l_t): the product over tokens (AGPO Eq. 2, literal; RLOO)."""

    use: Literal["sequence"] = "sequence"
    is_sequence_level: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> Tensor:
        """(B, 1)."""
        return token_log_ratio(batch).sum(dim=1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


class SequenceMeanRatio(RatioPart):
    """s = exp(mean_t l_t): the geometric mean over tokens (GSPO)."""

    use: Literal["sequence_mean"] = "sequence_mean"
    is_sequence_level: ClassVar[bool] = True

    def __call__(self, batch: LossBatch) -> Tensor:
        """(B, 1)."""
        lengths_B1 = batch.mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        mean_B1 = token_log_ratio(batch).sum(dim=1, keepdim=True) / lengths_B1
        return mean_B1.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


class CumulativeRatio(RatioPart):
    """g_t = sum_{j <= t} l_j, or its mean over the t tokens so far (CTPO).

    The value is g_t, the gradient that of l_t alone: sg[g_t] + l_t - sg[l_t].
    """

    use: Literal["cumulative"] = "cumulative"
    is_mean: bool = False

    def __call__(self, batch: LossBatch) -> Tensor:
        """(B, T)."""
        log_ratio_BT = token_log_ratio(batch)
        total_BT = log_ratio_BT.detach().cumsum(dim=1)
        if self.is_mean:
            total_BT = total_BT / batch.mask_BT.cumsum(dim=1).clamp(min=1)
        # CTPO caps the log-ratio at 10.
        return (total_BT + log_ratio_BT - log_ratio_BT.detach()).clamp(-MAX_LOG_RATIO, 10.0)


PARTS: tuple[type[RatioPart], ...] = (TokenRatio, SequenceRatio, SequenceMeanRatio, CumulativeRatio)
