"""The activation formulas against what autograd really keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agpo_bench.planning.activations import HEAD_CHUNK, Precision, lean_layer, library_layer
from agpo_bench.planning.shapes import ModelShape, shape_from_config
from agpo_bench.planning.workload import MicroBatch
from agpo_bench.training.forward import Forward, LeanForward, LibraryForward
from agpo_bench.training.head import CHUNK_ELEMENTS
from agpo_bench.training.policy import ScoredSequence
from agpo_bench.training.sequences import lay_out

PROMPT, RESPONSE, GROUP, GROUPS = 24, 33, 4, 2


def fields(family: str, layers: int) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": 96,
        "intermediate_size": 208,
        "num_hidden_layers": layers,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 61,
        "sliding_window": 4096 if family.startswith("gemma") else None,
    }


def saved_bytes(forward: Forward, model: Any) -> int:
    """Distinct storages that the backward pass of the hidden states holds on to, weights left out."""
    sequences = [
        ScoredSequence(
            prompt_ids=tuple(range(g, g + PROMPT)),
            # One row a token shorter: the library pads and so takes its mask.
            response_ids=tuple(range(RESPONSE - (g == i == 0))),
            temperature=1.0,
        )
        for g in range(GROUPS)
        for i in range(GROUP)
    ]
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {parameter.shape for parameter in model.parameters() if parameter.ndim == 2}
    seen: dict[int, int] = {}
    kept = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        is_weight = tensor.ndim == 2 and (tensor.shape in shapes or tensor.t().shape in shapes or is_fused(tensor))
        if storage.data_ptr() not in own and not is_weight:
            seen[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    layout = lay_out(sequences, torch.device("cpu"))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = forward.hidden(layout, sequences)
    assert hidden.requires_grad
    return sum(seen.values())


def is_fused(tensor: torch.Tensor) -> bool:
    return {*tensor.shape} in ({96, 10 * 16}, {96, 416})


def one_layer(
    kind: type[LeanForward] | type[LibraryForward], family: str, precision: Precision, checkpointing: bool
) -> float:
    """What one more layer keeps."""
    found = []
    for layers in (2, 6):
        torch.manual_seed(0)
        given = fields(family, layers)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**given)).eval()
        model = model.to(torch.bfloat16 if precision == "bfloat16" else torch.float32)
        compute = torch.float32 if precision == "float32" else torch.bfloat16
        found.append(saved_bytes(kind(model, model.base_model, compute, checkpointing), model))
    return (found[1] - found[0]) / 4


def shape_of(family: str) -> ModelShape:
    return shape_from_config(fields(family, 2), name=family, source="here")


def batch(*, is_padded: bool) -> MicroBatch:
    return MicroBatch(
        num_prompts=GROUPS,
        num_rows=GROUP * GROUPS,
        prompt_tokens=PROMPT,
        response_tokens=RESPONSE,
        is_padded=is_padded,
    )


@pytest.mark.parametrize("precision", ["float32", "autocast"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_our_forward_keeps_what_the_formula_says(family: str, precision: Precision) -> None:
    micro = batch(is_padded=False)
    expected = lean_layer(shape_of(family), micro, precision)
    measured = one_layer(LeanForward, family, precision, checkpointing=False)
    assert measured == pytest.approx(expected.per_token * micro.num_tokens + expected.attention, rel=0.005)


@pytest.mark.parametrize("precision", ["float32", "autocast", "bfloat16"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
def test_the_librarys_forward_keeps_what_the_formula_says(family: str, precision: Precision) -> None:
    micro = batch(is_padded=True)
    expected = library_layer(shape_of(family), micro, precision)
    measured = one_layer(LibraryForward, family, precision, checkpointing=False)
    assert measured == pytest.approx(expected.per_token * micro.num_tokens + expected.attention, rel=0.005)


@pytest.mark.parametrize(
    ("kind", "family", "precision"),
    [
        (LeanForward, "llama", "float32"),
        (LeanForward, "llama", "autocast"),
        (LibraryForward, "llama", "float32"),
        (LibraryForward, "qwen2", "bfloat16"),
        (LibraryForward, "gemma2", "bfloat16"),
        (LibraryForward, "gemma2", "autocast"),
    ],
)
def test_with_checkpointing_a_layer_keeps_its_input_alone(kind: Any, family: str, precision: Precision) -> None:
    is_padded = kind is LibraryForward
    micro = batch(is_padded=is_padded)
    formula = library_layer if is_padded else lean_layer
    measured = one_layer(kind, family, precision, checkpointing=True)
    assert measured == pytest.approx(formula(shape_of(family), micro, precision).boundary * micro.num_tokens, rel=0.005)


def test_the_chunk_of_the_head_is_the_trainers() -> None:
    assert HEAD_CHUNK == CHUNK_ELEMENTS
