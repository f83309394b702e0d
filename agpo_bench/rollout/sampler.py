"""The sampler Protocol: what any sampling backend offers to training and evaluation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agpo_bench.records import Group

if TYPE_CHECKING:
    from torch import nn

MIN_TEMPERATURE = 1e-3
"""Below it exp(logit / temperature) leaves float32; greedy decoding is temperature 0."""


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

    is_separate: bool
    """Whether it decodes in an engine with a copy of the weights, not with the policy's own model.

    If so its rollouts have no entropies and their log-probabilities are those at temperature 1: the trainer scores them
    itself and compares the two sides at every step.
    """

    @property
    def weights_version(self) -> int:
        """Number of the weights in use; every rollout carries it."""
        ...

    def load_weights(self, version: int) -> None:
        """Take over the weights as they are now and number them; called once after each round of updates."""
        ...

    def sample(self, requests: Sequence[SamplingRequest], *, with_entropy: bool = False) -> list[Group]:
        """Return one group a request, in the order of the requests."""
        ...

    def release(self) -> None:
        """Let go of memory that the trainer needs now; ``load_weights`` or ``sample`` takes it back."""
        ...

    def close(self) -> None:
        """Let go of everything; nothing is sampled any more."""
        ...


def check_request(request: SamplingRequest) -> None:
    """ValueError in one sentence for a request that no backend can answer."""
    where = f"prompt {request.prompt_id!r}"
    if not request.prompt_ids:
        raise ValueError(f"{where}: no prompt tokens; encode it with a PromptEncoder first")
    if request.max_new_tokens < 1:
        raise ValueError(f"{where}: max_new_tokens is {request.max_new_tokens}; use 1 or more")
    if not 0 <= request.temperature < float("inf"):
        raise ValueError(f"{where}: temperature is {request.temperature}; use 0 (greedy) or a positive number")
    if 0 < request.temperature < MIN_TEMPERATURE:
        raise ValueError(f"{where}: temperature {request.temperature} divides logits by almost 0; use 0 for greedy")
    if not 0 < request.top_p <= 1:
        raise ValueError(f"{where}: top_p is {request.top_p}; use a number above 0 and at most 1")
    if "" in request.stop:
        raise ValueError(f"{where}: a stop string is empty; every response would stop at once")


def weights_stamp(model: nn.Module) -> int:
    """A number that grows with every in-place change of a weight: an optimiser step, a load, a copy."""
    return sum(parameter._version for parameter in model.parameters())


def sampling_seed(run_seed: int, *, step: int, prompt_id: str, sample_index: int, phase: str, stream: int = 0) -> int:
    """A 63-bit seed that no two rollouts of a run share, the same on every machine and world size.

    Another ``stream`` gives the run's rollouts independent seeds.
    """
    key = f"{run_seed}\x1f{step}\x1f{prompt_id}\x1f{sample_index}\x1f{phase}"
    if stream:
        key += f"\x1f{stream}"
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
