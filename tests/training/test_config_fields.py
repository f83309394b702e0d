"""No setting without a reader: a run asks for every field of its configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import train

asked: set[str] = set()

READ_BY_THE_COMMAND = {"num_threads"}
"""Set before torch is imported, so not by the run itself: ``agpo_bench.threads``."""
READ_BY_VLLM = {"vllm_gpu_memory_utilization", "vllm_tensor_parallel_size"}
"""With ``sampler=vllm``: tests/rollout/test_vllm_runs.py."""


class Watched(RunConfig):
    """A configuration that notes what is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name in RunConfig.model_fields:
            asked.add(name)
        return super().__getattribute__(name)


def test_a_run_asks_for_every_field_of_its_configuration(
    small_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    plain = {"budget": 1600, "group_size": 2, "warmup_fraction": 0.1}
    asked.clear()
    for name, changes in (("plain", {}), ("adapters", {"lora_rank": 2, "keep_best": "reward", "keep_best_steps": 1})):
        config = Watched(**small_config(**plain, **changes).model_dump())
        train(config, load_method("dr_grpo"), directory=tmp_path / name)
    assert set(RunConfig.model_fields) - asked == READ_BY_THE_COMMAND | READ_BY_VLLM
