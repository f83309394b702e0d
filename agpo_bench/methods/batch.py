"""Records that pass between the loop and a method.

Shapes: P prompts, G rollouts a prompt, B = P*G sequences (row p*G + g is rollout g of prompt p), T response tokens,
right padded. Statistics are float64; log-probabilities keep the model's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TemperatureChoice:
    """The temperature of this step's training rollouts."""

    value: float
    """Mean over prompts; with controller scope ``batch`` it is every prompt's."""
    value_P: Tensor | None
    """Temperature of each prompt (float64, P) with controller scope ``prompt``; None when all share ``value``."""
    log: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class AdvantageInputs:
    """What is known of the training rollouts when their advantages are computed.

    The token-level fields are needed when ``needs.token_inputs`` says so; ``ref_logprob_BT`` when the KL penalty sits
    in the reward, ``value_BT`` when there is a critic, ``entropy_BT`` when ``needs.token_entropy``.
    """

    rewards_PG: Tensor
    """After ``Method.shape_rewards``; float64."""
    scores_PG: Tensor
    """The grader's scores in [0, 1], before shaping."""
    prompt_ids: tuple[str, ...]
    is_valid_PG: Tensor
    """False where the harness failed: no advantage, and out of every mean."""
    is_finished_PG: Tensor
    mask_BT: Tensor | None = None
    old_logprob_BT: Tensor | None = None
    ref_logprob_BT: Tensor | None = None
    value_BT: Tensor | None = None
    """Critic's value of the state before each token."""
    entropy_BT: Tensor | None = None
    """Full-vocabulary entropy (nats) at temperature 1 of the distribution each token was drawn from."""


@dataclass(frozen=True, kw_only=True)
class Advantages:
    """Advantages, one a rollout, or one a token where the estimator works on tokens."""

    advantage_PG: Tensor
    """float64; for a token-level estimator the mean over the rollout's tokens, for logging."""
    is_trained_PG: Tensor
    """False for rollouts that leave the batch before any denominator is counted (infrastructure failures, pivots)."""
    advantage_BT: Tensor | None = None
    return_BT: Tensor | None = None
    """Targets of the critic."""
    log: dict[str, float] = field(default_factory=dict)

    def rows(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Advantages as ``LossBatch`` wants them: (B, T) from a token-level estimator, else (B, 1)."""
        values = self.advantage_PG.reshape(-1, 1) if self.advantage_BT is None else self.advantage_BT
        return values.to(dtype)


@dataclass(frozen=True, kw_only=True)
class ClipObserved:
    """What a clip rule may read once the training rollouts are graded."""

    scores_PG: Tensor
    """The grader's scores in [0, 1]; float64."""
    is_valid_PG: Tensor | None = None
    """False where the harness failed: such a rollout counts neither as right nor as wrong."""
    entropy: float | None = None
    """Mean over all training tokens of the old policy's full-vocabulary entropy at temperature 1 (nats)."""
    entropy_P: Tensor | None = None
    """The same mean within each prompt's rollouts; read only with controller scope ``prompt``."""


@dataclass(frozen=True, kw_only=True)
class ClipBounds:
    """How far below and above 1 the ratio may go: the band is [1 - low, 1 + high]."""

    low_PG: Tensor
    high_PG: Tensor
    log: dict[str, float]

    def rows(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """(low_B1, high_B1) as ``LossBatch`` wants them."""
        return self.low_PG.reshape(-1, 1).to(dtype), self.high_PG.reshape(-1, 1).to(dtype)


@dataclass(frozen=True, kw_only=True)
class LossBatch:
    """Sequences of one micro-batch (or, without gradients, of a whole minibatch).

    All three log-probabilities are of the sampled tokens under the full vocabulary at ONE temperature a sequence.
    """

    logprob_BT: Tensor
    """Under the policy being trained; carries the gradient."""
    old_logprob_BT: Tensor
    mask_BT: Tensor
    """True on response tokens, the sampled terminator included."""
    advantage_BT: Tensor
    """(B, T) or (B, 1)."""
    clip_low_B1: Tensor
    clip_high_B1: Tensor
    ref_logprob_BT: Tensor | None = None
    kl_coefficient: float = 0.0
    """``Method.kl_coefficient(state)``."""
    value_BT: Tensor | None = None
    """Critic's value now; carries the gradient."""
    old_value_BT: Tensor | None = None
    return_BT: Tensor | None = None

    def take(self, rows: Sequence[int] | Tensor, num_tokens: int) -> LossBatch:
        """The given rows, trimmed to their first ``num_tokens`` columns."""
        index = torch.as_tensor(rows, device=self.logprob_BT.device)
        changes: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                changes[item.name] = value[index][:, :num_tokens]
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class LossDenominators:
    """Counts over the whole minibatch and all ranks, taken before any micro-batch split."""

    num_tokens: int
    num_sequences: int
    max_new_tokens: int
    """The sampling limit of a response: the constant of a constant-length aggregation."""


@dataclass(frozen=True, kw_only=True)
class MinibatchExtras:
    """Statistics of a whole minibatch that its micro-batches need (``needs.minibatch_statistics``)."""

    selected_BT: Tensor | None = None
    """Tokens chosen by a covariance rule."""
    effective_sample_fraction: float = 1.0
    log: dict[str, float] = field(default_factory=dict)

    def take(self, rows: Sequence[int] | Tensor, num_tokens: int) -> MinibatchExtras:
        """The extras of the given rows, trimmed like ``LossBatch.take``."""
        if self.selected_BT is None:
            return self
        index = torch.as_tensor(rows, device=self.selected_BT.device)
        return replace(self, selected_BT=self.selected_BT[index][:, :num_tokens])


@dataclass(frozen=True, kw_only=True)
class LossOutput:
    """A micro-batch's share of the minibatch loss; the shares add up."""

    loss: Tensor
    sums: dict[str, float]
    """Numerators for logging; ``metrics.LOSS_SUMS`` gives the denominator of each."""
    active_tokens_B: Tensor
    """Tokens of each sequence on which the clip took the gradient away (or changed the weight); detached."""


@dataclass(frozen=True, kw_only=True)
class UpdateObserved:
    """What is measured after all updates of a step."""

    num_episodes: int
    """Sequences of the step's training batch."""
    step_kl_k1: float = 0.0
    """Mean over the step's sampled training tokens of log pi_before - log pi_after (AGPO Eq. 6)."""
    step_kl_k1_P: Tensor | None = None
    """The same mean within each prompt's rollouts; read only when the clip rule clamps per group."""
    ref_kl_per_sequence: float | None = None
    """Mean over sequences of sum_t (log pi_old - log pi_ref), for an adaptive KL coefficient."""
    prompt_ids: tuple[str, ...] = ()
    scores_PG: Tensor | None = None
    """Read by a per-prompt value tracker."""
    is_valid_PG: Tensor | None = None
    """False where the harness failed: a tracker does not see such a rollout."""
