"""A vLLM engine beside the trainer: started when first needed, given new weights, and asleep while the trainer works.

With tensor parallel size 1 the engine lives in this process, so new weights are copied within the device. Several
training processes each have one on their own GPU. With a larger size vLLM starts a process a GPU, and weights travel
through a folder.
"""

from __future__ import annotations

import copy
import gc
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agpo_bench.rollout.adapters import has_adapters, merged_weights
from agpo_bench.rollout.lean_model import LeanCausalLM

if TYPE_CHECKING:
    from agpo_bench.training.model import LoadedModel

_WORKER = "agpo_bench.rollout.vllm_worker.WeightLoading"
_CPU_CACHE_BYTES = 1 << 30
"""Key-value cache on a CPU, where a share of the memory means the whole machine's; VLLM_CPU_KVCACHE_SPACE overrides."""
_CPU_BATCH_TOKENS = 4096
_LARGEST_THAT_FITS = -1
_UNKNOWN_LENGTH = 1 << 20
"""For a model that does not say how long it can read."""


@dataclass(frozen=True, kw_only=True)
class VllmSettings:
    """How large an engine may get."""

    max_rows: int
    """Most rollouts decoded together."""
    max_length: int | None = None
    """Most tokens of prompt and response together; None takes the model's own limit, or what fits."""
    gpu_memory_utilization: float = 0.9
    """Share of a GPU's memory for weights, key-value cache and work space."""
    tensor_parallel_size: int = 1
    shares_gpu: bool = False
    """A trainer needs the GPU's memory in between: the engine can sleep."""


def require_vllm() -> None:
    """ValueError in one sentence where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise ValueError('the vllm sampler needs vLLM: pip install "agpo-bench[vllm]", or use sampler=torch')


class VllmEngine:
    """Token ids in, vLLM's outputs back."""

    def __init__(self, loaded: LoadedModel, settings: VllmSettings) -> None:
        require_vllm()
        if settings.tensor_parallel_size > 1 and _num_processes() > 1:
            raise ValueError(
                f"vllm_tensor_parallel_size {settings.tensor_parallel_size} with {_num_processes()} training "
                "processes: each of these has an engine of its own on its GPU; use 1"
            )
        self._loaded, self._settings = loaded, settings
        self._llm: Any = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._can_sleep = self._is_asleep = False

    @property
    def max_length(self) -> int:
        """Most tokens of prompt and response together. Starts the engine."""
        return int(self._running().model_config.max_model_len)

    @property
    def vocabulary_size(self) -> int:
        """Token ids the model gives logits for. Starts the engine."""
        return int(self._running().model_config.get_vocab_size())

    def fits(self, loaded: LoadedModel) -> bool:
        """Whether another model differs from this one in its weights alone."""
        return _description(loaded) == _description(self._loaded)

    def exchange(self, loaded: LoadedModel) -> None:
        """Take the weights of another model that ``fits``."""
        self._loaded = loaded
        self.load_weights()

    def load_weights(self) -> None:
        """Copy the model's weights as they are now; what the cache knows of prompts is forgotten.

        An engine that does not run yet takes them when it starts.
        """
        if self._llm is None:
            return
        if self._is_asleep:
            _free_cached_memory()
            self._llm.wake_up(["weights"])
        if self._settings.tensor_parallel_size == 1:
            self._llm.collective_rpc("load_trained_weights", args=(named_weights(self._loaded),))
        else:
            self._llm.collective_rpc("load_trained_weights", args=(str(self._write_weights()),))
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache over a change of weights: a request is still running")

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[Any]) -> list[Any]:
        """One output a prompt, each under its own ``SamplingParams``, in order."""
        llm = self._running()
        if self._is_asleep:
            _free_cached_memory()
            llm.wake_up()
            self._is_asleep = False
        found: list[Any] = llm.generate(
            [{"prompt_token_ids": list(ids)} for ids in prompts], list(params), use_tqdm=False
        )
        return found

    def sleep(self) -> None:
        """Give GPU memory back: weights to the host's memory, cached keys and values forgotten.

        Nothing on a CPU, where vLLM has no such mode and trainer and engine do not compete for memory.
        """
        if self._llm is not None and self._can_sleep and not self._is_asleep:
            self._llm.sleep(level=1)
            self._is_asleep = True

    def close(self) -> None:
        """End the engine; it starts again when it is needed."""
        if self._llm is None:
            return
        from vllm.distributed.parallel_state import destroy_model_parallel

        engine = self._llm.llm_engine
        _RUNNING.remove(self)
        if _RUNNING or _num_processes() > 1:
            # The whole shutdown would also end the process's connections, which others use.
            engine.engine_core._finalizer.detach()
            engine.model_executor.shutdown()
            if not _RUNNING:
                destroy_model_parallel()
        else:
            engine.engine_core.shutdown()
        del engine
        self._llm, self._is_asleep = None, False
        gc.collect()
        _free_cached_memory()
        assert self._folder is not None
        self._folder.cleanup()

    def _running(self) -> Any:
        if self._llm is None:
            self._start()
        return self._llm

    def _start(self) -> None:
        _prepare_environment()
        from vllm import LLM
        from vllm.platforms import current_platform

        settings, is_cpu = self._settings, bool(current_platform.is_cpu())
        options: dict[str, Any] = self._cpu_options() if is_cpu else {}
        self._folder = tempfile.TemporaryDirectory(prefix="agpo-bench-vllm-")
        folder = Path(self._folder.name)
        write_description(self._loaded, folder)
        has_folder_of_weights = settings.tensor_parallel_size > 1
        if has_folder_of_weights:
            self._write_weights()
        self._can_sleep = settings.shares_gpu and not is_cpu
        if _num_processes() > 1:
            options["distributed_executor_backend"] = "external_launcher"
        with _own_randomness():
            self._llm = LLM(
                model=str(folder),
                load_format="safetensors" if has_folder_of_weights else "dummy",
                dtype=str(self._loaded.compute_dtype).removeprefix("torch."),
                # vLLM's own defaults instead of the model's generation_config, none of whose fields are ours to use.
                generation_config="vllm",
                # Of the model itself, at temperature 1 and over the whole vocabulary. The processed ones are
                # renormalised over the nucleus.
                logprobs_mode="raw_logprobs",
                enable_prefix_caching=True,
                max_num_seqs=settings.max_rows,
                max_model_len=_LARGEST_THAT_FITS if settings.max_length is None else self._limit(),
                gpu_memory_utilization=settings.gpu_memory_utilization,
                tensor_parallel_size=settings.tensor_parallel_size,
                enable_sleep_mode=self._can_sleep,
                worker_extension_cls=_WORKER,
                seed=0,
                **options,
            )
        _RUNNING.append(self)
        if not has_folder_of_weights:
            self.load_weights()

    def _limit(self) -> int:
        """The settings' length or the model's, whichever is less."""
        own = int(getattr(self._loaded.model.config, "max_position_embeddings", 0)) or _UNKNOWN_LENGTH
        return min(self._settings.max_length or own, own)

    def _cpu_options(self) -> dict[str, Any]:
        _check_for_cpu(self._loaded)
        return {
            "kv_cache_memory_bytes": _CPU_CACHE_BYTES,
            # Compiling for a CPU takes minutes.
            "enforce_eager": True,
            # vLLM takes back the draw of a request whose prompt is read in parts, and cannot with a CPU's generator.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(_CPU_BATCH_TOKENS, self._limit()),
        }

    def _write_weights(self) -> Path:
        from safetensors.torch import save_file

        assert self._folder is not None
        folder = Path(self._folder.name)
        dtype = self._loaded.compute_dtype
        weights = {name: tensor.to("cpu", dtype).contiguous() for name, tensor in named_weights(self._loaded)}
        # Renamed into place: workers may still map the file before.
        save_file(weights, folder / "weights.tmp", metadata={"format": "pt"})
        (folder / "weights.tmp").rename(folder / "model.safetensors")
        return folder


