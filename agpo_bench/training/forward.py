"""How hidden states and scores come out of a model: by our own forward pass, or by the library's.

Shapes: B sequences, T positions, N tokens end to end, M response tokens, d hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agpo_bench.rollout.lean_decoder import LeanDecoder, Weights, repeat_kv
from agpo_bench.rollout.rematerialise import Call, Rematerialise, keep
from agpo_bench.training.head import logits_logprobs, token_logprobs
from agpo_bench.training.sequences import Layout, ScoredSequence


class States(NamedTuple):
    """What the M response tokens are predicted from."""

    hidden_Md: Tensor
    logits_MV: Tensor | None
    """Set where the model does more to its logits than one linear map (soft-capping, scaling)."""


class Forward(Protocol):
    """One way through a model."""

    is_padded: bool
    """Whether every sequence takes as much as the longest, its prompt included."""

    def hidden(self, layout: Layout, sequences: Sequence[ScoredSequence]) -> Tensor:
        """The states of ``states`` without logits, M × d."""
        ...

    def states(self, layout: Layout, sequences: Sequence[ScoredSequence]) -> States:
        """The states that predict the response tokens."""
        ...

    def score(
        self, states: States, target_M: Tensor, temperature_M: Tensor, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of the targets at their temperatures, and entropies at temperature 1."""
        ...

    def same_weights(self) -> Any:
        """A context in which the weights do not change and no gradient is wanted: what is derived from them is kept."""
        ...


def make_forward(
    model: Any,
    *,
    compute_dtype: torch.dtype,
    checkpointing: bool = False,
    trunk: Any = None,
    through_modules: bool = False,
) -> Forward:
    """Our own forward where it reproduces the model, else the library's; ``trunk`` stands in for the model's.

    ``through_modules`` asks for one that reads no weight but by calling the module that owns it.
    """
    trunk = model.base_model if trunk is None else trunk
    if through_modules:
        return LibraryForward(model, trunk, compute_dtype, checkpointing, through_modules=True)
    kind = LeanForward if LeanDecoder.supports(model) else LibraryForward
    return kind(model, trunk, compute_dtype, checkpointing)


