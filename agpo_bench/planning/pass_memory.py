"""What forward and backward passes and the torch sampler take while they run."""

from __future__ import annotations

from agpo_bench.planning.activations import head_chunk, layer_bytes
from agpo_bench.planning.adapter_memory import adapted_layer, after_critic
from agpo_bench.planning.adapters import adapters_of
from agpo_bench.planning.items import Item, Phase, item
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape
from agpo_bench.planning.workload import MicroBatch, Workload, micro_batch

PREFILL_TOKENS = 8192
CACHE_BYTES = 2 << 30
"""``TorchSampler``'s limits for one prefill and for its caches; a test holds them together."""


def update_items(shape: ModelShape, needs: MethodNeeds, machine: Machine, work: Workload) -> list[Item]:
    """Activations of one micro-batch at the start of its backward pass, and what is computed there."""
    batch = _update_batch(shape, needs, machine, work)
    size, tokens = machine.bytes_per_number, batch.num_tokens
    layer = layer_bytes(shape, batch, machine.precision, is_checkpointed=machine.gradient_checkpointing)
    if (adapters := adapters_of(shape, machine)) is not None:
        layer = adapted_layer(shape, batch, machine, adapters, layer)
    whole = layer.per_token * tokens + layer.attention
    trunks = 2 if needs.critic_trunk == "separate" else 1
    where = f"{batch.num_rows} rows of {batch.prompt_tokens} + {batch.response_tokens} tokens"
    items = []
    if machine.gradient_checkpointing:
        items.append(
            item(
                "layer inputs",
                (tokens, "positions"),
                (trunks * shape.num_layers, "layers"),
                (layer.boundary, "B"),
                phases=("update",),
                note=f"activation checkpointing; {where}",
            )
        )
        items.append(
            item("one layer anew", (tokens, "positions"), (whole / tokens, "B"), phases=("update",), note="recomputed")
        )
    else:
        items.append(
            item(
                "activations",
                (tokens, "positions"),
                (trunks * shape.num_layers, "layers"),
                (whole / tokens, "B"),
                phases=("update",),
                note=where,
            )
        )
    items.append(
        item(
            "last states",
            (2 * tokens + batch.num_targets, "positions"),
            (shape.hidden_size, "hidden"),
            (size, "B"),
            phases=("update",),
        )
    )
    logits = _logit_items(shape, machine, batch, phase="update")
    if adapters is not None and trunks == 2:
        logits = list(after_critic(logits, items[0].num_bytes / trunks))
    return [*items, *logits]


def _logit_items(shape: ModelShape, machine: Machine, batch: MicroBatch, *, phase: Phase) -> list[Item]:
    """Logits: in chunks where the head is one linear map, else of the whole micro-batch."""
    vocabulary = shape.vocabulary_size
    if shape.softcaps_logits or machine.through_modules:
        why = "this head caps its logits" if shape.softcaps_logits else "ZeRO-3 calls the head as a module"
        size = machine.bytes_per_number
        return [
            item(
                "logits as the model makes them",
                (batch.num_tokens, "positions"),
                (vocabulary, "vocabulary"),
                (size, "B"),
                phases=(phase,),
                note=f"{why}, so those of every position exist at once",
            ),
            item(
                "logits of the responses",
                (batch.num_targets, "response tokens"),
                (vocabulary, "vocabulary"),
                (14 if size == 2 else 12, "B"),
                phases=(phase,),
                note="picked, then float32, over the temperature, and their log-softmax",
            ),
        ]
    return [
        item(
            "logits of a chunk",
            (head_chunk(shape, batch), "logits"),
            (12 if machine.dtype == "float32" else 14, "B"),
            phases=(phase,),
            note="float32, over the temperature, and their softmax",
        )
    ]


def accumulates(shape: ModelShape, needs: MethodNeeds, machine: Machine, work: Workload) -> bool:
    """Whether a minibatch takes several micro-batches, so that whole gradients exist while activations do."""
    batch = _update_batch(shape, needs, machine, work)
    groups = -(-work.num_prompts // work.minibatches // machine.num_gpus)
    return batch.num_rows < groups * (2 if needs.is_preference else work.group_size)


def score_items(shape: ModelShape, machine: Machine, work: Workload) -> list[Item]:
    """One forward pass without gradients: the widest point of a layer, and the head."""
    batch = micro_batch(
        work,
        max_tokens=machine.micro_batch_tokens,
        num_ranks=machine.num_gpus,
        is_padded=machine.through_modules or not shape.is_lean,
        is_update=False,
    )
    wide = 2 * shape.hidden_size + 4 * shape.inner_size
    return [
        item(
            "one layer's states",
            (batch.num_tokens, "positions"),
            (wide, "numbers"),
            (machine.bytes_per_number, "B"),
            phases=("score",),
            note="twice the hidden and four times the inner size",
        ),
        *_logit_items(shape, machine, batch, phase="score"),
    ]


def torch_sampler_items(shape: ModelShape, machine: Machine, work: Workload) -> list[Item]:
    """Cache, prefill and next-token distributions of the in-process sampler, which keeps its cache between steps."""
    size = machine.bytes_per_number if shape.is_lean or machine.lora_rank else 4
    lengths = work.lengths
    slots = lengths.longest_prompt + lengths.longest_response
    per_slot = shape.kv_elements(1) * size
    jobs = -(-work.num_prompts * max(work.group_size, work.probe_size) // machine.num_gpus)
    rows = max(1, min(jobs, machine.sampler_rows, CACHE_BYTES // (per_slot * slots)))
    prompts = -(-rows // work.group_size)
    prefill = min(PREFILL_TOKENS, prompts * lengths.longest_prompt)
    caches = [
        item(
            "key-value cache",
            (rows, "rows"),
            (lengths.longest_response if shape.is_lean else slots, "slots"),
            (per_slot, "B"),
            note=f"a slot: 2 × {shape.num_kv_heads} × {shape.head_dim} × {shape.num_layers} layers × {size} B; kept",
        )
    ]
    if shape.is_lean:
        prompt_slots = (lengths.longest_prompt, "slots")
        caches.append(
            item("prompts' cache", (prompts, "prompts"), prompt_slots, (per_slot, "B"), note="once a group; kept")
        )
    return [
        *caches,
        item(
            "next-token distributions",
            (rows, "rows"),
            (shape.vocabulary_size, "vocabulary"),
            (20, "B"),
            phases=("rollout",),
            note="logits, log-probabilities, probabilities, and their sum in float64",
        ),
        item(
            "prefill",
            (prefill, "positions"),
            (2 * shape.hidden_size + 4 * shape.inner_size, "numbers"),
            (size, "B"),
            phases=("rollout",),
        ),
    ]


def _update_batch(shape: ModelShape, needs: MethodNeeds, machine: Machine, work: Workload) -> MicroBatch:
    return micro_batch(
        work,
        max_tokens=machine.micro_batch_tokens,
        num_ranks=machine.num_gpus,
        is_padded=machine.through_modules or not shape.is_lean,
        pairs=needs.is_preference,
    )
