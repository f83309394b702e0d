"""What a process of the torch engine holds: float32 weights, gradients and moments, and copies to multiply with."""

from __future__ import annotations

from agpo_bench.planning import adapter_memory
from agpo_bench.planning.adapters import adapters_of
from agpo_bench.planning.items import Item, item
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape


def state_items(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> list[Item]:
    """Weights, gradients, optimiser, critic, reference and the copies that forward passes multiply with."""
    if (adapters := adapters_of(shape, machine)) is not None:
        return adapter_memory.torch_items(shape, needs, machine, adapters)
    size, parameters, embedding = machine.bytes_per_number, shape.num_parameters, shape.embedding
    has_trunk = needs.critic_trunk == "separate"
    critic = (shape.trunk if has_trunk else 0) + (shape.hidden_size + 1 if needs.critic_trunk != "none" else 0)
    items = [
        item("weights", (parameters, "parameters"), (4, "B"), note="float32 master weights"),
        item("Adam moments", (parameters, "parameters"), (8, "B"), note="two in float32"),
        item("gradients", (parameters, "parameters"), (4, "B"), phases=("update", "step"), note="float32"),
        item(
            "head gradient",
            (embedding, "head weights"),
            (4 if size == 4 else 6, "B"),
            phases=("update",),
            note="until it is added to the gradients" + (" with that of the tied embedding" if shape.is_tied else ""),
        ),
    ]
    if critic:
        what = "a trunk of its own and a head" if has_trunk else "a head on the policy's trunk"
        items += [
            item("critic weights", (critic, "parameters"), (4, "B"), note=what),
            item("critic moments", (critic, "parameters"), (8, "B")),
            item("critic gradients", (critic, "parameters"), (4, "B"), phases=("update", "step")),
        ]
    if needs.reference or needs.is_preference or machine.tracks_reference:
        why = "read by the loss" if needs.reference else "only to measure the KL; track_reference_kl=false drops it"
        on_device = machine.phases_of_reference(is_preference=needs.is_preference)
        items.append(
            item("reference", (parameters, "parameters"), (size, "B"), phases=on_device, note=f"frozen; {why}")
        )
    if needs.is_preference:
        items.append(item("initial policy", (parameters, "parameters"), (size, "B"), note="samples the pairs; frozen"))
    items += _copies(shape, machine, passes=2 if has_trunk else 1, num_samplers=2 if needs.is_preference else 1)
    return items


def _copies(shape: ModelShape, machine: Machine, *, passes: int, num_samplers: int) -> list[Item]:
    """Weights once more in the form that products read."""
    if shape.is_lean:
        # float32: q, k, v and gate, up are laid side by side, all else is used in place; bfloat16: everything is cast.
        count = shape.fused if machine.dtype == "float32" else shape.trunk + shape.embedding
        what = "q, k, v, gate and up, fused" if machine.dtype == "float32" else "all weights, cast"
    elif machine.dtype == "float32":
        return []
    else:
        count, what = shape.matrices_per_token + shape.embedding, "matrices, cast by autocast"
    size = machine.bytes_per_number
    copies = []
    if shape.is_lean:
        copies.append(
            item("sampler's copy", (num_samplers * count, "weights"), (size, "B"), note=f"{what}; kept between steps")
        )
    copies.append(
        item("forward's copy", (passes * count, "weights"), (size, "B"), phases=("score", "update"), note=what)
    )
    return copies
