"""Results that the backward pass makes again: the same bits, and nothing stays behind."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agpo_bench.rollout.rematerialise import Call, Rematerialise, keep
from agpo_bench.training.forward import make_forward
from agpo_bench.training.sequences import ScoredSequence, lay_out
from tests.rollout import tiny_models


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def gated(x: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return F.silu(left) * right


def block(call: Call, x: Tensor, norm: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return x + F.linear(call(gated, F.linear(call(normed, x, norm), up)), down)


def tensors(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((40, 32), (32,), (96, 32), (32, 48))
    return tuple(torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes)


def run(inputs: tuple[Tensor, ...], *, rematerialised: bool, layers: int = 3) -> Tensor:
    x, *weights = inputs
    again = Rematerialise()
    for _ in range(layers):
        if rematerialised:
            with again:
                x = block(again, x, *weights)
        else:
            x = block(keep, x, *weights)
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frozen", [(), (1,), (2,), (1, 2, 3)], ids=str)
def test_values_and_gradients_are_the_same_bits(dtype: torch.dtype, frozen: tuple[int, ...]) -> None:
    found = []
    for rematerialised in (False, True):
        inputs = tensors(dtype)
        for number in frozen:
            inputs[number].requires_grad_(False)
        output = run(inputs, rematerialised=rematerialised)
        output.square().sum().backward()
        found.append((output.detach(), *(tensor.grad for tensor in inputs if tensor.requires_grad)))
    assert len(found[0]) == 5 - len(frozen)
    assert all(torch.equal(plain, again) for plain, again in zip(*found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", tiny_models.LEAN)
def test_a_whole_model_has_the_same_gradient(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [
        ScoredSequence(prompt_ids=tuple(range(5, 12 + i // 2)), response_ids=tuple(range(9, 17 + i)), temperature=1.0)
        for i in range(4)
    ]
    layout = lay_out(sequences, torch.device("cpu"))
    found = []
    for rematerialised in (False, True):
        if not rematerialised:
            monkeypatch.setattr("agpo_bench.training.forward.Rematerialise", lambda: None)
        model = tiny_models.build(name)
        hidden = make_forward(model, compute_dtype=dtype).hidden(layout, sequences)
        hidden.float().square().sum().backward()
        gradients = [parameter.grad for _, parameter in model.named_parameters() if parameter.grad is not None]
        found.append((hidden.detach(), *gradients))
        monkeypatch.undo()
    assert len(found[0]) > 20
    assert all(torch.equal(plain, again) for plain, again in zip(*found, strict=True))


def test_a_graph_that_is_kept_gives_the_same_gradient_twice() -> None:
    inputs = tensors()
    loss = run(inputs, rematerialised=True).square().sum()
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    second = torch.autograd.grad(loss, inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def kept_bytes(make: Callable[[], Tensor]) -> int:
    """Bytes of the distinct storages alive because of a result."""

    def storages() -> dict[int, int]:
        gc.collect()
        found = [thing.untyped_storage() for thing in gc.get_objects() if type(thing) is Tensor]
        return {storage.data_ptr(): storage.nbytes() for storage in found}

    before = storages()
    # Kept as Python objects, which the garbage collector sees, where no other hooks say what to keep.
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), lambda tensor: tensor):
        result = make()
    after = storages()
    assert result.requires_grad
    return sum(after[address] for address in after.keys() - before.keys())


def test_only_inputs_of_products_and_scales_are_kept() -> None:
    inputs = tensors()
    by_layer = [
        (kept_bytes(lambda n=layers: run(inputs, rematerialised=True, layers=n)))  # type: ignore[misc]
        for layers in (2, 6)
    ]
    # A layer's input, the scale of its norm, and what the gate is computed from; 40 rows of float32.
    assert (by_layer[1] - by_layer[0]) / 4 == 4 * 40 * (32 + 1 + 96)


def test_nothing_stays_alive_after_the_backward_pass() -> None:
    def alive() -> int:
        return sum(1 for thing in gc.get_objects() if type(thing) is Tensor)

    inputs = tensors()
    gc.collect()
    gc.disable()  # what only the collector could free would pile up during a step
    try:
        counts = []
        for _ in range(4):
            torch.autograd.grad(run(inputs, rematerialised=True).square().sum(), inputs)
            counts.append(alive())
    finally:
        gc.enable()
    assert counts[0] == counts[-1]


def test_an_output_that_several_operations_keep_is_made_for_each() -> None:
    def twice(call: Call, x: Tensor, norm: Tensor) -> Tensor:
        y = call(normed, x, norm)
        return (y * y.exp()).sum()

    x, norm, *_ = tensors()
    plain = torch.autograd.grad(twice(keep, x, norm), (x, norm))
    with Rematerialise() as again:
        loss = twice(again, x, norm)
    assert all(torch.equal(a, b) for a, b in zip(plain, torch.autograd.grad(loss, (x, norm)), strict=True))


def test_a_function_of_an_output_starts_from_the_inputs_of_the_first() -> None:
    def chained(call: Call, x: Tensor, norm: Tensor, up: Tensor) -> Tensor:
        return F.linear(call(gated, call(normed, x, norm)), up[:, :16]).square().sum()

    x, norm, up, _ = tensors()
    plain = torch.autograd.grad(chained(keep, x, norm, up), (x, norm, up))
    with Rematerialise() as again:
        loss = chained(again, x, norm, up)
    assert all(torch.equal(a, b) for a, b in zip(plain, torch.autograd.grad(loss, (x, norm, up)), strict=True))


def test_a_function_that_fails_leaves_the_context_in_order() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("no")

    x, norm, *_ = tensors()
    again = Rematerialise()
    with pytest.raises(ValueError, match="no"), again:
        again(fails, x)
    plain = torch.autograd.grad(normed(x, norm).square().sum(), x)
    with again:
        loss = again(normed, x, norm).square().sum()
    assert torch.equal(plain[0], torch.autograd.grad(loss, x)[0])
