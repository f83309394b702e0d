"""Decoding with the lean forward pass: a prompt's keys and values are kept once for all its rollouts.

Two caches a layer. The prompt cache holds each distinct prompt, read by all its rows in one product. The response cache
holds what each row has said. A row attends to both under one softmax. Nothing is copied when rows fan out from a
prompt, rows leave one by one, and a step reads the prompt once a group and not once a row.

Shapes: n rows, P prompts in the cache, M places a prompt has for rows, H query heads, K key-value heads, R = H / K,
D head size, T prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from agpo_bench.rollout.lean_decoder import LeanDecoder, Weights, repeat_kv

_MIN_PROMPT_WIDTH, _WIDTH_STEP = 32, 16
"""Attended slots are rounded up to these: such products round alike, whatever the width (measured, and tested)."""
_MIN_ROWS = 4
"""Fewer rows take another path through the matrix library, which rounds differently (measured)."""
_PREFILL_TOKENS, _ENOUGH_TOKENS = 8192, 256
_ALIKE = 0.8
"""Prompts shorter than this share of the longest go into another batch, once one is worth its overhead."""

_Integers = NDArray[np.int64]


class LeanEngine:
    """Rows of the Llama family; token t of a prompt or a response is in slot t, whatever its neighbours' lengths."""

    admits_while_running = True
    min_dead_fraction = 1 / 8

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        self._decoder = LeanDecoder(model.model, dtype)
        self._weights: Weights | None = None
        self._head: Any = model.lm_head
        self._prompts: _PromptCache | None = None
        self._responses: list[Tensor] = []
        """A layer: rows × slots × 2 (keys, values) × K·D."""
        decoder = self._decoder
        self._head_shape = (decoder.num_kv_heads, decoder.num_heads // decoder.num_kv_heads, decoder.head_dim)

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

    def begin(self, *, num_rows: int, prompt_slots: int, response_slots: int) -> None:
        """Allocate (or reuse) the caches."""
        decoder = self._decoder
        if self._weights is None:
            self.refresh()
        self._device = self._head_weight.device
        prompt_slots, response_slots = _prompt_width(prompt_slots), _round_up(response_slots, _WIDTH_STEP)
        width = decoder.num_kv_heads * decoder.head_dim
        if not self._responses or not _fits(self._responses[0], num_rows, response_slots):
            shape = (num_rows, response_slots, 2, width)
            self._responses = [self._zeros(shape) for _ in range(decoder.num_layers)]
            own_HK = torch.eye(decoder.num_kv_heads).repeat_interleave(self._head_shape[1], dim=0)
            self._own_HK1 = own_HK[..., None].to(self._device, decoder.dtype)
        if self._prompts is None or self._prompts.num_slots < prompt_slots:
            self._prompts = _PromptCache(decoder, prompt_slots, self._device)
        self._prompts.clear()
        self._rotations = decoder.rotations(prompt_slots + response_slots)
        self._length_n: _Integers = np.zeros(0, dtype=np.int64)
        """Tokens of each row's response so far."""
        self._prompt_n: _Integers = np.zeros(0, dtype=np.int64)
        """Each row's prompt in the cache."""
        self._place_n: _Integers = np.zeros(0, dtype=np.int64)
        """Each row's place among the rows of its prompt."""
        self._num_places = _MIN_ROWS

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(shape, dtype=self._decoder.dtype, device=self._device)

    def admit(self, prompts: Sequence[tuple[int, ...]], copies: Sequence[int]) -> Tensor:
        """Prefill each prompt once, in batches of alike lengths; its rows share what was read."""
        assert self._prompts is not None
        lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        new = self._prompts.add(lengths)
        self._prompt_n = np.concatenate((self._prompt_n, np.repeat(new, copies)))
        self._place_n = np.concatenate((self._place_n, *(np.arange(count, dtype=np.int64) for count in copies)))
        self._length_n = np.concatenate((self._length_n, np.zeros(sum(copies), dtype=np.int64)))
        self._num_places = _round_up(max(self._num_places, *copies), _MIN_ROWS)
        self._place_rows()
        logits_PV = torch.empty(
            len(prompts), self._head_weight.shape[0], dtype=self._decoder.dtype, device=self._device
        )
        for batch in _batches_by_length(lengths):
            logits_PV[torch.from_numpy(batch)] = self._prefill([prompts[i] for i in batch], new[batch])
        return logits_PV.repeat_interleave(torch.tensor(list(copies), device=self._device), dim=0)

    def _place_rows(self) -> None:
        """Indices of the rows into the prompts' places, kept as tensors between changes."""
        self._prompt_index = torch.from_numpy(self._prompt_n).to(self._device)
        self._place_index = torch.from_numpy(self._place_n).to(self._device)
        self._row_index = torch.arange(len(self._prompt_n), device=self._device)

    def _prefill(self, prompts: list[tuple[int, ...]], entries: _Integers) -> Tensor:
        decoder, cache, num = self._decoder, self._prompts, len(prompts)
        assert cache is not None and self._weights is not None
        width = _round_up(max(len(prompt) for prompt in prompts), _WIDTH_STEP)
        token_PT = np.zeros((num, width), dtype=np.int64)
        for i, prompt in enumerate(prompts):
            token_PT[i, : len(prompt)] = prompt
        index = torch.from_numpy(entries).to(self._device)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (x.view(num, width, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
            cache.keys[layer][index, :, :, :width] = key.transpose(2, 3)
            cache.values[layer][index, :, :width] = value
            key, value = repeat_kv(key, decoder.num_heads), repeat_kv(value, decoder.num_heads)
            # Right padding: no real token sees a padded one, so the causal mask is the only one needed.
            out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
            return out.transpose(1, 2).reshape(num * width, -1)

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
        cache, num = self._prompts, len(self._length_n)
        assert cache is not None and self._weights is not None
        num_kv_heads, repeats, head_dim = self._head_shape
        num_prompts, places = len(cache.length_P), self._num_places
        prompt_width = _prompt_width(int(cache.length_P.max()))
        width = _round_up(int(self._length_n.max()) + 1, _WIDTH_STEP)
        slot_n = torch.from_numpy(self._length_n).to(self._device)
        prompt_length_n = torch.from_numpy(cache.length_P[self._prompt_n]).to(self._device)
        slots = torch.arange(max(prompt_width, width), device=self._device)
        is_hidden = (slots[:prompt_width] >= prompt_length_n[:, None], slots[:width] > slot_n[:, None])
        bias = self._zeros((num, 1, prompt_width + width))
        bias.masked_fill_(torch.cat(is_hidden, dim=1)[:, None], -torch.inf)
        # Places without a row keep what they held: their results are never read.
        cells = (num_prompts, num_kv_heads, places, repeats)
        at_place = (self._prompt_index, slice(None), self._place_index)
        query_cells, weight_cells = self._zeros((*cells, head_dim)), self._zeros((*cells, prompt_width))
        flat_query = query_cells.view(num_prompts * num_kv_heads, places * repeats, head_dim)
        flat_weight = weight_cells.view(num_prompts * num_kv_heads, places * repeats, prompt_width)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if num < _MIN_ROWS:
                query, key, value = query[:num], key[:num], value[:num]
            spoken = self._responses[layer]
            spoken[self._row_index, slot_n] = torch.stack((key, value), dim=1).flatten(2)
            # Every row's query in its prompt's places: one product a prompt and key-value head.
            query_cells[at_place] = query.view(num, num_kv_heads, repeats, head_dim)
            prompt_score = torch.bmm(flat_query, cache.key(layer, prompt_width))
            prompt_score = prompt_score.view(*cells, prompt_width)[at_place].view(num, -1, prompt_width)
            # The row's own keys of all heads side by side, the query 0 but for its head: larger products, same sums.
            wide = (query[:, :, None] * self._own_HK1).flatten(2)
            score = torch.bmm(wide, spoken[:num, :width, 0].transpose(1, 2))
            weight = torch.cat((prompt_score, score), dim=-1).add_(bias).softmax(dim=-1)
            weight_cells[at_place] = weight[..., :prompt_width].view(num, num_kv_heads, repeats, prompt_width)
            out = torch.bmm(flat_weight, cache.value(layer, prompt_width)).view(*cells, head_dim)[at_place]
            own = torch.bmm(weight[..., prompt_width:], spoken[:num, :width, 1])
            own = own.view(num, num_kv_heads, repeats, num_kv_heads, head_dim).diagonal(dim1=1, dim2=3)
            return _padded((out + own.permute(0, 3, 1, 2)).view(num, -1))

        hidden = self._decoder.forward(
            self._weights, _padded(token_n), self._rotations[_padded(prompt_length_n + slot_n)], attend
        )
        self._length_n = self._length_n + 1
        return self._logits(hidden)[:num]

    def compact(self, order_n: _Integers) -> None:
        """Copy only the responses that change places, and drop prompts without a row."""
        assert self._prompts is not None
        (holes,) = np.nonzero(order_n != np.arange(len(order_n)))
        self._length_n, self._prompt_n, self._place_n = (
            each[order_n] for each in (self._length_n, self._prompt_n, self._place_n)
        )
        if len(holes):
            target = torch.from_numpy(holes).to(self._device)
            source = torch.from_numpy(order_n[holes]).to(self._device)
            width = int(self._length_n[holes].max())
            for spoken in self._responses:
                spoken[target, :width] = spoken[source, :width]
        self._prompt_n = self._prompts.drop_unread(self._prompt_n)
        self._place_rows()

    def _logits(self, hidden: Tensor) -> Tensor:
        num = hidden.shape[0]
        return F.linear(_padded(hidden), self._head_weight, self._head_bias)[:num]


class _PromptCache:
    """Keys and values of P prompts; keys stored transposed. Grows with the prompts, never with their rows."""

    def __init__(self, decoder: LeanDecoder, num_slots: int, device: torch.device) -> None:
        self.num_slots = num_slots
        self._shape = (decoder.num_kv_heads, decoder.head_dim)
        self._kind: dict[str, Any] = {"dtype": decoder.dtype, "device": device}
        self.keys: list[Tensor] = []
        """A layer: prompts × K × D × slots."""
        self.values: list[Tensor] = []
        """A layer: prompts × K × slots × D."""
        self._num_layers = decoder.num_layers
        self._capacity = 0
        self.clear()

    def clear(self) -> None:
        """Forget all prompts."""
        self.length_P: _Integers = np.zeros(0, dtype=np.int64)

    def add(self, lengths: _Integers) -> _Integers:
        """Make room for prompts of these lengths; returns their entries."""
        start = len(self.length_P)
        self.length_P = np.concatenate((self.length_P, lengths))
        if len(self.length_P) > self._capacity:
            self._capacity = max(len(self.length_P), 2 * self._capacity)
            num_kv_heads, head_dim = self._shape
            self.keys = self._grown(self.keys, (num_kv_heads, head_dim, self.num_slots), start)
            self.values = self._grown(self.values, (num_kv_heads, self.num_slots, head_dim), start)
        return np.arange(start, len(self.length_P), dtype=np.int64)

    def _grown(self, tensors: list[Tensor], shape: tuple[int, ...], num_kept: int) -> list[Tensor]:
        grown = [torch.zeros(self._capacity, *shape, **self._kind) for _ in range(self._num_layers)]
        for new, old in zip(grown, tensors, strict=False):
            new[:num_kept] = old[:num_kept]
        return grown

    def key(self, layer: int, width: int) -> Tensor:
        """(P·K) × D × width."""
        return self.keys[layer][: len(self.length_P)].flatten(0, 1)[..., :width]

    def value(self, layer: int, width: int) -> Tensor:
        """(P·K) × width × D."""
        return self.values[layer][: len(self.length_P)].flatten(0, 1)[:, :width]

    def drop_unread(self, prompt_n: _Integers) -> _Integers:
        """Close the gaps of prompts that no row reads any more with the last ones; returns the rows' new entries."""
        num = len(self.length_P)
        is_read_P = np.zeros(num, dtype=bool)
        is_read_P[prompt_n] = True
        num_read = int(is_read_P.sum())
        if num_read == num:
            return prompt_n
        order_P = np.arange(num_read, dtype=np.int64)
        holes = np.nonzero(~is_read_P[:num_read])[0]
        order_P[holes] = num_read + np.nonzero(is_read_P[num_read:])[0]
        self.length_P = self.length_P[order_P]
        if len(holes):
            target, source = (torch.from_numpy(each).to(self._kind["device"]) for each in (holes, order_P[holes]))
            width = int(self.length_P[holes].max())
            for keys, values in zip(self.keys, self.values, strict=True):
                keys[target, :, :, :width] = keys[source, :, :, :width]
                values[target, :, :width] = values[source, :, :width]
        entry_P = np.zeros(num, dtype=np.int64)
        entry_P[order_P] = np.arange(num_read)
        return entry_P[prompt_n]


def _padded(rows: Tensor) -> Tensor:
    """At least ``_MIN_ROWS`` rows, the new ones 0."""
    missing = _MIN_ROWS - rows.shape[0]
    return rows if missing <= 0 else torch.cat((rows, rows.new_zeros(missing, *rows.shape[1:])))


def _fits(cache: Tensor, num_rows: int, num_slots: int) -> bool:
    return cache.shape[0] >= num_rows and cache.shape[1] >= num_slots


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _prompt_width(num_slots: int) -> int:
    return max(_MIN_PROMPT_WIDTH, _round_up(num_slots, _WIDTH_STEP))


def _batches_by_length(lengths: _Integers) -> list[_Integers]:
    """Indices in batches of alike lengths: at most ``_PREFILL_TOKENS`` padded tokens (one prompt at least), and a new
    batch where much shorter prompts begin and enough came before.
    """
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    for end in range(1, len(order) + 1):
        longest = _round_up(int(lengths[order[start]]), _WIDTH_STEP)
        padded = (end - start) * longest
        if (
            end == len(order)
            or padded + longest > _PREFILL_TOKENS
            or (padded >= _ENOUGH_TOKENS and lengths[order[end]] < _ALIKE * longest)
        ):
            batches.append(order[start:end])
            start = end
    return batches
