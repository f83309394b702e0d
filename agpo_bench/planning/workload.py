"""How many tokens a step samples, scores and trains on, and what one micro-batch of them holds.

P prompts, G rollouts a prompt, p prompt tokens, t response tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agpo_bench.config import RunConfig
from agpo_bench.planning.needs import MethodNeeds


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of prompts and responses. Memory follows the longest responses, cost the mean ones."""

    prompt: int
    longest_prompt: int
    longest_response: int
    mean_response: float

    @classmethod
    def of(
        cls,
        config: RunConfig,
        *,
        prompt: int | None = None,
        longest_prompt: int | None = None,
        mean_response: float | None = None,
    ) -> Lengths:
        """Assumed where not given: prompts of a fifth of ``max_length``, responses of half their limit."""
        usual = prompt if prompt is not None else max(1, config.max_length // 5)
        if not 1 <= usual < config.max_length:
            raise ValueError(
                f"prompts of {usual} tokens leave no room for an answer in max_length {config.max_length}; "
                "give --prompt-tokens a smaller number"
            )
        longest = min(config.max_new_tokens, config.max_length - usual)
        mean = mean_response if mean_response is not None else longest / 2
        if not 1 <= mean <= longest:
            raise ValueError(
                f"a mean response of {mean:g} tokens is not between 1 and {longest}, the most that max_new_tokens and "
                "max_length leave; change --response-tokens"
            )
        return cls(
            prompt=usual,
            longest_prompt=max(usual, longest_prompt or min(config.max_length - 1, 2 * usual)),
            longest_response=longest,
            mean_response=mean,
        )


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One rollout batch."""

    num_prompts: int
    group_size: int
    """Training rollouts a prompt."""
    probe_size: int
    reuses_probe: bool
    """Whether the probe groups are trained on too."""
    minibatches: int
    updates: int
    lengths: Lengths

    @classmethod
    def of(cls, config: RunConfig, needs: MethodNeeds, lengths: Lengths) -> Workload:
        """As ``training.setup`` counts prompts and rollouts."""
        return cls(
            num_prompts=config.prompts_per_batch * (config.group_size if needs.own_group_size == 1 else 1),
            group_size=needs.rollouts_per_prompt(config.group_size),
            probe_size=needs.probe_size(config.group_size),
            reuses_probe=needs.reuses_probe,
            minibatches=config.minibatches_per_epoch,
            updates=config.updates_per_rollout,
            lengths=lengths,
        )

    @property
    def num_rollouts(self) -> int:
        """Rollouts that the batch trains on."""
        return self.num_prompts * (self.group_size + self.probe_size * self.reuses_probe)

    @property
    def sampled_tokens(self) -> float:
        """Generated tokens that the budget is charged for one batch, the probe's included."""
        return self.num_prompts * (self.group_size + self.probe_size) * self.lengths.mean_response

    @property
    def trained_tokens(self) -> float:
        """Those that are trained on."""
        return self.num_rollouts * self.lengths.mean_response


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one forward-backward pass holds, every response at its longest."""

    num_prompts: int
    """Distinct prompts."""
    num_rows: int
    prompt_tokens: int
    response_tokens: int
    is_padded: bool
    """Whether every row brings its own copy of the prompt (the library's forward)."""

    @property
    def num_tokens(self) -> int:
        """N, positions the layers compute: a response's last token predicts nothing."""
        if self.is_padded:
            return self.num_rows * (self.prompt_tokens + self.response_tokens - 1)
        return self.num_prompts * self.prompt_tokens + self.num_rows * (self.response_tokens - 1)

    @property
    def num_targets(self) -> int:
        """M, response tokens: as many meet the output head."""
        return self.num_rows * self.response_tokens


def micro_batch(
    work: Workload, *, max_tokens: int, num_ranks: int, is_padded: bool, is_update: bool = True, pairs: bool = False
) -> MicroBatch:
    """The largest micro-batch that ``training.sequences`` cuts from a rank's share of a minibatch (or of a batch).

    Whole groups while they fit, then rows of one more; never less than one row. ``is_padded`` says how the forward
    pass lays rows out; an update is cut by tokens with a prompt counted once in either case, scoring by padded tokens.
    """
    p, t, size = work.lengths.prompt, work.lengths.longest_response, work.group_size
    groups = math.ceil(work.num_prompts / (work.minibatches if is_update else 1) / num_ranks)
    if pairs:  # one better and one worse rollout of each prompt, cut by the longer at half the limit
        fits = max(1, (max_tokens // 2) // (p + t))
        rows = 2 * min(fits, groups)
        return MicroBatch(num_prompts=rows // 2, num_rows=rows, prompt_tokens=p, response_tokens=t, is_padded=is_padded)
    if is_padded and not is_update:
        rows = min(max(1, max_tokens // (p + t)), groups * size)
        prompts = math.ceil(rows / size)
    else:
        whole = min(max_tokens // (p + size * t), groups)
        room = max_tokens - whole * (p + size * t)
        more = min(size, max(0, (room - p) // t)) if whole < groups else 0
        rows = max(1, whole * size + more)
        prompts = max(1, whole + (more > 0))
    return MicroBatch(num_prompts=prompts, num_rows=rows, prompt_tokens=p, response_tokens=t, is_padded=is_padded)
