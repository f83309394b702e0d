"""The optimiser's side of an update, on one device: gradients in, weights changed, gradient norm out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agpo_bench.config import RunConfig
from agpo_bench.training.policy import Policy


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


class Engine:
    """AdamW over the policy's parameters; matrices decay, vectors (norms, biases) do not.

    Micro-batch losses are already parts of one sum (their denominators are those of the whole minibatch), so gradients
    are simply added up: nothing here divides by a number of micro-batches.
    """

    def __init__(self, policy: Policy, config: RunConfig, *, critic_learning_rate: float | None = None) -> None:
        self.policy = policy
        self._config = config
        self._groups = list(_parameter_groups(policy, config, critic_learning_rate))
        self.optimizer = torch.optim.AdamW(
            [{key: group[key] for key in ("params", "weight_decay", "lr")} for group in self._groups],
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            fused=True,
        )
        self._peaks = [group["lr"] for group in self._groups]
        self.num_skipped_updates = 0

    def set_learning_rate(self, factor: float) -> None:
        """Set every group to its peak rate times ``factor``."""
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor

    def backward(self, loss: Tensor) -> None:
        """Add this micro-batch's part of the gradient."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self) -> float:
        """Clip, update, clear; return the gradient's L2 norm before clipping.

        A gradient that is not finite changes nothing and is counted: one bad batch neither ends a run nor hides in it.
        """
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        norm = float(nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm, foreach=True))
        if math.isfinite(norm):
            self.optimizer.step()
        else:
            self.num_skipped_updates += 1
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Moments and counts of the optimiser."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put the optimiser back as ``state_dict`` found it."""
        self.optimizer.load_state_dict(dict(state))


def _parameter_groups(
    policy: Policy, config: RunConfig, critic_learning_rate: float | None
) -> Iterator[dict[str, Any]]:
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
