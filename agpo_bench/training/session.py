"""Everything a training loop works with: what a checkpoint saves, and the parts that are rebuilt around it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from agpo_bench.config import RunConfig
from agpo_bench.ledger import TokenLedger
from agpo_bench.rollout.sampler import Sampler
from agpo_bench.training.engine import Engine
from agpo_bench.training.policy import Policy
from agpo_bench.training.prompts import PromptStream
from agpo_bench.training.world import ALONE, World

if TYPE_CHECKING:
    from agpo_bench.methods.method import Method
    from agpo_bench.methods.state import MethodState
    from agpo_bench.training.decontaminate import RunCheck

GRADIENT_NORM_WINDOW = 1000
"""Updates over which the variance of the gradient norm is taken (Sect. 4.5 of the paper)."""


class Clock:
    """Wall-clock seconds by name since the last ``restart``; a time inside another counts in both."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def restart(self) -> None:
        """Forget all times."""
        self.seconds = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to ``name``."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(kw_only=True)
class Session:
    """One run in memory."""

    config: RunConfig
    method: Method
    policy: Policy
    reference: Policy | None
    """The weights the run started from, frozen; None where nothing reads them."""
    reference_fingerprint: str
    """sha256 of those weights."""
    sampler: Sampler
    reuses_sampler_logprobs: bool
    """The sampler's log-probabilities equal the policy's up to rounding and serve as the old ones; else recompute."""
    device: torch.device
    engine: Engine
    stream: PromptStream
    prompt_ids: Mapping[str, tuple[int, ...]]
    """Token ids of every prompt, by ``prompt_id``."""
    stop: Mapping[str, tuple[str, ...]]
    """Stop strings of every task."""
    num_prompts: int
    """P, prompts of a rollout batch."""

    ledger: TokenLedger
    method_state: MethodState
    generator: torch.Generator
    """Draws minibatches and whatever a method draws; everything sampled from the model has its own seeds."""
    contamination: RunCheck
    """What the training problems have in common with the test items."""
    world: World = ALONE
    """The processes of the run."""
    resources: ExitStack = field(default_factory=ExitStack)
    """What ends with the run: closed by whoever made the session."""
    clock: Clock = field(default_factory=Clock)
    step: int = 0
    num_updates: int = 0
    num_skipped_in_a_row: int = 0
    """Newest updates, one after another, without a finite gradient."""
    gradient_norms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The sampler's engine ends with the run."""
        self.resources.callback(self.sampler.close)

    @property
    def is_finished(self) -> bool:
        """Whether the budget is spent."""
        return not self.ledger.may_start()

    def set_learning_rate(self) -> float:
        """Put the schedule where the ledger stands; return the factor on the peak rate."""
        from agpo_bench.training.engine import learning_rate_factor

        factor = learning_rate_factor(self.config, self.ledger.fraction) * self.method.learning_rate_factor
        self.engine.set_learning_rate(factor)
        return factor

    def sync_sampler(self, version: int) -> None:
        """Let the sampler take over the policy's weights as they are now, under a number."""
        with self.engine.whole_weights():
            self.sampler.load_weights(version)

    def note_update(self, gradient_norm: float) -> None:
        """Count one optimiser update; a norm that is not finite (the engine counts those) stays out of the window."""
        self.num_updates += 1
        self.num_skipped_in_a_row = 0 if math.isfinite(gradient_norm) else self.num_skipped_in_a_row + 1
        if math.isfinite(gradient_norm):
            self.gradient_norms = [*self.gradient_norms, gradient_norm][-GRADIENT_NORM_WINDOW:]

    def tensors(self, weights: Mapping[str, torch.Tensor] | None = None) -> dict[str, Any]:
        """What a checkpoint keeps as tensors beside the model directory; ``weights`` as the engine's master weights."""
        weights = self.policy.state_dict() if weights is None else weights
        return {
            "optimizer": self.engine.state_dict(),
            "generator": self.generator.get_state(),
            "value": {name: tensor for name, tensor in weights.items() if name.startswith("value_")},
        }
