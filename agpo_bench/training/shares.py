"""How the processes of a run share passes over sequences. Shapes: B sequences, T response tokens.

Shares are contiguous in the order of the batch, so the sequences of a prompt stay together but at the cuts, and every
process can work out everyone's share without asking.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from agpo_bench.training.policy import Policy, ScoredSequence, TokenLogprobs
from agpo_bench.training.world import World

if TYPE_CHECKING:
    from agpo_bench.training.session import Session


class MicroBatch(NamedTuple):
    """One forward-backward pass of this process."""

    positions: list[int]
    """Which of the minibatch's items it takes."""
    is_counted: bool
    """False for a pass of weight 0, run because the other processes still exchange gradients."""


def balanced_shares(costs: Sequence[int], count: int) -> list[list[int]]:
    """Positions 0 … in ``count`` contiguous parts of nearly equal cost; some may be empty."""
    shares: list[list[int]] = [[] for _ in range(count)]
    total, before = max(1, sum(costs)), 0
    for position, cost in enumerate(costs):
        # The part in which the middle of the item's cost falls.
        shares[min(count - 1, (2 * before + cost) * count // (2 * total))].append(position)
        before += cost
    return shares


def own_micro_batches(
    session: Session, costs: Sequence[int], cut: Callable[[list[int]], list[list[int]]]
) -> list[MicroBatch]:
    """The passes of this process over a minibatch of ``costs`` tokens an item.

    ``cut`` splits the given positions into micro-batches and returns indices into what it was given.
    """
    world = session.world
    shares = balanced_shares(costs, world.size)
    own = [MicroBatch([shares[world.rank][i] for i in part], True) for part in cut(shares[world.rank])]
    if world.size > 1 and session.engine.needs_equal_passes:
        most = max(len(cut(share)) for share in shares)
        shortest = min(range(len(costs)), key=lambda position: costs[position])
        own += [MicroBatch([shortest], False)] * (most - len(own))
    return own


def without_weight(scored: TokenLogprobs) -> Tensor:
    """A loss of 0 that reaches every weight behind the scores."""
    total = scored.logprob_BT.sum()
    return 0.0 * (total if scored.value_BT is None else total + scored.value_BT.sum())


def score(
    session: Session,
    policy: Policy,
    sequences: Sequence[ScoredSequence],
    *,
    with_entropy: bool = False,
    with_values: bool = False,
) -> TokenLogprobs:
    """``Policy.score``, each process scoring its share; the whole on every process."""
    world, most = session.world, session.config.micro_batch_tokens
    shares = balanced_shares([sequence.num_tokens for sequence in sequences], world.size)
    own = [sequences[position] for position in shares[world.rank]]
    part: TokenLogprobs | None = None
    with session.engine.whole_weights(), policy.at_hand():
        if own:
            part = policy.score(own, max_tokens=most, with_entropy=with_entropy, with_values=with_values)
    if world.size == 1:
        assert part is not None, "there is a sequence to score"
        return part
    names = ["logprob_BT", "mask_BT", *["entropy_BT"] * with_entropy, *["value_BT"] * with_values]
    found = world.gather(None if part is None else {name: getattr(part, name).cpu() for name in names})
    width = max(len(sequence.response_ids) for sequence in sequences)
    whole = {name: torch.zeros(len(sequences), width) for name in names}
    for positions, piece in zip(shares, found, strict=True):
        for name in names if piece is not None else ():
            assert piece is not None
            whole[name][positions, : piece[name].shape[1]] = piece[name]
    on_device = {name: tensor.to(policy.device) for name, tensor in whole.items()}
    return TokenLogprobs(
        logprob_BT=on_device["logprob_BT"],
        entropy_BT=on_device.get("entropy_BT"),
        value_BT=on_device.get("value_BT"),
        mask_BT=on_device["mask_BT"],
    )


def sums_of_all(world: World, sums: Mapping[str, float]) -> dict[str, float]:
    """Totals over the processes, added in the order of their numbers; a process without a pass has no sums."""
    if world.size == 1:
        return dict(sums)
    parts = world.gather(dict(sums))
    return {
        name: math.fsum(part.get(name, 0.0) for part in parts) for name in dict.fromkeys(n for p in parts for n in p)
    }
