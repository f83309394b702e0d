"""The processes of one run: who they are, and the few ways in which they exchange what they know.

``torchrun`` and the ``deepspeed`` launcher start the same command once a device and tell each process its place in the
environment. Every process then holds the whole rollout batch, gathered in a fixed order, so all that is decided from
it (advantages, clip radius, temperature, ledger) is the same number everywhere; only sampling, grading, forward and
backward passes are shared out. A run of one process is ``ALONE`` and never imports ``torch.distributed``.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

Item = TypeVar("Item")

TIMEOUT = timedelta(minutes=30)
"""How long a process waits for the others: the difference between the slowest and the fastest share of a step."""
_LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out", "timed out", "NCCL")
"""How the communication libraries word the end of another process."""
_TELLING = "agpo_bench/told"
LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")
"""What the ``deepspeed`` launcher puts in front of the words of the user."""


class LostPeersError(ConnectionError):
    """Another process of the run ended, or answered no more."""


@dataclass(frozen=True)
class World:
    """One process among the ``size`` of a run. Every method that exchanges something is called by all of them."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and talks to the user."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """The contiguous part that this process takes of ``count`` things in order; the parts differ by one at most."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def gather(self, value: Item) -> list[Item]:
        """Everyone's value, by rank, on every process."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        with peers_needed(self):
            dist.all_gather_object(found, value)
        return found

    def join(self, parts: Sequence[Item]) -> list[Item]:
        """The parts of all processes one after another: what ``share`` took apart."""
        return [item for part in self.gather(list(parts)) for item in part]

    def from_main(self, value: Item) -> Item:
        """The value that the main process holds."""
        return self.gather(value if self.is_main else None)[0]  # type: ignore[return-value]

    def wait(self) -> None:
        """Return once every process has come here."""
        self.gather(None)

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by the sum over all processes, the same bits on each."""
        if self.size > 1:
            import torch.distributed as dist

            with peers_needed(self):
                dist.all_reduce(tensor)


ALONE = World()


@contextmanager
def peers_needed(world: World) -> Iterator[None]:
    """Tell the end of another process in one sentence; any other error passes."""
    try:
        yield
    except RuntimeError as error:
        if world.size > 1 and any(words in str(error) for words in _LOST):
            raise LostPeersError(
                f"process {world.rank} of {world.size} lost the others: one of them ended or answered no more within "
                f"{TIMEOUT}; the run goes on from its last checkpoint with --resume"
            ) from error
        raise


def launched_size(environment: Mapping[str, str] = os.environ) -> int:
    """Processes that a launcher started; 1 without a launcher."""
    try:
        return int(environment.get("WORLD_SIZE", "1")) if "RANK" in environment else 1
    except ValueError:
        raise ValueError(f"WORLD_SIZE={environment['WORLD_SIZE']!r} is not a number; start with torchrun") from None


def launched_rank(environment: Mapping[str, str] = os.environ) -> int:
    """Number of this process as the launcher told it; 0 without a launcher."""
    return int(environment["RANK"]) if launched_size(environment) > 1 else 0


def check_local_rank(told: int, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a launcher's ``--local_rank`` that its environment, which counts, does not bear out."""
    known = environment.get("LOCAL_RANK")
    if known != str(told):
        raise ValueError(
            f"--local_rank {told} is for launchers, which also set LOCAL_RANK; it is "
            f"{'not set' if known is None else known}: start with torchrun or deepspeed, or leave the option out"
        )


def processes_per_machine(environment: Mapping[str, str] = os.environ) -> int:
    """Processes of the run that share this machine's cores."""
    return int(environment.get("LOCAL_WORLD_SIZE") or environment.get("LOCAL_SIZE") or "1")


@contextmanager
def launched_world(*, device: str = "auto") -> Iterator[World]:
    """The world that the launcher describes, until the block ends; ``ALONE`` without a launcher.

    Objects and CPU tensors travel over gloo, GPU tensors over NCCL. ``device`` is the config's: each process takes the
    GPU of its local rank. Raises ValueError when the launcher's environment is incomplete.
    """
    size = launched_size()
    if size == 1:
        yield ALONE
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ValueError(f"WORLD_SIZE is {size} and {', '.join(missing)} is not set; start with torchrun or deepspeed")
    import torch
    import torch.distributed as dist

    backend = "gloo"
    if device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    world = World(rank=launched_rank(), size=size)
    with peers_needed(world):
        dist.init_process_group(backend, timeout=TIMEOUT)
    # After a failure it stays: the others may be gone, and who tells of it is settled through its store.
    yield world
    dist.destroy_process_group()


def end_well() -> NoReturn:
    """End a process of a launcher with status 0, without tearing down the libraries it has loaded.

    Threads of torch.distributed are at times still at work when theirs is taken down, and abort ("terminate called
    without an active exception"); the launcher would then report a run as failed that has ended and is saved.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def is_first_to_tell() -> bool:
    """Whether this process is the one that tells the user of a failure; the others fail because of it.

    Asked of the launcher's store, which outlives the process that failed. Before the processes have met, all of them
    fail alike and the first tells.
    """
    if launched_size() == 1:
        return True
    import torch.distributed as dist

    if not dist.is_initialized():
        return launched_rank() == 0
    try:
        store: Any = dist.distributed_c10d._get_default_store()
        return int(store.add(_TELLING, 1)) == 1
    except RuntimeError:
        return True
