"""A lean forward pass for the Llama family, on the library's own parameters.

Equal to the library's forward up to rounding, with fewer and larger operations: one product for q, k and v, one for
gate and up, rotary positions as one complex multiplication (rows of the q and k weights are re-ordered so that the two
halves of a pair lie side by side, which leaves every q·k unchanged), no repeated key-value heads. The weights are
gathered with differentiable operations, so the same code serves sampling and training.

Shapes: N tokens in a row (any mixture of sequences), P prompts, B sequences, T positions, S cache slots, W attended
slots, H query heads, K key-value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agpo_bench.rollout.adapters import are_plain, effective_weight
from agpo_bench.rollout.lean_model import MAX_PARAMETERS, LeanCausalLM
from agpo_bench.rollout.rematerialise import Call, Rematerialise, keep

_FAMILY = frozenset({"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM"})
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary types whose frequencies do not depend on the length of the input."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q_NHD, k_NKD, v_NKD) -> attention output, N × (H·D). The query comes scaled: q·k goes into the softmax."""


class LayerWeights(NamedTuple):
    """One block; q and k rows re-ordered for the complex rotation."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Weights(NamedTuple):
    """Everything a forward pass reads."""

    embedding: Tensor
    layers: list[LayerWeights]
    norm: Tensor


class LeanDecoder:
    """The forward pass of one model."""

    def __init__(self, trunk: Any, dtype: torch.dtype = torch.float32) -> None:
        """``trunk`` is ``model.model`` of a model that ``supports`` accepts."""
        self.trunk, self.dtype = trunk, dtype
        # Read once: attributes of a library config are slow to look up inside a decoding step.
        self.num_layers = len(trunk.layers)
        self.num_heads = int(trunk.config.num_attention_heads)
        self.num_kv_heads = int(trunk.config.num_key_value_heads)
        self.head_dim = int(trunk.layers[0].self_attn.head_dim)
        self._padding_id = trunk.embed_tokens.padding_idx
        self._eps = float(trunk.config.rms_norm_eps)
        self._scale = float(trunk.layers[0].self_attn.scaling)

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether the model is one this forward pass reproduces exactly; anything unusual in it says no."""
        if isinstance(model, LeanCausalLM):
            return True
        config = model.config
        if type(model).__name__ not in _FAMILY or getattr(config, "hidden_act", "") != "silu":
            return False
        if getattr(config, "sliding_window", None) is not None or getattr(config, "pretraining_tp", 1) not in {1, None}:
            return False
        if any(kind != "full_attention" for kind in getattr(config, "layer_types", None) or []):
            return False
        if getattr(model.model.rotary_emb, "rope_type", None) not in _FIXED_ROPE:
            return False
        if 2 * model.model.rotary_emb.inv_freq.numel() != model.model.layers[0].self_attn.head_dim:
            return False
        if sum(parameter.numel() for parameter in model.parameters()) > MAX_PARAMETERS:
            return False
        # Other adapters and quantised layers replace nn.Linear; hooks would not be called.
        if not are_plain(model) or type(model.lm_head) is not nn.Linear:
            return False
        leaves = [module for module in model.modules() if not list(module.children())]
        linears = [leaf for leaf in leaves if hasattr(leaf, "in_features")]
        return all(type(leaf) is nn.Linear for leaf in linears) and not any(
            module._forward_hooks or module._forward_pre_hooks for module in model.modules()
        )

    def gather(self) -> Weights:
        """The weights in the order the forward pass wants them, in ``dtype``; gradients flow back to the model's."""
        trunk = self.trunk
        embedding = trunk.embed_tokens.weight.to(self.dtype)
        return Weights(embedding, [self._layer(layer) for layer in trunk.layers], trunk.norm.weight.to(self.dtype))

    def _layer(self, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        q_norm, k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        # The factor 1/√D goes into what makes the query: its norm if it has one, else its projection.
        scale = self._scale if q_norm is None else 1.0
        return LayerWeights(
            attention_norm=self._cast(layer.input_layernorm.weight),
            qkv=self._cast(self._fuse_qkv([effective_weight(projection) for projection in projections], scale)),
            qkv_bias=None
            if attention.q_proj.bias is None
            else self._cast(self._fuse_qkv([projection.bias for projection in projections], scale)),
            q_norm=None if q_norm is None else self._cast(self._pair(q_norm.weight) * self._scale),
            k_norm=None if k_norm is None else self._cast(self._pair(k_norm.weight)),
            out=self._cast(effective_weight(attention.o_proj)),
            out_bias=self._cast(attention.o_proj.bias),
            mlp_norm=self._cast(layer.post_attention_layernorm.weight),
            gate_up=self._cast(torch.cat((effective_weight(mlp.gate_proj), effective_weight(mlp.up_proj)))),
            gate_up_bias=None
            if mlp.gate_proj.bias is None
            else self._cast(torch.cat((mlp.gate_proj.bias, mlp.up_proj.bias))),
            down=self._cast(effective_weight(mlp.down_proj)),
            down_bias=self._cast(mlp.down_proj.bias),
        )

    def _cast(self, weight: Any) -> Any:
        return None if weight is None else weight.to(self.dtype)

    def _fuse_qkv(self, parts: list[Tensor], scale: float) -> Tensor:
        query, key, value = parts
        return torch.cat((self._pair(torch.cat((query * scale, key))), value))

    def _pair(self, rows: Tensor) -> Tensor:
        """Re-order each head's rows 0 … D-1 to 0, D/2, 1, D/2 + 1, …: the library rotates i with i + D/2."""
        shape = rows.shape
        halves = rows.reshape(-1, 2, self.head_dim // 2, *shape[1:])
        return halves.transpose(1, 2).reshape(shape)

    def rotations(self, length: int) -> Tensor:
        """Complex cos + i·sin for positions 0 … length - 1, times the rotary type's scale: length × 1 × D/2."""
        device = self.trunk.embed_tokens.weight.device
        positions = torch.arange(length, device=device)[None]
        cos, sin = self.trunk.rotary_emb(torch.zeros(1, device=device), positions)
        half = self.head_dim // 2
        return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())[:, None]

    def forward(
        self,
        weights: Weights,
        token_N: Tensor,
        rotation_N: Tensor,
        attend: Attend,
        *,
        checkpointing: bool = False,
        again: Rematerialise | None = None,
    ) -> Tensor:
        """Final hidden states (after the last norm) of N tokens; ``attend`` says which token sees which.

        With ``checkpointing`` the backward pass computes each block again instead of keeping its insides, with
        ``again`` only what is cheap in it.
        """
        # As in the library, the padding token's input embedding gets no gradient, even where it is a real token.
        x = F.embedding(token_N, weights.embedding, padding_idx=self._padding_id)
        for index, layer in enumerate(weights.layers):
            if checkpointing:
                x = checkpoint(self.block, index, layer, x, rotation_N, attend, use_reentrant=False)
            elif again is not None:
                with again:
                    x = self.block(index, layer, x, rotation_N, attend, call=again)
            else:
                x = self.block(index, layer, x, rotation_N, attend)
        return self._norm(x, weights.norm)

    def block(
        self, index: int, layer: LayerWeights, x: Tensor, rotation_N: Tensor, attend: Attend, *, call: Call = keep
    ) -> Tensor:
        """One decoder block; its cheap functions go through ``call``."""
        num_rotated = self.num_heads + self.num_kv_heads
        heads = F.linear(call(self._norm, x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        heads = heads.view(x.shape[0], num_rotated + self.num_kv_heads, self.head_dim)
        qk, value = torch.split(heads, [num_rotated, self.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = torch.split(qk, [self.num_heads, self.num_kv_heads], dim=1)
            qk = torch.cat((call(self._norm, q, layer.q_norm), call(self._norm, k, layer.k_norm)), dim=1)
        query, key = torch.split(_rotate(qk, rotation_N), [self.num_heads, self.num_kv_heads], dim=1)
        x = x + F.linear(attend(index, query, key, value), layer.out, layer.out_bias)
        gate_up = F.linear(call(self._norm, x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
        return x + F.linear(call(_gated, gate_up), layer.down, layer.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def _rotate(qk: Tensor, rotation_N: Tensor) -> Tensor:
    pairs = torch.view_as_complex(qk.float().reshape(*qk.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation_N).flatten(-2).to(qk.dtype)


def repeat_kv(kv: Tensor, num_heads: int) -> Tensor:
    """Key-value heads repeated to the number of query heads along dimension 1 (a view where there is one each)."""
    repeats = num_heads // kv.shape[1]
    return kv if repeats == 1 else kv.repeat_interleave(repeats, dim=1)
