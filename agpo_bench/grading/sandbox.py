"""Runs untrusted Python programs, many at a time, each in a fresh locked process with its own limits.

The harness keeps a few fork servers (``sandbox_server.py``: small clean interpreters, one program at a time each). It
hands a server three memory files: the source, the input, an empty one for the output. The program writes its output
there under a file-size limit, so endless printing neither fills a pipe nor the harness; the harness reads it when the
process is gone. Nothing of the program's is ever run, unpickled or parsed here but the bytes of its output.

What is decided: CPU time (of the whole program: it is one process) decides a timeout, whatever the load; the wall
limit is a generous safety net for programs that sleep, with a status of its own. A failure to start, or a process that
somebody else killed, is ``infrastructure`` and says nothing about the program.
"""

from __future__ import annotations

import atexit
import json
import os
import platform
import queue
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from agpo_bench.grading.sandbox_kernel import MACHINES
from agpo_bench.grading.sandbox_server import MEMORY_ERROR_EXIT

Status = Literal[
    "ok",
    "syntax_error",
    "runtime_error",
    "timeout",
    "timeout_wall",
    "memory",
    "output_limit",
    "skipped",
    "infrastructure",
]
"""How a program ended. ``ok``: exit code 0 within all limits. ``skipped``: not run, an earlier test ran out of time."""

