"""Checkpoints: a whole training state in one folder that exists complete or not at all.

``<run>/checkpoints/<step>/`` holds ``model/`` (a Hugging Face directory that evaluation loads), ``tensors.pt``
(optimiser, value head, generator) and ``state.json`` (everything that is not a tensor). The folder is filled under
another name and renamed, so a kill at any moment leaves the previous checkpoint as the newest.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from agpo_bench import paths
from agpo_bench.files import read_lines, write_whole

MODEL_DIRECTORY = "model"
ADAPTER_DIRECTORY = "adapter"
"""Beside the model, or in its place in an unfinished run: LoRA adapters as peft reads them."""
STATE_FILE = "state.json"
TENSORS_FILE = "tensors.pt"
BEST_FILE = "best.json"
"""Names the checkpoint before which the run earned most, with that mean reward and its number of steps."""


class CheckpointState(BaseModel):
    """What resuming needs besides tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    """Rollout batches trained on; the next step's number."""
    weights_version: int
    num_updates: int
    num_skipped_updates: int
    num_skipped_in_a_row: int = 0
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


def best_checkpoint(run: Path) -> Path | None:
    """The complete checkpoint that ``best.json`` names, or None."""
    marker = run / paths.CHECKPOINTS_DIRECTORY / BEST_FILE
    if not marker.is_file():
        return None
    step = json.loads(marker.read_text(encoding="utf-8"))["step"]
    return next((path for path in checkpoints(run) if int(path.name) == step), None)


def mark_best(run: Path, *, num_steps: int) -> None:
    """Name the newest checkpoint in ``best.json`` when the steps before it earned more than those of the one there.

    Compared is the mean of ``reward/mean`` over the ``num_steps`` newest steps; a checkpoint with fewer is passed over,
    and of equals the earlier stays. It depends on ``metrics.jsonl`` alone, so a resumed run marks the same one.
    """
    newest = newest_checkpoint(run)
    if newest is None:
        return
    marker = run / paths.CHECKPOINTS_DIRECTORY / BEST_FILE
    best = json.loads(marker.read_text(encoding="utf-8")) if best_checkpoint(run) is not None else None
    metrics = run / paths.METRICS_FILE
    lines = [line for line in read_lines(metrics) if line["step"] < int(newest.name)] if metrics.exists() else []
    rewards = [line["reward/mean"] for line in lines[-num_steps:] if line.get("reward/mean") is not None]
    if len(lines) < num_steps or not rewards:
        return
    mean = math.fsum(rewards) / len(rewards)
    if best is None or mean > best["reward/mean"]:
        found = {"step": int(newest.name), "reward/mean": mean, "steps": num_steps}
        write_whole(marker, json.dumps(found) + "\n")


def loadable_model(checkpoint: Path) -> Path:
    """The folder of a checkpoint that ``load_model`` takes."""
    model = checkpoint / MODEL_DIRECTORY
    return model if model.is_dir() else checkpoint / ADAPTER_DIRECTORY


def read_state(checkpoint: Path) -> CheckpointState:
    """The JSON part of a checkpoint."""
    try:
        return CheckpointState.model_validate_json((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(_damaged(checkpoint / STATE_FILE)) from error


def read_tensors(checkpoint: Path) -> dict[str, Any]:
    """The tensor part of a checkpoint; only tensors and plain containers are read, no code.

    The tensors are views of the file, in memory that the processes of a machine share: copy what outlives the folder.
    """
    try:
        content: dict[str, Any] = torch.load(
            checkpoint / TENSORS_FILE, map_location="cpu", weights_only=True, mmap=True
        )
    except (RuntimeError, EOFError, UnpicklingError) as error:
        raise ValueError(_damaged(checkpoint / TENSORS_FILE)) from error
    return content


def _damaged(file: Path) -> str:
    return (
        f"{file} cannot be read, so it was changed from outside or by another version; remove {file.parent} to go on "
        "from the checkpoint before it, or from the start where there is none"
    )


def save_checkpoint(
    run: Path,
    state: CheckpointState,
    *,
    policy: Any,
    weights: Any,
    tensors: dict[str, Any],
    keep: int,
    best_of_steps: int | None = None,
) -> Path:
    """Write one checkpoint whole and delete all but the ``keep`` newest and, given ``best_of_steps``, the best.

    ``weights`` are the float32 weights by name where the policy holds others; None where it holds them itself.
    """
    folder = run / paths.CHECKPOINTS_DIRECTORY
    folder.mkdir(parents=True, exist_ok=True)
    for torn in folder.glob(".tmp-*"):
        shutil.rmtree(torn)
    temporary = folder / f".tmp-{step_name(state.step)}-{os.getpid()}"
    target = folder / step_name(state.step)
    if not target.exists():  # it exists where a run stopped right after it resumed from here: the same state
        with _whole_or_absent(temporary):
            if policy.is_adapted:
                policy.save_adapters(temporary / ADAPTER_DIRECTORY, weights)
            if state.is_finished or not policy.is_adapted:
                policy.save_pretrained(temporary / MODEL_DIRECTORY, weights)
            # Through a file of Python's: torch's own hides the system's reason for a write that failed.
            with (temporary / TENSORS_FILE).open("wb") as file:
                torch.save(tensors, file)
            write_whole(temporary / STATE_FILE, json.dumps(state.model_dump(mode="json"), ensure_ascii=False))
            for path in (*temporary.rglob("*"), temporary):
                _reach_disk(path)
            temporary.rename(target)
        _reach_disk(folder)
    if best_of_steps is not None:
        mark_best(run, num_steps=best_of_steps)
    best = best_checkpoint(run)
    for old in checkpoints(run)[:-keep]:
        if old != best:
            shutil.rmtree(old)
    return target


@contextmanager
def _whole_or_absent(temporary: Path) -> Iterator[None]:
    """Leave nothing of a folder that could not be filled; what libraries raise for a failed write is an OSError."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if (reason := _refused_write(error)) is not None:
            raise OSError(reason) from error
        raise


def _refused_write(error: BaseException) -> str | None:
    """The system's reason behind an error of a library that could not write, or None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        if "(os error " in str(cause):  # of tokenizers and safetensors
            return str(cause)
        cause = cause.__context__
    return None


def _reach_disk(path: Path) -> None:
    """Without this a power cut may keep a name and lose what it names; some file systems report a full disk here."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
