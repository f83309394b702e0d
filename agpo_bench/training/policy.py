"""Log-probabilities, entropies and values of given responses, with gradients.

Shapes: B sequences, T response tokens (right padded), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from agpo_bench.training.model import LoadedModel


@dataclass(frozen=True, kw_only=True)
class ScoredSequence:
    """A prompt, the sampled response and the temperature it was sampled at."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    temperature: float


class TokenLogprobs(NamedTuple):
    """What the policy says about B responses; zero where ``mask_BT`` is 0."""

    logprob_BT: Tensor
    """log softmax(logits / temperature)[token]: full vocabulary, each sequence at its own temperature (nats)."""
    entropy_BT: Tensor | None
    """Entropy (nats) of softmax(logits), temperature 1, at the position each token was drawn from."""
    value_BT: Tensor | None
    """Value of the state each token was drawn in (prompt and the tokens before it), from the value head."""
    mask_BT: Tensor
    """1.0 on response tokens, by length (never by token value), the terminator included."""


class Policy:
    """A trainable (or frozen) causal LM as the loss sees it."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        value_head: Literal["none", "shared", "separate"] = "none",
        is_frozen: bool = False,
        gradient_checkpointing: bool = False,
    ) -> None: ...

    def logprobs(
        self,
        sequences: Sequence[ScoredSequence],
        *,
        with_entropy: bool = False,
        with_values: bool = False,
        with_grad: bool = True,
    ) -> TokenLogprobs:
        """Score one micro-batch in one forward pass; the graph is kept when ``with_grad``."""
        raise NotImplementedError

    def score(
        self, sequences: Sequence[ScoredSequence], *, max_tokens: int, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Without gradient, any number of sequences: split, score, put back in order (old and reference passes)."""
        raise NotImplementedError

    def values(self, sequences: Sequence[ScoredSequence], *, with_grad: bool = True) -> Tensor:
        """``value_BT`` alone, one micro-batch."""
        raise NotImplementedError

    @staticmethod
    def split(sequences: Sequence[ScoredSequence], *, max_tokens: int) -> list[list[int]]:
        """Indices of the sequences in micro-batches: alike lengths together, at most ``max_tokens`` padded tokens each.

        Every index occurs once; a single sequence longer than ``max_tokens`` gets a micro-batch of its own.
        """
        raise NotImplementedError

    def frozen_copy(self) -> Policy:
        """A reference policy: the weights as they are now, in the compute type, without gradients or value head."""
        raise NotImplementedError

    def parameters(self) -> Iterator[nn.Parameter]:
        """Trainable parameters, the value head's included."""
        raise NotImplementedError

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As ``parameters``, with stable names (``model.…``, ``value_trunk.…``, ``value_head.…``)."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Tensor]:
        """Weights under the names of ``named_parameters`` (tied ones once)."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy weights in place; missing or unexpected names raise ValueError."""
        raise NotImplementedError

    def save_pretrained(self, directory: Any) -> None:
        """Write model and tokenizer as a Hugging Face directory."""
        raise NotImplementedError
