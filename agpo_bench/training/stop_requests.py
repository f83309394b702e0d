"""Ctrl-C and a scheduler's SIGTERM as a request that the training loop sees after its step."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SAME_REQUEST_SECONDS = 2.0
"""Signals that come so soon after the first are the same request: a scheduler and a terminal signal every process of a
job, and the launcher among them passes its signal on."""


@contextmanager
def stop_requests() -> Iterator[Callable[[], int]]:
    """A function that tells which signal asked to stop; 0 for none. A later signal acts at once, as without this."""
    first: list[tuple[int, float]] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not first:
            first.append((number, now))
        elif now - first[0][1] > SAME_REQUEST_SECONDS:
            signal.signal(number, previous[number])
            signal.raise_signal(number)

    try:
        for stop in (signal.SIGINT, signal.SIGTERM):
            previous[stop] = signal.signal(stop, note)
    except ValueError:  # not the main thread: signals are someone else's
        previous.clear()
    try:
        yield lambda: first[0][0] if first else 0
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def exit_status(stopped_by: int) -> int:
    """Status of a command that a signal stopped after it had saved a checkpoint.

    0 for SIGTERM: a scheduler that takes the machine back must not count the job as failed. As usual for Ctrl-C.
    """
    return 0 if stopped_by == signal.SIGTERM else 130
