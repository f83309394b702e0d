"""Whether an engine with its own copy of the weights samples from the policy, told by both sides' log-probabilities.

Stale weights, another tokenisation of positions, a wrong number format or a broken kernel all show here, before an
update is made from rollouts of another policy. Shapes: B sequences, T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from agpo_bench.training.collect import RolloutBatch
from agpo_bench.training.policy import Policy, TokenLogprobs
from agpo_bench.training.session import Session
from agpo_bench.training.shares import score

MAX_MEAN_GAP = {torch.float32: 0.01, torch.bfloat16: 0.15}
"""Nats a token. Measured between vLLM and our forward pass on one CPU, on the embedded model and on SmolLM2-135M: 2e-7
and 4e-6 in float32, 0.003 and 0.037 in bfloat16, where single tokens differ by 0.1 and 0.4: hence a mean."""
_MOST_ROLLOUTS = 32
"""How many are scored for this alone."""


class SamplerGap(NamedTuple):
    """|log p of the sampler - log p of the policy| at temperature 1 over response tokens, in nats."""

    mean: float
    largest: float
    num_tokens: int

    @classmethod
    def between(cls, logprobs: Sequence[Sequence[float]], scored: TokenLogprobs) -> SamplerGap:
        """Of the sampler's log-probabilities at temperature 1 and the policy's scores at that temperature."""
        theirs = torch.tensor([value for row in logprobs for value in row], dtype=torch.float64)
        ours = scored.logprob_BT[scored.mask_BT.bool()].cpu().double()
        gap = (theirs - ours).abs()
        return cls(mean=float(gap.mean()), largest=float(gap.max()), num_tokens=gap.numel())

    def refuse(self, dtype: torch.dtype, *, version: int) -> None:
        """ValueError in one sentence when the sampler answers with another model than the policy (or with NaN)."""
        if not self.mean <= MAX_MEAN_GAP[dtype]:
            raise ValueError(
                f"the sampling engine's log-probabilities differ from the policy's by {self.mean:.3g} nats a token on "
                f"average (at most {self.largest:.3g}, over {self.num_tokens} tokens; weights {version}), more than "
                f"the {MAX_MEAN_GAP[dtype]} that rounding explains: the engine holds other weights, cached prompts of "
                "earlier ones, another number format, or does not implement this architecture as the library does"
            )


def sampler_gap(
    session: Session, policy: Policy, batch: RolloutBatch, *, scored: TokenLogprobs | None = None
) -> SamplerGap:
    """The gap over a step's rollouts, refused when it is too large.

    ``scored`` are the policy's scores of all of them at temperature 1; without, up to 32 spread over the batch are
    scored here.
    """
    rollouts = batch.rollouts
    if scored is None:
        step = -(-len(rollouts) // _MOST_ROLLOUTS)
        rollouts = rollouts[::step]
        scored = score(session, policy, batch.sequences(temperature=1.0)[::step])
    gap = SamplerGap.between([rollout.logprobs for rollout in rollouts], scored)
    gap.refuse(policy.loaded.compute_dtype, version=rollouts[0].weights_version)
    return gap
