"""What the sandbox promises to honest programs, to its caller, and when things break."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import agpo_bench
from agpo_bench.grading.sandbox import Job, Limits, Result, Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(num_workers=2)
    yield sandbox
    sandbox.close()


def run(sandbox: Sandbox, source: str | bytes, stdin: str = "", **limits: float) -> Result:
    encoded = source.encode() if isinstance(source, str) else source
    return sandbox.run(Job(source=encoded, stdin=stdin.encode(), limits=Limits(**limits)))  # type: ignore[arg-type]


def output(sandbox: Sandbox, source: str | bytes, stdin: str = "") -> str:
    result = run(sandbox, source, stdin)
    assert result.status == "ok", result
    return result.stdout.decode()


def test_the_ways_of_reading_that_contest_programs_use_all_work(sandbox: Sandbox) -> None:
    # huggingface/lighteval#1255, NVIDIA-NeMo/Gym#2956: patched streams without .buffer fail ordinary programs.
    for source in (
        "a, b = map(int, input().split())\nprint(a + b)",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "import sys\nsys.stdout.buffer.write(b'%d\\n' % sum(map(int, sys.stdin.buffer.read().split())))",
        "print(sum(map(int, open(0).read().split())))",
        "import sys\nfor line in sys.stdin: print(sum(map(int, line.split())))",
        "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))",
        "import sys\ninput = sys.stdin.readline\nprint(sum(map(int, input().split())))",
        "import io, os\ninput = io.BytesIO(os.read(0, 1 << 20)).readline\nprint(sum(map(int, input().split())))",
        "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:].split())))",
        "import fileinput\nfor line in fileinput.input(): print(sum(map(int, line.split())))",
    ):
        assert output(sandbox, source, "20 22\n") == "42\n", source


def test_a_program_is_main(sandbox: Sandbox) -> None:
    source = "import sys\ndef main(): print(__name__, sys.modules['__main__'].main is main, sys.argv)\n"
    assert output(sandbox, source + "if __name__ == '__main__': main()") == "__main__ True ['solution.py']\n"


def test_output_is_flushed_however_an_honest_program_ends(sandbox: Sandbox) -> None:
    for source in (
        "print(1)",
        "import sys\nprint(1)\nsys.exit()",
        "import sys\nprint(1)\nsys.exit(0)",
        "print(1)\nraise SystemExit",
        "f = open(1, 'w', closefd=False)\nf.write('1\\n')",
        "import atexit\natexit.register(print, 1)",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print(1))).start()",
        "import os\nos.write(1, b'1\\n')\nos._exit(0)",
        "import io, sys\nprint(1)\nsys.stdout = io.StringIO()\nprint(2)",
        "class A:\n    def __del__(self): print(1)\na = A()",
    ):
        assert output(sandbox, source) == "1\n", source


def test_a_crash_is_never_a_pass_even_when_nothing_was_expected(sandbox: Sandbox) -> None:
    # verl-project/verl#7853: a wrapper that swallows the exception exits 0.
    for source in (
        "raise ValueError",
        "import sys\nsys.exit(1)",
        "import sys\nsys.exit('message')",
        "print(1)\nassert False",
        "import os\nos._exit(3)",
        "raise KeyboardInterrupt",
        "import nothing_of_this_name",
        "input()",
        "import threading\nprint(1)\nclass E(BaseException): pass\nraise E",
    ):
        assert run(sandbox, source).status == "runtime_error", source


def test_what_python_cannot_compile_is_a_syntax_error(sandbox: Sandbox) -> None:
    for source in (b"print 1", b"print(", b"x = \0", b"\xff\xfe", "print('\ud800')".encode("utf-8", "surrogatepass")):
        assert run(sandbox, source).status == "syntax_error", source
    assert run(sandbox, "(" * 100_000).status in ("syntax_error", "runtime_error")


def test_sources_may_carry_a_mark_or_a_coding(sandbox: Sandbox) -> None:
    assert output(sandbox, "\ufeffprint('é')") == "é\n"
    assert output(sandbox, "# -*- coding: latin-1 -*-\nprint('é')".encode("latin-1")) == "é\n"


def test_deep_recursion_works_when_the_program_allows_itself_to(sandbox: Sandbox) -> None:
    # LiveCodeBench/LiveCodeBench#56
    source = (
        "import sys\nsys.setrecursionlimit(300000)\ndef s(n): return 0 if n == 0 else 1 + s(n - 1)\nprint(s(100000))"
    )
    assert output(sandbox, source) == "100000\n"
    in_thread = (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "def s(n): return 0 if n == 0 else 1 + s(n - 1)\nt = threading.Thread(target=lambda: print(s(50000)))\n"
        "t.start()\nt.join()"
    )
    assert output(sandbox, in_thread) == "50000\n"


def test_the_standard_library_imports(sandbox: Sandbox) -> None:
    names = "math cmath statistics itertools functools collections heapq bisect re string decimal fractions random "
    names += "datetime calendar json array queue typing dataclasses enum copy operator time hashlib struct zlib sqlite3"
    source = "".join(f"import {name}\n" for name in names.split()) + "print(math.gcd(12, 18))"
    assert output(sandbox, source) == "6\n"


def test_unseeded_random_numbers_and_set_order_are_the_same_each_time(sandbox: Sandbox) -> None:
    source = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd', 'e'}), hash('x'))"
    assert len({output(sandbox, source) for _ in range(6)}) == 1


def test_a_program_starts_with_nothing_of_the_one_before(sandbox: Sandbox) -> None:
    single = Sandbox(num_workers=1)
    leave = "import os, sys, math\nopen('left', 'w').write('x')\nmath.pi = 3\nos.environ['LEFT'] = '1'\nsys.left = 1"
    find = "import os, sys, math\nprint(os.listdir('.'), math.pi > 3.1, 'LEFT' in os.environ, hasattr(sys, 'left'))"
    assert output(single, leave) == ""
    assert output(single, find) == "[] True False False\n"
    single.close()


def test_cpu_time_decides_a_timeout_and_is_measured(sandbox: Sandbox) -> None:
    result = run(sandbox, "while True: pass", cpu_seconds=0.3)
    assert result.status == "timeout"
    assert 0.3 <= result.cpu_seconds < 0.6
    assert run(sandbox, "import time\ntime.sleep(0.5)\nprint(1)", cpu_seconds=0.3).status == "ok"
    assert run(sandbox, "import time\ntime.sleep(60)", cpu_seconds=0.3, wall_seconds=0.5).status == "timeout_wall"


def test_a_program_may_use_the_memory_it_was_promised(sandbox: Sandbox) -> None:
    assert run(sandbox, "a = bytearray(200 << 20)\nprint(len(a))", memory_bytes=256 << 20).status == "ok"
    assert run(sandbox, "a = bytearray(400 << 20)\nprint(len(a))", memory_bytes=256 << 20).status == "memory"


def test_results_come_in_the_order_of_the_jobs(sandbox: Sandbox) -> None:
    jobs = [Job(source=b"print(input())", stdin=b"%d\n" % number) for number in range(60)]
    assert [result.stdout for result in sandbox.run_many(jobs)] == [b"%d\n" % number for number in range(60)]
    assert sandbox.run_many([]) == []


def test_many_threads_share_one_sandbox(sandbox: Sandbox) -> None:
    outputs: dict[int, list[bytes]] = {}

    def work(thread: int) -> None:
        jobs = [Job(source=b"print(input())", stdin=b"%d\n" % (100 * thread + n)) for n in range(8)]
        outputs[thread] = [result.stdout for result in sandbox.run_many(jobs)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outputs == {t: [b"%d\n" % (100 * t + n) for n in range(8)] for t in range(6)}


def test_a_runaway_neighbour_does_not_starve_an_honest_program(sandbox: Sandbox) -> None:
    # Submitty/Submitty#188: a limit on processes counts by user, so graders in parallel must not share one.
    bomb = b"import os, threading, time\nfor _ in range(300):\n    try: os.fork()\n    except OSError: pass\n" + (
        b"    try: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n    except RuntimeError: pass\n"
    )
    honest = b"import threading\nt = threading.Thread(target=print, args=(1,))\nt.start()\nt.join()"
    jobs = [Job(source=source, stdin=b"") for _ in range(4) for source in (bomb, honest)]
    assert all(result.stdout == b"1\n" for result in sandbox.run_many(jobs)[1::2])


def test_endless_output_of_many_programs_does_not_fill_the_harness(sandbox: Sandbox) -> None:
    # python-discord/snekbox#81: a limit on the child does not bound what the parent stores.
    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    jobs = [Job(source=b"while True: print('x' * 100000)", stdin=b"")] * 12
    before = peak()
    statuses = sandbox.judge_many(jobs, judge=lambda _, result: result.status)
    assert statuses == ["output_limit"] * 12
    assert peak() - before < 100 << 20


def test_after_its_first_timeouts_a_program_is_skipped_whatever_the_schedule(sandbox: Sandbox) -> None:
    source = b"n = int(input())\nwhile n % 2: pass\nprint(n)"
    jobs = [
        Job(source=source, stdin=b"%d\n" % n, limits=Limits(cpu_seconds=0.15), program=program)
        for program, inputs in ((1, (0, 1, 2, 3, 4, 5)), (2, (0, 2, 4, 6, 8, 9)))
        for n in inputs
    ]
    statuses = sandbox.judge_many(jobs, judge=lambda _, result: result.status, max_timeouts=1)
    assert statuses == ["ok", "timeout", *["skipped"] * 4, *["ok"] * 5, "timeout"]


def test_a_server_that_dies_is_replaced_and_the_program_run_again() -> None:
    sandbox = Sandbox(num_workers=1)
    assert output(sandbox, "print(1)") == "1\n"
    results: list[Result] = []
    thread = threading.Thread(
        target=lambda: results.append(run(sandbox, "import time\ntime.sleep(1)\nprint(2)", cpu_seconds=5))
    )
    victim = sandbox._idle.queue[0]
    assert victim is not None
    thread.start()
    time.sleep(0.3)
    os.kill(victim.process.pid, signal.SIGKILL)
    thread.join()
    assert (results[0].status, results[0].stdout) == ("ok", b"2\n")
    sandbox.close()


def test_what_cannot_be_started_is_infrastructure_and_not_a_wrong_answer() -> None:
    sandbox = Sandbox(num_workers=1, wrapper=("/nonexistent/wrapper",))
    result = sandbox.run(Job(source=b"print(1)", stdin=b""))
    assert result.status == "infrastructure"
    assert "cannot be isolated" in result.detail
    assert sandbox.isolation == "none: programs are not run"


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_nothing_outlives_a_harness_that_is_killed(isolation: str) -> None:
    program = (
        "from agpo_bench.grading.sandbox import *\n"
        f"sandbox = Sandbox(num_workers=1, isolation='{isolation}')\n"
        "sandbox.run(Job(source=b'', stdin=b''))\nprint('ready', flush=True)\n"
        "sandbox.run(Job(source=b'import time; time.sleep(600)', stdin=b'', limits=Limits(wall_seconds=600)))\n"
    )
    harness = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert harness.stdout is not None
    assert harness.stdout.readline() == "ready\n"
    time.sleep(0.5)
    family = [harness.pid]
    for pid in family:
        family.extend(_children(pid))
    assert len(family) >= 3, "the program should be running"
    harness.kill()
    harness.wait()
    harness.stdout.close()
    deadline = time.monotonic() + 10
    while (left := [pid for pid in family[1:] if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def _in_a_fork(sandbox: Sandbox, queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(sandbox.run(Job(source=b"print(2)", stdin=b"")).stdout)
    sandbox.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_harness_gets_servers_of_its_own(sandbox: Sandbox) -> None:
    assert output(sandbox, "print(1)") == "1\n"
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[bytes] = context.Queue()
    process = context.Process(target=_in_a_fork, args=(sandbox, queue))
    process.start()
    assert queue.get(timeout=60) == b"2\n"
    process.join()
    assert output(sandbox, "print(3)") == "3\n"


def test_bubblewrap_adds_an_outer_wall_where_it_is_installed() -> None:
    import shutil

    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    outer = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp"
    # The new /tmp must not hide an interpreter or a checkout that lies there.
    seen = [
        part for place in (sys.prefix, str(Path(agpo_bench.__file__).parent)) for part in ("--ro-bind", place, place)
    ]
    sandbox = Sandbox(num_workers=1, wrapper=[*outer.split(), *seen])
    assert output(sandbox, "print(1)") == "1\n"
    assert sandbox.isolation.endswith("in bwrap")
    sandbox.close()


def test_a_variable_puts_an_outer_wall_around_the_programs_that_are_graded() -> None:
    import shutil

    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    code = """
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import ProgramTest, Reference
grader = get_grader("program")
reference = Reference(gold="", tests=(ProgramTest(stdin="2\\n", expected_stdout="4\\n"),))
print(grader.grade("```python\\nprint(int(input()) ** 2)\\n```", reference).score, grader.describe()["isolation"])
"""
    wall = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc"
    environment = {**os.environ, "AGPO_BENCH_SANDBOX_WRAPPER": wall}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.startswith("1.0 "), done.stdout + done.stderr
    assert done.stdout.strip().endswith("in bwrap")
