# ruff: noqa: E501
"""Programs that try to get out, to hang, to leave something behind or to cheat. Each runs locked up in every way there is.

An attack states the statuses it may end with and what it may print; whatever it is, afterwards no process of the
server's is left, no file with the attack's name exists, and the same server still runs an honest program.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agpo_bench.grading.sandbox import Job, Limits, Result, Sandbox

TOKEN = f"agpo-attack-{os.getpid()}"
LIMITS = Limits(cpu_seconds=0.4, wall_seconds=20, output_bytes=1 << 20)

# Starts the server as a user without privileges. The interpreter may lie in root's home, which that user cannot enter,
# so it is first shown through a mount that ends with the server.
UNPRIVILEGED = """
import ctypes, os, sys
prefix, user = sys.base_prefix, 54321
libc = ctypes.CDLL(None)
if os.geteuid() == 0:
    top = "/" + prefix.split("/")[1]
    if not os.stat(top).st_mode & 1:
        failures = libc.unshare(0x20000), libc.mount(b"none", b"/", None, ctypes.c_ulong(1 << 18 | 16384), None)
        original = os.open(prefix, os.O_PATH)
        failures += (libc.mount(b"tmpfs", top.encode(), b"tmpfs", ctypes.c_ulong(0), b"mode=0755"),)
        os.makedirs(prefix)
        failures += (libc.mount(b"/proc/self/fd/%d" % original, prefix.encode(), None, ctypes.c_ulong(4096), None),)
        assert not any(failures), failures
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
os.execv(sys.argv[1], sys.argv[1:])
"""
WALLS: dict[str, dict[str, object]] = {
    "namespaces": {"isolation": "namespaces"},
    "user-namespaces": {"isolation": "namespaces", "wrapper": (sys.executable, "-S", "-c", UNPRIVILEGED)},
    "landlock": {"isolation": "landlock"},
    "landlock-unprivileged": {"isolation": "landlock", "wrapper": (sys.executable, "-S", "-c", UNPRIVILEGED)},
}


@pytest.fixture(
    scope="module",
    params=["namespaces", *(pytest.param(wall, marks=pytest.mark.slow) for wall in WALLS if wall != "namespaces")],
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    sandbox = Sandbox(num_workers=1, **WALLS[request.param])  # type: ignore[arg-type]
    honest = sandbox.run(Job(source=b"print(1)", stdin=b""))
    if "Operation not permitted" in honest.detail or "not supported" in honest.detail:
        pytest.skip(f"this kernel refuses {request.param}: {honest.detail}")
    assert honest.status == "ok", honest.detail
    yield sandbox
    sandbox.close()


class Attack(NamedTuple):
    source: str
    statuses: str = "ok"
    """Statuses it may end with, apart by ``|``."""
    prints: str | None = None
    """What its output must be, without white space around it; None leaves it open."""
    stdin: str = ""
    limits: Limits = LIMITS


REFUSED = """
import os
def attempt(action):
    try:
        action()
    except BaseException as error:
        return "refused"
    return "done"
"""
CTYPES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    return libc.syscall(ctypes.c_long(number), *[ctypes.c_long(argument) for argument in arguments])
"""

