"""From a configuration and a method to a session: model, data, sampler, optimiser, and the state of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from agpo_bench import paths
from agpo_bench.config import RunConfig
from agpo_bench.data.benchmarks import load_prompts, load_task, open_source, task_names
from agpo_bench.ledger import TokenLedger
from agpo_bench.records import Prompt
from agpo_bench.rollout.adapters import add_adapters, read_adapters, require_peft
from agpo_bench.rollout.encoding import PromptEncoder
from agpo_bench.rollout.sampler import Sampler
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training import checkpoint as checkpoints
from agpo_bench.training.decontaminate import decontaminate
from agpo_bench.training.engine import Engine, TorchEngine
from agpo_bench.training.model import LoadedModel, load_model
from agpo_bench.training.policy import Policy
from agpo_bench.training.prompts import PromptStream
from agpo_bench.training.session import Session
from agpo_bench.training.tracker import require_tracker
from agpo_bench.training.world import ALONE, World

if TYPE_CHECKING:
    from agpo_bench.data.sources import DataSource
    from agpo_bench.methods.method import Method


def model_path(model: str) -> str:
    """The directory or hub id behind a model's name; ``embedded`` and ``smollm2`` stand for models in packages."""
    if model == "embedded":
        from agpo_bench.data.embedded import embedded_model_directory

        return str(embedded_model_directory())
    if model == "smollm2":
        from agpo_bench.data.smollm2 import smollm2_directory

        return str(smollm2_directory())
    return model


def build_session(config: RunConfig, method: Method, *, world: World = ALONE) -> Session:
    """A session at step 0; ``check`` has been asked before."""
    check_logs(method)
    prompts, stop = training_prompts(config)
    prompts, contamination = decontaminate(prompts, config)
    torch.manual_seed(config.seed)
    loaded = load_initial(config)
    if config.lora_rank:
        targets = config.lora_targets
        add_adapters(loaded.model, rank=config.lora_rank, alpha=config.lora_alpha, targets=targets, seed=config.seed)
    prompt_ids = EncodedPrompts(loaded, prompts)
    prompts = [prompt for prompt in prompts if prompt_ids.fits(prompt, config.max_length)]
    if not prompts:
        raise ValueError(f"every training problem fills max_length {config.max_length}; raise it")
    policy = Policy(
        loaded,
        value_head=getattr(method.critic, "trunk", "none"),
        gradient_checkpointing=config.gradient_checkpointing,
        holds_master=config.stage == 0,
        through_modules=config.stage == 3,
    )
    needs_reference = method.needs.reference or config.track_reference_kl or method.loop == "preference"
    reference = policy.frozen_copy() if needs_reference else None
    if config.park_reference and reference is not None:
        reference.park()
    engine = make_engine(policy, config, world)  # before the sampler: it may move the weights
    with engine.whole_weights():
        sampler = make_sampler(config, loaded)
    generator = torch.Generator().manual_seed(config.seed)
    return Session(
        config=config,
        method=method,
        policy=policy,
        reference=reference,
        reference_fingerprint=loaded.fingerprint,
        sampler=sampler,
        # In bfloat16 the two round differently.
        reuses_sampler_logprobs=config.dtype == "float32" and config.sampler == "torch",
        device=loaded.device,
        engine=engine,
        stream=PromptStream(prompts, seed=config.seed),
        prompt_ids=prompt_ids,
        stop=stop,
        num_prompts=num_prompts(config, method),
        ledger=TokenLedger(config.budget),
        method_state=method.start(),
        generator=generator,
        contamination=contamination,
        world=world,
    )


def make_sampler(config: RunConfig, loaded: LoadedModel) -> Sampler:
    """The sampling backend that the configuration names, for a model."""
    if config.sampler == "torch":
        return TorchSampler(loaded, max_rows=config.sampler_rows)
    from agpo_bench.rollout.vllm_engine import VllmSettings
    from agpo_bench.rollout.vllm_sampler import VllmSampler

    settings = VllmSettings(
        max_rows=config.sampler_rows,
        max_length=config.max_length,
        gpu_memory_utilization=config.vllm_gpu_memory_utilization,
        tensor_parallel_size=config.vllm_tensor_parallel_size,
        shares_gpu=True,
    )
    return VllmSampler(loaded, settings)


