"""The activation formulas against what autograd really keeps."""

from __future__ import annotations

import gc
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
    layout = lay_out(sequences, torch.device("cpu"))
    before = storages()
    # With hooks of its own or with these, whatever autograd keeps is a tensor that the garbage collector sees.
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
        hidden = forward.hidden(layout, sequences)
    after = storages()
    assert hidden.requires_grad
    return sum(after[address] for address in after.keys() - before.keys())


def storages() -> dict[int, int]:
    """Bytes of all that is alive, by address; gathered weights and the states of random generators left out."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) is torch.Tensor and thing.dtype != torch.uint8]
    return {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in tensors
        if not is_weight(tensor)
    }


def is_weight(tensor: torch.Tensor) -> bool:
    """Whether it has the shape of a projection, as it is or side by side with others."""
    d, heads, kv, inner = 96, 6 * 16, 2 * 16, 208
    rows = {heads, kv, inner, heads + 2 * kv, 2 * inner}
    return tensor.ndim == 2 and any({*tensor.shape} == {d, row} for row in rows)


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


@pytest.mark.parametrize("precision", ["float32", "autocast"])
def test_a_layer_that_is_computed_anew_holds_what_the_formula_says(
    precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agpo_bench.training.forward.Rematerialise", lambda: None)
    micro = batch(is_padded=False)
    expected = lean_layer(shape_of("llama"), micro, precision, is_checkpointed=True)
    measured = one_layer(LeanForward, "llama", precision, checkpointing=False)
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
