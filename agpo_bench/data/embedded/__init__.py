"""The embedded sample: generated problems in the nine benchmarks' answer formats, and a tiny model that reads them."""

from __future__ import annotations

from pathlib import Path

from agpo_bench.data.embedded.items import EmbeddedItem, embedded_items

__all__ = ["EmbeddedItem", "embedded_items", "embedded_model_directory"]


def embedded_model_directory() -> Path:
    """The shipped warm-started model: a Hugging Face directory (config, tokenizer, safetensors, model card)."""
    return Path(__file__).resolve().parent / "model"
