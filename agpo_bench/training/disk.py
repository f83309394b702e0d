"""Room for checkpoints before a run starts, and a failed write told so that nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agpo_bench.training.checkpoint import checkpoints, newest_checkpoint
from agpo_bench.training.session import Session


def require_room(session: Session, directory: Path) -> None:
    """ValueError in one sentence when the disk cannot hold the checkpoints that the run keeps and one in the making."""
    count = session.config.keep_checkpoints + 1 + (session.config.keep_best != "none")
    needed = count * checkpoint_bytes(session)
    held = sum(file.stat().st_size for folder in checkpoints(directory) for file in folder.rglob("*"))
    free = shutil.disk_usage(directory).free
    if needed > free + held:
        raise ValueError(
            f"{directory}: {_mib(free)} are free and {count} checkpoints of {_mib(needed // count)} take "
            f"{_mib(max(0, needed - held))} more (those kept, and one while it is written); free some space, lower "
            "keep_checkpoints, or choose another --out"
        )


def checkpoint_bytes(session: Session) -> int:
    """float32 weights of the model and the critic, and two moments for each weight that is trained."""
    # An engine that shares the weights out leaves their number beside the empty parameter.
    trained = {id(p): int(getattr(p, "ds_numel", p.numel())) for p in session.policy.parameters()}
    model = session.policy.loaded.model.parameters()
    every = {id(p): int(getattr(p, "ds_numel", p.numel())) for p in model} | trained
    return 4 * sum(every.values()) + 8 * sum(trained.values())


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