def make_engine(policy: Policy, config: RunConfig, world: World) -> Engine:
    """The engine that the configuration names."""
    if config.engine == "torch":
        return TorchEngine(policy, config, world=world)
    from agpo_bench.training.deepspeed_engine import DeepSpeedEngine

    return DeepSpeedEngine(policy, config, world=world)


def check(config: RunConfig, method: Method) -> None:
    """Refuse what cannot work together or is not installed, before anything is loaded."""
    check_settings(config, method)
    require_tracker(config)
    if config.lora_rank:
        require_peft()
    if config.engine == "deepspeed":
        from agpo_bench.training.deepspeed_engine import require_deepspeed

        require_deepspeed()
    if config.sampler == "vllm":
        from agpo_bench.rollout.vllm_engine import require_vllm

        require_vllm()


def check_settings(config: RunConfig, method: Method) -> None:
    """Refuse what cannot work together, whatever is installed."""
    check_engine(config)
    method.check_run(group_size=config.group_size, updates_per_rollout=config.updates_per_rollout)
    size = method.rollouts_per_prompt(config.group_size)
    worst = worst_case_tokens(config, method)
    if config.budget < worst:
        raise ValueError(
            f"a budget of {config.budget:,} tokens is below one rollout batch of {method.name}, which may take "
            f"{worst:,} ({num_prompts(config, method)} prompts, groups of {size}, {config.max_new_tokens} tokens each"
            f"{', and a probe' if method.needs.probe else ''}); raise the budget or lower prompts_per_batch"
        )


def check_engine(config: RunConfig) -> None:
    """Refuse settings that the engine has no use for."""
    if config.engine == "torch":
        for name, value, default in (("zero_stage", config.zero_stage, None), ("offload", config.offload, "none")):
            if value != default:
                raise ValueError(f"{name} = {value}: the torch engine shares nothing out; add engine=deepspeed")
        return
    if config.offload == "parameters" and config.stage != 3:
        raise ValueError(f"offload = parameters needs zero_stage 3, which shares them out; it is {config.stage}")


def check_logs(method: Method) -> None:
    """Refuse to replay the log of a run that stopped half-way: its last value would stand for the rest."""
    for path in method.logs:
        run = Path(path).parent
        if not (run / paths.CONFIG_FILE).is_file():
            continue  # a log without its run
        newest = checkpoints.newest_checkpoint(run)
        if newest is None or not checkpoints.read_state(newest).is_finished:
            raise ValueError(f"{method.name} replays {path}, and that run is not finished; finish it with --resume")


def worst_case_tokens(config: RunConfig, method: Method) -> int:
    """Tokens of one rollout batch if every response runs to the limit, the probe included."""
    rollouts: int = method.rollouts_per_prompt(config.group_size) + method.probe_size(config.group_size)
    return num_prompts(config, method) * rollouts * config.max_new_tokens


def num_prompts(config: RunConfig, method: Method) -> int:
    """Prompts of a rollout batch.

    A recipe that fixes one rollout a prompt gets ``group_size`` times as many prompts, so that its batches hold as many
    rollouts as those of the others.
    """
    return config.prompts_per_batch * (config.group_size if method.group_size == 1 else 1)


def device_of(config: RunConfig) -> torch.device:
    """``auto`` takes a GPU where there is one."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for and torch sees no GPU; use device=cpu")
    return torch.device(config.device)


def load_initial(config: RunConfig) -> LoadedModel:
    """The model a run starts from."""
    return load_model(
        model_path(config.model),
        dtype=config.dtype,
        revision=config.revision,
        device=device_of(config),
        with_modules=config.stage == 3 or config.lora_rank > 0,
    )


def training_tasks(config: RunConfig, source: DataSource) -> list[str]:
    """Names of the benchmarks to train on; ``all`` leaves out those without a train split."""
    if config.tasks != ("all",):
        return [load_task(name).name for name in config.tasks]
    if source.kind == "embedded":
        return list(task_names())
    return [
        name
        for name in task_names()
        if "train" in (load_task(name).hub.splits if source.kind == "hub" else load_task(name).files)
    ]


def training_prompts(config: RunConfig) -> tuple[list[Prompt], dict[str, tuple[str, ...]]]:
    """All training problems, and each benchmark's stop strings."""
    names = training_tasks(config, open_source(config.data))
    return list(_prompts(config.data, tuple(names))), {name: load_task(name).stop for name in names}


