"""Two ways to decode step by step: our own forward pass for the Llama family, the library's for everything else.

An engine holds rows 0 … n-1 in a cache. ``admit`` adds rows, ``step`` feeds one token to each and ``compact`` moves the
last rows into the places of those that ended. Every row's result is a function of its own tokens.

Shapes: n rows, P distinct prompts, T prompt positions, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from agpo_bench.rollout.lean_decoder import LeanDecoder
from agpo_bench.rollout.lean_engine import LeanEngine


class Engine(Protocol):
    """What the sampling loop needs of a decoder."""

    admits_while_running: bool
    """Whether ``admit`` works while other rows are in the middle of their responses."""
    min_dead_fraction: float
    """Compaction pays from this share of ended rows on."""

    def refresh(self) -> None:
        """Read the model's weights again."""
        ...

    def bytes_per_slot(self) -> int:
        """Cache memory of one token of one row."""
        ...

    def begin(self, *, num_rows: int, prompt_slots: int, response_slots: int) -> None:
        """Make room for rows with prompts and responses of at most so many tokens, and forget all earlier ones."""
        ...

    def admit(self, prompts: Sequence[tuple[int, ...]], copies: Sequence[int]) -> Tensor:
        """Append ``copies[i]`` rows for prompt i, which is read once; returns the new rows' next-token logits."""
        ...

    def step(self, token_n: Tensor) -> Tensor:
        """Append one token to every row; returns logits n × V."""
        ...

    def compact(self, order_n: NDArray[np.int64]) -> None:
        """Keep the rows ``order_n``, in that order; ``order_n[i] != i`` only where row i ended."""
        ...


def make_engine(model: Any, dtype: torch.dtype) -> Engine:
    """The lean engine where it reproduces the model, the library's forward otherwise."""
    return LeanEngine(model, dtype) if LeanDecoder.supports(model) else LibraryEngine(model)


class LibraryEngine:
    """The model's own forward with the library's dynamic cache; prompts left-padded, positions counted by row."""

    admits_while_running = False
    min_dead_fraction = 0.25

    def __init__(self, model: Any) -> None:
        self._model = model
        names = set(inspect.signature(model.forward).parameters)
        self._takes_positions = "position_ids" in names
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._takes_last_only = "logits_to_keep" in names

    def refresh(self) -> None:
        """Nothing is copied from the model."""

    def bytes_per_slot(self) -> int:
        """Keys and values of all layers, as if none shared or windowed them."""
        config = self._model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * head_dim * self._model.dtype.itemsize)

    def begin(self, *, num_rows: int, prompt_slots: int, response_slots: int) -> None:
        """Start with an empty cache."""
        del num_rows, prompt_slots, response_slots
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self._model.config)
        self._is_empty = True

    def admit(self, prompts: Sequence[tuple[int, ...]], copies: Sequence[int]) -> Tensor:
        """Prefill all prompts together, then repeat the cache's rows."""
        assert self._is_empty, "the library's cache takes no new rows between steps"
        self._is_empty = False
        device = self._model.device
        width = max(len(prompt) for prompt in prompts)
        token_PT = torch.zeros(len(prompts), width, dtype=torch.long)
        self._mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            token_PT[i, width - len(prompt) :] = torch.tensor(prompt)
            self._mask[i, width - len(prompt) :] = 1
        self._mask = self._mask.to(device)
        # Absolute positions (GPT-2) start at 0 on the first real token, wherever the padding put it.
        positions = (self._mask.cumsum(dim=-1) - 1).clamp(min=0)
        logits_PV = self._forward(token_PT.to(device), positions)
        index = torch.arange(len(prompts)).repeat_interleave(torch.tensor(list(copies))).to(device)
        self._cache.batch_select_indices(index)
        self._mask = self._mask[index]
        self._position = positions[index, -1:]
        return logits_PV[index]

    def step(self, token_n: Tensor) -> Tensor:
        """One token for every row."""
        self._position = self._position + 1
        self._mask = F.pad(self._mask, (0, 1), value=1)
        return self._forward(token_n[:, None], self._position)

    def compact(self, order_n: NDArray[np.int64]) -> None:
        """Select the rows in the cache."""
        index = torch.from_numpy(order_n).to(self._mask.device)
        self._cache.batch_select_indices(index)
        self._mask, self._position = self._mask[index], self._position[index]

    def _forward(self, token_nT: Tensor, position_nT: Tensor) -> Tensor:
        options: dict[str, Any] = {self._cache_name: self._cache, "use_cache": True}
        if self._takes_positions:
            options["position_ids"] = position_nT
        if self._takes_last_only:
            options["logits_to_keep"] = 1
        logits: Tensor = self._model(input_ids=token_nT, attention_mask=self._mask, **options).logits
        return logits[:, -1]