Judged = TypeVar("Judged")
_ROOT = Path(__file__).resolve().parents[2]
"""Where the package lies: the server imports it from there before it locks itself up."""
IsolationKind = Literal["auto", "namespaces", "landlock"]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run of a program may use."""

    cpu_seconds: float = 10.0
    wall_seconds: float | None = None
    """None: four times the CPU limit and ten seconds."""
    memory_bytes: int = 256 << 20
    """Address space beyond the bare interpreter's."""
    output_bytes: int = 16 << 20
    """Also the largest file it may write. Never made from the expected output: a program can read its limits."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run: a program and its input."""

    source: bytes
    stdin: bytes
    limits: Limits = Limits()
    program: int | None = None
    """Jobs of the same source may carry the same number: ``judge_many`` then stops early where it may."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """How one run ended."""

    status: Status
    stdout: bytes = b""
    """What it printed, however it ended, up to the output limit."""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    detail: str = ""
    """For ``infrastructure``: what failed."""


class SandboxError(RuntimeError):
    """The machine offers no way to lock a program up; programs are then not run at all."""


class _Server:
    """One fork server and the socket to it. Used by one thread at a time."""

    def __init__(self, kind: str, wrapper: Sequence[str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = (
            f"import sys; sys.path.append({str(_ROOT)!r}); from agpo_bench.grading import sandbox_server; "
            f"sys.path.pop(); sandbox_server.main({kind!r}, {theirs.fileno()})"
        )
        command = [*wrapper, sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", start]
        # One malloc arena: each further one would reserve 64 MiB of the program's address space.
        environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "1"}
        self.channel = ours
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        finally:
            theirs.close()
        self.channel.settimeout(60)
        try:
            hello = self._receive()
        except OSError as error:
            self.close()
            raise SandboxError(f"the sandbox server did not start: {error}") from error
        if "error" in hello:
            self.close()
            raise SandboxError(str(hello["error"]))
        self.isolation = str(hello["isolation"])

    def _receive(self) -> dict[str, Any]:
        message = self.channel.recv(4096)
        if not message:
            raise ConnectionResetError("the sandbox server is gone")
        reply: dict[str, Any] = json.loads(message)
        return reply

    def run(self, job: Job) -> Result:
        """Run one program. OSError when the server is gone."""
        limits = job.limits
        wall = 4 * limits.cpu_seconds + 10 if limits.wall_seconds is None else limits.wall_seconds
        request = {
            "cpu_seconds": limits.cpu_seconds,
            "wall_seconds": wall,
            "memory_bytes": limits.memory_bytes,
            "output_bytes": limits.output_bytes,
        }
        files = [os.memfd_create(name) for name in ("source", "stdin", "stdout")]
        try:
            for descriptor, content in zip(files, (job.source, job.stdin), strict=False):
                _write_all(descriptor, content)
            self.channel.settimeout(wall + 60)
            socket.send_fds(self.channel, [json.dumps(request).encode()], files)
            reply = self._receive()
            if "error" in reply:
                return Result(status="infrastructure", detail=str(reply["error"]))
            size = os.fstat(files[2]).st_size
            stdout = os.pread(files[2], min(size, limits.output_bytes), 0)
        finally:
            for descriptor in files:
                os.close(descriptor)
        return Result(
            status=_status(reply, is_output_full=size >= limits.output_bytes),
            stdout=stdout,
            cpu_seconds=reply["cpu_seconds"],
            wall_seconds=reply["wall_seconds"],
            peak_bytes=reply["peak_bytes"],
            detail="killed from outside" if reply["exit"] == -9 and not reply["killed"] else "",
        )

    def close(self) -> None:
        """Kill the server and all it started."""
        self.channel.close()
        self.process.kill()
        self.process.wait()


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)


def _status(reply: dict[str, Any], *, is_output_full: bool) -> Status:
    if reply["killed"] == "timeout":
        return "timeout"
    if reply["killed"]:
        return "timeout_wall"
    if not reply["is_compiled"]:
        return "syntax_error"
    if is_output_full:
        return "output_limit"
    if reply["exit"] == 0:
        return "ok"
    if reply["exit"] == MEMORY_ERROR_EXIT:
        return "memory"
    # A locked program cannot send SIGKILL, not even to itself: this was the kernel's or somebody else's.
    return "infrastructure" if reply["exit"] == -9 else "runtime_error"


class Sandbox:
    """A bounded pool of fork servers; safe to use from any number of threads.

    ``isolation`` asks for one kind; ``auto`` takes namespaces where the kernel allows them and Landlock where not, and
    refuses to run anything where neither works. ``wrapper`` is a command put before each server's own, to add an outer
    wall such as bubblewrap. Servers start when first needed and die with the harness.
    """

    def __init__(
        self, *, num_workers: int | None = None, isolation: IsolationKind = "auto", wrapper: Sequence[str] = ()
    ) -> None:
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.num_workers = num_workers or num_cores
        self._kinds: tuple[str, ...] = ("namespaces", "landlock") if isolation == "auto" else (isolation,)
        self._wrapper = tuple(wrapper)
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[_Server | None] = queue.LifoQueue()
        self._owner = -1
        self._isolation: str | None = None

    def _adopt(self) -> None:
        """Start afresh in a forked harness: a server's socket cannot be shared by two processes."""
        with self._lock:
            if self._owner != os.getpid():
                self._owner = os.getpid()
                self._idle = queue.LifoQueue()
                for _ in range(self.num_workers):
                    self._idle.put(None)

    def _start(self) -> _Server:
        if sys.platform != "linux" or platform.machine() not in MACHINES:
            raise SandboxError(
                f"programs cannot be isolated on {sys.platform} {platform.machine()}; "
                f"use Linux on {' or '.join(MACHINES)}"
            )
        problems: list[str] = []
        for kind in self._kinds:
            try:
                server = _Server(kind, self._wrapper)
            except (SandboxError, OSError) as error:
                problems.append(f"{kind}: {error}")
            else:
                self._kinds = (kind,)  # Every later server is locked up the same way.
                self._isolation = server.isolation + (f" in {Path(self._wrapper[0]).name}" if self._wrapper else "")
                return server
        raise SandboxError(
            f"programs cannot be isolated on this machine ({'; '.join(problems)}); allow user namespaces or Landlock"
        )

    @property
    def isolation(self) -> str:
        """How programs are locked up, in words; starts a server to find out."""
        if self._isolation is None:
            self.run_many([Job(source=b"", stdin=b"")])
        return self._isolation or "none: programs are not run"

    def run(self, job: Job) -> Result:
        """Run one program and wait for it."""
        self._adopt()
        idle = self._idle
        server = idle.get()
        try:
            for attempt in range(2):
                try:
                    server = server or self._start()
                    result = server.run(job)
                except (SandboxError, OSError) as error:
                    if server is not None:
                        server.close()
                        server = None
                    result = Result(status="infrastructure", detail=str(error))
                if result.status != "infrastructure" or attempt:
                    break
            return result
        finally:
            idle.put(server)

    def run_many(self, jobs: Sequence[Job]) -> list[Result]:
        """Run many, in parallel; results in the order of the jobs."""
        return self.judge_many(jobs, judge=lambda _, result: result)

    def judge_many(
        self, jobs: Sequence[Job], *, judge: Callable[[int, Result], Judged], max_timeouts: int | None = None
    ) -> list[Judged]:
        """Run many, in parallel, and keep of each only what ``judge(index, result)`` makes of it.

        So no more outputs are held at a time than programs run. With ``max_timeouts``, jobs of a program after its
        first so many timeouts (in the order given) are ``skipped``, even where they had already run, so that the
        outcome does not depend on the schedule. What cannot be compiled once is not tried again.
        """
        statuses: list[Status] = ["skipped"] * len(jobs)
        timeouts: dict[int | None, list[int]] = {}
        uncompilable: set[int | None] = set()

        def run_one(index: int) -> Judged:
            job = jobs[index]
            earlier = [other for other in timeouts.get(job.program, []) if other < index]
            is_skipped = max_timeouts is not None and job.program is not None and len(earlier) >= max_timeouts
            if is_skipped:
                result = Result(status="skipped")
            elif job.program in uncompilable:
                result = Result(status="syntax_error")
            else:
                result = self.run(job)
            if result.status == "syntax_error" and job.program is not None:
                uncompilable.add(job.program)
            statuses[index] = result.status
            if result.status in ("timeout", "timeout_wall"):
                timeouts.setdefault(job.program, []).append(index)
            return judge(index, result)

        if len(jobs) <= 1:
            return [run_one(index) for index in range(len(jobs))]
        with ThreadPoolExecutor(min(self.num_workers, len(jobs))) as executor:
            judged = list(executor.map(run_one, range(len(jobs))))
        if max_timeouts is not None:
            counts: dict[int | None, int] = {}
            for index, job in enumerate(jobs):
                if job.program is not None and counts.get(job.program, 0) >= max_timeouts:
                    judged[index] = judge(index, Result(status="skipped"))
                elif statuses[index] in ("timeout", "timeout_wall"):
                    counts[job.program] = counts.get(job.program, 0) + 1
        return judged

    def close(self) -> None:
        """Kill the idle servers. The sandbox can be used again."""
        if self._owner != os.getpid():
            return
        servers = [self._idle.get() for _ in range(self.num_workers)]
        for server in servers:
            if server is not None:
                server.close()
            self._idle.put(None)


_shared: Sandbox | None = None
_shared_lock = threading.Lock()


WRAPPER_VARIABLE = "AGPO_BENCH_SANDBOX_WRAPPER"


def shared_sandbox() -> Sandbox:
    """The sandbox of this process, made on first use.

    ``AGPO_BENCH_SANDBOX_WRAPPER`` may name a command that is put before each server, such as bubblewrap's
    ``bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc``: a second wall around the first.
    """
    global _shared  # noqa: PLW0603
    with _shared_lock:
        if _shared is None:
            _shared = Sandbox(wrapper=shlex.split(os.environ.get(WRAPPER_VARIABLE, "")))
            atexit.register(_shared.close)
        return _shared
