"""The fork server of the program sandbox: a small clean interpreter in a process of its own.

It never sees a program, an input or an output. The harness passes them as open memory files over a socket; the server
forks, and the fork locks itself up and only then reads and runs the program. So no program finds another's text in
inherited memory, and expected outputs exist in the harness alone.

Two ways to lock up, chosen by the first argument:

``namespaces``  the server has its own mount, network, pid, ipc and uts namespaces (and a user namespace unless it is
                root) and a root that holds the standard library and system libraries read-only; each program gets a
                pid namespace and an empty memory file system of its own, and another user id when the server is root.
``landlock``    where the kernel refuses namespaces: Landlock leaves reading of the libraries and nothing else.

In both, every capability is dropped and a seccomp filter refuses new processes, programs, sockets, tracing, mounts,
SysV memory and the rest of what a contest program has no use for. One process a program, so limits on a process are
limits on the program, and when it dies nothing can be left.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import math
import os
import random
import resource
import select
import signal
import socket
import sys
import threading
import time
import types
from typing import Any, NoReturn

from agpo_bench.grading import sandbox_kernel as kernel

# Contest programs import these; imported before the fork, they cost a program nothing.
import bisect, collections, copy, decimal, fractions, functools, heapq, itertools, operator, re, string  # isort: skip  # noqa: E401, F401

MEMORY_ERROR_EXIT = 252
FLUSH_ERROR_EXIT = 120  # what Python itself uses
PYTHON_HEADROOM_BYTES = 64 << 20
"""Address space of the bare interpreter, on top of the program's own limit."""
SCRATCH_BYTES = 16 << 20
STACK_BYTES = 128 << 20
MAX_THREADS = 16

_SOURCE_FILE, _READY_FILE, _RULESET_FILE = 60, 61, 62
"""Descriptors of a fork while it locks up; a program finds none of them."""
_LOCKED, _NO_SYNTAX = b"locked", b", but cannot be compiled"


