"""The embedded model with heads twice as wide, for vLLM's CPU attention: the same function of the same tokens."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agpo_bench.data.embedded import embedded_model_directory


def write_wide_model(folder: Path) -> Path:
    """Heads of 16 spread over 32 dimensions, the others zero, each pair of rotated dimensions at its old frequency."""
    source = embedded_model_directory()
    folder.mkdir(parents=True)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    config = json.loads((source / "config.json").read_text())
    size = config["head_dim"]
    (folder / "config.json").write_text(json.dumps(config | {"head_dim": 2 * size}))
    weights = load_file(source / "model.safetensors")
    for name, weight in weights.items():
        part = name.rsplit(".", 2)[-2]
        if part in {"q_proj", "k_proj", "v_proj"}:
            weights[name] = _spread(weight, size) * (math.sqrt(2) if part == "q_proj" else 1.0)
        if part == "o_proj":
            weights[name] = _spread(weight.T, size).T.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _spread(weight: Tensor, size: int) -> Tensor:
    # Rotary dimension j of the first half has frequency theta^(-2j / size): j in the old heads is 2j in the new ones.
    half = torch.arange(size // 2)
    heads = weight.new_zeros(weight.shape[0] // size, 2 * size, weight.shape[1])
    heads[:, torch.cat((2 * half, size + 2 * half))] = weight.reshape(-1, size, weight.shape[1])
    return heads.reshape(-1, weight.shape[1])
