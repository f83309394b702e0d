"""CPU threads of a process. Import before torch: OpenMP reads the environment once."""

from __future__ import annotations

import os
import sys


def limit_threads(num_threads: int | None) -> None:
    """Let this process and its children compute on ``num_threads`` threads; None takes every core it may use.

    A user's own OMP_NUM_THREADS wins. Waiting threads sleep instead of spinning: two spinning threads that share one
    core with another process are tens of times slower than one.
    """
    count = num_threads or len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(count))
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
