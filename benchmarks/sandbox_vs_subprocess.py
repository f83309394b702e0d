"""2,000 small programs in the sandbox, against the same programs one unprotected ``subprocess.run`` at a time.

``python benchmarks/sandbox_vs_subprocess.py [--programs 2000] [--workers 1 2]``. Prints seconds a program, wall and CPU
(harness and all it started), and ratios to subprocess.run in the same run. CPU is the figure to read on a busy machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from measure import Comparison, Measurement, compared, report

from agpo_bench.grading.sandbox import Job, Sandbox

SOURCE = "a, b = map(int, input().split())\nprint(sum(x * x for x in range(a, b)))\n"


class Cost(NamedTuple):
    """Of one program, on average."""

    wall_seconds: float
    cpu_seconds: float


def measure(run: Callable[[], Callable[[], object]], num_programs: int) -> Cost:
    """Cost of one program. ``run`` returns what ends its processes: the clocks stop while they still live.

    The CPU time of a process in a namespace of its own does not reach its parent when it is killed.
    """
    wall_before, cpu_before = time.perf_counter(), cpu_seconds()
    end = run()
    cost = Cost((time.perf_counter() - wall_before) / num_programs, (cpu_seconds() - cpu_before) / num_programs)
    end()
    return cost


def cpu_seconds() -> float:
    """Of this process, of its children that have ended, and of all living descendants with theirs."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    fields = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything: state, parent, …, and the four times as fields 11 to 14.
            fields[int(file.parent.name)] = file.read_text().rpartition(")")[2].split()
    family = {os.getpid()}
    while grown := {pid for pid, field in fields.items() if int(field[1]) in family} - family:
        family |= grown
        total += sum(int(tick) for pid in grown for tick in fields[pid][11:15]) / os.sysconf("SC_CLK_TCK")
    return total


def expected(number: int) -> bytes:
    """What program ``number`` prints."""
    return b"%d\n" % sum(x * x for x in range(number, number + 50))


def run_subprocesses(num_programs: int) -> Callable[[], object]:
    """One unprotected interpreter a program, one at a time."""
    for number in range(num_programs):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", SOURCE],
            input=b"%d %d\n" % (number, number + 50),
            capture_output=True,
            timeout=10,
            check=True,
        )
        assert done.stdout == expected(number)
    return lambda: None


def run_sandbox(num_programs: int, num_workers: int, isolation: list[str]) -> Callable[[], object]:
    """The same in a sandbox, its start included; notes its isolation."""
    sandbox = Sandbox(num_workers=num_workers)
    jobs = [Job(source=SOURCE.encode(), stdin=b"%d %d\n" % (n, n + 50)) for n in range(num_programs)]
    for number, result in enumerate(sandbox.run_many(jobs)):
        assert result.status == "ok", result
        assert result.stdout == expected(number)
    isolation.append(sandbox.isolation)
    return sandbox.close


def run(args: argparse.Namespace) -> Measurement:
    """One side in this process, on one core."""

    def work() -> Callable[[], object]:
        return run_sandbox(args.programs, 1, []) if args.side == "ours" else run_subprocesses(args.programs)

    cost = measure(work, args.programs)
    return Measurement(
        tokens=args.programs,
        cpu_seconds=cost.cpu_seconds * args.programs,
        wall_seconds=cost.wall_seconds * args.programs,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


def compare(args: argparse.Namespace) -> list[Comparison]:
    """One program at a time on both sides; ours within 1.2 times the unprotected run. Reads ``repeats``."""
    options = ["--programs", str(getattr(args, "programs", 2000))]
    ours, peer = compared(Path(__file__).name, repeats=args.repeats, options=options)
    return [
        Comparison(
            name="small programs, sandbox / subprocess.run", ours=ours, peer=peer, target=1 / 1.2, what="programs/s"
        )
    ]


def main() -> None:
    """One side; or both, and more workers, as a small table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "peer"))
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, len(os.sched_getaffinity(0))])
    arguments = parser.parse_args()
    if arguments.side:
        report(run(arguments))
        return
    count = arguments.programs
    base = measure(lambda: run_subprocesses(count), count)
    print(f"{count} programs, load average {os.getloadavg()[0]:.1f}")
    print(f"{'':30}{'wall ms':>10}{'CPU ms':>10}{'wall ratio':>12}{'CPU ratio':>12}")
    print(f"{'subprocess.run, no protection':30}{base.wall_seconds * 1e3:>10.2f}{base.cpu_seconds * 1e3:>10.2f}")
    for num_workers in arguments.workers:
        kinds: list[str] = []
        cost = measure(partial(run_sandbox, count, num_workers, kinds), count)
        print(
            f"{f'sandbox, {num_workers} at a time':30}{cost.wall_seconds * 1e3:>10.2f}{cost.cpu_seconds * 1e3:>10.2f}"
            f"{cost.wall_seconds / base.wall_seconds:>12.2f}{cost.cpu_seconds / base.cpu_seconds:>12.2f}  ({kinds[0]})"
        )


if __name__ == "__main__":
    main()
