"""The fields of public config.json files that ``plan`` answers for without a network.

Source: the config.json of each hub id, main branch (as of transformers 4.4x, when the models were released). The
parameter counts that follow are those of the model cards: 14.77, 8.03, 9.24 and 0.1345 billion.
"""

from __future__ import annotations

from typing import Any

_QWEN_14B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "sliding_window": 131072,
    "max_window_layers": 48,
    "use_sliding_window": False,
}
_LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "attention_bias": False,
}
_GEMMA_2_9B: dict[str, Any] = {
    "model_type": "gemma2",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_hidden_layers": 42,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "vocab_size": 256000,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
_SMOLLM2_135M: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}

KNOWN_SHAPES: dict[str, dict[str, Any]] = {
    "smollm2": _SMOLLM2_135M,
    "HuggingFaceTB/SmolLM2-135M-Instruct": _SMOLLM2_135M,
    "Qwen/Qwen2.5-14B": _QWEN_14B,
    "Qwen/Qwen2.5-14B-Instruct": _QWEN_14B,
    "meta-llama/Meta-Llama-3-8B": _LLAMA_3_8B,
    "meta-llama/Meta-Llama-3-8B-Instruct": _LLAMA_3_8B,
    "google/gemma-2-9b": _GEMMA_2_9B,
    "google/gemma-2-9b-it": _GEMMA_2_9B,
}
"""By the name that ``--model`` takes."""
