"""A stopped or killed run goes on to the same bits; two different runs are never mixed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.checkpoint import checkpoints, newest_checkpoint, read_state
from agpo_bench.training.metrics import StepRecord
from agpo_bench.training.run import train
from agpo_bench.training.session import Session

Config = Callable[..., RunConfig]


def stop_after(step: int) -> Callable[[Session, StepRecord], None]:
    """Ask this process to stop, as Ctrl-C or a scheduler would, once a step is done."""

    def on_step(session: Session, record: StepRecord) -> None:
        if session.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return on_step


def assert_same_run(first: Path, second: Path) -> None:
    """Metrics, rollouts, ledger, weights, optimiser and controllers agree to the bit."""
    for name in ("metrics.jsonl", "ledger.json", "config.yaml", "recipe.yaml"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    rollouts = sorted(path.name for path in (first / "rollouts").iterdir())
    assert rollouts == sorted(path.name for path in (second / "rollouts").iterdir())
    for name in rollouts:
        assert (first / "rollouts" / name).read_bytes() == (second / "rollouts" / name).read_bytes(), name
    left, right = newest_checkpoint(first), newest_checkpoint(second)
    assert left is not None and right is not None and left.name == right.name
    one, two = json.loads((left / "state.json").read_text()), json.loads((right / "state.json").read_text())
    # Wall-clock seconds take a varying number of digits.
    for state in (one, two):
        state["file_sizes"].pop("timing.jsonl")
    assert one == two
    assert (left / "model" / "model.safetensors").read_bytes() == (right / "model" / "model.safetensors").read_bytes()
    assert (left / "tensors.pt").read_bytes() == (right / "tensors.pt").read_bytes()


@pytest.mark.parametrize("name", ["grpo", "agpo", "ppo_adaptive_kl", "dpo", "clip_cov", "spo", "dapo", "four_q"])
def test_a_run_in_two_parts_equals_a_run_in_one(small_config: Config, tmp_path: Path, name: str) -> None:
    config, method = small_config(budget=2400, checkpoint_every_steps=100), load_method(name)
    whole = train(config, method, directory=tmp_path / "whole")
    assert whole.num_steps >= 2
    stopped = train(config, method, directory=tmp_path / "parts", on_step=stop_after(whole.num_steps // 2))
    assert not stopped.is_finished
    assert stopped.num_steps == whole.num_steps // 2
    resumed = train(config, method, directory=tmp_path / "parts", resume=True)
    assert resumed.is_finished
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_is_skipped_on_resuming(small_config: Config, tmp_path: Path) -> None:
    config, method = small_config(budget=1600), load_method("grpo")
    train(config, method, directory=tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = train(config, method, directory=tmp_path, resume=True)
    assert again.was_skipped and again.is_finished
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_lines_written_after_the_checkpoint_and_torn_tails_are_cut(small_config: Config, tmp_path: Path) -> None:
    config, method = small_config(budget=1600), load_method("grpo")
    train(config, method, directory=tmp_path / "whole")
    train(config, method, directory=tmp_path / "cut", on_step=stop_after(2))
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as file:
        file.write('{"step":2,"reward/mean":0.5}\n{"step":3,"rew')
    (tmp_path / "cut" / "rollouts" / "000002.jsonl").write_text("{}\n")
    (tmp_path / "cut" / "checkpoints" / ".tmp-000004-1").mkdir()
    train(config, method, directory=tmp_path / "cut", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert not list((tmp_path / "cut" / "checkpoints").glob(".tmp-*"))


def test_a_folder_is_not_overwritten_without_resume(small_config: Config, tmp_path: Path) -> None:
    config, method = small_config(budget=1600), load_method("grpo")
    train(config, method, directory=tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path} already holds a run; add --resume"):
        train(config, method, directory=tmp_path)


def test_a_folder_that_another_process_writes_is_refused_until_that_process_is_dead(
    small_config: Config, tmp_path: Path
) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom agpo_bench.files import only_writer\n"
        "with only_writer(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    config, method = small_config(budget=1600), load_method("grpo")
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        for resume in (False, True):
            with pytest.raises(ValueError, match=f"another process is writing into {tmp_path}"):
                train(config, method, directory=tmp_path, resume=resume)
        other.kill()
    assert train(config, method, directory=tmp_path).is_finished


def test_another_configuration_cannot_resume_a_run(small_config: Config, tmp_path: Path) -> None:
    train(small_config(budget=1600), load_method("grpo"), directory=tmp_path)
    with pytest.raises(ValueError, match=r"config.yaml was made with learning_rate = 0.0004 and this run has 0.1"):
        train(small_config(budget=1600, learning_rate=0.1), load_method("grpo"), directory=tmp_path, resume=True)


def test_another_recipe_cannot_resume_a_run(small_config: Config, tmp_path: Path) -> None:
    config = small_config(budget=1600)
    train(config, load_method("grpo"), directory=tmp_path)
    changed = load_method("grpo", {"clip.high": 0.3})
    with pytest.raises(ValueError, match=r"recipe.yaml was made with clip.high = 0.2 and this run has 0.3; resume"):
        train(config, changed, directory=tmp_path, resume=True)


def test_other_starting_weights_cannot_resume_a_run(small_config: Config, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from agpo_bench.data.embedded import embedded_model_directory

    model = AutoModelForCausalLM.from_pretrained(embedded_model_directory())
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(embedded_model_directory()).save_pretrained(tmp_path / "model")
    config = small_config(budget=1600, model=str(tmp_path / "model"))
    train(config, load_method("grpo"), directory=tmp_path / "run", on_step=stop_after(1))
    model.get_input_embeddings().weight.data[0, 0] += 1
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="started from other weights"):
        train(config, load_method("grpo"), directory=tmp_path / "run", resume=True)


@pytest.mark.skipif(not Path("/proc/self/maps").is_file(), reason="the system does not tell what is mapped")
def test_a_resumed_run_keeps_no_file_of_its_checkpoint_in_memory(small_config: Config, tmp_path: Path) -> None:
    config, mapped = small_config(budget=1600, checkpoint_every_steps=1), []

    def on_step(session: Session, record: StepRecord) -> None:
        mapped.extend(line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line)

    train(config, load_method("ppo"), directory=tmp_path / "run", on_step=stop_after(1))
    outcome = train(config, load_method("ppo"), directory=tmp_path / "run", resume=True, on_step=on_step)
    assert outcome.num_steps > 1 and not mapped


def test_only_the_newest_checkpoints_are_kept_and_hold_a_loadable_model(small_config: Config, tmp_path: Path) -> None:
    config = small_config(budget=4000, checkpoint_every_steps=1, keep_checkpoints=2)
    outcome = train(config, load_method("grpo"), directory=tmp_path)
    kept = checkpoints(tmp_path)
    assert [int(path.name) for path in kept] == [outcome.num_steps - 1, outcome.num_steps]
    assert [read_state(path).is_finished for path in kept] == [False, True]
    old, new = (load_file(path / "model" / "model.safetensors") for path in kept)
    assert any(not (old[name] == new[name]).all() for name in new)


def test_a_run_killed_at_any_step_resumes_to_the_same_bits(tmp_path: Path) -> None:
    settings = {"prompts_per_batch": 4, "group_size": 4, "max_new_tokens": 24, "checkpoint_every_steps": 2}
    words = [
        sys.executable,
        "-m",
        "agpo_bench",
        "train",
        "--method",
        "agpo",
        "--budget",
        "8k",
        "--tasks",
        "gsm8k,cmath",
    ]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]

    def start(out: Path, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*words, "--out", str(out), *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    whole = start(tmp_path / "whole")
    assert whole.wait(timeout=300) == 0, whole.communicate()[0]
    metrics = tmp_path / "killed" / "agpo" / "seed-42" / "metrics.jsonl"
    num_steps = len((tmp_path / "whole" / "agpo" / "seed-42" / "metrics.jsonl").read_text().splitlines())
    chosen = random.Random(0).sample(range(1, num_steps - 1), 2)
    for count, kill_at in enumerate(sorted(chosen)):
        process = start(tmp_path / "killed", *(["--resume"] if count else []))
        deadline = time.monotonic() + 300
        while (not metrics.exists() or metrics.read_bytes().count(b"\n") < kill_at) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    last = start(tmp_path / "killed", "--resume")
    assert last.wait(timeout=300) == 0, last.communicate()[0]
    assert_same_run(tmp_path / "whole" / "agpo" / "seed-42", tmp_path / "killed" / "agpo" / "seed-42")


@pytest.mark.parametrize("name", ["state.json", "tensors.pt"])
def test_a_damaged_checkpoint_is_named_and_without_it_the_run_goes_on_from_the_one_before(
    small_config: Config, tmp_path: Path, name: str
) -> None:
    config = small_config(budget=1600, checkpoint_every_steps=1, keep_checkpoints=2)
    train(config, load_method("grpo"), directory=tmp_path / "whole")
    train(config, load_method("grpo"), directory=tmp_path / "run", on_step=stop_after(2))
    newest = newest_checkpoint(tmp_path / "run")
    assert newest is not None and newest.name == "000002"
    (newest / name).write_bytes((newest / name).read_bytes()[:100])
    with pytest.raises(ValueError, match=f"^{newest}/{name} cannot be read, .*; remove {newest} to go on from the"):
        train(config, load_method("grpo"), directory=tmp_path / "run", resume=True)
    shutil.rmtree(newest)
    train(config, load_method("grpo"), directory=tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
