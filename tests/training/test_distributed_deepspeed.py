"""DeepSpeed trains as the torch engine does: same tokens, same controllers, checkpoints that any engine goes on from.

``make test-deepspeed`` makes the environment. The first start compiles an operator for a minute or two.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.methods.recipe import load_method
from agpo_bench.rollout.adapters import read_adapters
from agpo_bench.training.checkpoint import newest_checkpoint, read_tensors
from agpo_bench.training.model import load_model
from agpo_bench.training.run import train
from agpo_bench.training.setup import check, model_path
from tests.training import launched, resumes

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
def test_two_processes_of_deepspeeds_launcher_with_zero_2_follow_the_torch_run_of_one(tmp_path: Path) -> None:
    settings = {"launcher": "deepspeed", "engine": "deepspeed", "zero_stage": 2}
    launched.run(tmp_path / "two", "--method", "agpo,ppo", processes=2, **settings)
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


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
def test_two_processes_with_zero_3_go_on_where_two_left_off(tmp_path: Path) -> None:
    launched.start_module("tests.training.resumes", str(tmp_path), processes=2)
    for case in resumes.CASES:
        whole, resumed = tmp_path / case / "whole", tmp_path / case / "resumed"
        # Measured: not a bit of difference in any of them.
        launched.assert_alike(resumed, whole, rel=1e-6, absolute=1e-9)
        ours, theirs = (newest_checkpoint(run) for run in (resumed, whole))
        assert ours is not None and theirs is not None and ours.name == theirs.name
        for (name, weight), (_, expected) in zip(weights_of(ours / "model"), weights_of(theirs / "model"), strict=True):
            torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-8, msg=f"{case}: {name}")


LORA: dict[str, Any] = {"lora_rank": 4, "learning_rate": 5e-4, "checkpoint_every_steps": 1, "budget": 1800}


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
def test_adapters_of_a_killed_zero_2_run_go_on_in_one_process_with_zero_3_as_the_torch_run(tmp_path: Path) -> None:
    process = launched.start(tmp_path, "--method", "ppo", processes=2, engine="deepspeed", zero_stage=2, **LORA)
    run = tmp_path / "ppo" / "seed-42"
    said = launched.kill_after(process, run, rank=1, steps=2)
    assert said.count("error: process 0 of 2 lost the others") == 1, said
    stopped = newest_checkpoint(run)
    assert stopped is not None and not (stopped / "model").exists()
    moments = read_tensors(stopped)["optimizer"]["state"]
    # A and B of 7 matrices a layer, in policy and critic, and the value head's weight and bias.
    layers = load_model(model_path("embedded")).model.config.num_hidden_layers
    assert len(moments) == 2 * 2 * 7 * layers + 2
    launched.run(tmp_path, "--method", "ppo", "--resume", processes=0, engine="deepspeed", zero_stage=3, **LORA)
    whole = tmp_path / "whole"
    train(launched.config(**LORA), load_method("ppo"), directory=whole)
    launched.assert_alike(run, whole, rel=3e-4, absolute=3e-6)
    ours, theirs = (found / "model" for one in (run, whole) if (found := newest_checkpoint(one)))
    for (name, weight), (other, expected) in zip(*map(weights_of, (ours, theirs)), strict=True):
        assert name == other
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-5, msg=name)


def weights_of(model: Path) -> list[tuple[str, torch.Tensor]]:
    return sorted(load_model(model).model.named_parameters())


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stage", [1, 2])
def test_adapters_beside_frozen_bfloat16_weights_are_saved_in_float32(tmp_path: Path, stage: int) -> None:
    settings = LORA | {"engine": "deepspeed", "zero_stage": stage, "dtype": "bfloat16"}
    launched.run(tmp_path, "--method", "agpo", processes=0, **settings)
    run = tmp_path / "agpo" / "seed-42"
    lines = launched.metrics(run)
    assert lines[0]["kl/ref_k3"] == 0.0 < lines[-1]["kl/ref_k3"] < 1
    assert all(math.isfinite(line["loss/policy"]) and line["grad/skipped"] == 0 for line in lines)
    newest = newest_checkpoint(run)
    assert newest is not None
    adapters = read_adapters(newest / "adapter")
    assert all(weight.dtype == torch.float32 for weight in adapters.values())
    # Master weights: updates below what bfloat16 can hold have not been rounded away.
    assert any(bool((weight != weight.bfloat16().float()).any()) for weight in adapters.values())
    # The merged model is the bfloat16 weights of the start with the products of the saved adapters.
    base = dict(load_model(model_path("embedded"), dtype="bfloat16").model.named_parameters())
    merged = dict(weights_of(newest / "model"))
    for name, weight in merged.items():
        owner = name.removesuffix(".weight")
        expected = base[name].float()
        if f"{owner}.lora_A.default.weight" in adapters:
            a, b = (adapters[f"{owner}.lora_{part}.default.weight"] for part in "AB")
            expected = expected + 32.0 / 4 * (b @ a)
        torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-7, msg=name)
