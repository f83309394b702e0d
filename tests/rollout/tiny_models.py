"""Small models of several architectures, a tokenizer for them, and a model whose distribution is known exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
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

from agpo_bench.rollout.sampler import SamplingRequest
from agpo_bench.training.model import LoadedModel, wrap_model

VOCABULARY = ["<pad>", "<s>", "</s>", *(chr(code) for code in range(33, 127)), *(f"word{i}" for i in range(43))]


def tokenizer(vocabulary: Sequence[str] = VOCABULARY, **specials: str) -> Any:
    """One token a word; decoded words stand side by side."""
    table = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(table, unk_token=vocabulary[0]))
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


def sizes(**changes: Any) -> dict[str, Any]:
    """Of the tiny models, with some changed."""
    return _SIZES | changes


_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}

_MAKERS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=4, tie_word_embeddings=True)),
    # Grouped queries, a bias everywhere, scaled rotary positions, an output head of its own.
    "llama3-gqa": lambda: LlamaForCausalLM(
        LlamaConfig(**_SIZES, num_key_value_heads=2, attention_bias=True, mlp_bias=True, rope_parameters=_LLAMA3_ROPE)
    ),
    "llama-yarn": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, num_key_value_heads=1, rope_parameters=_YARN_ROPE)),
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
        LlamaConfig(**_SIZES, num_key_value_heads=4, rope_parameters=_DYNAMIC_ROPE)
    ),
}
LEAN = ["llama", "llama3-gqa", "llama-yarn", "qwen2", "qwen3"]
"""Architectures that our own forward pass takes."""
LIBRARY = ["gpt2", "gemma", "llama-dynamic-rope"]
"""Architectures that go through the library's."""


def build(name: str, *, seed: int = 0, spread: float = 0.15) -> Any:
    """A random model; ``spread`` is the deviation of its weights, large enough for peaked distributions."""
    torch.manual_seed(seed)
    return scattered(_MAKERS[name](), spread=spread)


def scattered(model: Any, *, spread: float = 0.15) -> Any:
    """The model with random weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=spread)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def load(name: str, *, seed: int = 0, spread: float = 0.15) -> LoadedModel:
    """A random model with its tokenizer."""
    return wrap_model(build(name, seed=seed, spread=spread), tokenizer())


def chain(
    logits: Mapping[int, Mapping[int, float]],
    *,
    eos: int | Sequence[int],
    pad: int = 0,
    size: int = 16,
    head_dim: int | None = None,
) -> LoadedModel:
    """A Llama whose next-token logits depend on the last token alone and are the given ones (-30 where not given).

    Its embeddings are unit vectors and its blocks add nothing, so the normalised state is √size times a unit vector.
    """
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=size,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=128,
        rms_norm_eps=1e-12,
        bos_token_id=None,
        eos_token_id=list(eos) if isinstance(eos, Sequence) else eos,
        pad_token_id=pad,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.lm_head.weight.fill_(-30 / math.sqrt(size))
        for state, row in logits.items():
            for token, logit in row.items():
                model.lm_head.weight[token, state] = logit / math.sqrt(size)
    first_eos = eos[0] if isinstance(eos, Sequence) else eos
    names = [f"t{i}" for i in range(size)]
    return wrap_model(model, tokenizer(names, pad_token=names[pad], eos_token=names[first_eos]))


def requests(num_prompts: int = 6, *, num_samples: int = 4, max_new_tokens: int = 20) -> list[SamplingRequest]:
    """Prompts of 1 to 30 tokens, at several temperatures (one greedy) and nuclei; the first two prompts are equal."""
    rng = np.random.default_rng(0)
    prompts = [tuple(rng.integers(3, 140, size=rng.integers(1, 31)).tolist()) for _ in range(num_prompts)]
    prompts[1] = prompts[0]
    return [
        SamplingRequest(
            prompt_id=f"tiny/train/{i}",
            prompt_ids=prompt,
            seeds=tuple(range(1000 * i, 1000 * i + num_samples)),
            temperature=[1.0, 0.7, 1.3, 0.0][i % 4],
            top_p=[1.0, 0.9][i % 2],
            max_new_tokens=max_new_tokens,
        )
        for i, prompt in enumerate(prompts)
    ]
