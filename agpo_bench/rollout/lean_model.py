"""A Llama read from its directory without the library's modelling code.

Importing that code takes longer than evaluating the embedded model and more memory than training it. A plain Llama
needs none of it: ``LeanDecoder`` is its forward pass, and this module holds its parameters under the library's names.
A directory with anything unusual in it is left to the library.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from agpo_bench.files import write_whole

_CONFIG, _GENERATION_CONFIG, _WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_PLAIN_TOKENIZERS = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})
MAX_PARAMETERS = 1_000_000_000
"""Above this the products dominate and a second copy of the weights costs more memory than it saves time."""
_DEFAULTS: dict[str, Any] = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "eos_token_id": 2,
}
"""The library's, for fields a config.json leaves out."""


class _Weights(nn.Module):
    """Uninitialised parameters; what they mean is the decoder's business."""

    def __init__(self, *shape: int, bias: bool = False) -> None:
        super().__init__()
        self.padding_idx: int | None = None
        self.weight = nn.Parameter(torch.empty(shape))
        self.register_parameter("bias", nn.Parameter(torch.empty(shape[0])) if bias else None)


class _Attention(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.scaling = config.head_dim**-0.5
        width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = _Weights(width, config.hidden_size, bias=config.attention_bias)
        self.k_proj = _Weights(kv_width, config.hidden_size, bias=config.attention_bias)
        self.v_proj = _Weights(kv_width, config.hidden_size, bias=config.attention_bias)
        self.o_proj = _Weights(config.hidden_size, width, bias=config.attention_bias)


class _Mlp(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.gate_proj = _Weights(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.up_proj = _Weights(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.down_proj = _Weights(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)


class _Layer(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _Mlp(config)
        self.input_layernorm = _Weights(config.hidden_size)
        self.post_attention_layernorm = _Weights(config.hidden_size)


class _Rotary:
    """Plain rotary positions; not a module, because it has nothing to move or save."""

    rope_type = "default"

    def __init__(self, config: SimpleNamespace) -> None:
        self._theta, self._head_dim = config.rope_theta, config.head_dim

    def __call__(self, like: Tensor, position_1T: Tensor) -> tuple[Tensor, Tensor]:
        # On the CPU, as the library does: other devices round powers differently.
        exponent = torch.arange(0, self._head_dim, 2, dtype=torch.float) / self._head_dim
        frequency = (1.0 / (self._theta**exponent)).to(like.device)
        angle = position_1T[..., None].float() * frequency
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()


class _Trunk(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = _Weights(config.vocab_size, config.hidden_size)
        self.embed_tokens.padding_idx = config.pad_token_id
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = _Weights(config.hidden_size)
        self.rotary_emb = _Rotary(config)


class LeanCausalLM(nn.Module):
    """The parameters of a Llama and what is written beside them; ``LeanDecoder`` computes with it."""

    def __init__(self, config: SimpleNamespace, *, fields: dict[str, Any], generation: dict[str, Any] | None) -> None:
        super().__init__()
        self.config = config
        self.generation_config = SimpleNamespace(eos_token_id=(generation or fields).get("eos_token_id"))
        self._fields, self._generation = fields, generation
        self.model = _Trunk(config)
        self.lm_head = _Weights(config.vocab_size, config.hidden_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def base_model(self) -> nn.Module:
        """The model without its output head."""
        return self.model

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.lm_head.weight.dtype

    def save_pretrained(self, directory: str | Path, *, state_dict: dict[str, Tensor] | None = None) -> None:
        """Write a directory that the library loads as the model this came from; with other weights, if given."""
        folder = Path(directory)
        self.save_config(folder)
        if self._generation is not None:
            write_whole(folder / _GENERATION_CONFIG, json.dumps(self._generation, indent=2) + "\n")
        found = dict(self.named_parameters()) if state_dict is None else state_dict
        weights = {name: parameter.detach().contiguous() for name, parameter in found.items()}
        save_file(weights, folder / _WEIGHTS, metadata={"format": "pt"})

    def save_config(self, folder: Path) -> None:
        """Write the configuration alone."""
        folder.mkdir(parents=True, exist_ok=True)
        fields = {name: value for name, value in self._fields.items() if name != "torch_dtype"}
        fields["dtype"] = str(self.dtype).removeprefix("torch.")
        write_whole(folder / _CONFIG, json.dumps(fields, indent=2) + "\n")


def read_lean_model(directory: Path, dtype: torch.dtype) -> tuple[LeanCausalLM, Any] | None:
    """Model and tokenizer of a plain Llama's directory; None where the library must read it."""
    config = _plain_config(directory)
    if config is None or not _has_plain_tokenizer(directory):
        return None
    fields, generation = _read(directory / _CONFIG), _read(directory / _GENERATION_CONFIG)
    with torch.device("meta"):
        model = LeanCausalLM(config, fields=fields or {}, generation=generation)
    if sum(parameter.numel() for parameter in model.parameters()) > MAX_PARAMETERS:
        return None
    try:
        weights = load_file(directory / _WEIGHTS)
    except (OSError, SafetensorError):
        return None
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    weights.pop("lm_head.weight" if config.tie_word_embeddings else "", None)
    if {name: tensor.shape for name, tensor in weights.items()} != wanted:
        return None
    # Copied: what was read is a view of the file, and goes with it when the file is written anew.
    owned = {name: tensor.to(dtype, copy=True) for name, tensor in weights.items()}
    model.load_state_dict(owned, strict=False, assign=True)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    from transformers import PreTrainedTokenizerFast

    return model, PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)


def _plain_config(directory: Path) -> SimpleNamespace | None:
    fields = _read(directory / _CONFIG)
    if fields is None or fields.get("architectures") != ["LlamaForCausalLM"]:
        return None
    if fields.get("quantization_config") or fields.get("auto_map") or fields.get("pretraining_tp", 1) != 1:
        return None
    if not (directory / _WEIGHTS).is_file() or (directory / "adapter_config.json").exists():
        return None
    rope = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if rope.get("rope_type", "default") != "default" or "type" in rope:
        return None
    config = SimpleNamespace(**{**_DEFAULTS, **fields})
    try:
        config.head_dim = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
        config.num_key_value_heads = fields.get("num_key_value_heads") or config.num_attention_heads
        config.rope_theta = float(rope.get("rope_theta", fields.get("rope_theta", 10000.0)))
        known = (config.vocab_size, config.intermediate_size, config.num_hidden_layers)
    except AttributeError:
        return None
    config.get_text_config = lambda decoder=True: config
    return config if config.hidden_act == "silu" and all(known) else None


def _has_plain_tokenizer(directory: Path) -> bool:
    settings = _read(directory / _TOKENIZER_CONFIG)
    is_plain = settings is not None and settings.get("tokenizer_class") in _PLAIN_TOKENIZERS
    return is_plain and (directory / _TOKENIZER).is_file() and "auto_map" not in (settings or {})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
