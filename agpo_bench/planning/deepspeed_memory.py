"""What a process of the DeepSpeed engine holds: bfloat16 weights, float32 gradients, master weights and moments.

As in the ZeRO paper (arXiv 1910.02054, Sect. 3.1) with 12 bytes a parameter for the optimiser (master weights and two
moments): stage 1 shares the optimiser among the ranks, stage 2 the gradients, stage 3 the weights too. Gradients add
up in float32 (``grad_accum_dtype``). Buckets and limits are DeepSpeed's defaults.
"""

from __future__ import annotations

from agpo_bench.planning import adapter_memory
from agpo_bench.planning.adapters import adapters_of
from agpo_bench.planning.items import PHASES, Item, Phase, item
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's default ``reduce_bucket_size``; gradients wait in it for the exchange, two of them with overlap."""
LIVE_PARAMETERS = 1_000_000_000
"""DeepSpeed's default ``stage3_max_live_parameters``."""


def trained_parameters(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> int:
    """The policy's and the critic's."""
    if (adapters := adapters_of(shape, machine)) is not None:
        return adapter_memory.trained_parameters(shape, needs, adapters)
    critic = 0 if needs.critic_trunk == "none" else shape.hidden_size + 1
    return shape.num_parameters + critic + (shape.trunk if needs.critic_trunk == "separate" else 0)


def device_items(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> list[Item]:
    """On one device."""
    ranks, stage, parameters = machine.num_gpus, machine.zero_stage, shape.num_parameters
    trained, adapters = trained_parameters(shape, needs, machine), adapters_of(shape, machine)
    what = "policy and critic" if needs.critic_trunk == "separate" else "policy"
    if adapters is not None:
        what = f"{what}; adapters of rank {adapters.rank} beside frozen weights"
    held = held_parameters(shape, needs, machine)
    size = machine.bytes_per_number
    items: list[Item] = []
    if stage < 3:
        items.append(item("weights", (held, "parameters"), (size, "B"), note=f"{what}, on every rank"))
    else:
        if machine.offload != "parameters":
            items.append(item("weights", (held, "parameters"), (size, "B"), ranks=ranks, note=what))
        gathered = "sampling and scoring need every weight"
        live = (min(held, LIVE_PARAMETERS), "parameters")
        items += [
            item("gathered weights", (held, "parameters"), (size, "B"), phases=("rollout", "score"), note=gathered),
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
    if _has_own_reference(needs, machine):
        why = "read by the loss" if needs.reference else "only to measure the KL; track_reference_kl=false drops it"
        on_device = machine.phases_of_reference(is_preference=needs.is_preference)
        what_for = f"frozen, on every rank; {why}"
        items.append(item("reference", (parameters, "parameters"), (size, "B"), phases=on_device, note=what_for))
    if needs.is_preference:
        items.append(item("initial policy", (parameters, "parameters"), (size, "B"), note="samples the pairs; frozen"))
    if adapters is not None:
        return [*items, *adapter_memory.product_items(shape, needs, machine, adapters)]
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


def held_parameters(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> int:
    """Trained ones, and those that adapters leave frozen, which the critic shares."""
    return trained_parameters(shape, needs, machine) + (shape.num_parameters if machine.lora_rank else 0)


def _has_own_reference(needs: MethodNeeds, machine: Machine) -> bool:
    """Whether a frozen copy is held; of adapters it is the model with these switched off."""
    return not machine.lora_rank and (needs.reference or needs.is_preference or machine.tracks_reference)


def host_items(shape: ModelShape, needs: MethodNeeds, machine: Machine) -> list[Item]:
    """In the memory of one node."""
    trained, held = trained_parameters(shape, needs, machine), held_parameters(shape, needs, machine)
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
        items.append(item("offloaded weights", (held, "parameters"), (machine.bytes_per_number, "B"), ranks=nodes))
    local = machine.num_gpus // nodes
    if machine.engine == "deepspeed":
        # To resume, every process maps the files, which takes no memory that cannot be given back.
        note = "weights and moments on the main process, while it saves them"
        items.append(item("checkpoint", (trained, "parameters"), (12, "B"), note=note))
    if machine.parks_reference and _has_own_reference(needs, machine):
        parked = (machine.bytes_per_number, "B")
        items.append(item("parked references", (local, "ranks"), (shape.num_parameters, "parameters"), parked))
    if machine.lora_rank:
        merged = (shape.num_parameters, "parameters")
        items.append(
            item("merged model", merged, (4, "B"), note="on the main process, while the end of the run saves it")
        )
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
