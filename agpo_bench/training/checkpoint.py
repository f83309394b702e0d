"""Checkpoints: a whole training state in one folder that exists complete or not at all.

``<run>/checkpoints/<step>/`` holds ``model/`` (a Hugging Face directory that evaluation loads), ``tensors.pt``
(optimiser, value head, generator) and ``state.json`` (everything that is not a tensor). The folder is filled under
another name and renamed, so a kill at any moment leaves the previous checkpoint as the newest.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from agpo_bench import paths
from agpo_bench.files import write_whole

MODEL_DIRECTORY = "model"
STATE_FILE = "state.json"
TENSORS_FILE = "tensors.pt"


class CheckpointState(BaseModel):
    """What resuming needs besides tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """Rollout batches trained on; the next step's number."""
    weights_version: int
    num_updates: int
    num_skipped_updates: int
    ledger: dict[str, Any]
    method_state: str
    """``MethodState`` as JSON text."""
    prompts: dict[str, Any]
    """Epoch and what is left of its permutation."""
    gradient_norms: list[float]
    """Norms of the newest updates, for the variance over a window of them."""
    reference_fingerprint: str
    """sha256 of the weights that the run started from and is anchored to."""
    run_fingerprint: str
    """sha256 of config and recipe."""
    file_sizes: dict[str, int]
    """Bytes of each line file at this step: what was appended later is cut off on resuming."""
    is_finished: bool
    """Whether the budget is spent."""


def step_name(step: int) -> str:
    """Folder name of a step; sorts as a number."""
    return f"{step:06d}"


def checkpoints(run: Path) -> list[Path]:
    """Complete checkpoints of a run, oldest first."""
    folder = run / paths.CHECKPOINTS_DIRECTORY
    found = [path for path in folder.glob("*") if path.name.isdigit() and (path / STATE_FILE).is_file()]
    return sorted(found, key=lambda path: int(path.name))


def newest_checkpoint(run: Path) -> Path | None:
    """The newest complete checkpoint, or None."""
    found = checkpoints(run)
    return found[-1] if found else None


def read_state(checkpoint: Path) -> CheckpointState:
    """The JSON part of a checkpoint."""
    return CheckpointState.model_validate_json((checkpoint / STATE_FILE).read_text(encoding="utf-8"))


def read_tensors(checkpoint: Path) -> dict[str, Any]:
    """The tensor part of a checkpoint; only tensors and plain containers are read, no code."""
    content: dict[str, Any] = torch.load(checkpoint / TENSORS_FILE, map_location="cpu", weights_only=True)
    return content


def save_checkpoint(
    run: Path, state: CheckpointState, *, policy: Any, weights: Any, tensors: dict[str, Any], keep: int
) -> Path:
    """Write one checkpoint whole and delete all but the ``keep`` newest.

    ``weights`` are the float32 weights by name where the policy holds others; None where it holds them itself.
    """
    folder = run / paths.CHECKPOINTS_DIRECTORY
    folder.mkdir(parents=True, exist_ok=True)
    for torn in folder.glob(".tmp-*"):
        shutil.rmtree(torn)
    temporary = folder / f".tmp-{step_name(state.step)}-{os.getpid()}"
    policy.save_pretrained(temporary / MODEL_DIRECTORY, weights)
    torch.save(tensors, temporary / TENSORS_FILE)
    write_whole(temporary / STATE_FILE, json.dumps(state.model_dump(mode="json"), ensure_ascii=False))
    target = folder / step_name(state.step)
    if target.exists():  # a run stopped right after it resumed from here: the same state
        shutil.rmtree(temporary)
    else:
        temporary.rename(target)
    for old in checkpoints(run)[:-keep]:
        shutil.rmtree(old)
    return target
