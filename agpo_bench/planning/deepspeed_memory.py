"""What a process of the DeepSpeed engine holds: bfloat16 weights, float32 gradients, master weights and moments.

As in the ZeRO paper (arXiv 1910.02054, Sect. 3.1) with 12 bytes a parameter for the optimiser (master weights and two
moments): stage 1 shares the optimiser among the ranks, stage 2 the gradients, stage 3 the weights too. Gradients add
up in float32 (``grad_accum_dtype``). Buckets and limits are DeepSpeed's defaults.
"""

from __future__ import annotations

from agpo_bench.planning.items import PHASES, Item, Phase, item
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default ``reduce_bucket_size``; gradients wait in it for the exchange, two of them with overlap."""
LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default ``stage3_max_live_parameters``."""


def trained_parameters(shape: ModelShape, needs: MethodNeeds) -> int:
    """The policy's and the critic's."""
    critic = 0 if needs.critic_trunk == "none" else shape.hidden_size + 1
    return shape.num_parameters + critic + (shape.trunk if needs.critic_trunk == "separate" else 0)


def device_items(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> list[Item]:
    """On one device."""
    ranks, stage, parameters = machine.num_gpus, machine.zero_stage, shape.num_parameters
    trained = trained_parameters(shape, needs)
    what = "policy and critic" if trained > parameters + shape.hidden_size + 1 else "policy"
    size = machine.bytes_per_number
    items: list[Item] = []
    if stage < 3:
        items.append(item("weights", (trained, "parameters"), (size, "B"), note=f"{what}, on every rank"))
    else:
        if machine.offload != "parameters":
            items.append(item("weights", (trained, "parameters"), (size, "B"), ranks=ranks, note=what))
        gathered = "sampling and scoring need every weight"
        live = (min(trained, LIVE_PARAMETERS), "parameters")
        items += [
            item("gathered weights", (trained, "parameters"), (size, "B"), phases=("rollout", "score"), note=gathered),
            item("live weights", live, (size, "B"), phases=("update",), note="gathered layer by layer"),
        ]
    # ZeRO-3 exchanges one bucket while it fills the other.
    bucket = (min(trained, BUCKET_ELEMENTS), "gradients")
    items += [
        item("reduce buckets", (2 if stage == 3 else 1, "bucket"), bucket, (size, "B"), phases=("update",)),
        item("gather bucket", bucket, (size, "B"), phases=("step",), note="of the new weights"),
    ]
    if machine.offload == "none":
        kept: tuple[Phase, ...] = PHASES if stage == 3 else ("update", "step")
        grad_ranks = ranks if stage >= 2 else 1
        optimiser = "float32 master weights and two Adam moments"
        items += [
            item(
                "gradients", (trained, "parameters"), (4, "B"), phases=kept, ranks=grad_ranks, note=f"float32; {what}"
            ),
            item("optimiser", (trained, "parameters"), (12, "B"), ranks=ranks, note=optimiser),
        ]
    if needs.reference or needs.is_preference or machine.tracks_reference:
        why = "read by the loss" if needs.reference else "only to measure the KL; track_reference_kl=false drops it"
        on_device = machine.phases_of_reference(is_preference=needs.is_preference)
        what_for = f"frozen, on every rank; {why}"
        items.append(item("reference", (parameters, "parameters"), (size, "B"), phases=on_device, note=what_for))
    if needs.is_preference:
        items.append(item("initial policy", (parameters, "parameters"), (size, "B"), note="samples the pairs; frozen"))
    if shape.is_lean and not machine.through_modules:
        items.append(item("forward's copy", (shape.fused, "weights"), (size, "B"), note="q, k, v, gate and up, fused"))
    items.append(
        item(
            "head gradient",
            (shape.embedding, "head weights"),
            (size, "B"),
            phases=("update",),
            note="until it joins the others",
        )
    )
    return items


def host_items(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> list[Item]:
    """In the memory of one node."""
    trained = trained_parameters(shape, needs)
    nodes = max(1, -(-machine.num_gpus // (machine.gpus_per_node or machine.num_gpus)))
    items = []
    if machine.offload != "none":
        items.append(
            item(
                "offloaded optimiser",
                (trained, "parameters"),
                (18, "B"),
                ranks=nodes,
                note="master weights, moments, float32 gradients, and a buffer of weights",
            )
        )
    if machine.offload == "parameters":
        items.append(item("offloaded weights", (trained, "parameters"), (machine.bytes_per_number, "B"), ranks=nodes))
    local = machine.num_gpus // nodes
    if machine.parks_reference and (needs.reference or needs.is_preference or machine.tracks_reference):
        parked = (machine.bytes_per_number, "B")
        items.append(item("parked references", (local, "ranks"), (shape.num_parameters, "parameters"), parked))
    if machine.sampler == "vllm":
        items.append(
            item(
                "vLLM's weights asleep",
                (local // machine.vllm_ranks, "engines"),
                (shape.num_parameters, "parameters"),
                (machine.bytes_per_number, "B"),
                note="moved to the host during scoring and updates",
            )
        )
    return items