class _Server:
    """Forks one locked process a request, watches its clocks, and reports how it ended."""

    def __init__(self, channel: socket.socket, kind: str) -> None:
        self.channel = channel
        self.is_landlock = kind == "landlock"
        paths, hidden = kernel.library_paths()
        self.own_pid_namespace = -1
        self.user_id: int | None = None
        self.ruleset = -1
        if self.is_landlock:
            readable = [part for path in paths for part in kernel.outside(path, hidden)]
            self.ruleset = kernel.landlock_ruleset([*readable, "/dev/null", "/dev/zero", "/dev/urandom"])
            self.isolation = "landlock+seccomp"
        else:
            outside_pid = os.getpid()
            is_user_namespace = kernel.enter_namespaces()
            mapped = kernel.MappedIds()
            self.own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            kernel.build_root(paths, hidden)
            # A user nobody else has: limits on processes count by user, and parallel servers must not share one.
            wanted = (0x40000000 + outside_pid, 60_000 + outside_pid % 5_000)
            self.user_id = next((user_id for user_id in wanted if user_id in mapped), None)
            self.isolation = "user-namespaces+seccomp" if is_user_namespace else "namespaces+seccomp"
        self.filter = kernel.filter_program(self.is_landlock)
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def serve(self) -> types.CodeType:
        """Answer requests until the harness closes the socket; returns only in the process of a program."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        self.channel.send(json.dumps({"isolation": self.isolation}).encode())
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.channel, 4096, 3)
            if not message:
                os._exit(0)
            request = json.loads(message)
            ready_read, ready_write = os.pipe()
            started = time.monotonic()
            try:
                pid = self._fork()
            except OSError as error:
                reply: dict[str, Any] = {"error": f"cannot fork: {error}"}
            else:
                if pid == 0:
                    return self._become_program(request, descriptors, ready_write)
                os.close(ready_write)
                ready_write = -1
                reply = self._watch(pid, started, request)
                said = os.read(ready_read, 500)
                reply["is_compiled"] = said != _LOCKED + _NO_SYNTAX
                if not said.startswith(_LOCKED):
                    reply["error"] = said.decode(errors="replace") or "the process ended before the program began"
            for descriptor in (ready_read, ready_write, *descriptors):
                if descriptor >= 0:
                    os.close(descriptor)
            self.channel.send(json.dumps(reply).encode())

    def _fork(self) -> int:
        if self.is_landlock:
            return os.fork()
        kernel.check(kernel.libc.unshare(kernel.NEW_PID), "unshare")
        try:
            pid = os.fork()
        except OSError:
            kernel.libc.setns(self.own_pid_namespace, kernel.NEW_PID)
            raise
        if pid:
            # The kernel lets a process choose its children's pid namespace anew only from its own.
            kernel.check(kernel.libc.setns(self.own_pid_namespace, kernel.NEW_PID), "setns")
        return pid

    def _watch(self, pid: int, started: float, request: dict[str, Any]) -> dict[str, Any]:
        """Wait for the end; kill at the CPU limit, or at the wall limit where the program sleeps."""
        descriptor = os.pidfd_open(pid)
        clock = (~pid << 3) | 2  # the kernel's number for that process's CPU clock (CPUCLOCK_SCHED)
        killed: str | None = None
        try:
            while True:
                try:
                    cpu_left = request["cpu_seconds"] - time.clock_gettime(clock)
                except OSError:
                    cpu_left = 1.0  # It has just ended; its usage is read below.
                wall_left = started + request["wall_seconds"] - time.monotonic()
                if cpu_left <= 0 or wall_left <= 0:
                    killed = "timeout" if cpu_left <= 0 else "timeout_wall"
                    os.kill(pid, signal.SIGKILL)
                wait = min(max(cpu_left, 0.001), max(wall_left, 0.001))
                if killed:
                    break
                ended = select.select([descriptor, self.channel.fileno()], [], [], wait)[0]
                if self.channel.fileno() in ended:  # The harness says nothing while it waits: it is gone.
                    os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                if ended:
                    break
            _, status, usage = os.wait4(pid, 0)
        finally:
            os.close(descriptor)
        cpu = usage.ru_utime + usage.ru_stime
        if cpu > request["cpu_seconds"]:
            killed = "timeout"
        return {
            "exit": os.waitstatus_to_exitcode(status),
            "killed": killed,
            "cpu_seconds": cpu,
            "wall_seconds": time.monotonic() - started,
            "peak_bytes": usage.ru_maxrss * 1024,
        }

    def _become_program(self, request: dict[str, Any], descriptors: list[int], ready: int) -> types.CodeType:
        ready = os.dup2(ready, _READY_FILE, inheritable=False)
        try:
            self._lock_up(request, descriptors)
            source = bytearray()
            while piece := os.read(_SOURCE_FILE, 1 << 20):
                source += piece
            os.close(_SOURCE_FILE)
            os.write(ready, _LOCKED)
        except BaseException as error:
            os.write(ready, f"{type(error).__name__}: {error}"[:400].encode())
            os._exit(1)
        try:
            code = compile(bytes(source), "solution.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            os.write(ready, _NO_SYNTAX)
            os._exit(1)
        os.close(ready)  # A program cannot write here, so it cannot pretend either.
        return code

    def _lock_up(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Give up everything but the program's files."""
        kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if self.is_landlock:
            os.chdir("/")
        else:
            owner = self.user_id or 0
            kernel.check(kernel.libc.unshare(kernel.NEW_NS), "unshare")
            options = f"size={SCRATCH_BYTES},nr_inodes=1024,mode=0700,uid={owner},gid={owner}"
            kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, options)
            os.chdir("/tmp")
        source_file, stdin, stdout = descriptors
        for standard, descriptor in enumerate((stdin, stdout, self.null)):
            os.dup2(descriptor, standard)
        os.dup2(source_file, _SOURCE_FILE, inheritable=False)
        ruleset = os.dup2(self.ruleset, _RULESET_FILE, inheritable=False) if self.ruleset >= 0 else -1
        os.closerange(3, _SOURCE_FILE)
        os.closerange(_RULESET_FILE + 1, 4096)
        if self.user_id is not None:
            os.setgroups([])
            os.setresgid(self.user_id, self.user_id, self.user_id)
            os.setresuid(self.user_id, self.user_id, self.user_id)
            kernel.libc.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user clears it
        cpu = math.ceil(request["cpu_seconds"]) + 1
        bounds = {
            resource.RLIMIT_AS: request["memory_bytes"] + PYTHON_HEADROOM_BYTES,
            resource.RLIMIT_CPU: cpu,
            resource.RLIMIT_FSIZE: request["output_bytes"],
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: 64,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_STACK: STACK_BYTES,
        }
        if not self.is_landlock:
            bounds[resource.RLIMIT_NPROC] = MAX_THREADS + 2
        for limit, value in bounds.items():
            hard = resource.getrlimit(limit)[1]
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(limit, (bound, bound))
        kernel.drop_capabilities()
        if ruleset >= 0:
            kernel.restrict_to(ruleset)
            os.close(ruleset)
        kernel.install_filter(self.filter)