ATTACKS: dict[str, Attack] = {
    # --- never ending ---
    "infinite loop": Attack("while True: pass", "timeout"),
    "infinite loop deaf to signals": Attack(
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        "timeout",
    ),
    "loop that swallows every exception": Attack(
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass", "timeout"
    ),
    "sleeps for ever": Attack(
        "import time\ntime.sleep(1e6)", "timeout_wall", limits=Limits(cpu_seconds=1, wall_seconds=0.5)
    ),
    "sleeps deaf to SIGTERM": Attack(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)",
        "timeout_wall",
        limits=Limits(cpu_seconds=1, wall_seconds=0.5),
    ),
    "threads that never end": Attack(
        "import threading\ndef f():\n    while True: pass\nfor _ in range(3): threading.Thread(target=f).start()\nprint(1)",
        "timeout",
    ),
    "loop at exit": Attack("import atexit\ndef f():\n    while True: pass\natexit.register(f)\nprint(1)", "timeout"),
    "loop in a finaliser": Attack(
        "class A:\n    def __del__(self):\n        while True: pass\na = A()\nprint(1)", "timeout"
    ),
    "daemon thread ends with the program": Attack(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\nprint(1)", prints="1"
    ),
    "catastrophic regular expression": Attack("import re\nre.match('(a+)+$', 'a' * 60 + 'b')", "timeout"),
    "power tower": Attack("x = 9 ** 9 ** 9", "timeout|memory"),
    "interval timer spam": Attack(
        "import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)\n"
        "signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)\nwhile True: pass",
        "timeout",
    ),
    # --- processes ---
    "fork bomb": Attack("import os\nwhile True: os.fork()", "runtime_error"),
    "fork bomb that insists": Attack(
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", "timeout"
    ),
    "double fork with a session of its own": Attack(
        REFUSED + "import time\ndef f():\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        "            time.sleep(600)\nprint(attempt(f))",
        prints="refused",
    ),
    "subprocess": Attack(REFUSED + "import subprocess\nprint(attempt(lambda: subprocess.run(['/bin/sh', '-c', 'id'])))", prints="refused"),
    "shell": Attack(f"import os\nprint(os.system('touch /tmp/{TOKEN} /var/tmp/{TOKEN}') != 0)", prints="True"),
    "posix_spawn": Attack(REFUSED + "print(attempt(lambda: os.posix_spawn('/bin/true', ['true'], {})))", prints="refused"),
    "exec": Attack(REFUSED + "print(attempt(lambda: os.execv('/usr/bin/id', ['id'])))", prints="refused"),
    "clone system calls": Attack(
        CTYPES + "import platform\nx86 = platform.machine() == 'x86_64'\nprint(call(56 if x86 else 220, 17, 0, 0, 0, 0), "
        "call(435, 0, 0), call(57 if x86 else 9999))",
        prints="-1 -1 -1",
    ),
    "multiprocessing": Attack(
        REFUSED + "import multiprocessing\nprint(attempt(lambda: multiprocessing.Process(target=print).start()))",
        prints="refused",
    ),
    "thousands of threads": Attack(
        "import threading, time\nthreading.stack_size(32768)\ncount = 0\ntry:\n    for _ in range(20000):\n"
        "        threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()\n        count += 1\n"
        "except RuntimeError: pass\nprint('few' if count < 9000 else count)",
        "ok|timeout|timeout_wall|memory|runtime_error",
        limits=Limits(cpu_seconds=3, wall_seconds=5),
    ),
    # --- signals ---
    "kills its parent": Attack(REFUSED + "print(attempt(lambda: os.kill(os.getppid() or 2**22 - 1, 9)))", prints="refused"),
    "kills everyone": Attack(REFUSED + "print(attempt(lambda: os.kill(-1, 9)))", prints="refused"),
    "kills each number": Attack(
        REFUSED + "me = os.getpid()\nprint({attempt(lambda: os.kill(n, 0)) for n in range(1, 40000) if n != me})",
        prints="{'refused'}",
        limits=Limits(cpu_seconds=4, wall_seconds=30),
    ),
    "signals by other calls": Attack(
        CTYPES
        + "import fcntl, os, platform, socket\nx86 = platform.machine() == 'x86_64'\nother = os.getppid() or 2**22 - 1\n"
        "results = [call(234 if x86 else 131, other, other, 6), call(129 if x86 else 138, other, 9, 0)]\n"
        "first, second = socket.socketpair()\n"
        "try: fcntl.fcntl(first, fcntl.F_SETOWN, other); results.append(0)\nexcept OSError: results.append(-1)\n"
        "print(*results)",
        prints="-1 -1 -1",
    ),
    "32-bit call table": Attack(
        # mov eax, 2 (fork); int 0x80; ret
        "import ctypes, mmap, platform\nif platform.machine() != 'x86_64': raise SystemExit(1)\n"
        "m = mmap.mmap(-1, 4096, prot=7)\nm.write(b'\\xb8\\x02\\0\\0\\0\\xcd\\x80\\xc3')\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\nprint(f())",
        "runtime_error",
        prints="",
    ),
    "kills its group": Attack("import os\ntry: os.killpg(0, 15)\nexcept OSError: pass\nprint(1)", "ok|runtime_error"),
    "aborts": Attack("import os\nos.abort()", "runtime_error"),
    "reads address zero": Attack("import ctypes\nctypes.string_at(0)", "runtime_error"),
    # --- memory ---
    "endless list": Attack("a = []\nwhile True: a.append([0] * 10**6)", "memory|timeout", limits=Limits(cpu_seconds=5)),
    "one huge array": Attack("a = bytearray(10**11)", "memory"),
    "huge anonymous map": Attack("import mmap\nmmap.mmap(-1, 1 << 32)", "runtime_error|memory"),
    "memory file": Attack(REFUSED + "print(attempt(lambda: os.memfd_create('x')))", prints="refused"),
    "compressed bomb": Attack(
        "import zlib\nc = zlib.compressobj(9)\nz = b''.join(c.compress(bytes(1 << 20)) for _ in range(8)) + c.flush()\n"
        "x = [zlib.decompress(z) for _ in range(1000)]",
        "memory|timeout",
        limits=Limits(cpu_seconds=5),
    ),
    "endless recursion": Attack("import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + 1)\nf(0)", "runtime_error|memory|timeout", limits=Limits(cpu_seconds=5)),
    "recursion in C": Attack(
        "import sys\nsys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nrepr(x)", "runtime_error|memory|timeout"
    ),
    "raises its own limits": Attack(
        REFUSED + "import resource\nprint({attempt(lambda: resource.setrlimit(r, (-1, -1))) for r in "
        "(resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE)})",
        prints="{'refused'}",
    ),
    "changes another process's limits": Attack(
        REFUSED + "import resource\nprint(attempt(lambda: resource.prlimit(os.getppid() or 2, resource.RLIMIT_NOFILE, (0, 0))))",
        prints="refused",
    ),
    # --- output ---
    "endless output": Attack("while True: print('x' * 1000)", "output_limit"),
    "endless output by system call": Attack("import os\nwhile True: os.write(1, b'x' * 65536)", "output_limit"),
    "endless output that swallows errors": Attack(
        "import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except OSError: pass", "output_limit|timeout"
    ),
    "endless errors": Attack("import sys\nwhile True: sys.stderr.write('x' * 1000)", "timeout"),
    "sparse output": Attack(REFUSED + "print(attempt(lambda: os.ftruncate(1, 10**15)))", prints="refused"),
    "output closed": Attack("import os\nos.close(1)\nprint(1)", "runtime_error", prints=""),
    "input never read": Attack("print(1)", prints="1", stdin="7\n" * 10**6),
    "input closed": Attack("import sys\nsys.stdin.close()\nprint(1)", prints="1", stdin="7\n"),
    # --- files ---
    "reads the system": Attack(
        REFUSED + "print({attempt(lambda: open(p).read()) for p in ('/etc/passwd', '/etc/shadow', '/root/.bashrc', "
        "'/proc/self/environ', '/proc/1/environ', '/proc/%d/maps' % os.getppid(), '/proc/1/mem', '/sys/kernel/notes')})",
        prints="{'refused'}",
    ),
    "lists the system": Attack(
        REFUSED + "print({attempt(lambda: os.listdir(p)) for p in ('/proc', '/home', '/var', '/work', '/etc/ssl', '/dev/shm')})",
        prints="{'refused'}",
    ),
    "searches for the expected output": Attack(
        "import glob\nfor p in glob.glob('**/*', recursive=True) + glob.glob('../*') + glob.glob('/tmp/**', recursive=True):\n"
        "    try: print(open(p).read())\n    except Exception: pass",
        prints="",
    ),
    "writes outside": Attack(
        REFUSED + f"print({{attempt(lambda: open(p + '/{TOKEN}', 'w')) for p in ('/', '/etc', '/usr/lib', '/var/tmp', "
        f"'/dev', '/dev/shm', '/root', '/home', os.path.dirname(os.__file__))}})",
        prints="{'refused'}",
    ),
    "poisons the standard library": Attack(
        REFUSED + "print(attempt(lambda: open(os.__file__, 'a')), attempt(lambda: os.chmod(os.__file__, 0o777)), "
        "attempt(lambda: os.unlink(os.__file__)), attempt(lambda: os.rename(os.__file__, os.__file__ + 'x')))",
        prints="refused refused refused refused",
    ),
    "fills the disk": Attack(
        "import os\ntotal = 0\ntry:\n    for n in range(10**5):\n        with open(str(n), 'wb') as f: total += f.write(bytes(1 << 18))\n"
        "except OSError: pass\nprint(total <= 16 << 20)",
        prints="True",
        limits=Limits(cpu_seconds=5),
    ),
    "fills the inode table": Attack(
        "n = 0\ntry:\n    while True:\n        open(str(n), 'w').close()\n        n += 1\nexcept OSError: pass\nprint(n < 2000)",
        prints="True",
    ),
    "deletes its directory": Attack(
        "import os, shutil\nshutil.rmtree(os.getcwd(), ignore_errors=True)\nshutil.rmtree('/', ignore_errors=True)\n"
        "import bisect, statistics\nprint(1)",
        prints="1",
        limits=Limits(cpu_seconds=5),
    ),
    "device and fifo": Attack(
        REFUSED + "import stat\nprint(attempt(lambda: os.mknod('d', stat.S_IFBLK | 0o600, os.makedev(8, 0))))", prints="refused"
    ),
    "inherited files": Attack(
        "import os\ndef is_open(n):\n    try: os.fstat(n)\n    except OSError: return False\n    return True\n"
        "print([n for n in range(256) if is_open(n)])",
        prints="[0, 1, 2]",
    ),
    # --- network ---
    "internet socket": Attack(REFUSED + "import socket\nprint(attempt(lambda: socket.socket(socket.AF_INET)))", prints="refused"),
    "local socket": Attack(REFUSED + "import socket\nprint(attempt(lambda: socket.socket(socket.AF_UNIX)))", prints="refused"),
    "web request": Attack(
        REFUSED + "import urllib.request\nprint(attempt(lambda: urllib.request.urlopen('http://127.0.0.1/', timeout=2)))",
        prints="refused",
        limits=Limits(cpu_seconds=5),
    ),
    # --- the kernel ---
    "becomes root": Attack(
        "import os\nfor f in (os.setuid, os.setgid):\n    try: f(0)\n    except OSError: pass\n"
        "try: os.chroot('.'); print('root')\nexcept OSError: print('refused')",
        prints="refused",
    ),
    "own namespaces": Attack(
        CTYPES + "print(libc.unshare(0x10000000), libc.unshare(0x20000), libc.setns(0, 0), "
        "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.umount2(b'/tmp', 2), libc.ptrace(0, 0, 0, 0))",
        prints="-1 -1 -1 -1 -1 -1",
    ),
    "io_uring": Attack(CTYPES + "print(call(425, 8, 0), call(426, 0, 0, 0, 0, 0, 0))", prints="-1 -1"),
    "shared memory that outlives it": Attack(CTYPES + "print(libc.shmget(12345, 4096, 0o1666), libc.semget(12345, 1, 0o1666))", prints="-1 -1"),
    "has no capability": Attack(
        CTYPES + "import struct\nh = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))\n"
        "d = ctypes.create_string_buffer(24)\nprint(libc.capget(h, d), d.raw == bytes(24), libc.prctl(39, 0, 0, 0, 0), libc.prctl(21, 0, 0, 0, 0))",
        prints="0 True 1 2",
    ),
    # --- the harness ---
    "environment": Attack("import os\nprint(sorted(os.environ))", prints="['HOME', 'LANG', 'PATH', 'TMPDIR']"),
    "imports the harness": Attack(REFUSED + "print(attempt(lambda: __import__('agpo_bench')), attempt(lambda: __import__('torch')))", prints="refused refused"),
    "installed packages": Attack(
        "import glob, sys\nprint(sum((glob.glob(f'{p}/python3*/*-packages/*') for p in ('/usr/lib', '/usr/local/lib', sys.base_prefix + '/lib')), []))",
        prints="[]",
    ),
    "frames and objects of the server": Attack(
        "import gc, socket, sys\nframes, frame = [], sys._getframe()\nwhile frame:\n    frames.append(frame.f_code.co_name)\n    frame = frame.f_back\n"
        "print(frames, [o for o in gc.get_objects() if isinstance(o, socket.socket) and o.fileno() >= 0])",
        prints="['<module>', '_run', 'main', '<module>'] []",
    ),
    "pretends to be the verdict": Attack("print('{\"passed\": true}')\nprint('PASSED')", prints='{"passed": true}\nPASSED'),
    "strange exit codes": Attack("import os\nos._exit(252 if input() == '1' else 251)", "runtime_error", stdin="2"),
    "replaces print": Attack("import builtins, sys\nbuiltins.print = None\nsys.stdout = None\nbuiltins.open = None", prints=""),
}  # fmt: skip