@lru_cache(maxsize=1)
def _prompts(data: str, names: tuple[str, ...]) -> tuple[Prompt, ...]:
    """Read once for all runs of a process."""
    source = open_source(data)
    return tuple(prompt for name in names for prompt in load_prompts(name, split="train", source=source))


class EncodedPrompts(Mapping[str, tuple[int, ...]]):
    """Token ids by prompt id, computed when first asked for: a short run sees a few of many prompts."""

    def __init__(self, loaded: LoadedModel, prompts: Sequence[Prompt]) -> None:
        self._encoder = PromptEncoder(loaded.tokenizer)
        self._texts = {prompt.prompt_id: prompt.text for prompt in prompts}
        self._ids: dict[str, tuple[int, ...]] = {}
        self._overhead = len(self._encoder.encode("a"))

    def __getitem__(self, prompt_id: str) -> tuple[int, ...]:
        if prompt_id not in self._ids:
            self._ids[prompt_id] = self._encoder.encode(self._texts[prompt_id])
        return self._ids[prompt_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def fits(self, prompt: Prompt, max_length: int) -> bool:
        """Whether a prompt leaves room for an answer; a text has no more tokens than bytes, which settles most."""
        if len(prompt.text.encode()) + self._overhead < max_length:
            return True
        return len(self[prompt.prompt_id]) < max_length


def restore(session: Session, folder: Path) -> checkpoints.CheckpointState:
    """Put a fresh session where a checkpoint left off, to the bit."""
    state = checkpoints.read_state(folder)
    if state.reference_fingerprint != session.reference_fingerprint:
        raise ValueError(
            f"{folder}: the run was started from other weights than {session.config.model!r} holds now "
            f"({state.reference_fingerprint[:12]} against {session.reference_fingerprint[:12]}); its KL would be "
            "measured against the wrong model"
        )
    tensors = checkpoints.read_tensors(folder)
    if session.config.lora_rank:
        saved: Mapping[str, torch.Tensor] = read_adapters(folder / checkpoints.ADAPTER_DIRECTORY)
    else:
        own = [name for name, _ in session.policy.named_parameters() if name.startswith("model.")]
        saved = _saved_weights(folder / checkpoints.MODEL_DIRECTORY, {name.removeprefix("model.") for name in own})
    weights = {f"model.{name}": tensor for name, tensor in saved.items()}
    session.engine.load_state({**weights, **tensors["value"]}, tensors["optimizer"])
    session.engine.num_skipped_updates = state.num_skipped_updates
    session.generator.set_state(tensors["generator"])
    session.stream.restore(state.prompts)
    session.ledger = TokenLedger.from_json(state.ledger)
    session.method_state = session.method.restore(state.method_state)
    session.step = state.step
    session.num_updates = state.num_updates
    session.num_skipped_in_a_row = state.num_skipped_in_a_row
    session.gradient_norms = list(state.gradient_norms)
    session.sync_sampler(state.weights_version)
    return state


def _saved_weights(directory: Path, names: set[str]) -> dict[str, torch.Tensor]:
    """Float32 weights of a saved model by the names of its parameters, in the memory of the host.

    Where the files name them as the model does, they are views of the files: nothing is copied for any process. Never
    on the device, which has no room for them beside a model that trains.
    """
    found: dict[str, torch.Tensor] = {}
    try:
        for file in sorted(directory.glob("*.safetensors")):
            found |= load_file(file)
    except (OSError, SafetensorError):
        found = {}  # the library says what is wrong with it
    if set(found) == names:
        return found
    return dict(load_model(directory, dtype="float32").model.named_parameters())
