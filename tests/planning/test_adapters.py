"""What a plan says of low-rank adapters, against peft, autograd and a count of operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

pytest.importorskip("peft")

from agpo_bench.planning.activations import LayerBytes, layer_bytes
from agpo_bench.planning.adapter_cost import beside_per_token, spared_per_token
from agpo_bench.planning.adapter_memory import adapted_layer
from agpo_bench.planning.adapters import Adapters, adapters_of, matrices, products
from agpo_bench.planning.advice import changes_that_fit
from agpo_bench.planning.deepspeed_memory import BUCKET_ELEMENTS
from agpo_bench.planning.items import GIB
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.report import describe
from agpo_bench.planning.shapes import shape_from_config
from agpo_bench.rollout.adapters import add_adapters, is_adapter_weight
from agpo_bench.training import deepspeed_engine
from agpo_bench.training.forward import LeanForward, LibraryForward
from agpo_bench.training.policy import ScoredSequence
from agpo_bench.training.sequences import lay_out
from tests.planning import test_activations as activations
from tests.planning.test_plan import gib_of, plan_for

RANK = 4
ALL, SOME, ONE = ("all-linear",), ("q_proj", "v_proj"), ("mlp.down_proj",)


def adapted_model(family: str, targets: tuple[str, ...], *, layers: int = 2, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(**activations.fields(family, layers))
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    add_adapters(model, rank=RANK, alpha=8.0, targets=targets, seed=0)
    return model


def found(family: str, targets: tuple[str, ...], **machine: Any) -> tuple[Machine, Adapters]:
    described = Machine(lora_rank=RANK, lora_targets=targets, **machine)
    adapters = adapters_of(activations.shape_of(family), described)
    assert adapters is not None
    return described, adapters


@pytest.mark.parametrize("targets", [ALL, SOME, ONE, ("1.self_attn.o_proj", "gate_proj")], ids=",".join)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "qwen3", "mistral"])
def test_adapters_have_as_many_numbers_as_those_of_peft(family: str, targets: tuple[str, ...]) -> None:
    model = adapted_model(family, targets)
    expected = sum(p.numel() for name, p in model.named_parameters() if is_adapter_weight(name))
    assert found(family, targets)[1].num_parameters == expected > 0


def test_rank_16_on_llama_3_8b_trains_the_published_number_of_parameters() -> None:
    # Per layer and rank: q, o 2 x 4096 each, k, v 4096 + 1024 each, gate, up, down 4096 + 14336 each: 81,920.
    (line,) = [one for one in describe(plan_for("llama-3-8b", "grpo", "lora_rank=16")) if "adapters of rank" in one]
    assert "41,943,040 trained numbers, 0.52% of the model's" in line


def test_targets_that_name_no_layer_are_refused_in_one_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"lora_targets = nope: .*Qwen2\.5-14B has no such linear layer; it has q_proj"
    ):
        plan_for("qwen2.5-14b", "grpo", "lora_rank=16", "lora_targets=nope")


def test_a_14b_model_with_adapters_fits_two_80_gb_devices_and_one_without_offload() -> None:
    two = plan_for("qwen2.5-14b", "agpo", "lora_rank=16", "offload=none")
    # 48 layers x 16 x (2 x 10240 + 2 x 6144 + 3 x 18944) = 68,812,800 numbers beside 14,770,033,664 frozen ones.
    assert gib_of(two, "weights") == pytest.approx((14_770_033_664 + 68_812_800) * 2 / GIB)
    assert gib_of(two, "optimiser") == pytest.approx(68_812_800 * 12 / 2 / GIB)
    assert gib_of(two, "gradients") == pytest.approx(68_812_800 * 4 / 2 / GIB)
    names = {one.name for one in two.memory.items}
    assert names.isdisjoint({"reference", "head gradient"}), "the head is frozen, and the reference is the model"
    assert {one.name for one in two.memory.host_items} == {"checkpoint", "merged model", "vLLM's weights asleep"}
    assert two.fits
    assert plan_for("qwen2.5-14b", "agpo", "offload=none", "park_reference=false").fits is False
    assert plan_for("qwen2.5-14b", "agpo", "lora_rank=16", "offload=none", gpus=1).fits
    alone = plan_for("qwen2.5-14b", "agpo", "lora_rank=16", "engine=torch", "zero_stage=null", "offload=none", gpus=1)
    assert gib_of(alone, "weights") == pytest.approx(14_770_033_664 * 2 / GIB)
    assert gib_of(alone, "Adam moments") == pytest.approx(68_812_800 * 8 / GIB)
    assert alone.fits


def test_a_critic_of_its_own_is_adapters_on_the_same_frozen_weights() -> None:
    shared = plan_for("llama-3-8b", "ppo", "lora_rank=16", "offload=none", "critic.trunk=shared")
    separate = plan_for("llama-3-8b", "ppo", "lora_rank=16", "offload=none", "critic.trunk=separate")
    assert gib_of(separate, "weights") - gib_of(shared, "weights") == pytest.approx(41_943_040 * 2 / GIB)
    assert gib_of(separate, "optimiser") - gib_of(shared, "optimiser") == pytest.approx(41_943_040 * 12 / 2 / GIB)
    assert separate.cost.score_critic > 0


def test_adapters_are_advised_where_every_weight_does_not_fit_and_they_do() -> None:
    settings = ("offload=none", "park_reference=false")
    (change,) = [
        one for one in changes_that_fit(plan_for("qwen2.5-14b", "agpo", *settings)) if "lora_rank" in one.settings
    ]
    again = plan_for("qwen2.5-14b", "agpo", *settings, *(f"{name}={value}" for name, value in change.settings.items()))
    assert again.fits and again.memory.peak_bytes == change.plan.memory.peak_bytes
    # On one device of 48 GiB neither vLLM's weights nor a reference have room beside the model.
    (small,) = changes_that_fit(plan_for("qwen2.5-14b", "agpo", gpus=1, gpu_memory=48))
    assert small.settings["sampler"] == "torch" and small.settings["lora_rank"] == 16


def kept_by_a_layer(kind: Any, family: str, targets: tuple[str, ...], machine: Machine) -> float:
    """Bytes that one more layer of a model with adapters keeps for its backward pass."""
    half = machine.dtype == "bfloat16"
    kept = []
    for layers in (2, 6):
        model = adapted_model(family, targets, layers=layers, dtype=torch.bfloat16 if half else torch.float32)
        if half and machine.engine == "deepspeed":
            model = model.to(torch.bfloat16)
        compute = torch.bfloat16 if half else torch.float32
        forward = kind(model, model.base_model, compute, machine.gradient_checkpointing)
        kept.append(activations.saved_bytes(forward, model))
    return (kept[1] - kept[0]) / 4


@pytest.fixture
def without_adapter_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    is_weight = activations.is_weight

    def is_any_weight(tensor: torch.Tensor) -> bool:
        sides = {*tensor.shape} - {RANK}
        return is_weight(tensor) or (tensor.ndim == 2 and RANK in tensor.shape and sides <= {96, 208, 32})

    monkeypatch.setattr(activations, "is_weight", is_any_weight)


HALF = {"dtype": "bfloat16", "engine": "torch"}
HALF_SHARED = {"dtype": "bfloat16", "engine": "deepspeed"}


@pytest.mark.slow
@pytest.mark.usefixtures("without_adapter_weights")
@pytest.mark.parametrize(
    ("kind", "family", "settings", "targets"),
    [
        (LibraryForward, "llama", {}, ALL),
        (LibraryForward, "llama", {}, SOME),
        (LibraryForward, "llama", {"gradient_checkpointing": True}, ALL),
        (LibraryForward, "qwen2", HALF, ALL),
        (LibraryForward, "qwen2", HALF, ONE),
        (LibraryForward, "qwen2", HALF_SHARED, ALL),
        (LibraryForward, "qwen2", HALF_SHARED | {"gradient_checkpointing": True}, SOME),
        (LibraryForward, "gemma2", {}, SOME),
        (LibraryForward, "gemma2", HALF, ("gate_proj", "o_proj")),
        (LibraryForward, "gemma2", HALF_SHARED, ALL),
        (LeanForward, "llama", {}, ALL),
        (LeanForward, "qwen2", HALF_SHARED, SOME),
    ],
)
def test_a_layer_with_adapters_keeps_what_the_formula_says(
    kind: Any, family: str, settings: dict[str, Any], targets: tuple[str, ...]
) -> None:
    micro = activations.batch(is_padded=kind is LibraryForward)
    machine, adapters = found(family, targets, **settings)
    shape = activations.shape_of(family)
    whole = layer_bytes(shape, micro, machine.precision)
    expected: LayerBytes = adapted_layer(shape, micro, machine, adapters, whole)
    measured = kept_by_a_layer(kind, family, targets, machine)
    if machine.gradient_checkpointing:
        assert measured == pytest.approx(expected.boundary * micro.num_tokens, rel=0.005)
    else:
        assert measured == pytest.approx(expected.per_token * micro.num_tokens + expected.attention, rel=0.005)


@pytest.mark.parametrize("targets", [ALL, SOME, ("down_proj",)], ids=",".join)
@pytest.mark.parametrize("kind", [LibraryForward, LeanForward])
def test_a_pass_takes_the_operations_of_the_formula(kind: Any, targets: tuple[str, ...]) -> None:
    is_padded = kind is LibraryForward
    micro = activations.batch(is_padded=is_padded)
    sequences = [
        ScoredSequence(prompt_ids=tuple(range(g, g + 24)), response_ids=tuple(range(33)), temperature=1.0)
        for g in range(activations.GROUPS)
        for _ in range(activations.GROUP)
    ]
    layout = lay_out(sequences, torch.device("cpu"))
    counted = []
    for layers in (2, 6):
        model = adapted_model("qwen2", targets, layers=layers)
        forward = kind(model, model.base_model, torch.float32, False)
        with FlopCounterMode(display=False) as counter:
            forward.hidden(layout, sequences).sum().backward()
        operations = counter.get_flop_counts()["Global"]
        counted.append(
            sum(number for name, number in operations.items() if "mm" in str(name) and "bmm" not in str(name))
        )
    measured = (counted[1] - counted[0]) / 4
    shape = shape_from_config(activations.fields("qwen2", 1), name="one layer", source="here")
    # Without our own forward pass a model has to be large, or its weights gathered module by module.
    machine, _ = found("qwen2", targets, engine="deepspeed" if is_padded else "torch", zero_stage=3 if is_padded else 0)
    adapters = adapters_of(shape, machine)
    assert adapters is not None
    plain, beside = 2 * shape.matrices_per_token, beside_per_token(shape, machine, adapters)
    expected = micro.num_tokens * (3 * (plain + beside) - spared_per_token(shape, machine, adapters))
    if not is_padded:  # the products B A, and two more for their gradients
        sizes = {matrix.name: matrix.inputs * matrix.outputs for matrix in matrices(shape)}
        expected += 3 * 2 * RANK * sum(sizes[name] for name in adapters.layers_by_name)
        assert products(shape, adapters) >= sum(sizes[name] for name in adapters.layers_by_name)
    assert measured == pytest.approx(expected, rel=1e-3)


def test_the_bucket_of_gradients_is_the_trainers() -> None:
    assert BUCKET_ELEMENTS == deepspeed_engine.BUCKET_ELEMENTS
