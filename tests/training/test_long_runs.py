"""What ends a long run early ends it in one sentence, and what was saved before stays whole."""

from __future__ import annotations

import importlib.util
import json
import math
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.evaluation.targets import trained_target
from agpo_bench.files import append_lines, read_lines
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.checkpoint import best_checkpoint, checkpoints, mark_best, newest_checkpoint
from agpo_bench.training.health import check_health, require_finite_weights
from agpo_bench.training.metrics import StepRecord
from agpo_bench.training.model import load_model
from agpo_bench.training.run import train
from agpo_bench.training.session import Session
from tests.training.conftest import SMALL
from tests.training.test_resume import assert_same_run, stop_after

Config = Callable[..., RunConfig]

SETTINGS = ("prompts_per_batch=4", "group_size=4", "max_new_tokens=24", "checkpoint_every_steps=1")


def command(out: Path, *more: str, method: str = "grpo", budget: str = "3000") -> list[str]:
    words = [sys.executable, "-m", "agpo_bench", "train", "--method", method, "--budget", budget, "--tasks", "gsm8k"]
    for setting in SETTINGS:
        words += ["--set", setting]
    return [*words, "--out", str(out), *more]


def said(words: list[str], **options: Any) -> tuple[int, str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, **options)
    return done.returncode, done.stdout + done.stderr


def in_own_mounts(folder: Path, script: str) -> list[str]:
    """A shell script that may mount, on a file system nobody else sees."""
    return ["unshare", "-Urm", "bash", "-euc", script, "bash", str(folder)]


def may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = in_own_mounts(Path("/tmp"), 'mount -t tmpfs tmpfs "$1"')
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def assert_whole(checkpoint: Path | None) -> None:
    assert checkpoint is not None
    loaded = load_model(checkpoint / "model")
    assert all(bool(torch.isfinite(parameter).all()) for parameter in loaded.model.parameters())
    assert not list(checkpoint.parent.glob(".tmp-*"))


@pytest.mark.parametrize(
    ("rate", "limit", "problem"), [(1e30, 3, "gradients of"), (1e42, 100, "weights became|loss/policy was")]
)
def test_an_exploded_run_names_the_last_good_checkpoint_and_how_to_go_on(
    small_config: Config, tmp_path: Path, rate: float, limit: int, problem: str
) -> None:
    # The rate is 0 at the first step and explodes the weights at the second.
    config = small_config(learning_rate=rate, warmup_fraction=0.9, checkpoint_every_steps=1, max_skipped_updates=limit)
    with pytest.raises(ValueError, match=f"({problem}).* the last good checkpoint is {tmp_path}/checkpoints/") as told:
        train(config, load_method("grpo"), directory=tmp_path)
    assert f"--model {tmp_path}/checkpoints/000001/model" in str(told.value)
    assert [path.name for path in checkpoints(tmp_path)] == ["000001"]
    assert_whole(newest_checkpoint(tmp_path))


def test_as_many_updates_in_a_row_without_a_gradient_as_allowed_end_a_run_and_one_good_one_starts_the_count_anew(
    small_config: Config, take_steps: Callable[..., Any], tmp_path: Path
) -> None:
    session, results = take_steps(small_config(max_skipped_updates=3), "grpo", steps=1)
    parameter = next(iter(session.policy.parameters()))

    def update(factor: float) -> None:
        session.engine.backward((parameter * factor).sum())
        session.note_update(session.engine.step())

    for factor in (float("nan"), float("inf"), 1.0, float("nan"), float("inf")):
        update(factor)
        check_health(session, results[0].record, directory=tmp_path)
    update(float("nan"))
    with pytest.raises(ValueError, match=r"of 3 updates in a row were not finite \(limit 3\) in step 0; no check"):
        check_health(session, results[0].record, directory=tmp_path)


def test_a_weight_that_is_no_number_is_not_saved(
    small_config: Config, take_steps: Callable[..., Any], tmp_path: Path
) -> None:
    session, results = take_steps(small_config(), "grpo", steps=1)
    require_finite_weights(session.policy.state_dict(), directory=tmp_path)
    with torch.no_grad():
        next(iter(session.policy.parameters())).view(-1)[3] = float("nan")
    with pytest.raises(ValueError, match=r"model\.\S+ is infinite or NaN and was not saved"):
        require_finite_weights(session.policy.state_dict(), directory=tmp_path)
    with pytest.raises(ValueError, match="weights became infinite or NaN in step 0"):
        check_health(session, results[0].record, directory=tmp_path)


