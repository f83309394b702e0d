"""From ratio, advantage and band to one number: the surrogate (a loss a token) and its aggregation.

Shapes: B sequences, T tokens. Everything is to be minimised.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor

from agpo_bench.methods.batch import LossBatch, LossDenominators, MinibatchExtras
from agpo_bench.methods.clip import Band
from agpo_bench.methods.part import Part
from agpo_bench.methods.ratio import token_log_ratio

ROUNDING = 1e-4
"""Log-ratios of equal weights that two passes computed in float32 stay below this."""


class TokenLoss(NamedTuple):
    """Loss of each token and where the clip acted."""

    loss_BT: Tensor
    """(B, T) or (B, 1), not yet masked."""
    active_BT: Tensor
    """True where the clip took the gradient away or changed the weight; detached."""


def clip_is_active(ratio: Tensor, advantage: Tensor, band: Band) -> Tensor:
    """Where the gradient of the clipped surrogate is 0.

    r above the band with A > 0, r below it with A < 0, or, with a dual cap, r above the cap with A < 0.
    """
    active = ((ratio > band.upper) & (advantage > 0)) | ((ratio < band.lower) & (advantage < 0))
    return active if band.dual is None else active | ((ratio > band.dual) & (advantage < 0))


def clipped_surrogate(ratio: Tensor, advantage: Tensor, band: Band) -> Tensor:
    """min(r A, clip(r, lower, upper) A), with the dual cap for A < 0 where the band has one."""
    clipped = torch.minimum(torch.maximum(ratio, band.lower), band.upper)
    value = torch.minimum(ratio * advantage, clipped * advantage)
    if band.dual is not None:
        value = torch.where(advantage < 0, torch.maximum(value, band.dual * advantage), value)
    return value


class SurrogatePart(Part):
    """The loss of one token."""

    slot: ClassVar[str] = "surrogate"
    uses_clip: ClassVar[bool] = True
    """False for a surrogate that ignores the clip slot; a clip beside it is refused."""
    requires_clip: ClassVar[bool] = False
    needs_token_ratio: ClassVar[bool] = False

    def prepare(self, batch: LossBatch, log_ratio: Tensor, band: Band, generator: Generator) -> MinibatchExtras:
        """Statistics of the whole minibatch, without gradients."""
        return MinibatchExtras()

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        raise NotImplementedError


class ClippedSurrogate(SurrogatePart):
    """-min(r A, clip(r, 1 - low, 1 + high) A) (PPO Eq. 7, AGPO Eq. 3).

    ``dual_clip`` c caps the loss of a negative advantage at -c A.
    """

    use: Literal["clipped"] = "clipped"
    dual_clip: float | None = Field(default=None, gt=1)
    requires_clip: ClassVar[bool] = True

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        ratio = log_ratio.exp()
        if self.dual_clip is not None:
            band = Band(lower=band.lower, upper=band.upper, dual=torch.full_like(band.upper, self.dual_clip))
        value = clipped_surrogate(ratio, batch.advantage_BT, band)
        return TokenLoss(-value, clip_is_active(ratio.detach(), batch.advantage_BT, band))


class UnclippedSurrogate(SurrogatePart):
    """-r A: importance-weighted policy gradient."""

    use: Literal["unclipped"] = "unclipped"
    uses_clip: ClassVar[bool] = False

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        value = log_ratio.exp() * batch.advantage_BT
        return TokenLoss(-value, torch.zeros_like(value, dtype=torch.bool))


class WeightedLogLikelihood(SurrogatePart):
    """-sg[clip(r, 1 - low, 1 + high)] A log pi(a_t) (CISPO): the weight is clipped, no token loses its gradient."""

    use: Literal["cispo"] = "cispo"
    requires_clip: ClassVar[bool] = True
    needs_token_ratio: ClassVar[bool] = True

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        ratio = log_ratio.exp().detach()
        weight = torch.minimum(torch.maximum(ratio, band.lower), band.upper)
        logprob_BT = batch.logprob_BT.masked_fill(~batch.mask_BT.bool(), 0.0)
        return TokenLoss(-weight * batch.advantage_BT * logprob_BT, weight != ratio)


def _covariance(batch: LossBatch) -> Tensor:
    """(A_t - mean A)(log pi_t - mean log pi) over the minibatch's valid tokens; 0 on padding; (B, T)."""
    mask_BT = batch.mask_BT.bool()
    advantage_BT = batch.advantage_BT.expand_as(batch.logprob_BT).double()
    logprob_BT = batch.logprob_BT.double().masked_fill(~mask_BT, 0.0)
    product_BT = (advantage_BT - advantage_BT[mask_BT].mean()) * (logprob_BT - logprob_BT[mask_BT].mean())
    return product_BT.masked_fill(~mask_BT, 0.0)


