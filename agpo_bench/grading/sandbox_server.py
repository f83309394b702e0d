"""The fork server of the program sandbox: a small clean interpreter, run as a script in a process of its own.

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

# Paths are plain strings here: pathlib would load more modules than all below, and every fork would pay for them.
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH118, PTH120, PTH123, PTH207, PTH208, PTH211

from __future__ import annotations

import atexit
import ctypes
import errno
import gc
import glob
import io
import json
import math
import os
import platform
import random
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import types
from typing import Any, NoReturn

# Contest programs import these; imported before the fork, they cost a program nothing.
import bisect, collections, copy, decimal, fractions, functools, heapq, itertools, operator, re, string  # isort: skip  # noqa: E401, F401

SYNTAX_ERROR_EXIT = 251
MEMORY_ERROR_EXIT = 252
FLUSH_ERROR_EXIT = 120  # what Python itself uses
PYTHON_HEADROOM_BYTES = 64 << 20
"""Address space of the bare interpreter, on top of the program's own limit."""
SCRATCH_BYTES = 16 << 20
STACK_BYTES = 128 << 20
MAX_THREADS = 16

_NEW_NS, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [part.encode() if part is not None else None for part in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _check(result, f"mount {target}")


# --- seccomp: https://docs.kernel.org/userspace-api/seccomp_filter.html -----------------------------------------------

_SYSCALLS: dict[str, tuple[int, int]] = {  # name: (x86_64, aarch64); -1 where an architecture has none
    "clone": (56, 220), "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281),
    "clone3": (435, 435), "socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424), "perf_event_open": (298, 241), "bpf": (321, 280), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "open_tree": (428, 428), "move_mount": (429, 429),
    "mount_setattr": (442, 442), "unshare": (272, 97), "setns": (308, 268), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196), "semget": (64, 190), "msgget": (68, 186),
    "mq_open": (240, 180), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224),
    "swapoff": (168, 225), "quotactl": (179, 60), "acct": (163, 89), "syslog": (103, 116), "iopl": (172, -1),
    "ioperm": (173, -1), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "fanotify_init": (300, 262),
    "personality": (135, 92), "modify_ldt": (154, -1), "process_madvise": (440, 440), "process_mrelease": (448, 448),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "vmsplice": (278, 75), "mknod": (133, -1),
    "mknodat": (259, 33), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
}  # fmt: skip
_LANDLOCK_SYSCALLS: dict[str, tuple[int, int]] = {  # refused as well where no pid namespace hides the harness
    "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "setpriority": (141, 140), "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "ioprio_set": (251, 30), "chmod": (90, -1),
    "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, -1), "fchown": (93, 55), "lchown": (94, -1),
    "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88),
    "truncate": (76, 45), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "fchmodat2": (452, 452),
    "capset": (126, 91), "inotify_add_watch": (254, 27),
}  # fmt: skip
_LANDLOCK_ARGUMENTS = [  # calls, the index of an argument, and the values of it that send signals to others
    ((72, 25), 1, (8, 10, 15)),  # fcntl: F_SETOWN, F_SETSIG, F_SETOWN_EX
    ((16, 29), 1, (0x8901, 0x8902)),  # ioctl: FIOSETOWN, SIOCSPGRP
]
_PRLIMIT = (302, 261)
MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
_CLONE_THREAD = 0x00010000
_ALLOW, _KILL, _REFUSE, _MISSING = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def _filter_program(is_landlock: bool) -> bytes:
    """The BPF program: load the call's number, and refuse those named above."""
    column, architecture, _ = MACHINES[platform.machine()]

    def load(offset: int) -> bytes:
        return struct.pack("=HBBI", 0x20, 0, 0, offset)

    def jump_equal(value: int, if_true: int, if_false: int) -> bytes:
        return struct.pack("=HBBI", 0x15, if_true, if_false, value)

    def give(value: int) -> bytes:
        return struct.pack("=HBBI", 0x06, 0, 0, value)

    code = [load(4), jump_equal(architecture, 1, 0), give(_KILL), load(0)]
    if column == 0:
        code += [struct.pack("=HBBI", 0x35, 0, 1, 0x40000000), give(_REFUSE)]  # the x32 call table
    refused = dict(_SYSCALLS)
    if is_landlock:
        refused |= _LANDLOCK_SYSCALLS
        for numbers, argument, values in _LANDLOCK_ARGUMENTS:
            tests = [jump_equal(value, 0, 1) + give(_REFUSE) for value in values]
            code += [jump_equal(numbers[column], 0, 2 * len(tests) + 2), load(16 + 8 * argument), *tests, give(_ALLOW)]
        # Limits of this process only.
        code += [jump_equal(_PRLIMIT[column], 0, 4), load(16), jump_equal(0, 1, 0), give(_REFUSE), give(_ALLOW)]
    for name, numbers in refused.items():
        if numbers[column] < 0:
            continue
        if name == "clone":  # Threads only. Flags are the first argument on both machines.
            code += [jump_equal(numbers[column], 0, 4), load(16), struct.pack("=HBBI", 0x45, 1, 0, _CLONE_THREAD)]
            code += [give(_REFUSE), give(_ALLOW)]
        else:  # clone3 hides its flags from a filter; with ENOSYS the C library falls back to clone.
            code += [jump_equal(numbers[column], 0, 1), give(_MISSING if name == "clone3" else _REFUSE)]
    return b"".join([*code, give(_ALLOW)])


