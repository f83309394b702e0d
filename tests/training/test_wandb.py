"""Weights & Biases, offline and for real: its own reader finds the metrics, and a run outlives it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agpo_bench.config import RunConfig
from agpo_bench.files import read_lines
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import train
from tests.training.test_resume import assert_same_run, stop_after

pytest.importorskip("wandb")

Config = Callable[..., RunConfig]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def records(folder: Path) -> list[dict[str, Any]]:
    """What the library reads of one start of a run."""
    (file,) = folder.glob("run-*.wandb")
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("offline")
def test_offline_folders_hold_every_metric_over_tokens_used_and_a_resumed_run_has_the_same_id(
    small_config: Config, tmp_path: Path
) -> None:
    config = small_config(budget=1600, tracker="wandb", checkpoint_every_steps=1)
    run, bare = tmp_path / "grpo" / "seed-42", tmp_path / "bare"
    train(config, load_method("grpo"), directory=run, on_step=stop_after(1))
    train(config, load_method("grpo"), directory=run, resume=True)
    parts = [records(folder) for folder in sorted((run / "wandb").glob("offline-run-*"))]
    assert len(parts) == 2
    run_id = json.loads((run / "wandb.json").read_text())["id"]
    for part in parts:
        (told,) = [record["run"] for record in part if record["type"] == "run"]
        assert (told["run_id"], told["project"], told["display_name"]) == (run_id, "agpo-bench", "grpo seed 42")
        assert told["config"]["update"]["budget"] == 1600
        assert told["config"]["update"]["recipe"]["name"] == "grpo"
    steps = [record["history"]["item"] for part in parts for record in part if record["type"] == "history"]
    lines = list(read_lines(run / "metrics.jsonl"))
    assert [step["_step"] for step in steps] == [line["tokens/used"] for line in lines] and len(lines) >= 2
    for step, line in zip(steps, lines, strict=True):
        found = {name: value for name, value in step.items() if not name.startswith("_")}
        assert found == {name: pytest.approx(value, rel=1e-12) for name, value in line.items() if value is not None}
    train(small_config(budget=1600, checkpoint_every_steps=1), load_method("grpo"), directory=bare)
    (bare / "config.yaml").write_bytes((run / "config.yaml").read_bytes())  # they differ in the tracker
    assert_same_run(run, bare)


def services() -> list[int]:
    """Process ids of the library's own processes that belong to this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (folder / "cmdline").exists():
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"wandb-core") and str(os.getpid()).encode() in words:
                found.append(int(folder.name))
    return found


DRIVER = """
import os, signal, sys
from pathlib import Path
from agpo_bench.config import load_config
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import train
from tests.training.conftest import SMALL
from tests.training.test_wandb import services

def kill(session, record):
    if session.step == 1 if sys.argv[2] == "first" else session.is_finished:
        (service,) = services()
        os.kill(service, signal.SIGKILL)

config = load_config("embedded", **(SMALL | {"budget": 2400, "tracker": "wandb"}))
outcome = train(config, load_method("grpo"), directory=Path(sys.argv[1]), on_step=kill)
print(outcome.is_finished, outcome.num_steps, flush=True)
os._exit(0)  # the library's own last words to a process that is gone are not ours to wait for
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    """That of a user who never met the library: it hands settings and its process on to children of this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return kept | {"HOME": str(home), "NETRC": str(home / "none"), "WANDB_ERROR_REPORTING": "false"} | more


@pytest.mark.slow
@pytest.mark.parametrize("step", ["first", "last"])
def test_a_run_whose_tracker_died_goes_on_to_its_end_and_says_so_once(step: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", DRIVER, str(tmp_path / "run"), step]
    own = environment(tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=own)
    num_steps = len(list(read_lines(tmp_path / "run" / "metrics.jsonl")))
    assert done.stdout.split() == ["True", str(num_steps)] and num_steps >= 3, done.stderr
    assert done.stderr.count("warning: Weights & Biases gets no more metrics: ") == 1


@pytest.mark.slow
def test_without_a_login_the_way_out_is_told_in_one_sentence_and_works(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "agpo_bench", "train", "--method", "grpo", "--budget", "1600", "--tasks", "gsm8k"]
    for name, value in {"tracker": "wandb", "prompts_per_batch": 4, "group_size": 4, "max_new_tokens": 24}.items():
        words += ["--set", f"{name}={value}"]
    words += ["--out", str(tmp_path / "runs")]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(words, check=False, env=environment(tmp_path), **options)
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and sentence.startswith("error: tracker=wandb: No API key configured.")
    assert sentence.endswith("; use wandb login or WANDB_MODE=offline, and start again with --resume")
    assert "Traceback" not in done.stderr
    offline = environment(tmp_path, WANDB_MODE="offline")
    done = subprocess.run([*words, "--resume"], check=False, env=offline, **options)
    assert done.returncode == 0, done.stderr
