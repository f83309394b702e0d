"""The machine a run is planned for, and how the run uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agpo_bench.planning.activations import Precision
from agpo_bench.planning.items import PHASES, Phase

EngineName = Literal["torch", "deepspeed"]
Offload = Literal["none", "optimizer", "parameters"]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Devices, and the settings that decide who holds what."""

    num_gpus: int = 1
    gpu_gib: float | None = None
    """Memory of one device; None where no limit is to be checked."""
    host_gib: float | None = None
    """Memory of one node for what is offloaded; None where it is not known."""
    gpus_per_node: int | None = None
    reserve: float = 0.08
    """Share of a device left to the CUDA context, communication buffers and fragmentation."""
    engine: EngineName = "torch"
    zero_stage: int = 0
    offload: Offload = "none"
    gradient_checkpointing: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    micro_batch_tokens: int = 16384
    sampler: Literal["torch", "vllm"] = "torch"
    sampler_rows: int = 256
    vllm_share: float = 0.5
    """Share of a device that the vLLM engine fills while it samples."""
    vllm_ranks: int = 1
    """Devices over which one vLLM engine splits the model."""
    tracks_reference: bool = True
    parks_reference: bool = False
    lora_rank: int = 0
    """0 where every weight is trained."""
    lora_targets: tuple[str, ...] = ("all-linear",)

    @property
    def usable_gib(self) -> float | None:
        """What a plan may fill."""
        return None if self.gpu_gib is None else self.gpu_gib * (1 - self.reserve)

    @property
    def through_modules(self) -> bool:
        """Whether weights exist only while their module runs (ZeRO-3), which takes the library's forward pass."""
        return self.engine == "deepspeed" and self.zero_stage == 3

    def phases_of_reference(self, *, is_preference: bool) -> tuple[Phase, ...]:
        """When the frozen reference is on the device."""
        if not self.parks_reference:
            return PHASES
        return ("score", "update", "step") if is_preference else ("score",)

    @property
    def bytes_per_number(self) -> int:
        """Of the matrix products."""
        return 4 if self.dtype == "float32" else 2

    @property
    def precision(self) -> Precision:
        """How the forward pass of an update rounds."""
        if self.dtype == "float32":
            return "float32"
        return "bfloat16" if self.engine == "deepspeed" or self.lora_rank else "autocast"
