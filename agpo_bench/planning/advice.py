"""What to change when a run does not fit: settings tried one after another, each planned in full."""

from __future__ import annotations

from dataclasses import dataclass

from agpo_bench.planning.items import gib
from agpo_bench.planning.plan import Plan, with_changes

_SMALLEST_MICRO_BATCH = 1024
ADVISED_RANK = 16
ADVISED_RATE = 1e-4
"""Of low-rank adapters, where these are advised."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Settings that were tried, and what became of the plan."""

    settings: dict[str, object]
    num_gpus: int
    plan: Plan
    price: str
    """What it costs instead of memory."""

    @property
    def sentence(self) -> str:
        """``--set a=b`` and the new peak."""
        words = [f"--set {name}={_written(value)}" for name, value in self.settings.items()]
        if self.num_gpus != self.plan.machine.num_gpus or not words:
            words.append(f"--gpus {self.num_gpus}")
        memory = self.plan.memory
        host = f", {gib(memory.host_bytes)} of host memory a node" if memory.host_items else ""
        return f"{' '.join(words)}: {gib(memory.peak_bytes)} a device ({memory.peak_phase}){host}; {self.price}"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def changes_that_fit(plan: Plan, *, most: int = 4) -> list[Change]:
    """Changes after which the plan fits, the cheapest kind first; each settles memory on its own."""
    found: list[Change] = []
    for settings, price in _candidates(plan):
        for changed in _with_smaller_micro_batches(plan, settings):
            if changed[1].fits:
                found.append(Change(settings=changed[0], num_gpus=plan.machine.num_gpus, plan=changed[1], price=price))
                break
        if len(found) == most:
            break
    if (adapters := _with_adapters(plan)) is not None:
        found.append(adapters)
    if len(found) >= most:
        return found
    for num_gpus in (4, 8, 16, 32, 64):
        if num_gpus > plan.machine.num_gpus:
            more = with_changes(plan, {}, num_gpus=num_gpus)
            if more.fits:
                return [*found, Change(settings={}, num_gpus=num_gpus, plan=more, price="more devices")]
    return found


def _with_adapters(plan: Plan) -> Change | None:
    """Low-rank adapters without offload; if that is too much, with what memory can be had at the price of speed."""
    if plan.config.lora_rank:
        return None
    adapters: dict[str, object] = {"lora_rank": ADVISED_RANK, "learning_rate": ADVISED_RATE}
    no_offload = {} if plan.machine.offload == "none" else {"offload": "none"}
    price = "another training: adapters alone learn, at a rate of their own"
    checkpointing = {} if plan.config.gradient_checkpointing else {"gradient_checkpointing": True}
    own_sampler = {} if plan.machine.sampler == "torch" else {"sampler": "torch"}
    for more, slower in (
        ({}, ""),
        (checkpointing, ""),
        ({**checkpointing, **own_sampler}, "; the trainer's own weights decode, slower than vLLM"),
    ):
        for settings, changed in _with_smaller_micro_batches(plan, {**no_offload, **adapters, **more}):
            if changed.fits:
                return Change(settings=settings, num_gpus=plan.machine.num_gpus, plan=changed, price=price + slower)
    return None


def _with_smaller_micro_batches(plan: Plan, settings: dict[str, object]) -> list[tuple[dict[str, object], Plan]]:
    """As it is, then with half the micro-batch again and again."""
    tried = []
    tokens = plan.config.micro_batch_tokens
    while True:
        both = dict(settings)
        if tokens != plan.config.micro_batch_tokens:
            both["micro_batch_tokens"] = tokens
        tried.append((both, with_changes(plan, both)))
        if tokens // 2 < _SMALLEST_MICRO_BATCH:
            return tried
        tokens //= 2


def _candidates(plan: Plan) -> list[tuple[dict[str, object], str]]:
    """Sets of settings to try, from the cheapest to the dearest in speed."""
    config, is_deepspeed = plan.config, plan.machine.engine == "deepspeed"
    smaller = "smaller products, a little slower"
    found: list[tuple[dict[str, object], str]] = [({}, smaller)]
    if not config.gradient_checkpointing:
        found.append(({"gradient_checkpointing": True}, "every block is computed twice, about a third more time"))
    base: dict[str, object] = {} if config.gradient_checkpointing else {"gradient_checkpointing": True}
    if not config.park_reference and any(one.name == "reference" for one in plan.memory.items):
        base = {**base, "park_reference": True}
        found.append((base, "the reference travels to the device once a rollout batch"))
    if not plan.needs.reference and config.track_reference_kl and not config.lora_rank:
        found.append(({**base, "track_reference_kl": False}, "the KL to the initial model is not measured"))
    if not is_deepspeed and config.dtype == "bfloat16":
        base = {**base, "engine": "deepspeed", "zero_stage": 2}
        found.append((base, "the optimiser is shared among the devices"))
    if config.dtype == "bfloat16":
        shared = {**base, "engine": "deepspeed"} if not is_deepspeed else base
        if plan.machine.zero_stage < 3:
            found.append(({**shared, "zero_stage": 3}, "weights are gathered for every pass"))
        if plan.machine.offload == "none":
            for stage in (2, 3):
                if stage >= plan.machine.zero_stage or not is_deepspeed:
                    settings = {**shared, "zero_stage": stage, "offload": "optimizer"}
                    if is_deepspeed and stage == plan.machine.zero_stage:
                        settings.pop("zero_stage")
                    found.append((settings, "the optimiser's step runs on the host: seconds to minutes an update"))
        if plan.machine.offload != "parameters":
            found.append(
                (
                    {**shared, "zero_stage": 3, "offload": "parameters"},
                    "weights too come from the host, by far the slowest",
                )
            )
    if plan.machine.sampler == "vllm":
        varied = []
        for settings, price in found:
            varied.append((settings, price))
            for share in (0.4, 0.45, 0.6):
                if share != config.vllm_gpu_memory_utilization:
                    varied.append(({**settings, "vllm_gpu_memory_utilization": share}, price))
        return varied
    return found
