"""What the Linux kernel offers to lock a process up: namespaces, a root of its own, Landlock, seccomp, no privileges.

Used by the fork server of the program sandbox, so only small modules of the standard library are imported.
"""

# Paths are plain strings here: pathlib would load more modules than all below, and every fork would pay for them.
# ruff: noqa: PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH118, PTH120, PTH123, PTH207, PTH208, PTH211

from __future__ import annotations

import ctypes
import errno
import glob
import os
import platform
import signal
import struct
import sys

NEW_NS, _NEW_UTS, _NEW_IPC, _NEW_USER, NEW_PID, _NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
_MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    """The result of a C call; OSError saying ``what`` failed when it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system, or a folder again; OSError when refused."""
    encoded = [part.encode() if part is not None else None for part in (source, target, kind, options)]
    result = libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    check(result, f"mount {target}")


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


def filter_program(is_landlock: bool) -> bytes:
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


def install_filter(program: bytes) -> None:
    """Bind this process to a seccomp filter; needs ``drop_capabilities`` before."""
    buffer = ctypes.create_string_buffer(program, len(program))
    descriptor = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)), struct.calcsize("@HP")
    )
    number = MACHINES[platform.machine()][2]
    # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW: without the flag older kernels slow the program down.
    check(libc.syscall(ctypes.c_long(number), ctypes.c_uint(1), ctypes.c_uint(4), descriptor), "seccomp")


# --- Landlock: https://docs.kernel.org/userspace-api/landlock.html ----------------------------------------------------


def landlock_ruleset(readable: list[str]) -> int:
    """A descriptor of rules that allow reading files and listing folders under ``readable``, and nothing else."""
    create, add_rule = ctypes.c_long(444), ctypes.c_long(445)
    version = check(libc.syscall(create, None, ctypes.c_size_t(0), ctypes.c_uint(1)), "Landlock")
    handled_fs = (1 << {1: 13, 2: 14}.get(version, 15 if version < 5 else 16)) - 1
    attributes = [handled_fs] + ([3] if version >= 4 else []) + ([3] if version >= 6 else [])
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = check(libc.syscall(create, packed, ctypes.c_size_t(len(packed)), ctypes.c_uint(0)), "Landlock ruleset")
    for path in readable:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", (4 | 8) if os.path.isdir(path) else 4, parent)
        check(libc.syscall(add_rule, ctypes.c_int(ruleset), ctypes.c_int(1), rule, ctypes.c_uint(0)), "Landlock rule")
        os.close(parent)
    return ruleset


# --- the locked room --------------------------------------------------------------------------------------------------


def library_paths() -> tuple[list[str], list[str]]:
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


def outside(path: str, hidden: list[str]) -> list[str]:
    """``path``, or as much of what lies under it as holds nothing hidden."""
    real = os.path.realpath(path)
    if real in hidden:
        return []
    if not any(other.startswith(real + "/") for other in hidden):
        return [path]
    return [part for name in sorted(os.listdir(real)) for part in outside(os.path.join(real, name), hidden)]


def enter_namespaces() -> bool:
    """Unshare everything and become pid 1 of a new pid namespace. True when this took a user namespace."""
    flags = NEW_NS | _NEW_UTS | _NEW_IPC | NEW_PID | _NEW_NET
    uid, gid = os.geteuid(), os.getegid()
    is_user_namespace = uid != 0 or libc.unshare(flags) != 0
    if is_user_namespace:
        check(libc.unshare(flags | _NEW_USER), "unshare")
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
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return is_user_namespace


class MappedIds:
    """The user ids that exist both as user and as group in this user namespace."""

    def __init__(self) -> None:
        self.ranges: list[list[range]] = []
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/self/{name}") as file:
                rows = [[int(word) for word in line.split()] for line in file]
            self.ranges.append([range(inside, inside + count) for inside, _, count in rows])

    def __contains__(self, user_id: int) -> bool:
        return all(any(user_id in ids for ids in ranges) for ranges in self.ranges)


def build_root(paths: list[str], hidden: list[str]) -> None:
    """Swap the root for a memory file system that shows ``paths`` read-only, without ``hidden``, and an empty /tmp."""
    mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755")
    os.chdir("/tmp")
    os.mkdir("old")
    check(libc.syscall(ctypes.c_long(_pivot_root_number()), b".", b"old"), "pivot_root")
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
        mount(source, path, None, _MS_BIND | _MS_REC)
        # Inside a user namespace the flags of the original mount are locked, so they must be asked for again.
        locked = os.statvfs(path).f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
        mount("none", path, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | MS_NOSUID | MS_NODEV | locked)
    for path in hidden:
        mount("tmpfs", path, "tmpfs", _MS_RDONLY | MS_NOSUID | MS_NODEV, "size=4k,nr_inodes=1")
    os.makedirs("/tmp", exist_ok=True)
    os.makedirs("/dev", exist_ok=True)
    for device in ("/dev/null", "/dev/zero", "/dev/urandom"):
        os.close(os.open(device, os.O_CREAT | os.O_WRONLY, 0o666))
        mount("/old" + device, device, None, _MS_BIND)
    check(libc.umount2(b"/old", _MNT_DETACH), "umount")
    os.rmdir("/old")
    mount("none", "/", None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | MS_NOSUID | MS_NODEV)


def _pivot_root_number() -> int:
    return _SYSCALLS["pivot_root"][MACHINES[platform.machine()][0]]


def drop_capabilities() -> None:
    """Give up every capability, and the chance to gain any by running a program."""
    header, empty = struct.pack("=Ii", 0x20080522, 0), bytes(24)  # _LINUX_CAPABILITY_VERSION_3
    check(libc.capset(header, empty), "capset")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def restrict_to(ruleset: int) -> None:
    """Keep to a Landlock ruleset from here on."""
    check(libc.syscall(ctypes.c_long(446), ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self")
