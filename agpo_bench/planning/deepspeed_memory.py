"""What a process of the DeepSpeed engine holds: bfloat16 weights and gradients, float32 master weights and moments.

Bytes a parameter as in the ZeRO paper (arXiv 1910.02054, Sect. 3.1): 2 weights + 2 gradients + 12 optimiser (master
weights and two moments). Stage 1 shares the optimiser among the ranks, stage 2 the gradients too, stage 3 the weights
too. Added to it, as DeepSpeed does (``stage_1_and_2.py``, ``estimate_zero2_model_states_mem_needs``): the shared part
of the gradients in float32 at the optimiser's step, and with offload 16 bytes a parameter in host memory.
"""

from __future__ import annotations

from agpo_bench.planning.items import Item, item
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
    elif machine.offload != "all":
        items.append(item("weights", (trained, "parameters"), (size, "B"), ranks=ranks, note=what))
    if stage == 3:
        items += [
            item(
                "gathered weights",
                (trained, "parameters"),
                (size, "B"),
                phases=("rollout", "score"),
                note="sampling and scoring need every weight",
            ),
            item(
                "live weights",
                (min(trained, LIVE_PARAMETERS), "parameters"),
                (size, "B"),
                phases=("update",),
                note="gathered layer by layer",
            ),
        ]
    buckets = 2 * min(trained, BUCKET_ELEMENTS)
    items.append(item("reduce buckets", (buckets, "gradients"), (size, "B"), phases=("update",)))
    if machine.offload == "none":
        grad_ranks = ranks if stage >= 2 else 1
        items += [
            item(
                "gradients",
                (trained, "parameters"),
                (size, "B"),
                phases=("update", "step"),
                ranks=grad_ranks,
                note=what,
            ),
            item(
                "optimiser",
                (trained, "parameters"),
                (12, "B"),
                ranks=ranks if stage >= 1 else 1,
                note="float32 master weights and two Adam moments",
            ),
            item(
                "float32 gradients",
                (trained, "parameters"),
                (4, "B"),
                phases=("step",),
                ranks=ranks if stage >= 1 else 1,
                note="of the own part, at the optimiser's step",
            ),
        ]
    if needs.reference or needs.is_preference or machine.tracks_reference:
        why = "read by the loss" if needs.reference else "only to measure the KL; track_reference_kl=false drops it"
        items.append(item("reference", (parameters, "parameters"), (size, "B"), note=f"frozen, on every rank; {why}"))
    if needs.is_preference:
        items.append(item("initial policy", (parameters, "parameters"), (size, "B"), note="samples the pairs; frozen"))
    if shape.is_lean:
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
                (16, "B"),
                ranks=nodes,
                note="master weights, moments and float32 gradients",
            )
        )
    if machine.offload == "all":
        items.append(item("offloaded weights", (trained, "parameters"), (machine.bytes_per_number, "B"), ranks=nodes))
    if machine.sampler == "vllm":
        local = machine.num_gpus // nodes
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
