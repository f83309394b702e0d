"""The optimiser's side of an update with DeepSpeed: ZeRO 1 to 3, float32 or bfloat16 with float32 master weights.

ZeRO-1 shares out the optimiser's moments and the master weights over the processes, ZeRO-2 the gradients as well,
ZeRO-3 the weights as well. Without any of it (ZeRO-0) there is nothing left that the torch engine does not do.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from agpo_bench.training.engine import adamw
from agpo_bench.training.sequences import ScoredSequence
from agpo_bench.training.shares import without_weight
from agpo_bench.training.world import World, peers_needed

if TYPE_CHECKING:
    from agpo_bench.config import RunConfig
    from agpo_bench.training.policy import Policy

Output = TypeVar("Output")

MOMENTS = ("exp_avg", "exp_avg_sq")
BUCKET_ELEMENTS = 500_000_000
"""Most gradients exchanged at a time: the library's default."""


def require_deepspeed() -> None:
    """Raise ValueError where the package is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ValueError('engine=deepspeed needs DeepSpeed; install it with pip install "agpo-bench[deepspeed]"')


class DeepSpeedEngine:
    """Our AdamW and learning rate inside DeepSpeed's engine.

    DeepSpeed divides gradients by the number of processes; micro-batch losses are parts of one sum over all of them,
    so each is multiplied by that number first. Every backward pass exchanges gradients, so all processes run equally
    many.
    """

    needs_equal_passes = True

    def __init__(self, policy: Policy, config: RunConfig, *, world: World) -> None:
        if policy.device.type == "cpu":
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed
        import torch.distributed as dist

        if not dist.is_initialized():  # a run without a launcher
            backend = "cpu:gloo,cuda:nccl" if policy.device.type == "cuda" else "gloo"
            store: Any = vars(dist)["HashStore"]()
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            os.environ.setdefault("LOCAL_RANK", "0")
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        self._policy, self._world, self._stage = policy, world, config.stage
        self.num_skipped_updates = 0
        optimizer = adamw(policy, config)
        self._saved_groups = optimizer.state_dict()["param_groups"]
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # ZeRO-3 makes the moments by an update without gradient, which would decay the weights
        root = _Root(policy.modules())
        self._held: list[Any] = list(root.parameters())  # those that adapters leave frozen are among them
        # A module cast to bfloat16 takes its tables of rotary frequencies with it; they are put back.
        tables = {name: buffer.clone() for name, buffer in root.named_buffers() if buffer.is_floating_point()}
        is_half = policy.loaded.compute_dtype == torch.bfloat16
        num_trained = sum(parameter.numel() for parameter in self._parameters)
        settings = _settings(config, is_half=is_half, num_trained=num_trained)
        self._engine, *_ = deepspeed.initialize(model=root, optimizer=optimizer, config=settings)
        for name, buffer in tables.items():
            owner, _, leaf = name.rpartition(".")
            root.get_submodule(owner)._buffers[leaf] = buffer
        self.optimizer = self._engine.optimizer
        self._set_count(0)

    def set_learning_rate(self, factor: float) -> None:
        """Set every group to its peak rate times ``factor``."""
        for group, saved, peak in zip(self.optimizer.param_groups, self._saved_groups, self._peaks, strict=True):
            group["lr"] = saved["lr"] = peak * factor

    def forward(self, compute: Callable[[], Output]) -> Output:
        """Inside DeepSpeed's forward, which prepares the backward pass and, in ZeRO-3, gathers weights."""
        with peers_needed(self._world):
            output: Output = self._engine(compute)
            return output

    def backward(self, loss: Tensor) -> None:
        """Add this micro-batch's part of the gradient, summed over the processes."""
        with peers_needed(self._world):
            self._engine.backward(loss * self._world.size)

    def step(self) -> float:
        """Clip, update, clear; DeepSpeed leaves out an update whose gradient is not finite on any process."""
        with peers_needed(self._world):
            self._engine.step()
        if not self._engine.was_step_applied():
            self.num_skipped_updates += 1
            return float("inf")
        self._count += 1
        return float(self._engine.get_global_grad_norm())

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """ZeRO-3 gathers every weight and stops watching the modules; the other stages hold all weights anyway."""
        if self._stage < 3:
            yield
            return
        from deepspeed.runtime.zero import GatheredParameters

        with peers_needed(self._world), GatheredParameters(self._held), self._unwatched():
            yield

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Without ZeRO-3's hooks, which would give weights back after each module."""
        watcher = self.optimizer.parameter_offload
        for parameter in self._held:
            parameter.ds_active_sub_modules.clear()
        for hook in (*watcher.forward_hooks, *watcher.backward_hooks):
            hook.remove()
        watcher.forward_hooks, watcher.backward_hooks = [], []
        try:
            yield
        finally:
            watcher._register_deepspeed_module(watcher.module)

    def master_weights(self) -> dict[str, Tensor] | None:
        """Gathered parameter by parameter, and kept on the main process."""
        from deepspeed.utils import safe_get_full_fp32_param

        found = self._gathered(safe_get_full_fp32_param)
        if not self._world.is_main:
            return None
        numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        return {name: found[numbers[id(parameter)]] for name, parameter in self._policy.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        """Gathered parameter by parameter, in the format of ``torch.optim.AdamW``."""
        from deepspeed.utils import safe_get_full_optimizer_state

        if not self._count:
            return {"state": {}, "param_groups": self._saved_groups}
        self._link_moments()
        moments = {name: self._gathered(partial(_moment, safe_get_full_optimizer_state, name)) for name in MOMENTS}
        count = torch.tensor(float(self._count))
        state = {
            number: {"step": count.clone(), **{name: found[number] for name, found in moments.items()}}
            for number in range(len(self._parameters) if self._world.is_main else 0)
        }
        return {"state": state, "param_groups": self._saved_groups}

    def _gathered(self, whole: Callable[[nn.Parameter], Tensor]) -> list[Tensor]:
        """What every process computes of each parameter, in order, on the CPU of the main process alone."""
        found = []
        with peers_needed(self._world):
            for parameter in self._parameters:
                tensor = whole(parameter)
                if self._world.is_main:
                    # Copied, and in the parameter's shape: what comes back may be a view of a larger buffer.
                    found.append(tensor.detach().reshape(_shape(parameter)).to("cpu", torch.float32, copy=True))
        return found

    def load_state(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Put master weights, moments and counts on the processes that hold them now, however many there are."""
        self._make_moments()
        own = dict(self._policy.named_parameters())
        if set(own) != set(weights):
            odd = sorted(set(own) ^ set(weights))
            raise ValueError(f"weights of another policy: {len(odd)} names differ, first {odd[0]!r}")
        with peers_needed(self._world):
            for name, parameter in own.items():
                self._set_weight(parameter, weights[name])
                self._set_held(parameter, weights[name])
        for number, parameter in enumerate(self._parameters):
            for name in MOMENTS:
                found = state["state"].get(number, {}).get(name)
                self._set_held(parameter, torch.zeros(_shape(parameter)) if found is None else found, name)
        self._set_count(max((int(entry["step"]) for entry in state["state"].values()), default=0))

    @torch.no_grad()
    def _set_weight(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Put the weight that forward passes read, in the type it has there; its master is another tensor."""
        if self._stage < 3:
            parameter.copy_(value)
            return
        from deepspeed.runtime.zero import GatheredParameters

        # Where no process is named as the one that changes it, the library forgets the change on leaving.
        with GatheredParameters([parameter], modifier_rank=0):
            parameter.copy_(value)

    def _set_held(self, parameter: Any, value: Tensor, moment: str | None = None) -> None:
        """Put this process's share of a master weight or of a moment; ``value`` is whole, on any device."""
        from deepspeed import utils

        flat = value.detach().to(torch.float32).flatten()
        key = () if moment is None else (moment,)
        if self._stage < 3:
            put = utils.safe_set_full_fp32_param if moment is None else utils.safe_set_full_optimizer_state
            put(parameter, flat, *key)
            return
        # Equal shares, the last ones filled up: the library's own way to set a whole tensor takes no filling.
        share = flat.new_zeros(parameter.ds_tensor.numel())
        start = self._world.rank * share.numel()
        part = flat[start : start + share.numel()]
        share[: part.numel()] = part
        put = utils.safe_set_local_fp32_param if moment is None else utils.safe_set_local_optimizer_state
        put(parameter, share, *key)

    def _make_moments(self) -> None:
        """Let the optimiser make its moments, by an update at rate 0 with a gradient of 0."""
        self.set_learning_rate(0.0)
        anything = ScoredSequence(prompt_ids=(0, 0), response_ids=(0,), temperature=1.0)
        with_values = any(name.startswith("value_") for name, _ in self._policy.named_parameters())
        scored = self.forward(partial(self._policy.logprobs, [anything], with_values=with_values))
        self.backward(without_weight(scored))
        self.step()
        self._link_moments()

    def _link_moments(self) -> None:
        """Tell each parameter where its moments lie; the library does so after its first group's update, too early."""
        from deepspeed.utils import lazy_init_hp_params_optimizer_state

        if self._stage == 3:
            return
        held = self.optimizer
        if hasattr(held, "bf16_groups"):  # the library's own optimiser for bfloat16 in stage 1
            groups = zip(held.bf16_groups, held.fp32_groups_flat_partition, strict=True)
        else:
            groups = zip(held.bit16_groups, held.single_partition_of_fp32_groups, strict=True)
        for own, flat in groups:
            lazy_init_hp_params_optimizer_state(own, flat, held.optimizer.state)

    def _set_count(self, count: int) -> None:
        """Set the number of updates behind the moments, which their bias correction reads."""
        self._count = count
        for entry in self.optimizer.optimizer.state.values():
            entry["step"].fill_(float(count))


def _settings(config: RunConfig, *, is_half: bool, num_trained: int) -> dict[str, Any]:
    """The run's settings in DeepSpeed's words."""
    # The library takes a whole bucket of memory, however few gradients there are.
    zero: dict[str, Any] = {"stage": config.stage, "reduce_bucket_size": min(BUCKET_ELEMENTS, num_trained)}
    if config.offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if config.offload == "parameters":
        zero["offload_param"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    return {
        # Micro-batches are cut by tokens and differ in number: what the library counts in sequences is left at 1.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": is_half},
        # Micro-batches add up in float32 whatever the weights are.
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def _moment(read: Callable[[nn.Parameter, str], Tensor], name: str, parameter: nn.Parameter) -> Tensor:
    return read(parameter, name)


def _shape(parameter: nn.Parameter) -> torch.Size:
    """The whole parameter's shape; ZeRO-3 leaves an empty tensor where it was."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


class _Root(nn.Module):
    """All modules of a policy under one roof; its forward pass is whatever it is given."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, compute: Callable[[], Output]) -> Output:
        """Run it."""
        return compute()
