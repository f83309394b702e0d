"""How far the policy is from the reference, and how far one step moved it. Shapes: B sequences, T response tokens.

Both are sample means over the same fixed part of the step's rollouts. Nucleus sampling with top-p below 1 and, for the
reference KL, a sampling temperature other than 1 make them estimates of the truncated or tempered behaviour, not
unbiased ones of the KL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agpo_bench.methods.kl import kl_estimate
from agpo_bench.training.policy import ScoredSequence
from agpo_bench.training.session import Session
from agpo_bench.training.shares import score


@dataclass(frozen=True, kw_only=True)
class KlSample:
    """k1 and k3 at every sampled token; 0 on padding."""

    k1_BT: Tensor
    k3_BT: Tensor
    mask_BT: Tensor

    @classmethod
    def between(cls, logprob_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> KlSample:
        """KL(p || q) from log p and log q at tokens drawn from p: k1 = log p - log q, k3 = e^-k1 - 1 + k1; float64."""
        mask_BT = mask_BT.bool()
        first = logprob_BT.double().masked_fill(~mask_BT, 0.0)
        second = other_BT.double().masked_fill(~mask_BT, 0.0)
        return cls(
            k1_BT=kl_estimate(first, second, "k1"), k3_BT=kl_estimate(first, second, "k3"), mask_BT=mask_BT.double()
        )

    @property
    def num_tokens(self) -> int:
        """Tokens behind the means."""
        return int(self.mask_BT.sum())

    @property
    def k1(self) -> float:
        """Mean over tokens."""
        return float(self.k1_BT.sum() / self.mask_BT.sum().clamp(min=1))

    @property
    def k3(self) -> float:
        """Mean over tokens."""
        return float(self.k3_BT.sum() / self.mask_BT.sum().clamp(min=1))

    @property
    def per_sequence(self) -> float:
        """Mean over sequences of the k1 sum over tokens."""
        return float(self.k1_BT.sum(dim=1).mean())

    @property
    def per_sequence_k3(self) -> float:
        """Mean over sequences of the k3 sum over tokens."""
        return float(self.k3_BT.sum(dim=1).mean())

    def k1_by_group(self, group_size: int) -> Tensor:
        """k1 mean over tokens within each run of ``group_size`` sequences."""
        total_P = self.k1_BT.sum(dim=1).reshape(-1, group_size).sum(dim=1)
        count_P = self.mask_BT.sum(dim=1).reshape(-1, group_size).sum(dim=1)
        return (total_P / count_P.clamp(min=1)).cpu()


@torch.no_grad()
def reference_kl(session: Session, sequences: Sequence[ScoredSequence]) -> KlSample:
    """KL(pi || pi_ref) at the temperature the sequences carry."""
    assert session.reference is not None
    now = score(session, session.policy, sequences)
    anchor = score(session, session.reference, sequences)
    return KlSample.between(now.logprob_BT, anchor.logprob_BT, now.mask_BT)