class ClipCov(SurrogatePart):
    """The clipped surrogate with the loss of a few high-covariance tokens set to zero (Clip-Cov).

    Candidates have minimum < cov < maximum and are not clipped already; max(1, floor(fraction N)) of them are drawn at
    random from N valid tokens of the minibatch.
    """

    use: Literal["clip_cov"] = "clip_cov"
    fraction: float = Field(default=2e-4, ge=0, le=1)
    minimum: float = 1.0
    maximum: float = 5.0
    dual_clip: float | None = Field(default=10.0, gt=1)

    requires_clip: ClassVar[bool] = True
    needs_token_ratio: ClassVar[bool] = True
    needs_minibatch_statistics: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check(self) -> ClipCov:
        if self.minimum >= self.maximum:
            raise ValueError(f"covariance minimum {self.minimum} is not below maximum {self.maximum}")
        return self

    def prepare(self, batch: LossBatch, log_ratio: Tensor, band: Band, generator: Generator) -> MinibatchExtras:
        """Choose the tokens."""
        mask_BT = batch.mask_BT.bool()
        selected_BT = torch.zeros_like(mask_BT)
        if not bool(mask_BT.any()):
            return MinibatchExtras(selected_BT=selected_BT)
        cov_BT = _covariance(batch)
        active_BT = clip_is_active(log_ratio.exp(), batch.advantage_BT, band)
        candidates = ((cov_BT > self.minimum) & (cov_BT < self.maximum) & ~active_BT & mask_BT).nonzero()
        wanted = max(1, int(self.fraction * int(mask_BT.sum())))
        # Drawn on the CPU, so that the choice does not depend on the device.
        chosen = candidates[torch.randperm(len(candidates), generator=generator)[:wanted].to(candidates.device)]
        selected_BT[chosen[:, 0], chosen[:, 1]] = True
        return MinibatchExtras(selected_BT=selected_BT, log={"cov/selected_tokens": float(len(chosen))})

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        assert extras.selected_BT is not None
        inner = ClippedSurrogate(dual_clip=self.dual_clip)(batch, log_ratio, band, extras)
        return TokenLoss(inner.loss_BT.masked_fill(extras.selected_BT, 0.0), inner.active_BT | extras.selected_BT)


class KlCov(SurrogatePart):
    """-r A + 1[t in top fraction by covariance] coefficient |l_t|, without a clip (KL-Cov)."""

    use: Literal["kl_cov"] = "kl_cov"
    fraction: float = Field(default=2e-3, gt=0, le=1)
    coefficient: float = Field(default=1.0, ge=0)

    uses_clip: ClassVar[bool] = False
    needs_token_ratio: ClassVar[bool] = True
    needs_minibatch_statistics: ClassVar[bool] = True

    def prepare(self, batch: LossBatch, log_ratio: Tensor, band: Band, generator: Generator) -> MinibatchExtras:
        """Choose the tokens: at least one."""
        mask_BT = batch.mask_BT.bool()
        selected_BT = torch.zeros_like(mask_BT)
        num_tokens = int(mask_BT.sum())
        if not num_tokens:
            return MinibatchExtras(selected_BT=selected_BT)
        cov_BT = _covariance(batch).masked_fill(~mask_BT, float("-inf"))
        wanted = max(1, int(self.fraction * num_tokens))
        order = torch.sort(cov_BT.flatten(), descending=True, stable=True).indices
        selected_BT.view(-1)[order[:wanted]] = True
        return MinibatchExtras(selected_BT=selected_BT, log={"cov/selected_tokens": float(wanted)})

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        assert extras.selected_BT is not None
        loss_BT = -log_ratio.exp() * batch.advantage_BT
        distance_BT = token_log_ratio(batch).abs()
        # Before the first update l_t is rounding residue, whose sign would otherwise be a gradient of full size.
        penalty_BT = self.coefficient * distance_BT.masked_fill(distance_BT <= ROUNDING, 0.0)
        return TokenLoss(loss_BT + penalty_BT * extras.selected_BT, torch.zeros_like(loss_BT, dtype=torch.bool))


