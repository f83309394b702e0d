"""The worker pool: limits, deaths, threads, forks. Requests are real ones; the faults are real signals and real
memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agpo_bench.grading.latex.grammar import parse
from agpo_bench.grading.latex.symbolic import to_wire
from agpo_bench.grading.workers import Reply, WorkerPool


def ask_equal(pool: WorkerPool, first: str, second: str) -> Reply:
    return pool.ask("equal", first=to_wire(parse(first)), second=to_wire(parse(second)))


@pytest.fixture
def pool():
    made = WorkerPool(num_workers=1, cpu_seconds=20)
    yield made
    made.close()


def pids_of(pool: WorkerPool) -> list[int]:
    return [worker.process.pid for worker in pool._workers]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_worker_proves_and_refutes(pool):
    assert ask_equal(pool, r"\sin^2 x + \cos^2 x", "1") == Reply(True)
    assert ask_equal(pool, r"\sqrt{8+4\sqrt3}", r"\sqrt6+\sqrt2") == Reply(True)
    assert ask_equal(pool, r"\sqrt{x^2}", "x") == Reply(False)
    assert pool.counts == {"ok": 3}


def test_no_process_is_started_before_the_first_request():
    pool = WorkerPool()
    assert pids_of(pool) == []


def test_a_worker_that_exits_before_it_answers_is_replaced_and_the_request_repeated(pool):
    # QwenLM/Qwen2.5-Math grader.py: an unbounded queue read after the child died waits for ever.
    assert ask_equal(pool, "1", "1") == Reply(True)
    os.kill(pids_of(pool)[0], signal.SIGKILL)
    assert ask_equal(pool, "1", "1") == Reply(True)


def test_a_worker_killed_in_the_middle_of_a_request_costs_one_repeat_and_two_deaths_are_an_error(pool):
    assert ask_equal(pool, "1", "1").value is True
    killed: list[int] = []

    def kill_every_worker() -> None:
        while not done.is_set():
            for pid in pids_of(pool):
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
                except ProcessLookupError:
                    pass
            time.sleep(0.005)

    done = threading.Event()
    killer = threading.Thread(target=kill_every_worker)
    killer.start()
    started = time.monotonic()
    reply = ask_equal(pool, "1", "1+0")
    done.set()
    killer.join()
    assert reply.reason == "worker_died"
    assert reply.is_error
    assert killed
    assert time.monotonic() - started < 30
    assert ask_equal(pool, "1", "1") == Reply(True)


def test_a_request_beyond_the_cpu_limit_ends_as_a_timeout_and_the_next_one_works():
    pool = WorkerPool(num_workers=1, cpu_seconds=1)
    wire = ["call", "factorial", ["num", "3000000", "1"]]
    started = time.monotonic()
    reply = pool.ask("equal", first=wire, second=["num", "1", "1"])
    assert reply in (Reply(None, "timeout"), Reply(None, "memory"))
    assert not reply.is_error
    assert time.monotonic() - started < 60
    pool.cpu_seconds = 20
    assert ask_equal(pool, "1", "1") == Reply(True)
    pool.close()


def test_a_wall_clock_limit_catches_a_worker_that_sleeps_or_is_stopped():
    pool = WorkerPool(num_workers=1, cpu_seconds=20, wall_seconds=2.0)
    assert ask_equal(pool, "1", "1") == Reply(True)
    os.kill(pids_of(pool)[0], signal.SIGSTOP)
    started = time.monotonic()
    assert ask_equal(pool, "1", "1") == Reply(None, "timeout")
    assert time.monotonic() - started < 10
    assert ask_equal(pool, "1", "1") == Reply(True)
    pool.close()


def test_memory_beyond_the_limit_ends_the_request_and_not_the_parent():
    pool = WorkerPool(num_workers=1, cpu_seconds=20, memory_bytes=64 << 20)  # sympy alone takes about 50
    assert ask_equal(pool, "1", "1") == Reply(True)
    first = pids_of(pool)
    letters = ["add", *(["sym", letter] for letter in "abcdefgh")]
    reply = pool.ask("equal", first=["pow", letters, ["num", "12", "1"]], second=["num", "1", "1"])
    assert reply == Reply(None, "memory")
    assert not any(map(is_running, first))
    assert ask_equal(pool, "1", "1") == Reply(True)
    pool.close()


def test_replies_keep_their_order_across_threads():
    # verl-project/verl#5635: an alarm raises off the main thread, and a broad except made every score 0.
    pool = WorkerPool(num_workers=2, cpu_seconds=30)
    questions = [(f"{n}+\\sin^2 x", f"{n}+1-\\cos^2 x", True) for n in range(6)]
    questions += [(f"{n}+\\sin^2 x", f"{n + 1}-\\sin^2 x", False) for n in range(6)]
    with ThreadPoolExecutor(6) as threads:
        replies = list(threads.map(lambda question: ask_equal(pool, *question[:2]), questions))
    assert [reply.value for reply in replies] == [expected for *_, expected in questions]
    pool.close()


def test_a_fork_leaves_the_workers_to_the_parent(pool):
    assert ask_equal(pool, "1", "1") == Reply(True)
    before = pids_of(pool)
    child = os.fork()
    if child == 0:  # the child starts its own worker and ends it
        good = pids_of(pool) == [] and ask_equal(pool, "2", "2").value is True and pids_of(pool) != before
        pool.close()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_running(before[0])
    assert ask_equal(pool, "1", "1") == Reply(True)
    assert pids_of(pool) == before


def test_nothing_is_left_after_the_interpreter_ends_even_by_a_kill():
    program = (
        "import sys, time; from agpo_bench.grading.workers import shared_pool\n"
        "pool = shared_pool(); pool.ask('ping'); print(pool._workers[0].process.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    for end in ("exit", "kill"):
        process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        worker = int(process.stdout.readline())
        assert is_running(worker)
        if end == "kill":
            process.kill()
        process.stdin.close()
        process.wait()
        process.stdout.close()
        for _ in range(100):
            if not is_running(worker):
                break
            time.sleep(0.1)
        assert not is_running(worker)


def test_workers_import_neither_torch_nor_the_main_module():
    program = (
        "import os, sys\n"
        "from agpo_bench.grading.workers import shared_pool\n"
        "assert 'sympy' not in sys.modules and 'torch' not in sys.modules\n"
        "pool = shared_pool(); pool.ask('equal', first=['num','1','1'], second=['num','1','1'])\n"
        "maps = open(f'/proc/{pool._workers[0].process.pid}/maps').read()\n"
        "print('torch' in maps)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