def _run(code: types.CodeType) -> NoReturn:
    """Run a program as the ``__main__`` of what looks like a fresh interpreter, and end as Python would."""
    gc.enable()
    random.seed(0)  # A program that draws numbers gets the same verdict each time.
    os.environ.clear()
    os.environ.update({"HOME": "/tmp", "LANG": "C.UTF-8", "PATH": "/nonexistent", "TMPDIR": "/tmp"})
    sys.argv = ["solution.py"]
    sys.stdin = sys.__stdin__ = _text_file(0, "r")  # type: ignore[misc]
    stdout = sys.stdout = sys.__stdout__ = _text_file(1, "w")  # type: ignore[misc]
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": "solution.py", "__builtins__": __builtins__})
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        status = 0 if error.code is None else error.code & 0xFF if isinstance(error.code, int) else 1
    except MemoryError:
        status = MEMORY_ERROR_EXIT
    except BaseException:
        status = 1
    # The interpreter's own end takes ten times as long, because it also takes apart every module imported above.
    try:
        threading._shutdown()  # type: ignore[attr-defined] # waits for threads that are not daemons
        atexit._run_exitfuncs()
        module.__dict__.clear()  # closes, and so flushes, files the program left open
        gc.collect()
        for file in (sys.stdout, stdout):  # the program may have put another in its place
            if file is not None and not getattr(file, "closed", False):
                file.flush()
    except MemoryError:
        status = status or MEMORY_ERROR_EXIT
    except BaseException:
        status = status or FLUSH_ERROR_EXIT
    os._exit(status)


def _text_file(descriptor: int, mode: str) -> io.TextIOWrapper:
    binary = io.FileIO(descriptor, mode, closefd=False)
    buffer = io.BufferedReader(binary) if mode == "r" else io.BufferedWriter(binary)
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="surrogateescape")


def _become_program(kind: str, descriptor: int) -> types.CodeType:
    """Serve until the harness is gone. Returns in the process of a program, with its code."""
    # What the compiler, the codecs and print set up on first use is then set up once, not in every fork.
    lines, printed = _text_file(os.open("/dev/null", os.O_RDONLY), "r"), io.StringIO()
    warm_up = "for line in lines:\n    pass\nprint(*[int(x) for x in '1 2'.split()], file=printed)"
    exec(compile(warm_up, "", "exec"), {"lines": lines, "printed": printed})
    for name in [name for name in sys.modules if name.split(".")[0] == "agpo_bench"]:
        del sys.modules[name]  # A program finds nothing of the harness.
    gc.disable()
    gc.freeze()
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    try:
        server = _Server(channel, kind)
    except OSError as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    return server.serve()


def main(kind: str, descriptor: int) -> NoReturn:
    """Run the server: ``kind`` as above, ``descriptor`` the socket to the harness."""
    _run(_become_program(kind, descriptor))
