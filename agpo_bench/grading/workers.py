"""A pool of worker processes for symbolic work: killed and replaced on timeout, excess of memory or death.

Plain ``subprocess`` children with a clean interpreter: no fork of a process that holds torch or threads, no re-import
of the user's main module. One line of JSON each way. Started at the first request; safe to call from any thread and
after a fork.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

_DEFAULT_WALL_SECONDS = 30.0
"""Six times the CPU limit: on a crowded machine a worker waits for its turn. The CPU limit decides, this is the net."""
_DEFAULT_CPU_SECONDS = 5
_MEMORY_BYTES = 512 << 20
_START_SECONDS = 60.0


class Reply(NamedTuple):
    """What became of a request. ``reason`` is None when the worker answered; else why it did not."""

    value: bool | None
    reason: str | None = None
    """``timeout``, ``memory``, ``too_deep``, ``undecided`` (no proof either way) or ``worker_died``."""

    @property
    def is_error(self) -> bool:
        """Whether the harness failed, not the answer."""
        return self.reason == "worker_died"


class _Worker:
    """One child process and its two pipes."""

    def __init__(self, memory_bytes: int, cpu_seconds: int) -> None:
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            f"from agpo_bench.grading.latex.worker import serve; serve({memory_bytes}, {cpu_seconds})"
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self.owner = os.getpid()
        self.is_new = True

    def ask(self, request: Mapping[str, Any], wall_seconds: float) -> Reply:
        """One request, one reply; after any reply with ``timeout``, ``memory`` or ``worker_died`` the process is
        gone.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        seconds = wall_seconds + (_START_SECONDS if self.is_new else 0.0)
        try:
            stdin.write(json.dumps(request).encode("ascii") + b"\n")
            stdin.flush()
        except (BrokenPipeError, OSError):
            return self._obituary()
        deadline = time.monotonic() + seconds
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    self.kill()
                    return Reply(None, "timeout")
                chunk = os.read(stdout.fileno(), 65536)
                if not chunk:
                    return self._obituary()
                received += chunk
        self.is_new = False
        reply = json.loads(received)
        if reply.get("reason") == "memory":
            self.kill()
        return Reply(reply.get("value"), reply.get("reason"))

    def _obituary(self) -> Reply:
        """Why the process ended by itself."""
        try:
            code = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        return Reply(None, "timeout" if code == -signal.SIGXCPU else "worker_died")

    def is_alive(self) -> bool:
        """Whether it can take a request."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End the process and close the pipes; harmless when repeated."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.abandon()

    def abandon(self) -> None:
        """Close our ends of the pipes and leave the process alone (it belongs to the parent of a fork)."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue


class WorkerPool:
    """Up to ``num_workers`` processes, started as they are needed. Every call returns a Reply; none raises or hangs."""

    def __init__(
        self,
        *,
        num_workers: int = 2,
        cpu_seconds: int = _DEFAULT_CPU_SECONDS,
        wall_seconds: float = _DEFAULT_WALL_SECONDS,
        memory_bytes: int = _MEMORY_BYTES,
    ) -> None:
        self.cpu_seconds = cpu_seconds
        self.wall_seconds = wall_seconds
        self.memory_bytes = memory_bytes
        self.num_workers = num_workers
        self.counts: dict[str, int] = {}
        """How many requests ended with each reason; ``ok`` for those that were answered."""
        self._reset()
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forget)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.num_workers):
            self._idle.put(None)

    def _forget(self) -> None:
        """In a forked child: the workers are the parent's. Let go of its pipes, or its workers would not see it end."""
        for worker in self._workers:
            worker.abandon()
            worker.process.returncode = 0  # not our child: never wait for it
        self._reset()

    def ask(self, task: str, **fields: Any) -> Reply:
        """Send one request to a free worker and wait for its reply.

        A worker that dies without having been given up by a limit is replaced and the request repeated once: only a
        second death is reported as ``worker_died``.
        """
        request = {"task": task, **fields}
        for attempt in range(2):
            reply = self._ask_once(request)
            if not reply.is_error or attempt:
                break
        with self._lock:
            key = reply.reason or "ok"
            self.counts[key] = self.counts.get(key, 0) + 1
        return reply

    def _ask_once(self, request: Mapping[str, Any]) -> Reply:
        worker = self._idle.get()
        try:
            if worker is None or not worker.is_alive():
                if worker is not None:
                    self._bury(worker)
                worker = None
                worker = self._start()
            reply = worker.ask(request, self.wall_seconds)
            if not worker.is_alive():
                self._bury(worker)
                worker = None
            return reply
        except OSError:
            return Reply(None, "worker_died")
        finally:
            self._idle.put(worker)

    def _start(self) -> _Worker:
        worker = _Worker(self.memory_bytes, self.cpu_seconds)
        with self._lock:
            self._workers.append(worker)
        return worker

    def _bury(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            if worker in self._workers:
                self._workers.remove(worker)

    def close(self) -> None:
        """End all workers. The pool starts new ones if it is used again."""
        with self._lock:
            workers, self._workers = self._workers, []
        for worker in workers:
            if worker.owner == os.getpid():
                worker.kill()


_shared: WorkerPool | None = None
_shared_lock = threading.Lock()


def shared_pool() -> WorkerPool:
    """The pool of this process, made at the first call."""
    global _shared  # noqa: PLW0603 - one pool a process, or every grader would keep its own sympy in memory
    with _shared_lock:
        if _shared is None:
            _shared = WorkerPool()
        return _shared


def _renew_lock() -> None:
    global _shared_lock  # noqa: PLW0603 - another thread may have held it when the process forked
    _shared_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)
