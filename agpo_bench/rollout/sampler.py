"""The sampler Protocol: what any sampling backend offers to training and evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agpo_bench.records import Group


@dataclass(frozen=True, kw_only=True)
class SamplingRequest:
    """Ask for ``len(seeds)`` rollouts of one prompt. Every sampling field is explicit.

    A model's own generation_config is never consulted, except that its end-of-sequence ids are terminators.
    """

    prompt_id: str
    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...]
    """One seed a rollout: rollout i depends on seeds[i] alone, not on its neighbours or the batch split."""
    temperature: float
    """0 means greedy decoding."""
    top_p: float = 1.0
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    """Stop strings: the text is cut before the first; the tokens that spelt it stay in ``response_ids``."""


class Sampler(Protocol):
    """A sampling backend."""

    weights_version: int
    """Number of the weights in use; every rollout carries it."""

    def load_weights(self, version: int) -> None:
        """Take over the weights as they are now and number them; called once after each round of updates."""
        ...

    def sample(self, requests: Sequence[SamplingRequest], *, with_entropy: bool = False) -> list[Group]:
        """Return one group a request, in the order of the requests."""
        ...


def sampling_seed(run_seed: int, *, step: int, prompt_id: str, sample_index: int, phase: str, stream: int = 0) -> int:
    """A 63-bit seed that no two rollouts of a run share, the same on every machine and world size.

    Another ``stream`` gives the run's rollouts independent seeds.
    """
    key = f"{run_seed}\x1f{step}\x1f{prompt_id}\x1f{sample_index}\x1f{phase}"
    if stream:
        key += f"\x1f{stream}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