def _install_filter(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)), struct.calcsize("@HP")
    )
    number = MACHINES[platform.machine()][2]
    # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW: without the flag older kernels slow the program down.
    _check(_libc.syscall(ctypes.c_long(number), ctypes.c_uint(1), ctypes.c_uint(4), descriptor), "seccomp")


# --- Landlock: https://docs.kernel.org/userspace-api/landlock.html ----------------------------------------------------


def _landlock_ruleset(readable: list[str]) -> int:
    create, add_rule = ctypes.c_long(444), ctypes.c_long(445)
    version = _check(_libc.syscall(create, None, ctypes.c_size_t(0), ctypes.c_uint(1)), "Landlock")
    handled_fs = (1 << {1: 13, 2: 14}.get(version, 15 if version < 5 else 16)) - 1
    attributes = [handled_fs] + ([3] if version >= 4 else []) + ([3] if version >= 6 else [])
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = _check(_libc.syscall(create, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint(0)), "Landlock ruleset")
    for path in readable:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", (4 | 8) if os.path.isdir(path) else 4, parent)
        _check(_libc.syscall(add_rule, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)), "Landlock rule")
        os.close(parent)
    return ruleset


# --- the locked room --------------------------------------------------------------------------------------------------


def _library_paths() -> tuple[list[str], list[str]]:
    """What a program may read (system libraries, the standard library, time zones), and what is hidden inside that.

    Installed packages are hidden: the harness itself may be one of them, and its problems with it.
    """
    roots = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", os.path.join(sys.base_prefix, "lib")]
    wanted = [*roots, "/usr/share/zoneinfo", "/etc/ld.so.cache", *sys.path]
    kept: list[str] = []
    for path in wanted:
        if os.path.exists(path) and not any(path == other or path.startswith(other + "/") for other in kept):
            kept.append(path)
    hidden = [
        path for kind in ("site", "dist") for root in roots for path in glob.glob(f"{root}/python3*/{kind}-packages")
    ]
    return kept, sorted({os.path.realpath(path) for path in hidden})


def _outside(path: str, hidden: list[str]) -> list[str]:
    """``path``, or as much of what lies under it as holds nothing hidden."""
    real = os.path.realpath(path)
    if real in hidden:
        return []
    if not any(other.startswith(real + "/") for other in hidden):
        return [path]
    return [part for name in sorted(os.listdir(real)) for part in _outside(os.path.join(real, name), hidden)]


