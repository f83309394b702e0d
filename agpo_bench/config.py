"""Everything a run can be told that is equal for all methods: defaults of the paper, and the presets that change them.

What belongs to one method (temperatures, clip ranges, coefficients) is in its recipe under ``trainers/``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

_BUDGET = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKmMbBgG]?)")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}


def parse_token_count(text: object) -> int:
    """``300M``, ``150k``, ``6k`` or ``6000`` as a number of tokens."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _BUDGET.fullmatch(str(text).strip().replace("_", "").replace(",", ""))
    if match is None:
        raise ValueError(f"a token budget of {text!r} cannot be read; write it like 300M, 150k or 6000")
    tokens = float(match[1]) * _SCALE[match[2].lower()]
    if tokens != int(tokens):
        raise ValueError(f"a token budget of {text!r} is not a whole number of tokens")
    return int(tokens)


def _names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


Dedup = Literal["strict", "report", "off"]
Backend = Literal["torch", "vllm"]
"""What decodes: our own loop with the model at hand, or a vLLM engine with a copy of its weights (extra ``vllm``)."""


def _off(value: object) -> object:
    # YAML 1.1 reads the word as a truth value.
    return "off" if value is False else value


class RunConfig(BaseModel):
    """One run, apart from its recipe. Defaults are Sect. 4.1 of the AGPO paper where it states them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = "embedded"
    """``embedded``, ``smollm2``, a local Hugging Face directory, or a hub id."""
    revision: str | None = None
    """Hub revision of the model."""
    data: str = "hub"
    """``embedded``, ``hub``, or a directory of benchmark files."""
    tasks: Annotated[tuple[str, ...], BeforeValidator(_names)] = ("all",)
    """Benchmarks whose train splits are mixed, or ``all``; a benchmark without a train split is left out of ``all``."""
    dedup: Annotated[Dedup, BeforeValidator(_off)] = "strict"
    """Training problems that equal or nearly equal a test item: leave out, only report, or do not look. Paper: out."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the forward pass. Trained weights and optimiser are float32 in either case; what adapters leave
    frozen is held in it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    num_threads: int | None = Field(default=None, ge=1)
    """CPU threads of the process; None takes every core. Set before torch is imported."""

    seed: int = Field(default=42, ge=0)
    budget: Annotated[int, BeforeValidator(parse_token_count)] = Field(default=300_000_000, gt=0)
    """Generated tokens of the run: probe, train, discarded and pairs together. Paper: 300M."""

    prompts_per_batch: int = Field(default=128, ge=1)
    """P, prompts of a rollout batch (the paper does not give it). Times ``group_size`` where a recipe fixes G = 1."""
    group_size: int = Field(default=8, ge=1)
    """G, rollouts a prompt, where the recipe leaves it open. Paper: 8."""
    max_length: int = Field(default=1024, ge=2)
    """Most tokens of prompt and response together. Paper: 1024."""
    max_new_tokens: int = Field(default=1024, ge=1)
    """Most tokens of a response; a long prompt leaves fewer, by ``max_length``."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Nucleus mass of every training rollout, the same for all methods. Paper: 0.95."""

    epochs_per_batch: int = Field(default=1, ge=1)
    """Passes over a rollout batch."""
    minibatches_per_epoch: int = Field(default=4, ge=1)
    """Optimiser updates a pass; each takes whole groups. With one update in all, no clip rule can act."""
    micro_batch_tokens: int = Field(default=16384, ge=1)
    """Most padded tokens (rows x longest row) of one forward-backward pass: memory and speed, not the result."""
    sampler: Backend = "torch"
    """What samples the rollouts."""
    sampler_rows: int = Field(default=256, ge=1)
    """Most rollouts decoded together. Changes memory and speed, not the result."""
    vllm_gpu_memory_utilization: float = Field(default=0.5, gt=0, lt=1)
    """Share of a GPU's memory that the vLLM engine may fill while it samples; it gives it back during the updates."""
    vllm_tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs over which one vLLM engine splits the model; with several training processes each has an engine, and 1."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of low-rank adapters (extra ``lora``), which alone are trained; 0 trains every weight. The reference is the
    model without them, in the same memory. They want a higher rate: about 1e-4."""
    lora_alpha: float = Field(default=32.0, gt=0)
    """An adapter's product counts ``lora_alpha / lora_rank`` times."""
    lora_targets: Annotated[tuple[str, ...], BeforeValidator(_names)] = Field(default=("all-linear",), min_length=1)
    """Last parts of the names of the layers with adapters, such as ``q_proj,v_proj``, or ``all-linear``: every linear
    layer but the output head."""

    learning_rate: float = Field(default=1.5e-5, gt=0)
    """Peak. Paper: 1.5e-5."""
    learning_rate_schedule: Literal["cosine", "constant"] = "cosine"
    """A function of tokens used, because the number of updates in a budget differs between methods."""
    final_learning_rate_fraction: float = Field(default=0.0, ge=0, le=1)
    """What the cosine ends at, as a share of the peak."""
    warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the budget over which the rate rises linearly."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    adam_eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    critic_learning_rate: float | None = Field(default=None, gt=0)
    """Peak for a value head and its trunk; None takes ``learning_rate``."""

    track_reference_kl: bool = True
    """Measure the KL to the initial model even for methods that do without; costs its memory and a forward pass."""
    park_reference: bool = False
    """Keep the frozen reference in the host's memory while nothing reads it, so that it takes none from sampling."""
    monitor_rollouts: int | None = Field(default=None, ge=1)
    """Rollouts a step on which the KL diagnostics run: the first of the batch in prompt order; None takes all."""
    engine: Literal["torch", "deepspeed"] = "torch"
    """Who holds the optimiser. ``torch`` repeats it on every process; ``deepspeed`` shares it out."""
    zero_stage: Literal[1, 2, 3] | None = None
    """What DeepSpeed shares out: 1 moments and master weights, 2 gradients as well, 3 weights as well. None is 2."""
    offload: Literal["none", "optimizer", "parameters"] = "none"
    """What DeepSpeed keeps in the memory of the host; ``parameters`` includes the optimiser and needs stage 3."""
    gradient_checkpointing: bool = False
    """Compute each block again in the backward pass instead of keeping its insides: less memory, more time."""
    max_skipped_updates: int = Field(default=8, ge=1)
    """Updates in a row without a finite gradient that end a run; fewer change nothing and are counted."""
    checkpoint_every_steps: int = Field(default=50, ge=1)
    keep_checkpoints: int = Field(default=1, ge=1)
    """Newest checkpoints kept; the last of a finished run is always among them."""
    keep_best: Literal["reward", "none"] = "none"
    """``reward`` also keeps the checkpoint with the highest mean ``reward/mean`` over the ``keep_best_steps`` steps
    before it, of checkpoints with that many; the earlier of equals. Costs the disk one checkpoint more."""
    keep_best_steps: int = Field(default=50, ge=1)
    tracker: Literal["tensorboard", "wandb", "none"] = "none"
    """Where a copy of every metric goes, over tokens used (extras ``tensorboard``, ``wandb``)."""

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.max_new_tokens > self.max_length:
            raise ValueError(
                f"max_new_tokens {self.max_new_tokens} is more than max_length {self.max_length}, "
                "which counts prompt and response together"
            )
        if self.minibatches_per_epoch > self.prompts_per_batch:
            raise ValueError(
                f"minibatches_per_epoch {self.minibatches_per_epoch} is more than prompts_per_batch "
                f"{self.prompts_per_batch}: a minibatch takes whole groups"
            )
        return self

    @property
    def updates_per_rollout(self) -> int:
        """Optimiser updates a rollout batch."""
        return self.epochs_per_batch * self.minibatches_per_epoch

    @property
    def stage(self) -> int:
        """ZeRO stage in force; 0 where nothing is shared out."""
        return 0 if self.engine == "torch" else self.zero_stage or 2


