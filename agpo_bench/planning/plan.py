"""From a configuration to a plan: shape, needs, machine, workload, memory and cost put together."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agpo_bench.config import RunConfig
from agpo_bench.planning.cost import Cost, plan_cost
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.memory import MemoryPlan, plan_memory, vllm_has_room
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape
from agpo_bench.planning.workload import Lengths, Workload


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What is at hand, as the command line says it."""

    num_gpus: int = 1
    gpu_gib: float | None = None
    host_gib: float | None = None
    gpus_per_node: int | None = None
    reserve: float = 0.08


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One method on one machine."""

    config: RunConfig
    shape: ModelShape
    needs: MethodNeeds
    machine: Machine
    work: Workload
    memory: MemoryPlan
    cost: Cost

    @property
    def fits(self) -> bool | None:
        """Whether every phase fits, the sampler's engine included; None where no memory was given."""
        return self.memory.fits and vllm_has_room(self.memory) if self.memory.fits else self.memory.fits


def machine_of(config: RunConfig, hardware: Hardware) -> Machine:
    """How a run of this configuration uses the hardware."""
    return Machine(
        num_gpus=hardware.num_gpus,
        gpu_gib=hardware.gpu_gib,
        host_gib=hardware.host_gib,
        gpus_per_node=hardware.gpus_per_node,
        reserve=hardware.reserve,
        engine=config.engine,
        zero_stage=config.stage,
        offload=config.offload,
        gradient_checkpointing=config.gradient_checkpointing,
        dtype=config.dtype,
        micro_batch_tokens=config.micro_batch_tokens,
        sampler=config.sampler,
        sampler_rows=config.sampler_rows,
        vllm_share=config.vllm_gpu_memory_utilization,
        vllm_ranks=config.vllm_tensor_parallel_size,
        tracks_reference=config.track_reference_kl,
        parks_reference=config.park_reference,
        lora_rank=config.lora_rank,
        lora_targets=config.lora_targets,
    )


def make_plan(config: RunConfig, shape: ModelShape, needs: MethodNeeds, hardware: Hardware, lengths: Lengths) -> Plan:
    """The plan of one method."""
    machine = machine_of(config, hardware)
    work = Workload.of(config, needs, lengths)
    return Plan(
        config=config,
        shape=shape,
        needs=needs,
        machine=machine,
        work=work,
        memory=plan_memory(shape, needs, machine, work),
        cost=plan_cost(shape, needs, machine, work, config),
    )


def with_changes(plan: Plan, changes: dict[str, object], *, num_gpus: int | None = None) -> Plan:
    """The same method with other settings or more devices; for questions of what would fit."""
    config = plan.config.model_copy(update=changes)
    hardware = Hardware(
        num_gpus=num_gpus or plan.machine.num_gpus,
        gpu_gib=plan.machine.gpu_gib,
        host_gib=plan.machine.host_gib,
        gpus_per_node=plan.machine.gpus_per_node or plan.machine.num_gpus,
        reserve=plan.machine.reserve,
    )
    return make_plan(config, plan.shape, plan.needs, hardware, replace(plan.work.lengths))