def _enter_namespaces() -> bool:
    """Unshare everything and become pid 1 of a new pid namespace. True when this took a user namespace."""
    flags = _NEW_NS | _NEW_UTS | _NEW_IPC | _NEW_PID | _NEW_NET
    uid, gid = os.geteuid(), os.getegid()
    is_user_namespace = uid != 0 or _libc.unshare(flags) != 0
    if is_user_namespace:
        _check(_libc.unshare(flags | _NEW_USER), "unshare")
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    child = os.fork()
    if child:  # Only waits; dying takes the namespace with it.
        for descriptor in range(3, 64):
            try:
                os.close(descriptor)
            except OSError:
                continue
        _, status = os.waitpid(child, 0)
        os._exit(0 if status == 0 else 1)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return is_user_namespace


class _MappedIds:
    """The user ids that exist both as user and as group in this user namespace."""

    def __init__(self) -> None:
        self.ranges: list[list[range]] = []
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}") as file:
                rows = [[int(word) for word in line.split()] for line in file]
            self.ranges.append([range(inside, inside + count) for inside, _, count in rows])

    def __contains__(self, user_id: int) -> bool:
        return all(any(user_id in ids for ids in ranges) for ranges in self.ranges)


def _build_root(paths: list[str], hidden: list[str]) -> None:
    """Swap the root for a memory file system that shows ``paths`` read-only, without ``hidden``, and an empty /tmp."""
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, "size=1m,mode=0755")
    os.chdir("/tmp")
    os.mkdir("old")
    _check(_libc.syscall(ctypes.c_long(_pivot_root_number()), b".", b"old"), "pivot_root")
    os.chdir("/")
    for path in paths:
        source = "/old" + path
        if os.path.islink(source):
            os.symlink(os.readlink(source), path)
            continue
        if os.path.isdir(source):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(source, path, None, _MS_BIND | _MS_REC)
        # Inside a user namespace the flags of the original mount are locked, so they must be asked for again.
        locked = os.statvfs(path).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
        _mount("none", path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | locked)
    for path in hidden:
        _mount("tmpfs", path, "tmpfs", _MS_RDONLY | _MS_NOSUID | _MS_NODEV, "size=4k,nr_inodes=1")
    os.makedirs("/tmp", exist_ok=True)
    os.makedirs("/dev", exist_ok=True)
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        os.close(os.open(device, os.O_CREAT | os.O_WRONLY, 0o666))
        _mount("/old" + device, device, None, _MS_BIND)
    _check(_libc.umount2(b"/old", _MNT_DETACH), "umount")
    os.rmdir("/old")
    _mount("none", "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _pivot_root_number() -> int:
    return _SYSCALLS["pivot_root"][MACHINES[platform.machine()][0]]


class _Server:
    """Forks one locked process a request, watches its clocks, and reports how it ended."""

    def __init__(self, channel: socket.socket, kind: str) -> None:
        self.channel = channel
        self.is_landlock = kind == "landlock"
        paths, hidden = _library_paths()
        self.own_pid_namespace = -1
        self.user_id: int | None = None
        self.ruleset = -1
        if self.is_landlock:
            readable = [part for path in paths for part in _outside(path, hidden)]
            self.ruleset = _landlock_ruleset([*readable, "/dev/null", "/dev/zero", "/dev/urandom"])
            self.isolation = "landlock+seccomp"
        else:
            outside_pid = os.getpid()
            is_user_namespace = _enter_namespaces()
            mapped = _MappedIds()
            self.own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
            _build_root(paths, hidden)
            # A user nobody else has: limits on processes count by user, and parallel servers must not share one.
            wanted = (0x40000000 + outside_pid, 60_000 + outside_pid % 5_000)
            self.user_id = next((user_id for user_id in wanted if user_id in mapped), None)
            self.isolation = "user-namespaces+seccomp" if is_user_namespace else "namespaces+seccomp"
        self.filter = _filter_program(self.is_landlock)
        self.null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def serve(self) -> bytes:
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
                problem = os.read(ready_read, 500)
                if problem != b"ready":
                    reply["error"] = problem.decode(errors="replace") or "the process ended before the program began"
            for descriptor in (ready_read, ready_write, *descriptors):
                if descriptor >= 0:
                    os.close(descriptor)
            self.channel.send(json.dumps(reply).encode())

    def _fork(self) -> int:
        if self.is_landlock:
            return os.fork()
        _check(_libc.unshare(_NEW_PID), "unshare")
        try:
            pid = os.fork()
        except OSError:
            _libc.setns(self.own_pid_namespace, _NEW_PID)
            raise
        if pid:
            # The kernel lets a process choose its children's pid namespace anew only from its own.
            _check(_libc.setns(self.own_pid_namespace, _NEW_PID), "setns")
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

    def _become_program(self, request: dict[str, Any], descriptors: list[int], ready: int) -> bytes:
        ready = os.dup2(ready, 61, inheritable=False)
        try:
            source_file = self._lock_up(request, descriptors)
            source = bytearray()
            while piece := os.read(source_file, 1 << 20):
                source += piece
            os.close(source_file)
            os.write(ready, b"ready")
            os.close(ready)
        except BaseException as error:
            os.write(ready, f"{type(error).__name__}: {error}"[:400].encode())
            os._exit(1)
        return bytes(source)

    def _lock_up(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Give up everything but the program's files. Returns the descriptor of its source."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if self.is_landlock:
            os.chdir("/")
        else:
            owner = self.user_id or 0
            _check(_libc.unshare(_NEW_NS), "unshare")
            options = f"size={SCRATCH_BYTES},nr_inodes=1024,mode=0700,uid={owner},gid={owner}"
            _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC, options)
            os.chdir("/tmp")
        source_file, stdin, stdout = descriptors
        for standard, descriptor in enumerate((stdin, stdout, self.null)):
            os.dup2(descriptor, standard)
        os.dup2(source_file, 60, inheritable=False)
        ruleset = os.dup2(self.ruleset, 62, inheritable=False) if self.ruleset >= 0 else -1
        os.closerange(3, 60)
        os.closerange(63, 4096)
        if self.user_id is not None:
            os.setgroups([])
            os.setresgid(self.user_id, self.user_id, self.user_id)
            os.setresuid(self.user_id, self.user_id, self.user_id)
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user clears it
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
        header, empty = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # _LINUX_CAPABILITY_VERSION_3, no capability
        _check(_libc.capset(header, empty), "capset")
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        if ruleset >= 0:
            _check(_libc.syscall(ctypes.c_long(446), ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self")
            os.close(ruleset)
        _install_filter(self.filter)
        return 60


def _run(source: bytes) -> NoReturn:
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
    try:
        code = compile(source, "solution.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        os._exit(SYNTAX_ERROR_EXIT)
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


def _main() -> bytes:
    """Serve; returns in the process of a program, with its source."""
    # What the compiler, the codecs and print set up on first use is then set up once, not in every fork.
    warm_input, warm_output = _text_file(os.open("/dev/null", os.O_RDONLY), "r"), io.StringIO()
    exec(
        compile(b"for line in lines:\n    pass\nprint(*[int(x) for x in '1 2'.split()], file=out)", "", "exec"),
        {"lines": warm_input, "out": warm_output},
    )
    gc.disable()
    gc.freeze()
    channel = socket.socket(fileno=int(sys.argv[2]))
    channel.set_inheritable(False)
    try:
        server = _Server(channel, sys.argv[1])
    except OSError as error:
        channel.send(json.dumps({"error": str(error)}).encode())
        os._exit(1)
    return server.serve()


if __name__ == "__main__":
    _run(_main())