def processes_of(sandbox: Sandbox) -> set[int]:
    """Every process that descends from this one's sandbox servers, or has one of their user ids."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    family = {server.process.pid for server in list(sandbox._idle.queue) if server is not None}
    while True:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        if not more:
            return family
        family |= more


def run(sandbox: Sandbox, attack: Attack) -> Result:
    return sandbox.run(Job(source=attack.source.encode(), stdin=attack.stdin.encode(), limits=attack.limits))


@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_gets_out_or_leaves_anything(sandbox: Sandbox, name: str) -> None:
    attack = ATTACKS[name]
    before = processes_of(sandbox)

    result = run(sandbox, attack)

    assert result.status in attack.statuses.split("|"), (result.status, result.stdout[:300], result.detail)
    if attack.prints is not None:
        assert result.stdout.decode().strip() == attack.prints
    assert processes_of(sandbox) == before, "the server was replaced, or a process is left"
    for place in (
        "/",
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/dev",
        "/etc",
        "/usr/lib",
        str(Path.home()),
        tempfile.gettempdir(),
        ".",
    ):
        assert not (Path(place) / TOKEN).exists()
    honest = sandbox.run(Job(source=b"print(int(input()) + 1)", stdin=b"6\n"))
    assert (honest.status, honest.stdout) == ("ok", b"7\n"), honest


def test_there_are_forty_attacks_or_more() -> None:
    assert len(ATTACKS) >= 40
