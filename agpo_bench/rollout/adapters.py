"""Low-rank adapters (LoRA, Hu et al. 2021) inside a model: y = (W + s B A) x with W frozen and s = alpha / rank.

peft makes the layers; A starts random and B at 0, so the adapted model starts as the model itself. Our own forward pass
and the exports read the product W + s B A (``effective_weight``); the library's forward computes W x + s B (A x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_NAME = "default"
_PREFIX = "base_model.model."
"""What peft puts before every name in its files."""
_WRAPPED = ".base_layer."


def require_peft() -> None:
    """ValueError in one sentence where peft is not installed."""
    if find_spec("peft") is None:
        raise ValueError('lora_rank needs peft: pip install "agpo-bench[lora]"')


def add_adapters(model: Any, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Put float32 adapters into a library model, in place, and freeze all else; they have no dropout.

    ``targets`` are the last parts of linear layers' names; ``all-linear`` is every one but the output head.
    Raises ValueError in one sentence for targets that the model does not have or that are not linear.
    """
    require_peft()
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]
        lora_dropout=0.0,
        bias="none",
        target_modules="all-linear" if list(targets) == ["all-linear"] else list(targets),
        task_type="CAUSAL_LM",
    )
    head = model.get_output_embeddings()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, adapter_name=_NAME)
        except ValueError as error:
            raise ValueError(f"lora_targets = {','.join(targets)}: {str(error).splitlines()[0]}") from None
    odd = [name for name, layer in _adapted(model) if type(layer.base_layer) is not nn.Linear]
    if odd or model.get_output_embeddings() is not head:
        raise ValueError(f"lora_targets = {','.join(targets)}: {odd[0] if odd else 'the output head'} takes no adapter")
    for name, parameter in model.named_parameters():
        if is_adapter_weight(name):
            parameter.data = parameter.data.float()
        parameter.requires_grad_(is_adapter_weight(name))


def has_adapters(model: nn.Module) -> bool:
    """Whether any layer carries one."""
    return any(True for _ in _adapted(model))


def is_adapter_weight(name: str) -> bool:
    """Whether a parameter's name is that of an A or a B."""
    return ".lora_A." in name or ".lora_B." in name


def are_plain(model: nn.Module) -> bool:
    """Whether every adapter is one of ours: W + s B A on a linear layer, and nothing more."""
    return all(
        type(layer).__name__ == "Linear"
        and type(layer.base_layer) is nn.Linear
        and list(layer.lora_A) == [_NAME]
        and not layer.merged
        and not getattr(layer, "lora_variant", None)
        and not any(layer.lora_bias.values())
        for _, layer in _adapted(model)
    )


def effective_weight(layer: Any) -> Tensor:
    """W, or W + s B A where the layer has an adapter that is switched on; gradients flow to A and B."""
    weight: Tensor = layer.weight
    if not _is_adapted(layer) or layer.disable_adapters:
        return weight
    delta: Tensor = layer.get_delta_weight(_NAME)
    return weight + delta


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """A context in which the model is the one that the adapters were put into."""
    layers = [layer for _, layer in _adapted(model) if not layer.disable_adapters]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged_weights(model: nn.Module, adapters: Mapping[str, Tensor] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Weights by the names of the model without adapters, W + s B A in the place of W; tied ones once.

    ``adapters``, by the names of ``named_parameters``, stand in for those in the model.
    """
    layers = dict(_adapted(model))
    for name, parameter in model.named_parameters():
        owner = name.split(_WRAPPED)[0]
        if is_adapter_weight(name):
            continue
        if name == f"{owner}{_WRAPPED}weight":
            yield f"{owner}.weight", _with_product(layers[owner], owner, parameter.detach(), adapters)
        else:
            yield name.replace(_WRAPPED, "."), parameter.detach()


def _with_product(layer: Any, name: str, weight: Tensor, adapters: Mapping[str, Tensor] | None) -> Tensor:
    """W + s B A of one layer; W alone where its adapter is switched off."""
    if adapters is None or layer.disable_adapters:
        return effective_weight(layer)
    a, b = (adapters[f"{name}.lora_{part}.{_NAME}.weight"].to(weight.device) for part in "AB")
    scaling: float = layer.scaling[_NAME]
    return weight + b @ a * scaling


def save_adapters(model: Any, directory: Path, *, base: str, weights: Mapping[str, Tensor] | None = None) -> None:
    """Write the adapters as peft's own directory; ``base`` is where the model without them comes from.

    ``weights``, by the names of ``named_parameters``, stand in for those in the model.
    """
    from safetensors.torch import save_file

    own = dict(model.named_parameters()) if weights is None else weights
    found = {
        _PREFIX + name.replace(f".{_NAME}.", "."): parameter.detach().cpu().contiguous()
        for name, parameter in own.items()
        if is_adapter_weight(name)
    }
    settings = model.peft_config[_NAME]
    settings.base_model_name_or_path = base
    settings.inference_mode = True
    directory.mkdir(parents=True, exist_ok=True)
    settings.save_pretrained(directory)
    save_file(found, directory / WEIGHTS_FILE, metadata={"format": "pt"})


def read_adapters(directory: Path) -> dict[str, Tensor]:
    """Weights of a directory that ``save_adapters`` wrote, by the names of ``named_parameters``."""
    from safetensors.torch import load_file

    return {_own_name(name): tensor for name, tensor in load_file(directory / WEIGHTS_FILE).items()}


@torch.no_grad()
def merge(model: nn.Module, adapters: Mapping[str, Tensor]) -> None:
    """Give the adapters these weights, add s B A to every W, and take the adapters out."""
    own = {name: parameter for name, parameter in model.named_parameters() if is_adapter_weight(name)}
    if set(own) != set(adapters):
        odd = sorted(set(own) ^ set(adapters))
        raise ValueError(f"adapters of another model: {len(odd)} names differ, first {odd[0]!r}")
    for name, parameter in own.items():
        parameter.copy_(adapters[name])
    for name, layer in list(_adapted(model)):
        plain = layer.base_layer
        plain.weight.copy_(effective_weight(layer))
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, plain)
    if hasattr(model, "peft_config"):
        del model.peft_config


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, module) for name, module in model.named_modules() if _is_adapted(module))


def _is_adapted(module: Any) -> bool:
    return hasattr(module, "base_layer") and hasattr(module, "disable_adapters")


def _own_name(name: str) -> str:
    stem, _, last = name.removeprefix(_PREFIX).rpartition(".")
    return f"{stem}.{_NAME}.{last}"
