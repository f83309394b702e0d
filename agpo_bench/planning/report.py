"""A plan as text: what is assumed, what takes memory and why, whether it fits, what to change, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agpo_bench.planning.adapters import adapters_of
from agpo_bench.planning.advice import changes_that_fit
from agpo_bench.planning.cost import Cost, Rates
from agpo_bench.planning.items import GIB, PHASES, Item, gib
from agpo_bench.planning.memory import MemoryPlan, vllm_has_room
from agpo_bench.planning.plan import Plan

_SMALLEST_SHOWN = 0.002
"""Items below this share of the peak are added up in one line."""

_COLUMNS = (
    "method",
    "tokens/batch",
    "trained",
    "batches",
    "updates",
    "generation",
    "policy",
    "reference",
    "critic",
    "update",
    "EFLOP",
    "hours",
    "GiB/device",
    "fits",
)


def describe(plan: Plan) -> Iterator[str]:
    """What is planned, and on what assumptions."""
    shape, machine, work = plan.shape, plan.machine, plan.work
    yield f"{shape.name}: {shape.num_parameters:,} parameters ({shape.family}; sizes from {shape.source})"
    yield (
        f"  {shape.num_layers} layers of {shape.layer:,} + embedding {shape.embedding:,}"
        + ("" if shape.is_tied else f" + output head {shape.embedding:,}")
        + f" + last norm {shape.hidden_size:,}"
    )
    memory = "" if machine.gpu_gib is None else f" of {machine.gpu_gib:g} GiB"
    parts = [f"{machine.num_gpus} device{'s' * (machine.num_gpus != 1)}{memory}", f"engine {machine.engine}"]
    if machine.engine == "deepspeed":
        parts += [f"ZeRO-{machine.zero_stage}", f"offload {machine.offload}"]
    parts += [machine.dtype, "activation checkpointing" if machine.gradient_checkpointing else "no checkpointing"]
    parts += [f"micro-batches of {machine.micro_batch_tokens:,} tokens", f"sampler {machine.sampler}"]
    yield "  " + ", ".join(parts)
    if (adapters := adapters_of(shape, machine)) is not None:
        where = ", ".join(name.rpartition(".")[2] for name in adapters.layers_by_name)
        yield (
            f"  adapters of rank {adapters.rank} on {where}: {adapters.num_parameters:,} trained numbers, "
            f"{adapters.num_parameters / shape.num_parameters:.2%} of the model's; without them it is the reference"
        )
    lengths = work.lengths
    yield (
        f"  assumed: prompts of {lengths.prompt} tokens, responses of at most {lengths.longest_response} and "
        f"{lengths.mean_response:g} on average (--prompt-tokens, --response-tokens)"
    )


def memory_lines(plan: Plan) -> Iterator[str]:
    """Every item with its arithmetic, sums by phase, and the verdict."""
    memory = plan.memory
    yield f"Memory of one device, {plan.needs.title}:"
    yield from _item_lines(memory.items, peak=memory.peak_bytes)
    yield "  " + ", ".join(f"{phase} {gib(memory.bytes_of(phase))}" for phase in PHASES)
    if memory.host_items:
        yield f"Host memory of one node: {gib(memory.host_bytes)}"
        yield from _item_lines(memory.host_items, peak=memory.host_bytes)
    yield verdict(plan)


def _item_lines(items: Sequence[Item], *, peak: float) -> Iterator[str]:
    shown = [one for one in items if one.num_bytes >= _SMALLEST_SHOWN * peak]
    small = [one for one in items if 0 < one.num_bytes < _SMALLEST_SHOWN * peak]
    width = max((len(one.name) for one in shown), default=0)
    for one in shown:
        when = "" if len(one.phases) == len(PHASES) else f" [{', '.join(p for p in PHASES if p in one.phases)}]"
        note = f"  ({one.note})" if one.note else ""
        yield f"  {one.name:<{width}}  {one.arithmetic}{when}{note}"
    if small:
        names = ", ".join(one.name for one in small)
        yield f"  {'small':<{width}}  {gib(sum(one.num_bytes for one in small))} in all: {names}"


def verdict(plan: Plan) -> str:
    """One sentence."""
    memory, machine = plan.memory, plan.machine
    peak = f"{gib(memory.peak_bytes)} in the {memory.peak_phase} phase"
    if machine.gpu_gib is None or machine.usable_gib is None:
        return f"  needs {peak}; give --gpu-memory to hear whether that fits"
    usable = f"{machine.usable_gib:.1f} GiB ({machine.reserve:.0%} of {machine.gpu_gib:g} GiB left free)"
    if memory.peak_bytes > machine.usable_gib * GIB:
        return f"  DOES NOT FIT: {peak}, of {usable}"
    if machine.host_gib is not None and memory.host_bytes > machine.host_gib * GIB:
        return f"  DOES NOT FIT: {gib(memory.host_bytes)} of host memory, of {machine.host_gib:g} GiB"
    if not vllm_has_room(memory):
        return (
            f"  DOES NOT FIT: vLLM's share of {machine.vllm_share:g} leaves no room for a cache beside its weights; "
            "raise vllm_gpu_memory_utilization"
        )
    return f"  fits: {peak}, of {usable}"


def advice_lines(plan: Plan) -> Iterator[str]:
    """What would make it fit; nothing where it fits or nothing is asked."""
    if plan.fits is not False:
        return
    changes = changes_that_fit(plan)
    if not changes:
        yield "No setting makes it fit up to 64 devices; take a smaller model."
        return
    yield "What makes it fit, each on its own:"
    for change in changes:
        yield f"  {change.sentence}"


def cost_lines(plans: Sequence[Plan], rates: Rates) -> Iterator[str]:
    """Tokens, steps, operations and hours, a line a method."""
    first = plans[0]
    yield (
        f"Cost of {first.config.budget:,} generated tokens at {rates.peak_tflops:g} TFLOP/s a device, {rates.mfu:.0%} "
        f"of it in passes and {rates.generation_mfu:.0%} in decoding (assumed: --peak-tflops, --mfu, --generation-mfu):"
    )
    rows: list[tuple[str, ...]] = [_COLUMNS]
    rows += [_cost_row(plan, plan.cost, plan.memory, rates) for plan in plans]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  " + "  ".join(cells).rstrip()
    yield "  generation to update: EFLOP (1e18 operations); policy, reference, critic: passes without gradients"


def _cost_row(plan: Plan, cost: Cost, memory: MemoryPlan, rates: Rates) -> tuple[str, ...]:
    def exa(flops: float) -> str:
        return f"{flops / 1e18:,.3g}" if flops < 1e20 else f"{flops / 1e18:,.0f}"

    return (
        plan.needs.name,
        f"{cost.sampled_tokens:,.0f}",
        f"{cost.trained_tokens:,.0f}",
        f"{cost.batches:,}",
        f"{cost.updates:,}",
        exa(cost.generation),
        exa(cost.score_policy),
        exa(cost.score_reference),
        exa(cost.score_critic),
        exa(cost.update),
        exa(cost.total),
        f"{cost.hours(plan.machine, rates):,.1f}",
        f"{memory.peak_bytes / GIB:,.1f}",
        {True: "yes", False: "no", None: "-"}[plan.fits],
    )
