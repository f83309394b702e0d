"""Small random models of several architectures, and a tokenizer for them."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agpo_bench.training.model import LoadedModel, wrap_model

VOCABULARY = ["<pad>", "<s>", "</s>", *(chr(code) for code in range(33, 127)), *(f"word{i}" for i in range(43))]


def tokenizer(**specials: str) -> Any:
    """One token a word; words are joined by spaces."""
    table = {token: index for index, token in enumerate(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(table, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.Fuse()
    specials = {"pad_token": "<pad>", "eos_token": "</s>", **specials}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)


_SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def build(name: str, *, seed: int = 0, spread: float = 0.25) -> Any:
    """A random model; ``spread`` is the deviation of its weights, large enough for peaked distributions."""
    torch.manual_seed(seed)
    makers: dict[str, Any] = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=4, tie_word_embeddings=True)),
        "llama3-gqa": lambda: LlamaForCausalLM(
            LlamaConfig(
                **_SIZES, num_key_value_heads=2, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3_ROPE
            )
        ),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_SIZES, num_key_value_heads=2)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**_SIZES, num_key_value_heads=2, head_dim=32)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=len(VOCABULARY),
                n_positions=256,
                n_embd=64,
                n_layer=2,
                n_head=4,
                bos_token_id=1,
                eos_token_id=2,
                pad_token_id=0,
            )
        ),
        "gemma": lambda: GemmaForCausalLM(GemmaConfig(**_SIZES, num_key_value_heads=2, head_dim=16)),
        "llama-dynamic-rope": lambda: LlamaForCausalLM(
            LlamaConfig(
                **_SIZES,
                num_key_value_heads=4,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
            )
        ),
    }
    model = makers[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=spread) if parameter.ndim > 1 else parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def load(name: str, **options: Any) -> LoadedModel:
    """A random model with its tokenizer."""
    return wrap_model(build(name, **options), tokenizer())


LEAN = ["llama", "llama3-gqa", "qwen2", "qwen3"]
LIBRARY = ["gpt2", "gemma", "llama-dynamic-rope"]
