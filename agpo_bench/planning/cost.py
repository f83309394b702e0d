"""Tokens, steps, floating-point operations and hours of a run, by method.

A product of a token with a matrix of n weights takes 2n operations; a backward pass takes twice its forward pass, and
activation checkpointing one forward pass more (Kaplan et al., arXiv 2001.08361, Sect. 2.1; attention scores are added).
What passes a step makes is read off ``training/online.py`` and ``training/preference.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from agpo_bench.config import RunConfig
from agpo_bench.planning.adapter_cost import beside_per_token, spared_per_token
from agpo_bench.planning.adapters import adapters_of
from agpo_bench.planning.machine import Machine
from agpo_bench.planning.needs import MethodNeeds
from agpo_bench.planning.shapes import ModelShape
from agpo_bench.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How fast the devices are assumed to be."""

    peak_tflops: float = 312.0
    """Dense bfloat16 operations a second of one device, in 1e12 (A100 and A800: 312)."""
    mfu: float = 0.35
    """Share of the peak that passes over known tokens reach."""
    generation_mfu: float = 0.10
    """Share that decoding reaches: one token at a time, it is bound by memory traffic and not by operations."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A whole run."""

    needs: MethodNeeds
    batches: int
    """Rollout batches until the budget is spent."""
    updates: int
    """Optimiser steps."""
    sampled_tokens: float
    """A batch, the probe's included."""
    trained_tokens: float
    """A batch."""
    generation: float
    """Operations of the run: reading prompts and decoding."""
    score_policy: float
    """Old log-probabilities, step KL, and statistics that need a pass of their own."""
    score_reference: float
    score_critic: float
    update: float
    """Forward and backward passes of policy and critic."""

    @property
    def total(self) -> float:
        """All operations."""
        return self.generation + self.score_policy + self.score_reference + self.score_critic + self.update

    def hours(self, machine: Machine, rates: Rates) -> float:
        """Wall-clock hours at the assumed efficiency, without loading, checkpoints and grading."""
        speed = machine.num_gpus * rates.peak_tflops * 1e12
        passes = self.total - self.generation
        return (self.generation / (speed * rates.generation_mfu) + passes / (speed * rates.mfu)) / 3600


def sequence_flops(
    shape: ModelShape, *, prompt: float, response: float, prompt_share: float = 1.0
) -> tuple[float, float]:
    """Operations of one forward pass over a sequence: of the layers, and of the head on its response tokens.

    ``prompt_share`` is the part of the prompt that this sequence pays where a group shares it.
    """
    tokens = prompt * prompt_share + response
    # A token at position i attends to i tokens: 2 products of H·D numbers each, two operations a number.
    attended = prompt_share * prompt**2 / 2 + response * (prompt + response / 2)
    layers = 2 * shape.matrices_per_token * tokens
    layers += 4 * shape.num_layers * shape.num_heads * shape.head_dim * attended
    return layers, 2 * shape.embedding * response


def plan_cost(shape: ModelShape, needs: MethodNeeds, machine: Machine, work: Workload, config: RunConfig) -> Cost:
    """The run of ``config.budget`` tokens."""
    p, t = work.lengths.prompt, work.lengths.mean_response
    rollouts, size = work.num_rollouts, work.group_size
    batches = math.ceil(config.budget / work.sampled_tokens)
    shares_prompt = shape.is_lean
    layers, head = sequence_flops(shape, prompt=p, response=t, prompt_share=1 / size if shares_prompt else 1.0)
    forward = layers + head
    # With adapters: what they add to a pass of policy or critic, and what frozen weights spare its backward pass.
    beside = spared = spared_head = 0.0
    if (adapters := adapters_of(shape, machine)) is not None:
        tokens = (p / size if shares_prompt else p) + t
        beside = beside_per_token(shape, machine, adapters) * tokens
        spared, spared_head = spared_per_token(shape, machine, adapters) * tokens, head

    decode_layers, decode_head = sequence_flops(shape, prompt=p, response=t, prompt_share=1 / size)
    generation = (decode_layers + decode_head) * work.num_prompts * (size + work.probe_size)

    monitored = rollouts if config.monitor_rollouts is None else min(rollouts, config.monitor_rollouts)
    has_reference = needs.reference or needs.is_preference or config.track_reference_kl
    has_trunk = needs.critic_trunk == "separate"
    recomputes = machine.dtype != "float32" or machine.sampler == "vllm" or needs.critic_trunk != "none"
    backward = 4.0 if machine.gradient_checkpointing else 3.0
    update_policy = backward * (forward + beside) - spared - spared_head
    update_critic = (backward * (layers + beside) - spared) * has_trunk
    if needs.is_preference:
        trained = 2 * work.num_prompts
        policy = monitored * (forward + beside)
        reference = (monitored + config.epochs_per_batch * trained) * forward
        critic = 0.0
        update = config.epochs_per_batch * trained * update_policy
        trained_tokens = trained * t
    else:
        trained = rollouts
        # Old log-probabilities unless the sampler's serve; step KL after the updates. The KL to the reference takes a
        # pass of both models unless the loss has read the reference at temperature 1 anyway.
        extra = 0 if not has_reference or (needs.reference and needs.samples_at_one) else monitored
        policy = (rollouts * recomputes + monitored + extra) * (forward + beside)
        policy += config.epochs_per_batch * rollouts * needs.minibatch_statistics * (forward + beside)
        reference = (rollouts * needs.reference + extra) * forward
        critic = rollouts * (layers + beside) * has_trunk
        update = config.epochs_per_batch * rollouts * (update_policy + update_critic)
        trained_tokens = work.trained_tokens
    return Cost(
        needs=needs,
        batches=batches,
        updates=batches * work.updates,
        sampled_tokens=work.sampled_tokens,
        trained_tokens=trained_tokens,
        generation=batches * generation,
        score_policy=batches * policy,
        score_reference=batches * reference,
        score_critic=batches * critic,
        update=batches * update,
    )
