"""Everything a run holds on a device, by phase."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agpo_bench.planning import deepspeed_memory, torch_memory
from agpo_bench.planning.items import GIB, PHASES, Item, Phase, item, total
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.pass_memory import accumulates, score_items, torch_sampler_items, update_items
from agpo_bench.planning.shapes import ModelShape
from agpo_bench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """The items of one process, and whether they fit its device."""

    machine: Machine
    items: list[Item]
    host_items: list[Item]
    """In the memory of one node."""

    def bytes_of(self, phase: Phase) -> float:
        """Of one device."""
        return total(self.items, phase)

    @property
    def peak_phase(self) -> Phase:
        """The phase that takes most."""
        return max(PHASES, key=self.bytes_of)

    @property
    def peak_bytes(self) -> float:
        """Of one device."""
        return self.bytes_of(self.peak_phase)

    @property
    def host_bytes(self) -> float:
        """Of one node."""
        return sum(one.num_bytes for one in self.host_items)

    @property
    def fits(self) -> bool | None:
        """None where the device's memory is not given."""
        usable, host = self.machine.usable_gib, self.machine.host_gib
        if usable is None:
            return None
        return self.peak_bytes <= usable * GIB and (host is None or self.host_bytes <= host * GIB)


def plan_memory(shape: ModelShape, needs: MethodNeeds, machine: Machine, work: Workload) -> MemoryPlan:
    """The plan of a run."""
    is_deepspeed = machine.engine == "deepspeed"
    states = deepspeed_memory.device_items if is_deepspeed else torch_memory.state_items
    items = states(shape, needs, machine)
    if not accumulates(shape, needs, machine, work):
        # A single backward pass makes gradients while it gives activations back.
        items = [_after_activations(one) for one in items]
    sampler = vllm_items if machine.sampler == "vllm" else torch_sampler_items
    items += sampler(shape, machine, work)
    items += [*score_items(shape, machine, work), *update_items(shape, needs, machine, work)]
    return MemoryPlan(
        machine=machine,
        items=items,
        host_items=deepspeed_memory.host_items(shape, needs, machine),
    )


def _after_activations(one: Item) -> Item:
    return replace(one, phases=one.phases - {"update"}) if "gradients" in one.name and len(one.phases) == 2 else one


def vllm_items(shape: ModelShape, machine: Machine, work: Workload) -> list[Item]:
    """The engine's share of the device while it samples; it sleeps otherwise."""
    size = machine.bytes_per_number
    weights = item(
        "vLLM's weights",
        (shape.num_parameters, "parameters"),
        (size, "B"),
        phases=("rollout",),
        ranks=machine.vllm_ranks,
    )
    share = 0.0 if machine.gpu_gib is None else machine.vllm_share * machine.gpu_gib * GIB
    length = work.lengths.longest_prompt + work.lengths.longest_response
    jobs = -(-work.num_prompts * max(work.group_size, work.probe_size) // max(1, machine.num_gpus))
    rows = max(1, min(jobs, machine.sampler_rows))
    wanted = rows * shape.kv_elements(length) * size / machine.vllm_ranks
    if share:
        room = max(0.0, share - weights.num_bytes)
        note = f"the rest of vllm_gpu_memory_utilization {machine.vllm_share:g}; all {rows} rows at their longest: "
        cache = item("key-value cache", (room, "B"), phases=("rollout",), note=note + f"{wanted / GIB:.1f} GiB")
    else:
        cache = item(
            "key-value cache",
            (rows, "rows"),
            (shape.kv_elements(length), "numbers"),
            (size, "B"),
            phases=("rollout",),
            ranks=machine.vllm_ranks,
        )
    return [weights, cache]


def vllm_has_room(plan: MemoryPlan) -> bool:
    """Whether the engine's share holds its weights and a cache to work with (a tenth of the weights at least)."""
    found = {one.name: one.num_bytes for one in plan.items if "rollout" in one.phases}
    return "vLLM's weights" not in found or found["key-value cache"] >= 0.05 * found["vLLM's weights"]
