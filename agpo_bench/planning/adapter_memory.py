"""What a run of low-rank adapters holds: frozen weights in the compute type, float32 numbers for the adapters alone.

The reference is the model with its adapters switched off and takes nothing. Our own forward pass (models up to a
billion parameters) multiplies with W + s B A of every adapted matrix and so makes these, and in the backward pass their
gradients; the library's forward computes W x + s B (A x) and makes neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from agpo_bench.planning.activations import LayerBytes
from agpo_bench.planning.adapters import Adapters, matrices, products
from agpo_bench.planning.items import Item, gib, item
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape
from agpo_bench.planning.workload import MicroBatch


def trained_parameters(shape: ModelShape, needs: MethodNeeds, adapters: Adapters) -> int:
    """The policy's adapters, and the critic's with its head; what it leaves frozen is the policy's."""
    critic = 0 if needs.critic_trunk == "none" else shape.hidden_size + 1
    return adapters.num_parameters * (2 if needs.critic_trunk == "separate" else 1) + critic


def torch_items(shape: ModelShape, needs: MethodNeeds, machine: Machine, adapters: Adapters) -> list[Item]:
    """States of a process of the torch engine."""
    trained = (trained_parameters(shape, needs, adapters), "parameters")
    critic = {"none": "", "shared": " and a value head", "separate": ", the critic's too"}[needs.critic_trunk]
    items = [
        item("weights", (shape.num_parameters, "parameters"), (machine.bytes_per_number, "B"), note="frozen"),
        item("adapters", trained, (4, "B"), note=f"float32, rank {adapters.rank}{critic}"),
        item("Adam moments", trained, (8, "B"), note="two in float32"),
        item("gradients", trained, (4, "B"), phases=("update", "step"), note="float32"),
    ]
    if needs.is_preference:
        initial = (shape.num_parameters, "parameters")
        items.append(item("initial policy", initial, (machine.bytes_per_number, "B"), note="samples the pairs"))
    if machine.dtype == "bfloat16" and not shape.is_lean:
        cast = "adapters, cast by autocast"
        items.append(item(cast, trained, (2, "B"), phases=("score", "update")))
    return [*items, *product_items(shape, needs, machine, adapters)]


def product_items(shape: ModelShape, needs: MethodNeeds, machine: Machine, adapters: Adapters) -> list[Item]:
    """Matrices that our own forward pass makes of W, B and A; none with the library's."""
    if not shape.is_lean or machine.through_modules:
        return []
    size, passes = machine.bytes_per_number, 2 if needs.critic_trunk == "separate" else 1
    others = products(shape, adapters, merged_only=True)
    made, wanted = shape.fused + others, products(shape, adapters)
    what = "q, k, v, gate and up side by side" + (", and W + s B A of the others" if others else "")
    copies = []
    if machine.sampler == "torch":
        samplers = 2 if needs.is_preference else 1
        copies.append(
            item("sampler's copy", (samplers * made, "weights"), (size, "B"), note=f"{what}; kept between steps")
        )
    copies.append(
        item("forward's copy", (passes * made, "weights"), (size, "B"), phases=("score", "update", "step"), note=what)
    )
    copies.append(
        item(
            "products' gradients",
            (passes * wanted, "weights"),
            (size, "B"),
            phases=("step",),
            note="of W + s B A, at the end of a backward pass, which makes those of B and A from them",
        )
    )
    return copies


def after_critic(logits: list[Item], activations: float) -> Iterator[Item]:
    """Logits in the room of the critic's activations: its backward pass comes first and leaves next to no gradients."""
    for one in logits:
        taken = min(activations, one.num_bytes)
        activations -= taken
        note = f"{one.arithmetic}, of which {gib(taken)} where the critic's activations were"
        yield item(one.name, (one.num_bytes - taken, "B"), phases=("update",), note=note)


def adapted_layer(
    shape: ModelShape, batch: MicroBatch, machine: Machine, adapters: Adapters, whole: LayerBytes
) -> LayerBytes:
    """What a layer keeps where only adapters want gradients; ``whole`` is what it keeps where every weight does.

    Our own forward keeps the same: the input of each product, for the gradient of W + s B A. The library's keeps the
    input of a matrix only for its A, and what a norm multiplies its weight with not at all. Float32 adapters under
    autocast cast the input anew for each.
    """
    if not batch.is_padded:
        return whole
    size = machine.bytes_per_number
    casts = machine.dtype == "bfloat16" and machine.engine == "torch"
    share = {name: count / shape.num_layers for name, count in adapters.layers_by_name.items()}
    inputs = {matrix.name: matrix.inputs for matrix in matrices(shape)}
    num_norms = 4 if shape.family in ("gemma2", "gemma3_text") else 2
    per_token: float = num_norms * (4 * shape.hidden_size + 4) + 3 * shape.inner_size * size
    per_token += sum(share.values()) * adapters.rank * size
    if casts:
        per_token += size * sum(part * inputs[name] for name, part in share.items())
    else:
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("down_proj",)):
            found = [name for name in share if name.rpartition(".")[2] in names]
            if found:
                per_token += size * max(share[name] for name in found) * inputs[found[0]]
    attention = whole.attention
    if shape.family == "gemma2":
        # Eager attention does not keep its output; the full count is of o_proj's input.
        kept = 0.0 if casts else share.get("self_attn.o_proj", 0.0)
        attention -= (1 - kept) * size * shape.num_heads * shape.head_dim * batch.num_tokens
    return LayerBytes(per_token, attention, whole.boundary)
