"""What a run logged, computed again from its files alone by code that shares nothing with the controllers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pvariance, stdev
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.data.benchmarks import grader_for
from agpo_bench.methods.recipe import load_method
from agpo_bench.training.run import StepResult, train
from agpo_bench.training.session import Session
from agpo_bench.training.setup import check_logs

Config = Callable[..., RunConfig]
Take = Callable[..., tuple[Session, list[StepResult]]]
Read = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def agpo_run(small_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished AGPO run; the rate is high, so that the step KL shows in the radius."""
    out = tmp_path_factory.mktemp("runs")
    config = small_config(budget=6000, learning_rate=2e-3)
    train(config, load_method("agpo"), directory=out / "agpo" / "seed-42")
    return out / "agpo" / "seed-42"


def signals(lines: list[dict[str, Any]]) -> tuple[float, float, float]:
    """sigma, |kappa| and E of one step's probe lines, from Eqs. 5 and 8 with the paper's Bessel deviation and g1."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["prompt_id"]].append(line)
    sigmas, kappas, entropies = [], [], []
    for prompt_id, group in groups.items():
        rewards = [line["reward"] for line in group]
        n, centre = len(rewards), fmean(rewards)
        sigmas.append(stdev(rewards))
        second, third = (fmean((r - centre) ** power for r in rewards) for power in (2, 3))
        kappas.append(abs(third) / second**1.5 if stdev(rewards) >= 1e-6 else 0.0)
        grader, votes = grader_for(prompt_id.split("/")[0]), Counter[str | None]()
        for line in group:
            known = (a for a in votes if a is not None and line["answer"] is not None)
            same = next((a for a in known if a == line["answer"] or grader.are_equivalent(a, line["answer"])), None)
            votes[same if same is not None else line["answer"]] += 1
        entropies.append(-sum(count / n * math.log(count / n) for count in votes.values()))
    return fmean(sigmas), fmean(kappas), fmean(entropies)


def test_every_radius_and_temperature_follows_from_the_logged_probe(agpo_run: Path, read_jsonl: Read) -> None:
    mean, last, drift = 0.0, None, 0.0
    steps = read_jsonl(agpo_run / "metrics.jsonl")
    assert len(steps) >= 4
    for line in steps:
        rollouts = read_jsonl(agpo_run / "rollouts" / f"{line['step']:06d}.jsonl")
        sigma, kappa, entropy = signals([one for one in rollouts if one["phase"] == "probe"])
        uncertainty = 1.0 * sigma + 1.0 * entropy + 0.1 * kappa  # Eq. 9
        mean = 0.95 * mean + 0.05 * last if last is not None else 0.0  # Eq. 11, Ubar_0 = 0
        tau = min(1.5, max(0.5, 1.0 * (1 + 0.15 * (uncertainty - mean))))  # Eqs. 10 and 12
        denominator = 1 + 1.0 * sigma + 0.05 * kappa + 0.5 * drift
        eps = min(0.4, max(0.05, 0.2 * line["ctrl/H"] * (1 + 0.2 * entropy) / denominator))  # Eq. 4
        assert line["ctrl/tau"] == pytest.approx(tau, abs=1e-12)
        assert line["ctrl/eps"] == pytest.approx(eps, abs=1e-12)
        assert {one["tau"] for one in rollouts if one["phase"] == "train"} == {line["ctrl/tau"]}
        last, drift = uncertainty, line["kl/step_k1"]  # Eq. 6, carried
    assert any(0.05 < line["ctrl/eps"] < 0.4 for line in steps), "a radius at its limit tests nothing"


def test_every_advantage_follows_from_the_logged_rewards(agpo_run: Path, read_jsonl: Read) -> None:
    for file in sorted((agpo_run / "rollouts").iterdir()):
        groups = defaultdict(list)
        for line in read_jsonl(file):
            if line["phase"] == "train":
                groups[line["prompt_id"]].append(line)
        for group in groups.values():
            rewards = [line["reward"] for line in group]
            spread = stdev(rewards)
            for line in group:
                expected = (line["reward"] - fmean(rewards)) / (spread + 1e-8) if spread else 0.0  # Eq. 1
                assert line["advantage"] == pytest.approx(expected, abs=1e-12)


def test_the_gradient_variance_is_that_of_the_norms_of_all_updates(small_config: Config, take_steps: Take) -> None:
    session, results = take_steps(small_config(), "grpo", steps=2)
    values = results[-1].record.values
    assert len(session.gradient_norms) == session.num_updates == values["updates"] == 8
    assert values["grad/norm_var_1k"] == pytest.approx(pvariance(session.gradient_norms), rel=1e-9)
    assert values["grad/norm"] == pytest.approx(fmean(session.gradient_norms[4:]), rel=1e-12)


def test_the_rate_of_every_step_is_the_cosine_of_the_tokens_used_before_it(agpo_run: Path, read_jsonl: Read) -> None:
    used = 0
    for line in read_jsonl(agpo_run / "metrics.jsonl"):
        assert line["learning_rate"] == pytest.approx(2e-3 * (1 + math.cos(math.pi * used / 6000)) / 2, rel=1e-12)
        used = line["tokens/used"]


def test_a_replay_on_the_stream_of_its_own_log_would_be_that_run_and_so_draws_another(
    small_config: Config, take_steps: Take, agpo_run: Path
) -> None:
    config = small_config(budget=6000, learning_rate=2e-3)
    method = load_method("agpo_replay").with_logs(out=agpo_run.parent.parent, seed=42)
    original, told = take_steps(config, "agpo", steps=2)
    repeated, same = take_steps(config, method.model_copy(update={"sampling_stream": 0}), steps=2)
    assert [one.rollouts for one in told] == [one.rollouts for one in same]
    left, right = original.policy.state_dict(), repeated.policy.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)
    _, fresh = take_steps(config, method, steps=2)
    for one, other in zip(told, fresh, strict=True):
        assert one.record.values["ctrl/eps"] == other.record.values["ctrl/eps"]
        assert one.record.values["ctrl/tau"] == other.record.values["ctrl/tau"]
    seeds = ({line["seed"] for one in results for line in one.rollouts} for results in (told, fresh))
    assert not set.intersection(*seeds)
    assert {line["prompt_id"] for line in told[0].rollouts} == {line["prompt_id"] for line in fresh[0].rollouts}


def test_the_log_of_a_run_that_stopped_half_way_is_not_replayed(
    small_config: Config, agpo_run: Path, tmp_path: Path
) -> None:
    method = load_method("agpo_replay")
    check_logs(method.with_logs(out=agpo_run.parent.parent, seed=42))
    run = tmp_path / "agpo" / "seed-42"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step":0,"ctrl/eps":0.1,"ctrl/tau":1.0}\n')
    check_logs(method.with_logs(out=tmp_path, seed=42))  # a log without its run
    (run / "config.yaml").write_text("seed: 42\n")
    with pytest.raises(ValueError, match="that run is not finished; finish it with --resume"):
        check_logs(method.with_logs(out=tmp_path, seed=42))
