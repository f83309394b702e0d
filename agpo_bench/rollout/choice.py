"""Choosing the next token: temperature, nucleus, and randomness that belongs to the row alone.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_PER_POSITION = 2
"""Uniforms a position may use: one, and one more when the first draw falls outside the nucleus."""


class Choice(NamedTuple):
    """What was drawn for each row."""

    token_B: Tensor
    logprob_B: Tensor
    """Full vocabulary, at the row's temperature (at temperature 1 for greedy rows): top-p only affects the choice."""
    entropy_B: Tensor | None
    """Full vocabulary, at temperature 1."""


def uniforms(seed_B: NDArray[np.uint64], position_B: NDArray[np.int64], *, draw: int) -> NDArray[np.float64]:
    """One number in (0, 1) a row, a function of (seed, position, draw) only.

    SplitMix64 (Steele, Lea and Flood, 2014) used as a counter-based generator: element k of the stream of a seed is
    mix(seed' + k·gamma), with seed' = mix(seed) so that neighbouring seeds share no part of their streams. The top 48
    bits are used and centred, so 0 and 1 never occur.
    """
    counter = position_B.astype(np.uint64) * np.uint64(_PER_POSITION) + np.uint64(draw + 1)
    bits = _mix(_mix(seed_B.astype(np.uint64) + _GAMMA) + counter * _GAMMA)
    return ((bits >> np.uint64(16)).astype(np.float64) + 0.5) * 2.0**-48


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class RowSettings(NamedTuple):
    """How each of the B rows samples."""

    temperature_B1: Tensor
    """1 for greedy rows."""
    greedy_B: Tensor | None
    """True where the row is greedy; None when none is."""
    top_p_B: Tensor | None
    """None when no row truncates."""
    seed_B: NDArray[np.uint64]


def row_settings(*, temperatures: list[float], top_ps: list[float], seeds: list[int], device: Any) -> RowSettings:
    """Collect the settings of rows as tensors."""
    temperature = torch.tensor(temperatures, dtype=torch.float32, device=device)
    greedy = temperature == 0
    return RowSettings(
        temperature_B1=torch.where(greedy, 1.0, temperature)[:, None],
        greedy_B=greedy if min(temperatures) == 0 else None,
        top_p_B=None if min(top_ps) >= 1 else torch.tensor(top_ps, dtype=torch.float64, device=device),
        seed_B=np.array(seeds, dtype=np.uint64),
    )


def choose(
    logits_BV: Tensor, settings: RowSettings, position_B: NDArray[np.int64], *, with_entropy: bool = False
) -> Choice:
    """Draw one token a row by inverting the cumulative distribution at the row's own uniform number.

    With top-p < 1 the nucleus is the set of tokens whose strictly more probable tokens hold less than top-p of the
    mass: the smallest set that reaches top-p (with it, tokens exactly as probable as its last). A first draw inside the
    nucleus stands; one outside is drawn again from the nucleus alone. This is the renormalised nucleus distribution
    (p + (1 - m)·p/m = p/m), and sorts only the rows that need it.
    """
    logits_BV = logits_BV.float()
    logprob_BV = torch.log_softmax(logits_BV / settings.temperature_B1, dim=-1)
    prob_BV = logprob_BV.exp()
    device = logits_BV.device
    uniform_B = torch.from_numpy(uniforms(settings.seed_B, position_B, draw=0)).to(device)
    token_B = _invert(prob_BV, uniform_B)
    if settings.top_p_B is not None:
        chosen_B1 = prob_BV.gather(1, token_B[:, None])
        above_B = torch.where(prob_BV > chosen_B1, prob_BV, 0.0).sum(dim=-1, dtype=torch.float64)
        (outside,) = torch.nonzero(above_B >= settings.top_p_B, as_tuple=True)
        if len(outside):
            host = outside.cpu().numpy()
            again = torch.from_numpy(uniforms(settings.seed_B[host], position_B[host], draw=1)).to(device)
            nucleus = truncate(prob_BV[outside], settings.top_p_B[outside])
            token_B[outside] = _invert(nucleus, again)
    if settings.greedy_B is not None:
        token_B = torch.where(settings.greedy_B, logits_BV.argmax(dim=-1), token_B)
    return Choice(
        token_B=token_B,
        logprob_B=logprob_BV.gather(1, token_B[:, None])[:, 0],
        entropy_B=entropy(logits_BV) if with_entropy else None,
    )


def truncate(prob_BV: Tensor, top_p_B: Tensor) -> Tensor:
    """The probabilities with 0 outside each row's nucleus (not renormalised)."""
    sorted_BV = prob_BV.sort(dim=-1, descending=True).values
    above_BV = sorted_BV.cumsum(dim=-1, dtype=torch.float64) - sorted_BV
    inside_BV = above_BV < top_p_B[:, None]
    smallest_B1 = torch.where(inside_BV, sorted_BV, torch.inf).amin(dim=-1, keepdim=True)
    return torch.where(prob_BV >= smallest_B1, prob_BV, 0.0)


def entropy(logits_BV: Tensor) -> Tensor:
    """-Σ p log p of softmax(logits) in nats, temperature 1."""
    terms_BV: Tensor = torch.special.entr(logits_BV.float().softmax(dim=-1))
    return terms_BV.sum(dim=-1)


def _invert(weight_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative weight exceeds uniform × total. In float32 rare tokens would be misplaced."""
    cumulative_BV = weight_BV.cumsum(dim=-1, dtype=torch.float64)
    target_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
    return torch.searchsorted(cumulative_BV, target_B1, right=True)[:, 0]
