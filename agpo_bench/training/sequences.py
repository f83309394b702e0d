"""How a micro-batch of prompts and responses is laid out for one forward pass, and how a batch is cut into such.

Shapes: N real tokens laid end to end (no padding), B sequences, T response tokens, Q queries and W keys a row of one
attention segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Ints = NDArray[np.int64]
_MAX_SEGMENTS = 3


@dataclass(frozen=True, kw_only=True)
class ScoredSequence:
    """A prompt, the sampled response and the temperature it was sampled at."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    temperature: float

    @property
    def num_tokens(self) -> int:
        """Prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)


class Segment(NamedTuple):
    """Rows that attend together: padded views into the flat tokens."""

    query_RQ: Tensor
    """Flat index of every query; padding repeats index 0 and its output is dropped."""
    key_RW: Tensor
    """Flat index of every key: the row's prompt, then the row itself."""
    bias_R1QW: Tensor | None
    """0 where a query sees a key, -inf elsewhere; None for plain causal rows (Q = W)."""


class Layout(NamedTuple):
    """One micro-batch: every distinct prompt once, then every response but its last token, which predicts nothing."""

    token_N: Tensor
    position_N: Tensor
    segments: list[Segment]
    output_N: Tensor
    """Where each flat token's attention output lies among the rows of all segments, padding included."""
    predictor_M: Tensor
    """Flat index of the state each of the M response tokens was drawn from."""
    target_M: Tensor
    slot_M: Tensor
    """Where each response token lies in B × T, flattened."""
    num_sequences: int
    width: int
    """T: tokens of the longest response."""


def lay_out(sequences: Sequence[ScoredSequence], device: torch.device) -> Layout:
    """Share each distinct prompt among its responses and lay everything end to end."""
    for sequence in sequences:
        if not sequence.prompt_ids or not sequence.response_ids:
            raise ValueError("a sequence to score needs a prompt and a response of one token or more each")
    prompts: dict[tuple[int, ...], int] = {}
    prompt_B = [prompts.setdefault(sequence.prompt_ids, len(prompts)) for sequence in sequences]
    prompt_lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    prompt_starts = _starts(prompt_lengths)
    num_prompt_tokens = int(prompt_lengths.sum())
    lengths = np.array([len(sequence.response_ids) for sequence in sequences], dtype=np.int64)
    inner = lengths - 1
    starts = num_prompt_tokens + _starts(inner)
    own_prompt = np.array(prompt_B, dtype=np.int64)

    token_N = [token for prompt in prompts for token in prompt]
    token_N += [token for sequence in sequences for token in sequence.response_ids[:-1]]
    position_N = np.concatenate(
        (_ramps(prompt_lengths), _ramps(inner) + np.repeat(prompt_lengths[own_prompt], inner)),
    )
    segments, output_N, offset = [], np.zeros(len(token_N), dtype=np.int64), 0
    for rows in _by_length(prompt_lengths):
        width = int(prompt_lengths[rows].max())
        index, is_real = _padded(prompt_starts[rows], prompt_lengths[rows], width)
        segments.append(Segment(_to(index, device), _to(index, device), None))
        output_N[index[is_real]] = offset + np.nonzero(is_real.ravel())[0]
        offset += index.size
    for rows in _by_length(inner):
        width = int(inner[rows].max())
        index, is_real = _padded(starts[rows], inner[rows], width)
        before = own_prompt[rows]
        prefix, is_prefix = _padded(prompt_starts[before], prompt_lengths[before], int(prompt_lengths[before].max()))
        # A padded query sees what the last real one sees, so no row of the softmax is empty.
        causal = np.tri(width, dtype=bool)[None] & is_real[:, None, :]
        sees = np.concatenate((np.repeat(is_prefix[:, None, :], width, axis=1), causal), axis=2)
        bias = torch.zeros(sees.shape).masked_fill_(torch.from_numpy(~sees), -torch.inf)[:, None]
        key = np.concatenate((prefix, index), axis=1)
        segments.append(Segment(_to(index, device), _to(key, device), bias.to(device)))
        output_N[index[is_real]] = offset + np.nonzero(is_real.ravel())[0]
        offset += index.size

    ramp_M = _ramps(lengths)
    last_prompt = (prompt_starts + prompt_lengths - 1)[own_prompt]
    predictor_M = np.where(ramp_M == 0, np.repeat(last_prompt, lengths), np.repeat(starts, lengths) + ramp_M - 1)
    width = int(lengths.max())
    slot_M = np.repeat(np.arange(len(sequences)) * width, lengths) + ramp_M
    target_M = np.array([token for sequence in sequences for token in sequence.response_ids], dtype=np.int64)
    return Layout(
        token_N=torch.tensor(token_N, device=device),
        position_N=_to(position_N, device),
        segments=segments,
        output_N=_to(output_N, device),
        predictor_M=_to(predictor_M, device),
        target_M=_to(target_M, device),
        slot_M=_to(slot_M, device),
        num_sequences=len(sequences),
        width=width,
    )


def split(sequences: Sequence[ScoredSequence], *, max_tokens: int) -> list[list[int]]:
    """Indices of the sequences in micro-batches of at most ``max_tokens`` tokens, a prompt counted once in each.

    Sequences of one prompt stay together while they fit, prompts of alike response lengths follow each other. Every
    index occurs once; a single sequence longer than ``max_tokens`` gets a micro-batch of its own.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, sequence in enumerate(sequences):
        groups.setdefault(sequence.prompt_ids, []).append(index)

    def longest(members: list[int]) -> int:
        return max(sequences[i].num_tokens for i in members)

    batches: list[list[int]] = []
    room = 0
    for prompt, members in sorted(groups.items(), key=lambda item: -longest(item[1])):
        prompt_is_in = False
        for index in sorted(members, key=lambda i: -len(sequences[i].response_ids)):
            cost = len(sequences[index].response_ids) + (0 if prompt_is_in else len(prompt))
            if cost > room:
                batches.append([])
                room, cost = max_tokens, sequences[index].num_tokens
            batches[-1].append(index)
            room -= cost
            prompt_is_in = True
    return batches


def split_padded(sequences: Sequence[ScoredSequence], *, max_tokens: int) -> list[list[int]]:
    """As ``split``, for a forward pass that pads: tokens are rows × the longest row, prompts included."""
    batches: list[list[int]] = []
    for index in sorted(range(len(sequences)), key=lambda i: -sequences[i].num_tokens):
        if not batches or (len(batches[-1]) + 1) * sequences[batches[-1][0]].num_tokens > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def _by_length(lengths: _Ints) -> list[_Ints]:
    """Row numbers with a length above 0, in a few blocks of alike lengths."""
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    if len(order) == 0:
        return []
    num_blocks = min(_MAX_SEGMENTS, max(1, len(order) // 8))
    return [block for block in np.array_split(order, num_blocks) if len(block)]


def _padded(starts: _Ints, lengths: _Ints, width: int) -> tuple[_Ints, NDArray[np.bool_]]:
    columns = np.arange(width)
    is_real = columns < lengths[:, None]
    return np.where(is_real, starts[:, None] + columns, 0), is_real


def _starts(lengths: _Ints) -> _Ints:
    return np.cumsum(lengths) - lengths


def _ramps(lengths: _Ints) -> _Ints:
    """0 … n-1 for each length n, end to end."""
    return np.arange(int(lengths.sum())) - np.repeat(_starts(lengths), lengths)


def _to(array: _Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