_PAPER_MACHINE: dict[str, Any] = {
    "dtype": "bfloat16",
    "engine": "deepspeed",
    "zero_stage": 2,
    "offload": "optimizer",
    "gradient_checkpointing": True,
    "sampler": "vllm",
    "park_reference": True,
    "monitor_rollouts": 128,
    # A step takes minutes; 10 are what a lost machine costs.
    "checkpoint_every_steps": 10,
}
"""What the three presets of the paper's models share."""

PRESETS: dict[str, dict[str, Any]] = {
    # A 126k-parameter model on two cores: short answers, a learning rate that moves it, half a minute of CPU a run.
    "embedded": {
        "model": "embedded",
        "data": "embedded",
        "num_threads": 1,
        "budget": 150_000,
        "prompts_per_batch": 32,
        "max_length": 512,
        "max_new_tokens": 40,
        "epochs_per_batch": 2,
        "learning_rate": 4e-4,
        "micro_batch_tokens": 4096,
        "sampler_rows": 512,
        "monitor_rollouts": 64,
        "checkpoint_every_steps": 10,
    },
    # SmolLM2-135M-Instruct on a CPU: a few rollout batches of real problems in a few minutes. Groups of 4, not the
    # paper's 8: worked answers need the 256 tokens, and a batch of twice 8 would be more than 6k tokens.
    "smollm2": {
        "model": "smollm2",
        "data": "hub",
        "budget": 6_000,
        "prompts_per_batch": 2,
        "group_size": 4,
        "max_length": 512,
        "max_new_tokens": 256,
        "epochs_per_batch": 2,
        "minibatches_per_epoch": 2,
        "learning_rate": 2e-6,
        "micro_batch_tokens": 2048,
        "monitor_rollouts": 8,
        "checkpoint_every_steps": 1,
    },
    # The paper's runs (Sect. 4.1) on two GPUs of 80 GB: bfloat16, DeepSpeed ZeRO-2, activation checkpointing; all else
    # is a default above. The paper names no sampler. Departures, all for memory (docs/scaling.md has the arithmetic),
    # none of which changes a result but by rounding: AdamW's 16 bytes a parameter go to the host, because shared by two
    # GPUs they leave no room for a sampler (and those of 14B do not fit at all); the reference waits on the host while
    # nothing reads it. KL diagnostics run on 128 of a batch's 1,024 rollouts.
    "qwen2.5-14b": {
        **_PAPER_MACHINE,
        "model": "Qwen/Qwen2.5-14B",
        "micro_batch_tokens": 8192,
        "vllm_gpu_memory_utilization": 0.5,
    },
    "llama-3-8b": {
        **_PAPER_MACHINE,
        "model": "meta-llama/Meta-Llama-3-8B",
        "micro_batch_tokens": 8192,
        "vllm_gpu_memory_utilization": 0.5,
    },
    # Gemma 2 caps its logits, which then exist for every position and all 256,000 tokens: smaller micro-batches.
    "gemma-2-9b": {
        **_PAPER_MACHINE,
        "model": "google/gemma-2-9b",
        "micro_batch_tokens": 4096,
        "vllm_gpu_memory_utilization": 0.5,
    },
}
"""What each preset changes; everything else is a default of ``RunConfig``."""

PAPER_SEEDS = (42, 1337, 2026)
"""Seeds of the paper's Sect. 4.1."""


def load_config(preset: str = "embedded", **fields: Any) -> RunConfig:
    """The preset with ``fields`` over it. A mistake is one sentence: the field, the value and what is valid."""
    if preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; the presets are {', '.join(PRESETS)}")
    return config_from({**PRESETS[preset], **fields})


def config_from(fields: Mapping[str, Any]) -> RunConfig:
    """``RunConfig`` from plain values, with the first mistake told in one sentence."""
    for name in fields:
        if name not in RunConfig.model_fields:
            raise ValueError(f"no config field {name!r}; the fields are {', '.join(RunConfig.model_fields)}")
    try:
        return RunConfig.model_validate(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"{where} = {first['input']!r}: {message}" if where else message) from None


def fingerprint(content: object) -> str:
    """SHA-256 of plain values, independent of key order: tells whether two runs were told the same."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