def test_a_checkpoint_that_cannot_be_written_ends_the_run_and_leaves_the_one_before_it(tmp_path: Path) -> None:
    run = tmp_path / "grpo" / "seed-42"
    # The model's 0.5 MB fit a file and the optimiser's 1 MB do not: the write fails for real, in the middle of a file.
    limit = 600_000
    status, text = said(command(tmp_path), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert status == 2
    assert f"error: {run}: could not write the checkpoint after 1 steps: " in text and "Traceback" not in text
    assert "no checkpoint was written yet; make room" in text
    assert not list((run / "checkpoints").iterdir())


FULL_DISK = """
import shutil, sys
from pathlib import Path
from agpo_bench.config import load_config
from agpo_bench.evaluation.targets import trained_target
from agpo_bench.files import append_lines, read_lines
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import train
from tests.training.conftest import SMALL
from tests.training.test_resume import assert_same_run, stop_after

disk, copies, settings = Path(sys.argv[1]), Path(sys.argv[2]), eval(sys.argv[3])
config, method = load_config("embedded", **settings), load_method("grpo")
other = disk / "other"

def fill(session, record):
    if session.step == 2:
        with other.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

try:
    train(config, method, directory=disk / "run", on_step=fill)
except OSError as error:
    print(error)
shutil.copytree(disk / "run", copies / "full")
other.unlink()
train(config, method, directory=disk / "run", resume=True)
shutil.copytree(disk / "run", copies / "finished")
"""


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a file system")
def test_a_full_disk_ends_the_run_with_its_last_checkpoint_whole_and_room_lets_it_go_on(
    small_config: Config, tmp_path: Path
) -> None:
    settings = SMALL | {"budget": 2400, "checkpoint_every_steps": 1}
    (tmp_path / "disk").mkdir()
    (tmp_path / "driver.py").write_text(FULL_DISK)
    words = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path / "disk"), str(tmp_path), repr(settings)]
    script = 'mount -t tmpfs -o size=8m tmpfs "$1"; shift; exec "$@"'
    status, text = said([*in_own_mounts(tmp_path / "disk", script), *words])
    assert status == 0, text
    assert "could not write the checkpoint after 2 steps: No space left on device" in text
    assert f"the last good checkpoint is {tmp_path}/disk/run/checkpoints/000001; make room" in text
    assert [path.name for path in checkpoints(tmp_path / "full")] == ["000001"]
    assert_whole(newest_checkpoint(tmp_path / "full"))
    train(small_config(**settings), load_method("grpo"), directory=tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "finished")


@pytest.mark.skipif(not may_mount(), reason="this user may not mount a file system")
def test_a_disk_too_small_for_the_checkpoints_is_told_before_the_first_step(tmp_path: Path) -> None:
    script = 'mount -t tmpfs -o size=2m tmpfs "$1"; shift; exec "$@"'
    status, text = said([*in_own_mounts(tmp_path, script), *command(tmp_path)])
    assert status == 2
    # 126,528 parameters of 4 bytes and two moments each: 1.4 MiB, the one that is kept and the one in the making.
    assert "2.0 MiB are free and 2 checkpoints of 1.4 MiB take 2.9 MiB more" in text and "Traceback" not in text


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, text = said(command(tmp_path / "file" / "runs"))
    assert status == 2
    assert (
        text == f"error: cannot write into {tmp_path}/file/runs/grpo/seed-42: Not a directory; choose another --out\n"
    )


def test_a_folder_that_is_moved_away_amid_a_run_is_told_and_goes_on_where_it_lies(
    small_config: Config, tmp_path: Path
) -> None:
    config, method = small_config(budget=2400, checkpoint_every_steps=1), load_method("grpo")
    here, there = tmp_path / "here", tmp_path / "there"

    def move(session: Session, record: StepRecord) -> None:
        if session.step == 2:
            here.rename(there)

    with pytest.raises(OSError, match=f"^{here}: could not write the checkpoint after 2 steps: the folder was remov"):
        train(config, method, directory=here, on_step=move)
    assert not here.exists()
    train(config, method, directory=there, resume=True)
    train(config, method, directory=tmp_path / "whole")
    assert_same_run(tmp_path / "whole", there)


