"""Sampling with torch from any Hugging Face causal LM, on CPU or one GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agpo_bench.records import Group
from agpo_bench.rollout.sampler import SamplingRequest

if TYPE_CHECKING:
    from agpo_bench.training.model import LoadedModel


class TorchSampler:
    """The in-process sampling backend: shares the model object (and so its weights) with the policy.

    ``max_rows`` sequences decode side by side, fewer where ``max_cache_tokens`` (prompt + response slots of all rows
    together) would be exceeded. Neither changes the result.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_rows: int = 512,
        max_cache_tokens: int = 1 << 19,
    ) -> None:
        self.weights_version = 0
        self._loaded = loaded
        self._max_rows = max_rows
        self._max_cache_tokens = max_cache_tokens

    def load_weights(self, version: int) -> None:
        """Take over the model's weights as they are now; later rollouts carry ``version``."""
        self.weights_version = version

    def sample(self, requests: Sequence[SamplingRequest], *, with_entropy: bool = False) -> list[Group]:
        """Return one group a request, in the order of the requests; prompts that occur twice are read once."""
        raise NotImplementedError
