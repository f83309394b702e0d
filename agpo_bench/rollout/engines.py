"""Two ways to decode step by step: our own forward pass for the Llama family, the library's for everything else.

An engine holds rows 0 … n-1 in a cache. ``admit`` adds rows, ``step`` feeds one token to each and ``compact`` moves the
last rows into the places of those that ended. Every row's result is a function of its own tokens.

Shapes: n rows, P distinct prompts, T prompt positions, V vocabulary. A cache has rows × key-value heads × slots × head
size, with the last two swapped for keys.
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

from agpo_bench.rollout.lean_decoder import LeanDecoder, Weights, repeat_kv

_MIN_WIDTH, _WIDTH_STEP = 32, 8
"""Attended slots are rounded up to these: such products round alike, whatever the width (measured, and tested)."""
_MIN_ROWS = 4
"""Fewer rows take another path through the matrix library, which rounds differently (measured)."""
_MIN_PREFILL = 16
_PREFILL_TOKENS = 8192


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

    def begin(self, *, num_rows: int, num_slots: int) -> None:
        """Make room for rows of at most ``num_slots`` tokens and forget all earlier ones."""
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


class LeanEngine:
    """Static cache, keys stored transposed, each row's token t in slot t whatever its neighbours' lengths."""

    admits_while_running = True
    min_dead_fraction = 1 / 8

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._decoder = LeanDecoder(model.model, dtype)
        self._weights: Weights | None = None
        self._head: Any = model.lm_head
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._length = np.zeros(0, dtype=np.int64)

    def refresh(self) -> None:
        """Fuse the weights anew."""
        with torch.no_grad():
            self._weights = self._decoder.gather()
            self._head_weight = self._head.weight.to(self._decoder.dtype)
            self._head_bias = None if self._head.bias is None else self._head.bias.to(self._decoder.dtype)

    def bytes_per_slot(self) -> int:
        """Keys and values of all layers."""
        decoder = self._decoder
        size = torch.empty(0, dtype=decoder.dtype).element_size()
        return 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim * size

    def begin(self, *, num_rows: int, num_slots: int) -> None:
        """Allocate (or reuse) the cache."""
        decoder = self._decoder
        if self._weights is None:
            self.refresh()
        num_rows = max(num_rows, _MIN_ROWS)
        num_slots = _width(num_slots)
        self._device = self._head_weight.device
        self._length = np.zeros(0, dtype=np.int64)
        if not self._keys or self._keys[0].shape[0] < num_rows or self._keys[0].shape[3] < num_slots:
            shape = (decoder.num_kv_heads, decoder.head_dim)
            kind = {"dtype": decoder.dtype, "device": self._device}
            self._keys = [torch.zeros(num_rows, *shape, num_slots, **kind) for _ in range(decoder.num_layers)]
            self._values = [
                torch.zeros(num_rows, shape[0], num_slots, shape[1], **kind) for _ in range(decoder.num_layers)
            ]
            self._rotations = decoder.rotations(num_slots)

    def admit(self, prompts: Sequence[tuple[int, ...]], copies: Sequence[int]) -> Tensor:
        """Prefill each prompt once, in batches of alike lengths, and copy its keys and values to its rows."""
        start = len(self._length)
        first_rows = start + np.concatenate(([0], np.cumsum(copies)[:-1])).astype(np.int64)
        lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self._length = np.concatenate((self._length, np.repeat(lengths, copies)))
        head_dim_out = self._head_weight.shape[0]
        logits_PV = torch.empty(len(prompts), head_dim_out, dtype=self._decoder.dtype, device=self._device)
        for batch in _batches_by_length(lengths):
            rows = np.concatenate([first_rows[i] + np.arange(copies[i]) for i in batch])
            is_block = rows[-1] - rows[0] == len(rows) - 1 and bool((np.diff(rows) == 1).all())
            logits_PV[torch.from_numpy(batch)] = self._prefill(
                [prompts[i] for i in batch],
                # A slice is copied to several times faster than a list of rows; prompts sorted by length give one.
                rows=slice(int(rows[0]), int(rows[-1]) + 1) if is_block else torch.from_numpy(rows).to(self._device),
                source=torch.from_numpy(np.repeat(np.arange(len(batch)), [copies[i] for i in batch])).to(self._device),
            )
        return logits_PV.repeat_interleave(torch.tensor(list(copies), device=self._device), dim=0)

    def _prefill(self, prompts: list[tuple[int, ...]], *, rows: Tensor | slice, source: Tensor) -> Tensor:
        decoder, num = self._decoder, len(prompts)
        width = max(_MIN_PREFILL, *(len(prompt) for prompt in prompts))
        token_PT = np.zeros((num, width), dtype=np.int64)
        for i, prompt in enumerate(prompts):
            token_PT[i, : len(prompt)] = prompt

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (x.view(num, width, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
            self._keys[layer][rows, :, :, :width] = key.transpose(2, 3).contiguous()[source]
            self._values[layer][rows, :, :width] = value.contiguous()[source]
            key, value = repeat_kv(key, decoder.num_heads), repeat_kv(value, decoder.num_heads)
            # Right padding: no real token sees a padded one, so the causal mask is the only one needed.
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
            return out.transpose(1, 2).reshape(num * width, -1)

        assert self._weights is not None
        hidden = decoder.forward(
            self._weights,
            torch.from_numpy(token_PT).to(self._device).view(-1),
            self._rotations[:width].repeat(num, 1, 1),
            attend,
        )
        last = np.array([i * width + len(prompt) - 1 for i, prompt in enumerate(prompts)])
        return self._logits(hidden[torch.from_numpy(last).to(self._device)])

    def step(self, token_n: Tensor) -> Tensor:
        """One token for every row."""
        decoder, num = self._decoder, len(self._length)
        length = self._length
        if num < _MIN_ROWS:
            length = np.concatenate((length, np.zeros(_MIN_ROWS - num, dtype=np.int64)))
            token_n = F.pad(token_n, (0, _MIN_ROWS - num))
        padded = len(length)
        slot_n = torch.from_numpy(length.copy()).to(self._device)
        width = _width(int(length.max()) + 1)
        row_n = torch.arange(padded, device=self._device)
        hidden_slots = torch.arange(width, device=self._device) > slot_n[:, None]
        bias = torch.zeros(padded, width, dtype=decoder.dtype, device=self._device)
        bias = bias.masked_fill_(hidden_slots, -torch.inf)[:, None, None]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys[row_n, :, :, slot_n] = key
            values[row_n, :, slot_n] = value
            folded = query.view(padded, decoder.num_kv_heads, -1, decoder.head_dim)
            weight = torch.matmul(folded, keys[:padded, :, :, :width]).add_(bias).softmax(dim=-1)
            return torch.matmul(weight, values[:padded, :, :width]).view(padded, -1)

        assert self._weights is not None
        hidden = decoder.forward(self._weights, token_n, self._rotations[slot_n], attend)
        self._length = self._length + 1
        return self._logits(hidden)[:num]

    def compact(self, order_n: NDArray[np.int64]) -> None:
        """Copy only the rows that change places."""
        (holes,) = np.nonzero(order_n != np.arange(len(order_n)))
        self._length = self._length[order_n]
        if len(holes) == 0:
            return
        target = torch.from_numpy(holes).to(self._device)
        source = torch.from_numpy(order_n[holes]).to(self._device)
        width = int(self._length[holes].max())
        for keys, values in zip(self._keys, self._values, strict=True):
            keys[target, :, :, :width] = keys[source, :, :, :width]
            values[target, :, :width] = values[source, :, :width]

    def _logits(self, hidden: Tensor) -> Tensor:
        num = hidden.shape[0]
        if num < _MIN_ROWS:
            hidden = F.pad(hidden, (0, 0, 0, _MIN_ROWS - num))
        return F.linear(hidden, self._head_weight, self._head_bias)[:num]


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

    def begin(self, *, num_rows: int, num_slots: int) -> None:
        """Start with an empty cache."""
        del num_rows, num_slots
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


def _width(num_slots: int) -> int:
    return max(_MIN_WIDTH, -(-num_slots // _WIDTH_STEP) * _WIDTH_STEP)


def _batches_by_length(lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Indices in batches of alike lengths, at most ``_PREFILL_TOKENS`` padded tokens each (one prompt at least)."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        longest = max(int(lengths[order[start]]), _MIN_PREFILL)
        if end == len(order) or (end + 1 - start) * longest > _PREFILL_TOKENS:
            batches.append(order[start:end])
            start = end
    return batches
