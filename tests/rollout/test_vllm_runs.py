"""Training and evaluation through vLLM, start to end; see test_vllm_sampler.py for the environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig, load_config
from agpo_bench.evaluation.evaluate import EvalOptions, evaluate_runs
from agpo_bench.evaluation.results import EvalResult
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.metrics import StepRecord
from agpo_bench.training.run import train
from agpo_bench.training.session import Session
from tests.rollout.wide_model import write_wide_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; make test-vllm installs it"),
]

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wide_model(tmp_path_factory.mktemp("models") / "wide")


def small(model: Path, **fields: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "model": str(model),
        "sampler": "vllm",
        "tasks": "gsm8k,math",
        "budget": 3000,
        "prompts_per_batch": 4,
        "group_size": 4,
        "max_new_tokens": 24,
        "minibatches_per_epoch": 2,
        "micro_batch_tokens": 1024,
        "monitor_rollouts": None,
        "checkpoint_every_steps": 100,
    }
    return load_config("embedded", **(settings | fields))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "agpo" / "seed-42"
    outcome = train(small(wide), load_method("agpo"), directory=run)
    assert outcome.is_finished
    return run


def test_a_run_spends_its_budget_to_the_token_and_samples_from_the_newest_weights(finished: Path) -> None:
    steps = lines(finished)
    sampled = [json.loads(line) for file in (finished / "rollouts").iterdir() for line in file.read_text().splitlines()]
    used = sum(len(line["token_ids"]) for line in sampled)
    assert steps[-1]["tokens/used"] == used == json.loads((finished / "ledger.json").read_text())["used"]
    assert steps[-2]["tokens/used"] < 3000 <= used
    assert [step["sync/version"] for step in steps] == [step["step"] for step in steps]
    assert len(steps) >= 3


def test_engine_and_policy_agree_at_every_step_and_the_first_pass_has_ratio_1(finished: Path) -> None:
    for step in lines(finished):
        # Measured: 2e-7 on average, 1e-5 at most, in float32.
        assert step["sync/logp_gap_mean"] < 1e-5
        assert step["sync/logp_gap_max"] < 1e-3
        assert step["sync/logp_gap_tokens"] > 50
        assert step["clip/first_pass_ratio_err"] < 1e-3
        assert 0 < step["ctrl/H"] < 2


def test_a_stopped_run_goes_on_to_the_same_tokens(wide: Path, finished: Path, tmp_path: Path) -> None:
    def stop(session: Session, record: StepRecord) -> None:
        if session.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    method, run = load_method("agpo"), tmp_path / "agpo" / "seed-42"
    assert not train(small(wide), method, directory=run, on_step=stop).is_finished
    assert train(small(wide), method, directory=run, resume=True).is_finished
    for file in (finished / "rollouts").iterdir():
        assert (run / "rollouts" / file.name).read_bytes() == file.read_bytes()
    assert lines(run) == lines(finished)


def test_preference_pairs_come_from_the_engine_of_the_initial_model(wide: Path, tmp_path: Path) -> None:
    run = tmp_path / "dpo" / "seed-42"
    assert train(small(wide, budget=2000), load_method("dpo"), directory=run).is_finished
    for step in lines(run):
        assert step["sync/logp_gap_mean"] < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_samples_from_weights_with_the_adapters_merged_in(wide: Path, tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("peft")
    config = small(wide, budget=1600, lora_rank=4, learning_rate=3e-3, dtype=dtype)
    run = tmp_path / "grpo" / "seed-42"
    assert train(config, load_method("grpo"), directory=run).is_finished
    steps = lines(run)
    assert [step["sync/version"] for step in steps] == [step["step"] for step in steps]
    assert steps[0]["kl/ref_k3"] == pytest.approx(0.0, abs=1e-9) and len(steps) >= 3
    # Measured: 3e-7 and 3e-3 on average. The model without adapters is soon 0.03 nats a token away.
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    assert all(step["sync/logp_gap_mean"] < tolerance for step in steps)
    assert max(abs(step["kl/ref_k1"]) for step in steps) > 2e-2


def test_an_engine_that_missed_an_update_stops_the_run_in_one_sentence(wide: Path, tmp_path: Path) -> None:
    def miss_the_next(session: Session, record: StepRecord) -> None:
        with torch.no_grad():
            for parameter in session.policy.parameters():
                parameter.mul_(1.1)
        session.sampler._stamp = sum(p._version for p in session.policy.loaded.model.parameters())  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match=r"differ from the policy's by .* nats a token on average") as caught:
        train(small(wide), load_method("grpo"), directory=tmp_path / "run", on_step=miss_the_next)
    assert "\n" not in str(caught.value)


def test_evaluation_through_vllm_gives_the_torch_samplers_greedy_scores(finished: Path) -> None:
    def evaluate(sampler: Any) -> list[EvalResult]:
        options = EvalOptions(tasks=("gsm8k", "sat"), limit=40, maj=(4,), sampler=sampler)
        return evaluate_runs(finished.parents[1], run=finished, options=options)

    ours, theirs = evaluate("vllm"), evaluate("torch")
    assert len(ours) == 4, "the initial model and the run, on two tasks"
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.task, mine.model_fingerprint) == (other.task, other.model_fingerprint)
        assert mine.accuracy == other.accuracy
        assert mine.parse_rate == other.parse_rate
        assert mine.maj.keys() == other.maj.keys() == {4}
        # Another backend draws other tokens: neither is taken for the other's.
        assert mine.generation_key != other.generation_key
    assert any(result.accuracy for result in ours)


def test_two_training_processes_each_with_an_engine_sample_what_one_samples(
    wide: Path, finished: Path, tmp_path: Path
) -> None:
    settings = small(wide).model_dump(mode="json")
    names = ("tasks", "prompts_per_batch", "group_size", "max_new_tokens", "minibatches_per_epoch")
    changes = {name: settings[name] for name in names} | {"device": "cpu", "micro_batch_tokens": 1024}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    command += ["agpo_bench", "train", "--model", str(wide), "--sampler", "vllm", "--budget", "3000"]
    command += ["--out", str(tmp_path), "--set", "checkpoint_every_steps=100"]
    for name, value in changes.items():
        command += ["--set", f"{name}={','.join(value) if isinstance(value, list) else value}"]
    # vLLM in this process has put libraries into LD_PRELOAD for children of its own.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        command, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = tmp_path / "agpo" / "seed-42"
    ours, theirs = lines(run), lines(finished)
    assert [step["tokens/used"] for step in ours] == [step["tokens/used"] for step in theirs]
    assert all(step["sync/logp_gap_mean"] < 1e-5 for step in ours)
    assert _first_tokens(run) == _first_tokens(finished)


def _first_tokens(run: Path) -> list[list[int]]:
    return [json.loads(line)["token_ids"] for line in (run / "rollouts" / "000000.jsonl").read_text().splitlines()]
