"""Room for checkpoints before a run starts, and a failed write told so that nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from agpo_bench.training.checkpoint import checkpoints, newest_checkpoint
from agpo_bench.training.session import Session


def require_room(session: Session, directory: Path) -> None:
    """ValueError in one sentence when the disk cannot hold the checkpoints that the run keeps and one in the making."""
    count = session.config.keep_checkpoints + 1 + (session.config.keep_best != "none")
    each = checkpoint_bytes(session)
    needed = count * each + (_model_bytes(session) if session.policy.is_adapted else 0)  # merged at the end
    held = sum(file.stat().st_size for folder in checkpoints(directory) for file in folder.rglob("*"))
    free = shutil.disk_usage(directory).free
    if needed > free + held:
        raise ValueError(
            f"{directory}: {_mib(free)} are free and {count} checkpoints of {_mib(each)} take "
            f"{_mib(max(0, needed - held))} more (those kept, and one while it is written); free some space, lower "
            "keep_checkpoints, or choose another --out"
        )


def checkpoint_bytes(session: Session) -> int:
    """Weight and two moments in float32 for each parameter that is trained, the critic's included."""
    return 12 * sum(map(_num_elements, session.policy.parameters()))


def _model_bytes(session: Session) -> int:
    return 4 * sum(map(_num_elements, session.policy.loaded.model.parameters()))


def _num_elements(parameter: Tensor) -> int:
    """An engine that shares the weights out leaves their number beside the empty parameter."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


@contextmanager
def writing(directory: Path, what: str) -> Iterator[None]:
    """Tell a write that fails (disk full, quota, read-only) in one sentence, with what is safe and how to go on."""
    try:
        yield
    except OSError as error:
        newest = newest_checkpoint(directory)
        safe = "no checkpoint was written yet" if newest is None else f"the last good checkpoint is {newest}"
        raise OSError(
            f"{directory}: could not write {what}: {error.strerror or error}; {safe}; make room or make the folder "
            "writable, and go on with --resume"
        ) from error


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