class EffectiveSampleCap(SurrogatePart):
    """-sg[min(r, ESS)] A log pi + (1 - ESS) k3(pi || pi_old), with no clip hyper-parameter (P3O).

    ESS = (sum w)^2 / (n sum w^2) over the n valid tokens of the minibatch, w = r; 1 when empty or not finite.
    k3 = l + exp(-l) - 1 with l = log pi - log pi_old. On policy ESS = 1: plain REINFORCE.
    """

    use: Literal["p3o"] = "p3o"
    uses_clip: ClassVar[bool] = False
    needs_token_ratio: ClassVar[bool] = True
    needs_minibatch_statistics: ClassVar[bool] = True

    def prepare(self, batch: LossBatch, log_ratio: Tensor, band: Band, generator: Generator) -> MinibatchExtras:
        """Measure the effective sample fraction."""
        weights = log_ratio.double()[batch.mask_BT.bool()].exp()
        fraction = 1.0
        if weights.numel():
            value = float(weights.sum() ** 2 / (weights.numel() * (weights**2).sum()))
            fraction = value if math.isfinite(value) else 1.0
        return MinibatchExtras(effective_sample_fraction=fraction, log={"ess/fraction": fraction})

    def __call__(self, batch: LossBatch, log_ratio: Tensor, band: Band, extras: MinibatchExtras) -> TokenLoss:
        """Loss of each token."""
        fraction = extras.effective_sample_fraction
        ratio_BT = log_ratio.exp().detach()
        weight_BT = ratio_BT.clamp(max=fraction)
        logprob_BT = batch.logprob_BT.masked_fill(~batch.mask_BT.bool(), 0.0)
        behaviour_kl_BT = log_ratio + (-log_ratio).exp() - 1.0
        loss_BT = -weight_BT * batch.advantage_BT * logprob_BT + (1.0 - fraction) * behaviour_kl_BT
        return TokenLoss(loss_BT, weight_BT != ratio_BT)


SURROGATES: tuple[type[SurrogatePart], ...] = (
    ClippedSurrogate,
    UnclippedSurrogate,
    WeightedLogLikelihood,
    ClipCov,
    KlCov,
    EffectiveSampleCap,
)


class AggregationPart(Part):
    """Weights that turn token losses into the minibatch loss."""

    slot: ClassVar[str] = "aggregation"

    def __call__(self, mask_BT: Tensor, denominators: LossDenominators) -> Tensor:
        """Weight of each token, (B, T); the loss is the weighted sum. Rows of any micro-batch split add up."""
        raise NotImplementedError


class TokenMean(AggregationPart):
    """sum over tokens / number of tokens of the minibatch (DAPO)."""

    use: Literal["token_mean"] = "token_mean"

    def __call__(self, mask_BT: Tensor, denominators: LossDenominators) -> Tensor:
        """Every token weighs the same."""
        return mask_BT / max(1, denominators.num_tokens)


class SequenceMean(AggregationPart):
    """mean over sequences of the mean over their tokens (GRPO)."""

    use: Literal["sequence_mean"] = "sequence_mean"

    def __call__(self, mask_BT: Tensor, denominators: LossDenominators) -> Tensor:
        """Every sequence weighs the same."""
        return mask_BT / mask_BT.sum(dim=1, keepdim=True).clamp(min=1) / max(1, denominators.num_sequences)


class SequenceSum(AggregationPart):
    """mean over sequences of the sum over their tokens."""

    use: Literal["sequence_sum"] = "sequence_sum"

    def __call__(self, mask_BT: Tensor, denominators: LossDenominators) -> Tensor:
        """Every token weighs one over the number of sequences."""
        return mask_BT / max(1, denominators.num_sequences)


class ConstantLength(AggregationPart):
    """sum over tokens / (number of sequences * L_max) (Dr.GRPO); L_max is the sampling limit unless given."""

    use: Literal["constant"] = "constant"
    length: int | None = Field(default=None, ge=1)

    def __call__(self, mask_BT: Tensor, denominators: LossDenominators) -> Tensor:
        """Every token weighs the same, whatever the lengths."""
        length = denominators.max_new_tokens if self.length is None else self.length
        return mask_BT / (max(1, denominators.num_sequences) * length)


AGGREGATIONS: tuple[type[AggregationPart], ...] = (TokenMean, SequenceMean, SequenceSum, ConstantLength)
