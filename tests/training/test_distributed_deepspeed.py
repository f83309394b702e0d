"""DeepSpeed trains as the torch engine does: same tokens, same controllers, checkpoints that any engine goes on from.

``make test-deepspeed`` makes the environment. The first start compiles an operator for a minute or two.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import pytest

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.checkpoint import newest_checkpoint, read_tensors
from agpo_bench.training.model import load_model
from agpo_bench.training.run import train
from agpo_bench.training.setup import check
from tests.training import launched

needs_deepspeed = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="DeepSpeed is not installed; make test-deepspeed installs it"
)


def test_settings_without_effect_are_refused() -> None:
    method = load_method("grpo")
    for settings, said in (
        ({"zero_stage": 3}, "zero_stage = 3: the torch engine shares nothing out; add engine=deepspeed"),
        ({"offload": "optimizer"}, "offload = optimizer: the torch engine shares nothing out"),
        ({"engine": "deepspeed", "offload": "parameters"}, "offload = parameters needs zero_stage 3.*; it is 2"),
    ):
        with pytest.raises(ValueError, match=said):
            check(RunConfig(**settings), method)


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_a_missing_package_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(ValueError, match=r'engine=deepspeed needs DeepSpeed; install it with pip install "agpo-bench'):
        check(RunConfig(engine="deepspeed"), load_method("grpo"))


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
def test_two_processes_with_zero_2_follow_the_torch_run_of_one(tmp_path: Path) -> None:
    launched.run(tmp_path / "two", "--method", "agpo,ppo", processes=2, engine="deepspeed", zero_stage=2)
    for name in ("agpo", "ppo"):
        train(launched.config(), load_method(name), directory=tmp_path / "one" / name)
        # Measured: 3e-5 of the value at most, and only in gradient norms and correlations.
        launched.assert_alike(tmp_path / "two" / name / "seed-42", tmp_path / "one" / name, rel=3e-4, absolute=3e-6)


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
def test_a_killed_run_goes_on_with_another_stage_and_number_of_processes(tmp_path: Path) -> None:
    process = launched.start(
        tmp_path, "--method", "ppo", processes=2, engine="deepspeed", zero_stage=3, checkpoint_every_steps=1
    )
    said = launched.kill_after(process, tmp_path / "ppo" / "seed-42", rank=0)
    assert said.count("error: process 1 of 2 lost the others") == 1, said
    again = {"engine": "deepspeed", "zero_stage": 1, "checkpoint_every_steps": 1}
    launched.run(tmp_path, "--method", "ppo", "--resume", processes=0, **again)
    whole = tmp_path / "whole"
    train(launched.config(checkpoint_every_steps=1), load_method("ppo"), directory=whole)
    resumed = tmp_path / "ppo" / "seed-42"
    launched.assert_alike(resumed, whole, rel=3e-4, absolute=3e-6)
    moments = [read_tensors(found)["optimizer"] for run in (resumed, whole) if (found := newest_checkpoint(run))]
    assert moments[0]["state"].keys() == moments[1]["state"].keys()
    for number, ours in moments[0]["state"].items():
        theirs = moments[1]["state"][number]
        assert ours["step"] == theirs["step"]
        for key in ("exp_avg", "exp_avg_sq"):
            assert float((ours[key] - theirs[key]).abs().max()) <= 1e-3 * float(theirs[key].abs().max())


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
def test_bfloat16_with_everything_shared_out_trains_and_saves_float32(tmp_path: Path) -> None:
    settings = {"dtype": "bfloat16", "zero_stage": 3, "offload": "parameters", "gradient_checkpointing": True}
    launched.run(tmp_path, "--method", "agpo", processes=2, engine="deepspeed", **settings)
    run = tmp_path / "agpo" / "seed-42"
    for line in launched.metrics(run):
        assert math.isfinite(line["loss/policy"]) and 0 < line["grad/norm"] < 100 and line["grad/skipped"] == 0
    newest = newest_checkpoint(run)
    assert newest is not None
    weights = dict(load_model(newest / "model").model.named_parameters())
    # Master weights: updates far below what bfloat16 can hold have not been rounded away.
    assert any(bool((weight != weight.bfloat16().float()).any()) for weight in weights.values())
