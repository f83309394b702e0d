"""The learning rate follows the tokens used, and an update is clipped, counted and refused when it is not finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agpo_bench.config import RunConfig
from agpo_bench.training.engine import learning_rate_factor


def test_the_cosine_falls_from_the_peak_to_nothing_over_the_budget() -> None:
    config = RunConfig()
    # (1 + cos(pi x)) / 2 by hand: 1 at 0, 1/2 at 1/2, (1 + 1/sqrt 2) / 2 at 1/4, 0 at 1.
    assert learning_rate_factor(config, 0.0) == 1.0
    assert learning_rate_factor(config, 0.25) == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert learning_rate_factor(config, 0.5) == pytest.approx(0.5)
    assert learning_rate_factor(config, 1.0) == pytest.approx(0.0)


def test_the_cosine_can_end_above_nothing() -> None:
    config = RunConfig(final_learning_rate_fraction=0.1)
    assert learning_rate_factor(config, 0.5) == pytest.approx(0.55)
    assert learning_rate_factor(config, 1.0) == pytest.approx(0.1)


def test_the_warm_up_is_linear_in_tokens_and_the_cosine_begins_after_it() -> None:
    config = RunConfig(warmup_fraction=0.2)
    assert learning_rate_factor(config, 0.0) == 0.0
    assert learning_rate_factor(config, 0.1) == pytest.approx(0.5)
    assert learning_rate_factor(config, 0.2) == pytest.approx(1.0)
    assert learning_rate_factor(config, 0.6) == pytest.approx(0.5)


def test_a_constant_rate_stays() -> None:
    config = RunConfig(learning_rate_schedule="constant", warmup_fraction=0.5)
    assert learning_rate_factor(config, 0.25) == pytest.approx(0.5)
    assert learning_rate_factor(config, 0.99) == 1.0


def test_two_methods_with_different_steps_end_at_the_same_rate(
    small_config: Callable[..., RunConfig], take_steps: Callable[..., Any]
) -> None:
    config = small_config(learning_rate=1e-3)
    for name in ("grpo", "agpo"):
        session, _ = take_steps(config, name, steps=0)
        session.ledger.charge("train", config.budget // 2)
        session.set_learning_rate()
        for group in session.engine.optimizer.param_groups:
            assert group["lr"] == pytest.approx(0.5e-3)


def test_matrices_decay_and_vectors_do_not(
    small_config: Callable[..., RunConfig], take_steps: Callable[..., Any]
) -> None:
    session, _ = take_steps(small_config(critic_learning_rate=0.25), "ppo", steps=0)
    for group in session.engine.optimizer.param_groups:
        dimensions = {parameter.ndim >= 2 for parameter in group["params"]}
        assert dimensions == {group["weight_decay"] > 0}
    rates = {group["lr"] for group in session.engine.optimizer.param_groups}
    assert rates == {session.config.learning_rate, 0.25}
    held = sum(len(group["params"]) for group in session.engine.optimizer.param_groups)
    assert held == len(list(session.policy.parameters()))


def test_the_gradient_norm_is_that_before_clipping(
    small_config: Callable[..., RunConfig], take_steps: Callable[..., Any]
) -> None:
    session, _ = take_steps(small_config(max_grad_norm=0.5), "grpo", steps=0)
    parameters = list(session.policy.parameters())
    # Every gradient entry is 2, so the norm is 2 sqrt(number of entries).
    session.engine.backward(sum((2 * parameter).sum() for parameter in parameters))
    assert session.engine.step() == pytest.approx(2 * math.sqrt(sum(p.numel() for p in parameters)), rel=1e-5)


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(
    small_config: Callable[..., RunConfig], take_steps: Callable[..., Any]
) -> None:
    session, _ = take_steps(small_config(), "grpo", steps=0)
    before = {name: tensor.clone() for name, tensor in session.policy.state_dict().items()}
    parameter = next(iter(session.policy.parameters()))
    session.engine.backward((parameter * float("nan")).sum())
    norm = session.engine.step()
    session.note_update(norm)
    assert not math.isfinite(norm)
    assert session.engine.num_skipped_updates == 1
    assert session.gradient_norms == []
    assert all(torch.equal(before[name], tensor) for name, tensor in session.policy.state_dict().items())
    assert all(parameter.grad is None for parameter in session.policy.parameters())
