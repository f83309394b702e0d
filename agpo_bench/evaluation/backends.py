"""The sampler of each model under evaluation: our own loop, or one vLLM engine that goes from model to model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agpo_bench.config import Backend, RunConfig
from agpo_bench.records import Group
from agpo_bench.rollout.sampler import Sampler, SamplingRequest
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import LoadedModel
from agpo_bench.training.policy import Policy, ScoredSequence
from agpo_bench.training.sampler_gap import SamplerGap

if TYPE_CHECKING:
    from agpo_bench.rollout.vllm_sampler import VllmSampler

_CHECKED_TOKENS = 16
"""Of one response: the model itself may be on the CPU, where a long one would take minutes."""


class SamplerPool:
    """Hands out a sampler for one model after another; close it at the end."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._engine: CheckedSampler | None = None

    def sampler_for(self, loaded: LoadedModel, config: RunConfig | None) -> Sampler:
        """The sampler of a model, with the row limit of its run; earlier samplers of the pool are not used again.

        A vLLM engine starts with the first request, and goes on with the new weights where only these differ.
        """
        rows = {"max_rows": config.sampler_rows} if config else {}
        if self._backend == "torch":
            return TorchSampler(loaded, **rows)
        from agpo_bench.rollout.vllm_engine import VllmSettings
        from agpo_bench.rollout.vllm_sampler import VllmSampler

        if self._engine is not None and self._engine.exchange(loaded):
            return self._engine
        self.close()
        size = config.vllm_tensor_parallel_size if config else 1
        settings = VllmSettings(max_rows=rows.get("max_rows", 256), tensor_parallel_size=size)
        self._engine = CheckedSampler(VllmSampler(loaded, settings), loaded)
        return self._engine

    def close(self) -> None:
        """End the engine, if there is one."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


class CheckedSampler:
    """A vLLM sampler whose first response to each model is compared with the model's own log-probabilities."""

    is_separate = True

    def __init__(self, sampler: VllmSampler, loaded: LoadedModel) -> None:
        self._sampler, self._loaded = sampler, loaded
        self._is_checked = False

    @property
    def weights_version(self) -> int:
        """Counts the models."""
        return self._sampler.weights_version

    def load_weights(self, version: int) -> None:
        """The model's weights as they are now."""
        self._sampler.load_weights(version)
        self._is_checked = False

    def exchange(self, loaded: LoadedModel) -> bool:
        """Sample from another model from now on; False where it needs another engine."""
        if not self._sampler.fits(loaded):
            return False
        self._sampler.exchange(loaded, self.weights_version + 1)
        self._loaded, self._is_checked = loaded, False
        return True

    def sample(self, requests: Sequence[SamplingRequest], *, with_entropy: bool = False) -> list[Group]:
        """As the sampler does. Raises ValueError when the engine answers with another model."""
        groups = self._sampler.sample(requests, with_entropy=with_entropy)
        if groups and not self._is_checked:
            self._check(min(groups, key=lambda group: len(group.prompt_ids)))
            self._is_checked = True
        return groups

    def _check(self, group: Group) -> None:
        rollout = group.rollouts[0]
        sequence = ScoredSequence(
            prompt_ids=group.prompt_ids, response_ids=rollout.response_ids[:_CHECKED_TOKENS], temperature=1.0
        )
        scored = Policy(self._loaded, is_frozen=True).score([sequence], max_tokens=sequence.num_tokens)
        gap = SamplerGap.between([rollout.logprobs[:_CHECKED_TOKENS]], scored)
        gap.refuse(self._loaded.compute_dtype, version=rollout.weights_version)

    def release(self) -> None:
        """Nothing trains beside an evaluation."""

    def close(self) -> None:
        """End the engine."""
        self._sampler.close()
