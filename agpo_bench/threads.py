"""What the libraries read from the environment when they are imported: CPU threads, and progress bars of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads(num_threads: int | None, *, sharing: int = 1) -> None:
    """Let this process and its children compute on ``num_threads`` threads; None takes every core it may use.

    ``sharing`` processes of the run divide those cores among them.

    A user's own OMP_NUM_THREADS wins. Waiting threads sleep instead of spinning: two spinning threads that share one
    core with another process are tens of times slower than one.
    """
    count = num_threads or max(1, num_cores() // sharing)
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def silence_local_loading(model: str) -> None:
    """No bars for reading and writing a model that is on this machine already; downloads keep theirs."""
    if model in ("embedded", "smollm2") or Path(model).is_dir():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