class LeanForward:
    """Prompts once for all their responses, everything end to end without padding."""

    is_padded = False

    def __init__(self, model: Any, trunk: Any, compute_dtype: torch.dtype, checkpointing: bool) -> None:
        self._head = model.lm_head
        self._decoder = LeanDecoder(trunk, compute_dtype)
        self._checkpointing = checkpointing
        self._rotations = torch.empty(0)
        self._kept: Weights | None = None

    @contextmanager
    def same_weights(self) -> Iterator[None]:
        """Fuse the weights once."""
        with torch.no_grad():
            self._kept = self._decoder.gather()
        try:
            yield
        finally:
            self._kept = None

    def states(self, layout: Layout, sequences: Sequence[ScoredSequence]) -> States:
        """Hidden states only."""
        return States(self.hidden(layout, sequences), None)

    def hidden(self, layout: Layout, sequences: Sequence[ScoredSequence]) -> Tensor:
        """One pass over the flat tokens."""
        longest = max(sequence.num_tokens for sequence in sequences)
        if len(self._rotations) < longest:
            self._rotations = self._decoder.rotations(2 * longest)
        decoder = self._decoder
        width = decoder.num_heads * decoder.head_dim

        again = Rematerialise() if torch.is_grad_enabled() and not self._checkpointing else None
        call: Call = keep if again is None else again
        biases = [None if bias is None else bias.to(decoder.dtype) for _, _, bias in layout.segments]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            del layer
            if again is not None:  # what is made again is made from these, which must not hold on to their neighbours
                key, value = key.contiguous(), value.contiguous()
            outputs = []
            for (query_RQ, key_RW, _), bias_R1QW in zip(layout.segments, biases, strict=True):
                rows = partial(_rows, index=key_RW, num_heads=decoder.num_heads)
                out = F.scaled_dot_product_attention(
                    _rows(query, query_RQ, decoder.num_heads),
                    call(rows, key),
                    call(rows, value),
                    attn_mask=bias_R1QW,
                    is_causal=bias_R1QW is None,
                    scale=1.0,
                )
                outputs.append(out.transpose(1, 2).reshape(-1, width))
            return call(gather, *outputs)

        def gather(*outputs: Tensor) -> Tensor:
            return torch.cat(outputs).index_select(0, layout.output_N)

        hidden_Nd = decoder.forward(
            decoder.gather() if self._kept is None else self._kept,
            layout.token_N,
            self._rotations[layout.position_N],
            attend,
            checkpointing=self._checkpointing and torch.is_grad_enabled(),
            again=again,
        )
        return hidden_Nd.index_select(0, layout.predictor_M)

    def score(
        self, states: States, target_M: Tensor, temperature_M: Tensor, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Through the output head in chunks."""
        return _score_with_head(self._head, states.hidden_Md, target_M, temperature_M, with_entropy=with_entropy)


class LibraryForward:
    """The library's forward on right-padded sequences, for any architecture."""

    is_padded = True

    def __init__(
        self, model: Any, trunk: Any, compute_dtype: torch.dtype, checkpointing: bool, *, through_modules: bool = False
    ) -> None:
        self._model, self._trunk, self._dtype = model, trunk, compute_dtype
        self._is_own_trunk = trunk is model.base_model
        self._checkpointing = checkpointing
        if checkpointing:
            # The name changed during transformers 5.
            old = trunk.gradient_checkpointing_enable
            getattr(trunk, "activation_checkpointing_enable", old)({"use_reentrant": False})
            from transformers.modeling_layers import GradientCheckpointingLayer

            for module in trunk.modules():
                # The library checkpoints a layer in training mode alone. Its parts stay in evaluation mode.
                if isinstance(module, GradientCheckpointingLayer):
                    module.training = True
        self._head_is_plain = self._is_own_trunk and not through_modules and self._probe_head()

    def _probe_head(self) -> bool:
        """Whether the logits are the output embedding of the last hidden state and nothing more."""
        head = self._model.get_output_embeddings()
        if type(head) is not torch.nn.Linear:
            return False
        token_BT = torch.arange(8, device=self._model.device)[None] % self._model.config.get_text_config().vocab_size
        options = {"input_ids": token_BT, "attention_mask": torch.ones_like(token_BT), "use_cache": False}
        with torch.no_grad():
            whole = self._model(**options)
            plain = head(self._trunk(**options).last_hidden_state)
        return bool(torch.allclose(whole.logits.float(), plain.float(), atol=1e-5, rtol=1e-4))

    @contextmanager
    def same_weights(self) -> Iterator[None]:
        """Nothing is derived from the weights."""
        yield

    def hidden(self, layout: Layout, sequences: Sequence[ScoredSequence]) -> Tensor:
        """Hidden states after the last norm."""
        del layout
        return _pick(self._run(self._trunk, sequences).last_hidden_state, sequences)

    def states(self, layout: Layout, sequences: Sequence[ScoredSequence]) -> States:
        """Hidden states, with logits where the head is more than a linear map."""
        if self._head_is_plain:
            return States(self.hidden(layout, sequences), None)
        output = self._run(self._model, sequences, output_hidden_states=True)
        return States(_pick(output.hidden_states[-1], sequences), _pick(output.logits, sequences))

    def _run(self, module: Any, sequences: Sequence[ScoredSequence], **options: Any) -> Any:
        width = max(sequence.num_tokens for sequence in sequences) - 1
        token_BT = torch.zeros(len(sequences), width, dtype=torch.long)
        mask_BT = torch.zeros(len(sequences), width, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            ids = (*sequence.prompt_ids, *sequence.response_ids[:-1])
            token_BT[row, : len(ids)] = torch.tensor(ids)
            mask_BT[row, : len(ids)] = 1
        device = self._model.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16):
            # Right padding: positions count from 0 and no real token sees a padded one.
            return module(input_ids=token_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False, **options)

    def score(
        self, states: States, target_M: Tensor, temperature_M: Tensor, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """From the head in chunks, or from the logits the model made."""
        if states.logits_MV is not None:
            return logits_logprobs(states.logits_MV, target_M, temperature_M, with_entropy=with_entropy)
        head = self._model.get_output_embeddings()
        hidden_Md = states.hidden_Md.to(self._dtype)
        return _score_with_head(head, hidden_Md, target_M, temperature_M, with_entropy=with_entropy)


def _score_with_head(
    head: Any, hidden_Md: Tensor, target_M: Tensor, temperature_M: Tensor, *, with_entropy: bool
) -> tuple[Tensor, Tensor | None]:
    weight = head.weight.to(hidden_Md.dtype)
    bias = None if head.bias is None else head.bias.to(hidden_Md.dtype)
    return token_logprobs(hidden_Md, weight, bias, target_M, temperature_M, with_entropy=with_entropy)


def _rows(flat: Tensor, index: Tensor, num_heads: int) -> Tensor:
    """Padded rows of flat tokens as attention takes them, R × H × T × D; key-value heads repeated to H."""
    padded = flat.index_select(0, index.flatten()).view(*index.shape, *flat.shape[1:])
    return repeat_kv(padded.transpose(1, 2), num_heads)


def _pick(value_BTx: Tensor, sequences: Sequence[ScoredSequence]) -> Tensor:
    """The positions that predict response tokens, end to end."""
    return torch.cat(
        [
            value_BTx[row, len(sequence.prompt_ids) - 1 : sequence.num_tokens - 1]
            for row, sequence in enumerate(sequences)
        ]
    )
