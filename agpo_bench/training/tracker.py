"""Copies of ``metrics.jsonl`` for people who watch runs elsewhere: TensorBoard or Weights & Biases.

The step axis is the number of generated tokens, by which methods compare. Nothing reads these files back, and a run is
the same bits with and without them.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from agpo_bench.config import RunConfig
from agpo_bench.files import write_whole

TENSORBOARD_DIRECTORY = "tensorboard"
WANDB_FILE = "wandb.json"
WANDB_PROJECT = "agpo-bench"
FINISH_SECONDS = 600.0
"""For the last uploads of a run; what is not sent by then lies in its folder, for ``wandb sync``."""


class Tracker(Protocol):
    """Takes the numbers of each step."""

    def log(self, values: Mapping[str, Any], *, tokens_used: int) -> None:
        """The metrics of a step as ``metrics.jsonl`` has them; nulls are left out."""
        ...

    def close(self) -> None:
        """Write out what waits."""
        ...


def require_tracker(config: RunConfig) -> None:
    """ValueError in one sentence where the tracker's package is not installed."""
    if config.tracker != "none" and find_spec(config.tracker) is None:
        raise ValueError(f'tracker={config.tracker} needs a package: pip install "agpo-bench[{config.tracker}]"')


def make_tracker(
    config: RunConfig, *, directory: Path, name: str, recipe: Mapping[str, Any], tokens_used: int
) -> Tracker | None:
    """The tracker that the configuration names, or None; ``tokens_used`` is where a resumed run goes on."""
    if config.tracker == "tensorboard":
        return TensorBoardTracker(directory / TENSORBOARD_DIRECTORY, tokens_used=tokens_used)
    if config.tracker == "wandb":
        told = {**config.model_dump(mode="json"), "recipe": dict(recipe)}
        return WandbTracker(directory, name=name, config=told)
    return None


class TensorBoardTracker:
    """Event files under ``<run>/tensorboard``.

    A resumed run adds a file that takes back what a killed one wrote after its checkpoint: those steps come again.
    """

    def __init__(self, folder: Path, *, tokens_used: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder), purge_step=tokens_used + 1)

    def log(self, values: Mapping[str, Any], *, tokens_used: int) -> None:
        """One scalar a metric."""
        for name, value in _numbers(values).items():
            self._writer.add_scalar(name, value, tokens_used)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbTracker:
    """A run of the project ``agpo-bench``; WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE=offline act as usual.

    The run's id lies in ``wandb.json``, so a resumed run continues it; offline each start leaves a folder of that id,
    which ``wandb sync`` sends in order. What a killed one sent after its checkpoint comes again with the same numbers,
    and the service keeps the first. Once the library's own process is lost, the run goes on without the copy.
    """

    def __init__(self, directory: Path, *, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        file = directory / WANDB_FILE
        if not file.exists():
            write_whole(file, json.dumps({"id": uuid.uuid4().hex}) + "\n")
        run_id = json.loads(file.read_text(encoding="utf-8"))["id"]
        project = os.environ.get("WANDB_PROJECT", WANDB_PROJECT)
        self._is_lost = False
        try:
            self._run: Any = wandb.init(
                project=project,
                id=run_id,
                name=name,
                config=dict(config),
                dir=str(directory),
                resume="allow",
                settings=wandb.Settings(
                    # Else every line that is printed goes through the library, and fails with it.
                    console="off",
                    # Else the end of a run waits for a network that is gone.
                    finish_timeout=FINISH_SECONDS,
                    finish_timeout_raises=True,
                ),
            )
        except wandb.Error as error:
            raise ValueError(
                f"tracker=wandb: {error}; use wandb login or WANDB_MODE=offline, and start again with --resume"
            ) from error
        self._run.define_metric("*", step_metric="tokens/used")

    def log(self, values: Mapping[str, Any], *, tokens_used: int) -> None:
        """All metrics at once."""
        self._unless_lost(lambda: self._run.log(_numbers(values), step=tokens_used))

    def close(self) -> None:
        """Wait until everything is sent or, offline, written."""
        self._unless_lost(self._run.finish)

    def _unless_lost(self, tell: Callable[[], object]) -> None:
        """Say once that the copy ends here: what is worth keeping is in ``metrics.jsonl``."""
        if self._is_lost:
            return
        try:
            tell()
        except Exception as error:  # The library has many kinds of its own for a lost process; none may end a run.
            self._is_lost = True
            print(f"warning: Weights & Biases gets no more metrics: {error}; metrics.jsonl has all", file=sys.stderr)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