_RUNNING: list[VllmEngine] = []
"""The engines of this process."""


def named_weights(loaded: LoadedModel) -> Iterator[tuple[str, Tensor]]:
    """The model's weights by their names in a checkpoint, adapters merged into them; tied ones once."""
    if has_adapters(loaded.model):
        yield from merged_weights(loaded.model)
        return
    for name, parameter in loaded.model.named_parameters():
        yield name, parameter.detach()


def write_description(loaded: LoadedModel, folder: Path) -> None:
    """Configuration and tokenizer, without weights, as a directory that vLLM reads."""
    loaded.tokenizer.save_pretrained(folder)
    if isinstance(loaded.model, LeanCausalLM):
        loaded.model.save_config(folder)
        return
    config = copy.copy(loaded.model.config)
    config.architectures = [type(loaded.model).__name__]
    config.save_pretrained(folder)


def _description(loaded: LoadedModel) -> tuple[dict[str, str], torch.dtype]:
    with tempfile.TemporaryDirectory() as name:
        write_description(loaded, Path(name))
        files = {path.name: path.read_text(encoding="utf-8") for path in Path(name).rglob("*") if path.is_file()}
    return files, loaded.compute_dtype


def _check_for_cpu(loaded: LoadedModel) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = loaded.model.config
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    valid = CPUAttentionBackend.get_supported_head_sizes()
    if size not in valid:
        raise ValueError(
            f"vLLM on a CPU has no attention for heads of size {size} ({loaded.source!r}); it has sizes "
            f"{', '.join(map(str, valid))}; use sampler=torch"
        )


def _prepare_environment() -> None:
    """What vLLM reads from the environment when it is imported or started; a user's own values win."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


@contextmanager
def _own_randomness() -> Iterator[None]:
    """Keep the global generators of this process, which vLLM seeds when it starts."""
    python, numpy_state, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def _free_cached_memory() -> None:
    # What the trainer's allocator keeps for later is memory that the engine cannot wake into.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _num_processes() -> int:
    dist = torch.distributed
    return int(dist.get_world_size()) if dist.is_available() and dist.is_initialized() else 1
