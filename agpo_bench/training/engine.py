"""The optimiser's side of an update: gradients in, weights changed, gradient norm out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from agpo_bench.config import RunConfig
from agpo_bench.training.policy import Policy
from agpo_bench.training.world import ALONE, World

Output = TypeVar("Output")

_BUCKET_ELEMENTS = 1 << 25
"""Gradient entries exchanged at a time (128 MiB in float32)."""


def learning_rate_factor(config: RunConfig, fraction: float) -> float:
    """Share of the peak rate once ``fraction`` of the token budget is used: linear warm-up, then cosine or constant.

    cosine: f + (1 - f) (1 + cos(pi x)) / 2 with x the share of the budget after warm-up and f the final share.
    """
    if fraction < config.warmup_fraction:
        return fraction / config.warmup_fraction
    if config.learning_rate_schedule == "constant":
        return 1.0
    x = min(1.0, (fraction - config.warmup_fraction) / (1 - config.warmup_fraction))
    final = config.final_learning_rate_fraction
    return final + (1 - final) * (1 + math.cos(math.pi * x)) / 2


class Engine(Protocol):
    """What an update needs of whatever holds the optimiser.

    Micro-batch losses are already parts of one sum (their denominators are those of the whole minibatch, over all
    processes), so gradients are simply added up, over micro-batches and processes: nothing divides by their number.
    """

    optimizer: Any
    num_skipped_updates: int
    """Updates whose gradient was not finite."""
    needs_equal_passes: bool
    """Whether every process must run as many forward-backward passes as the others."""

    def set_learning_rate(self, factor: float) -> None:
        """Set every group of parameters to its peak rate times ``factor``."""
        ...

    def forward(self, compute: Callable[[], Output]) -> Output:
        """Run a forward pass whose result goes into ``backward``."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add this micro-batch's part of the gradient."""
        ...

    def step(self) -> float:
        """Clip, update, clear; return the gradient's L2 norm before clipping.

        A gradient that is not finite changes nothing and is counted: one bad batch neither ends a run nor hides in it.
        """
        ...

    def whole_weights(self) -> AbstractContextManager[None]:
        """A context in which this process holds every weight, for sampling and scoring."""
        ...

    def master_weights(self) -> dict[str, Tensor] | None:
        """Float32 weights by name, on the main process; None where the policy's own are those."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Moments and counts as ``torch.optim.AdamW`` writes them; complete on the main process."""
        ...

    def load_state(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Put weights and optimiser back as they were saved."""
        ...


def adamw(policy: Policy, config: RunConfig) -> torch.optim.AdamW:
    """AdamW over the policy's parameters at their peak rates; matrices decay, vectors (norms, biases) do not."""
    return torch.optim.AdamW(
        list(_parameter_groups(policy, config)),
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_eps,
        fused=True,
    )


class TorchEngine:
    """AdamW on every process; with several, gradients are added up over them in float32 before each update."""

    needs_equal_passes = False

    def __init__(self, policy: Policy, config: RunConfig, *, world: World = ALONE) -> None:
        self._policy, self._config, self._world = policy, config, world
        self.optimizer = adamw(policy, config)
        self._peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.num_skipped_updates = 0

    def set_learning_rate(self, factor: float) -> None:
        """Set every group to its peak rate times ``factor``."""
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor

    def forward(self, compute: Callable[[], Output]) -> Output:
        """Nothing to prepare."""
        return compute()

    def backward(self, loss: Tensor) -> None:
        """Into the parameters' gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, update, clear."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self._world.size > 1:
            _add_up_gradients(parameters, self._world)
        norm = float(nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm, foreach=True))
        if math.isfinite(norm):
            self.optimizer.step()
        else:
            self.num_skipped_updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def whole_weights(self) -> AbstractContextManager[None]:
        """They always are."""
        return nullcontext()

    def master_weights(self) -> None:
        """The policy's own."""

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's own."""
        return self.optimizer.state_dict()

    def load_state(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Copy the weights in place, and the moments: what was given may be a view of a file."""
        self._policy.load_state_dict(weights)
        self.optimizer.load_state_dict(dict(state))
        for entry in self.optimizer.state.values():
            entry.update({name: value.clone() for name, value in entry.items()})


@torch.no_grad()
def _add_up_gradients(parameters: list[nn.Parameter], world: World) -> None:
    """Replace gradients by their sums over the processes; a parameter without one on any process stays without."""
    flags = world.gather([parameter.grad is not None for parameter in parameters])
    wanted = [parameter for parameter, had in zip(parameters, zip(*flags, strict=True), strict=True) if any(had)]
    for parameter in wanted:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in wanted if parameter.grad is not None]
    while gradients:
        bucket = [gradients.pop(0)]
        while gradients and sum(gradient.numel() for gradient in bucket) + gradients[0].numel() <= _BUCKET_ELEMENTS:
            bucket.append(gradients.pop(0))
        sizes = [gradient.numel() for gradient in bucket]
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        world.add_up(flat)
        for gradient, part in zip(bucket, torch.split(flat, sizes), strict=True):
            gradient.copy_(part.view_as(gradient))


def _parameter_groups(policy: Policy, config: RunConfig) -> Iterator[dict[str, Any]]:
    critic_learning_rate = config.critic_learning_rate
    for is_critic in (False, True):
        for decays in (True, False):
            params = [
                parameter
                for name, parameter in policy.named_parameters()
                if name.startswith("value_") == is_critic and (parameter.ndim >= 2) == decays
            ]
            rate = critic_learning_rate if is_critic and critic_learning_rate else config.learning_rate
            if params:
                yield {"params": params, "weight_decay": config.weight_decay if decays else 0.0, "lr": rate}