def rewards_until(run: Path, step: int, count: int) -> float:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return math.fsum(line["reward/mean"] for line in lines[step - count : step]) / count


def test_the_checkpoint_before_which_the_run_earned_most_is_kept_beside_the_newest(
    small_config: Config, tmp_path: Path
) -> None:
    config = small_config(budget=4500, checkpoint_every_steps=1, keep_best="reward", keep_best_steps=2)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    num_steps = train(config, load_method("grpo"), directory=whole).num_steps
    means = {step: rewards_until(whole, step, 2) for step in range(2, num_steps + 1)}
    best = max(means, key=lambda step: (means[step], -step))
    found = best_checkpoint(whole)
    assert found is not None and int(found.name) == best
    assert {int(path.name) for path in checkpoints(whole)} == {best, num_steps}
    marker = json.loads((whole / "checkpoints" / "best.json").read_text())
    assert marker == {"step": best, "reward/mean": means[best], "steps": 2}

    train(config, load_method("grpo"), directory=parts, on_step=stop_after(best))
    # As a kill between a checkpoint and its mark leaves it.
    (parts / "checkpoints" / "best.json").unlink()
    train(config, load_method("grpo"), directory=parts, resume=True)
    assert_same_run(whole, parts)
    assert (parts / "checkpoints" / "best.json").read_bytes() == (whole / "checkpoints" / "best.json").read_bytes()

    target = trained_target(whole, wanted="best", may_be_unfinished=True)
    assert target.model == str(found / "model") and target.directory == whole / "best"
    assert trained_target(whole).model == str(whole / "checkpoints" / f"{num_steps:06d}" / "model")


def test_of_equal_rewards_the_earlier_checkpoint_is_the_best(tmp_path: Path) -> None:
    rewards = [0.5, 0.5, 0.25, 0.75, 0.75]
    for step in range(1, 6):
        folder = tmp_path / "checkpoints" / f"{step:06d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
        append_lines(tmp_path / "metrics.jsonl", [{"step": step - 1, "reward/mean": rewards[step - 1]}])
        mark_best(tmp_path, num_steps=2)
        best = best_checkpoint(tmp_path)
        # Means of two: 0.5, 0.375, 0.5, 0.75; none before the second step.
        assert (best and int(best.name)) == [None, 2, 2, 2, 5][step - 1]


def test_a_run_without_a_best_checkpoint_says_how_to_get_one(small_config: Config, tmp_path: Path) -> None:
    train(small_config(budget=1000), load_method("grpo"), directory=tmp_path)
    with pytest.raises(ValueError, match=r"no best checkpoint in .*keep_best=reward"):
        trained_target(tmp_path, wanted="best")


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found = {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert all(len(dict(pairs)) == len(pairs) for pairs in found.values()), "a step was told twice"
    return {name: dict(pairs) for name, pairs in found.items()}


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed")
def test_tensorboard_holds_every_metric_over_tokens_used_and_a_resumed_run_goes_on_in_it(
    small_config: Config, tmp_path: Path
) -> None:
    config = small_config(budget=2400, tracker="tensorboard", checkpoint_every_steps=2)

    def die(session: Session, record: StepRecord) -> None:
        if session.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # one step is told and lost
        train(config, load_method("agpo"), directory=tmp_path, on_step=die)
    train(config, load_method("agpo"), directory=tmp_path, resume=True)
    expected: dict[str, dict[int, float]] = {}
    for line in read_lines(tmp_path / "metrics.jsonl"):
        for name, value in line.items():
            if value is not None:
                expected.setdefault(name, {})[line["tokens/used"]] = pytest.approx(value, rel=1e-6, abs=1e-30)
    assert len(next(iter(expected.values()))) >= 3
    assert scalars(tmp_path / "tensorboard") == expected


def test_a_tracker_that_is_not_installed_is_told_before_anything_is_loaded(
    small_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match=r'^tracker=wandb needs a package: pip install "agpo-bench\[wandb\]"$'):
        train(small_config(tracker="wandb"), load_method("grpo"), directory=tmp_path)
