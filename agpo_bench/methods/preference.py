"""Direct preference optimisation. Shapes: N pairs, T tokens; rows 0..N-1 are chosen, rows N..2N-1 rejected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from agpo_bench.methods.part import Part


@dataclass(frozen=True, kw_only=True)
class PreferenceBatch:
    """Token log-probabilities (temperature 1) of N pairs: 2N rows, the chosen first, in the same order."""

    logprob_BT: Tensor
    ref_logprob_BT: Tensor
    mask_BT: Tensor
    """True on completion tokens; the prompt is not part of the row."""


@dataclass(frozen=True, kw_only=True)
class PreferenceOutput:
    """A micro-batch's share of the loss; the shares add up."""

    loss: Tensor
    sums: dict[str, float]
    """``pairs/margin``, ``pairs/accuracy``, ``loss/policy``: numerators over pairs."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A better and a worse rollout of one prompt."""

    prompt_index: int
    chosen_index: int
    rejected_index: int


class PreferencePart(Part):
    """How pairs are trained on."""

    slot: ClassVar[str] = "preference"

    def pairs(self, scores_PG: Tensor, is_valid_PG: Tensor) -> list[Pair]:
        """Pairs of a batch of groups."""
        raise NotImplementedError

    def __call__(self, batch: PreferenceBatch, num_pairs: int) -> PreferenceOutput:
        """Loss of a micro-batch; ``num_pairs`` counts the whole minibatch."""
        raise NotImplementedError


class NoPreference(PreferencePart):
    """Rewards, not pairs."""

    use: Literal["none"] = "none"


class Dpo(PreferencePart):
    """-log sigmoid(beta [(l_w - ref_w) - (l_l - ref_l)]), l the SUM of completion log-probabilities (DPO Eq. 7).

    ``label_smoothing`` e gives (1 - e) of that loss and e of the loss with the pair swapped. Pairs: the best and the
    worst rollout of a group sampled from the initial policy, when their scores differ; ties go to the first.
    """

    use: Literal["dpo"] = "dpo"
    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    needs_pairs: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = True
    min_group_size: ClassVar[int] = 2

    def pairs(self, scores_PG: Tensor, is_valid_PG: Tensor) -> list[Pair]:
        """One pair for each group with a better and a worse rollout."""
        pairs = []
        for index, (scores_G, valid_G) in enumerate(zip(scores_PG.tolist(), is_valid_PG.tolist(), strict=True)):
            members = [g for g, valid in enumerate(valid_G) if valid]
            if not members:
                continue
            chosen = max(members, key=lambda g: (scores_G[g], -g))
            rejected = min(members, key=lambda g: (scores_G[g], g))
            if scores_G[chosen] > scores_G[rejected]:
                pairs.append(Pair(prompt_index=index, chosen_index=chosen, rejected_index=rejected))
        return pairs

    def __call__(self, batch: PreferenceBatch, num_pairs: int) -> PreferenceOutput:
        """Sum over the micro-batch's pairs, divided by the minibatch's."""
        mask_BT = batch.mask_BT.bool()
        log_ratio_B = (batch.logprob_BT - batch.ref_logprob_BT).masked_fill(~mask_BT, 0.0).sum(dim=1)
        chosen_N, rejected_N = log_ratio_B.chunk(2)
        margin_N = self.beta * (chosen_N - rejected_N)
        loss_N = -(1 - self.label_smoothing) * logsigmoid(margin_N) - self.label_smoothing * logsigmoid(-margin_N)
        detached_N = margin_N.detach()
        sums = {
            "loss/policy": float(loss_N.detach().sum()),
            "pairs/margin": float(detached_N.sum()),
            "pairs/accuracy": float(torch.sum(detached_N > 0)),
        }
        return PreferenceOutput(loss=loss_N.sum() / max(1, num_pairs), sums=sums)


PARTS: tuple[type[PreferencePart], ...] = (NoPreference, Dpo)
