"""Bytes that one layer keeps for its backward pass, and what the output head takes.

The numbers are those of the operations in ``training/forward.py``, counted with ``saved_tensors_hooks``; a test counts
them again. N positions of a micro-batch, R rows, d hidden size, I inner size, H query heads, D head size, V vocabulary.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from agpo_bench.planning.shapes import ModelShape
from agpo_bench.planning.workload import MicroBatch

HEAD_CHUNK = 1 << 24
"""``training.head.CHUNK_ELEMENTS``; a test holds the two together."""
Precision = Literal["float32", "autocast", "bfloat16"]
"""float32 throughout; float32 weights multiplied in bfloat16; bfloat16 weights."""


class LayerBytes(NamedTuple):
    """What one layer keeps for the backward pass of a micro-batch."""

    per_token: float
    """Norms, projections and MLP, a position."""
    attention: float
    """Padded queries, keys, values and outputs, and scores where they exist: for the whole micro-batch."""
    boundary: float
    """The layer's input, a position: all that is kept with activation checkpointing."""


def lean_layer(
    shape: ModelShape, batch: MicroBatch, precision: Precision, *, is_checkpointed: bool = False
) -> LayerBytes:
    """Our own forward: prompts once, rows end to end, heads repeated for the attention product.

    Normed states, activated gates and repeated keys and values are made again in the backward pass, unless the whole
    layer is (``is_checkpointed``): then they exist while it is at work.
    """
    d, inner, heads = shape.hidden_size, shape.inner_size, shape.num_heads * shape.head_dim
    size = 4 if precision == "float32" else 2
    p, t = batch.prompt_tokens, batch.response_tokens - 1
    queries = batch.num_prompts * p + batch.num_rows * t
    keys = batch.num_prompts * p + batch.num_rows * (p + t)
    # The query and the attention's output, and what its softmax divides by.
    attention = 2 * size * heads * queries + 4 * shape.num_heads * queries
    if not is_checkpointed:
        # The input of each norm and its scale, gate and up, key and value of each position.
        per_token = 2 * (d * size + 4) + size * (2 * inner + 2 * shape.num_kv_heads * shape.head_dim)
        return LayerBytes(per_token, attention, d * size)
    # Two norms: their input in float32, the scaled input in float32, and the product with the weight.
    norms = 2 * 4 + (2 * d * (2 * 4 + size) if size == 2 else 2 * d * 3 * size)
    per_token = norms + size * (heads + 4 * inner)
    return LayerBytes(per_token, attention + 2 * size * heads * keys, d * size)


def library_layer(shape: ModelShape, batch: MicroBatch, precision: Precision) -> LayerBytes:
    """The library's forward on right-padded rows: sdpa, or eager attention where scores are capped (Gemma 2)."""
    d, inner, heads = shape.hidden_size, shape.inner_size, shape.num_heads * shape.head_dim
    size = 4 if precision == "float32" else 2
    has_eager_attention = shape.family == "gemma2"
    num_norms = 4 if shape.family in ("gemma2", "gemma3_text") else 2
    # A norm keeps its input and the scaled input in float32; a bfloat16 residual keeps the second in bfloat16 only.
    # Gemma's norm multiplies in float32.
    if shape.family.startswith("gemma"):
        norms = num_norms * d * 8
    else:
        norms = num_norms * d * (6 if precision == "bfloat16" else 8)
    # Inputs of the projections: q, k, v share one, gate and up another; autocast casts for each product anew.
    inputs = d * size * (5 if precision == "autocast" else 2)
    per_token = norms + 4 * num_norms + inputs + 4 * inner * size
    rows, width = batch.num_rows, batch.prompt_tokens + batch.response_tokens - 1
    if has_eager_attention:
        # The query, repeated keys and values, the output; then capped scores, their softmax in float32 and its cast.
        attention = size * 4 * heads * rows * width + rows * shape.num_heads * width * width * 8
    else:
        # With a padding mask the keys and values are repeated to the number of query heads.
        attention = size * (4 * heads * rows * width + rows * width * width) + 4 * shape.num_heads * rows * width
    residual = 2 if precision == "bfloat16" else 4
    return LayerBytes(per_token, attention, d * residual)


def layer_bytes(
    shape: ModelShape, batch: MicroBatch, precision: Precision, *, is_checkpointed: bool = False
) -> LayerBytes:
    """Of the forward pass that lays the micro-batch out as it is."""
    if batch.is_padded:
        return library_layer(shape, batch, precision)
    return lean_layer(shape, batch, precision, is_checkpointed=is_checkpointed)


def head_chunk(shape: ModelShape, batch: MicroBatch) -> int:
    """Logits that exist at a time where the head is one linear map: elements."""
    return min(batch.num_targets * shape.vocabulary_size, max(HEAD_CHUNK, shape.vocabulary_size))
