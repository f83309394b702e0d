"""A causal language model with its tokenizer, as sampling and training use it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn

from agpo_bench.rollout.adapters import CONFIG_FILE as ADAPTER_CONFIG
from agpo_bench.rollout.adapters import add_adapters, merge, read_adapters
from agpo_bench.rollout.encoding import terminators
from agpo_bench.rollout.lean_model import read_lean_model

DtypeName = Literal["float32", "bfloat16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A Hugging Face causal LM and what everything else needs to know of it."""

    model: Any
    """The ``PreTrainedModel`` (or a ``LeanCausalLM``), in evaluation mode, with every dropout probability at 0."""
    tokenizer: Any
    terminators: frozenset[int]
    """Ids that end a response: those of the tokenizer and of the generation_config."""
    pad_id: int
    """Filler for batches. May equal a terminator: nothing infers a mask from it."""
    fingerprint: str
    """sha256 of the weights as they were loaded, see ``weights_fingerprint``."""
    source: str
    """The directory or hub id asked for."""
    compute_dtype: torch.dtype = field(default=torch.float32)
    """Type of the matrix products. Trained weights are held in float32 whatever it is (``Policy`` sees to it)."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def num_parameters(self) -> int:
        """Distinct parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def load_model(
    path_or_id: str | Path,
    *,
    dtype: DtypeName = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    device: str | torch.device = "cpu",
    with_modules: bool = False,
) -> LoadedModel:
    """Load a model and its tokenizer from a directory or from the model hub.

    ``with_modules`` asks for the library's model, whose every weight is read by a module that is called. A directory of
    LoRA adapters is loaded as the model they were made for, merged.

    Raises ValueError in one sentence for a missing directory, a directory that is no model, or an unreachable hub.
    """
    source = str(path_or_id)
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r}; use one of {', '.join(DTYPES)}")
    directory = Path(path_or_id).expanduser()
    is_local = directory.is_dir()
    if is_local and (directory / ADAPTER_CONFIG).is_file() and not (directory / "config.json").is_file():
        return _load_merged(directory, dtype=dtype, device=device)
    if is_local and not with_modules and (read := read_lean_model(directory, DTYPES[dtype])) is not None:
        return wrap_model(read[0].to(device), read[1], source=source)
    if not is_local and _looks_like_a_path(source):
        raise ValueError(f"no model directory {source!r}; give a folder with config.json and weights, or a hub id")
    if is_local and not (directory / "config.json").is_file():
        raise ValueError(f"cannot load a causal language model from the directory {source!r}: it holds no config.json")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = str(directory) if is_local else source
    options = {"revision": revision, "trust_remote_code": trust_remote_code, "local_files_only": is_local}
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
        model = AutoModelForCausalLM.from_pretrained(where, dtype=DTYPES[dtype], **options)
    except (OSError, ValueError, SafetensorError) as error:
        kind = "the directory" if is_local else "the hub id"
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"cannot load a causal language model from {kind} {source!r}: {reason}") from error
    return wrap_model(model.to(device), tokenizer, source=source)


def _load_merged(directory: Path, *, dtype: DtypeName, device: str | torch.device) -> LoadedModel:
    settings = json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    base = settings.get("base_model_name_or_path")
    if not base:
        raise ValueError(f"the adapters in {str(directory)!r} do not say which model they were made for")
    loaded = load_model(base, dtype=dtype, device=device, with_modules=True)
    targets = settings["target_modules"]
    targets = [targets] if isinstance(targets, str) else targets
    add_adapters(loaded.model, rank=settings["r"], alpha=settings["lora_alpha"], targets=targets, seed=0)
    merge(loaded.model, read_adapters(directory))
    return wrap_model(loaded.model, loaded.tokenizer, source=str(directory))


def wrap_model(model: Any, tokenizer: Any, *, source: str = "in memory") -> LoadedModel:
    """Describe a model that is already in memory; silences its dropout and puts it in evaluation mode."""
    silence_dropout(model)
    model.eval()
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        terminators=terminators(tokenizer, getattr(model, "generation_config", None)),
        pad_id=int(pad_id[0] if isinstance(pad_id, list | tuple) else pad_id or 0),
        fingerprint=weights_fingerprint(model),
        source=source,
        compute_dtype=next(model.parameters()).dtype,
    )


def silence_dropout(model: nn.Module) -> None:
    """Set every dropout probability to 0, in modules and in the attributes that attention functions read.

    With dropout the ratio of the first pass over fresh rollouts is not 1.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or "layerdrop" in name):
                setattr(module, name, 0.0)


def weights_fingerprint(model: nn.Module) -> str:
    """sha256 over the name, type, shape and bytes of every distinct parameter, in the order of names."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        tensor = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _looks_like_a_path(source: str) -> bool:
    return source.startswith(("/", ".", "~")) or source.count("/") > 1 or "\\" in source
