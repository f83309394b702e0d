"""Ctrl-C and SIGTERM end a run after its step, also when a scheduler and a launcher both send them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agpo_bench.config import RunConfig
from agpo_bench.files import read_lines
from agpo_bench.methods.recipe import load_method
from agpo_bench.training import stop_requests as module
from agpo_bench.training.checkpoint import newest_checkpoint
from agpo_bench.training.run import train
from agpo_bench.training.stop_requests import exit_status, stop_requests
from tests.training import launched
from tests.training.test_resume import stop_after

Config = Callable[..., RunConfig]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a terminal: a command that a script starts in its background inherits that it is ignored."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.mark.usefixtures("interruptible")
def test_signals_close_together_are_one_request_and_a_later_one_acts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_requests() as asked_by:
        assert asked_by() == 0
        # A terminal's Ctrl-C, then a launcher's own signal.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert asked_by() == signal.SIGINT
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    monkeypatch.setattr(module, "SAME_REQUEST_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt), stop_requests() as asked_by:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        assert asked_by() == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_request_in_the_last_step_is_told_though_the_run_is_finished(small_config: Config, tmp_path: Path) -> None:
    config = small_config(budget=1600)
    steps = train(config, load_method("grpo"), directory=tmp_path / "first").num_steps
    outcome = train(config, load_method("grpo"), directory=tmp_path / "second", on_step=stop_after(steps))
    assert outcome.is_finished and outcome.stopped_by == signal.SIGTERM
    assert (exit_status(signal.SIGTERM), exit_status(signal.SIGINT)) == (0, 130)


def after_a_step(out: Path, *words: str) -> subprocess.Popen[str]:
    """A command of two runs or more, once the first one has written a step."""
    words = ("train", "--budget", "100k", "--out", str(out), *words)
    process = subprocess.Popen(
        [sys.executable, "-m", "agpo_bench", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 300
    while not any(out.glob("*/*/metrics.jsonl")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_stopped_command_saves_a_checkpoint_and_says_how_to_go_on(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    process = after_a_step(tmp_path, "--method", "grpo,rloo", "--jobs", "1")
    process.send_signal(number)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == status, said
    assert "to continue: agpo-bench train --budget 100k" in said and said.rstrip().endswith("--jobs 1 --resume")
    assert newest_checkpoint(tmp_path / "grpo" / "seed-42") is not None
    assert not (tmp_path / "rloo").exists()


@pytest.mark.slow
def test_a_command_of_more_runs_than_a_pipe_holds_stops_when_asked(tmp_path: Path) -> None:
    process = after_a_step(tmp_path, "--method", "all", "--seeds", "1,2,3,4,5", "--jobs", "2")
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert "not finished: agpo seed 1, agpo seed 2," in said and " more; to continue: agpo-bench train" in said
    # One of the two may not have begun its first step.
    assert [run for run in tmp_path.glob("*/*") if newest_checkpoint(run) is not None]


@pytest.mark.slow
def test_a_launcher_and_a_scheduler_may_both_stop_the_same_processes(tmp_path: Path) -> None:
    process = launched.start(tmp_path, "--method", "grpo", processes=2, budget=200_000, checkpoint_every_steps=1000)
    run = tmp_path / "grpo" / "seed-42"
    deadline = time.monotonic() + 300
    while not (run / "metrics.jsonl").exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for target in (launched.child(process.pid, rank=0), launched.child(process.pid, rank=1), process.pid):
        os.kill(target, signal.SIGTERM)
    said = process.communicate(timeout=120)[0]
    newest = newest_checkpoint(run)
    assert newest is not None and int(newest.name) == len(list(read_lines(run / "metrics.jsonl"))), said
    assert said.count("stopped; to continue: the same command with --resume") == 1
