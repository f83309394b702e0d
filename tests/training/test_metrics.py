"""Metrics equal what their definitions give by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agpo_bench.files import json_line
from agpo_bench.records import Group, Prompt, Reference, Rollout, Verdict
from agpo_bench.training.collect import RolloutBatch, pad
from agpo_bench.training.kl_monitor import KlSample
from agpo_bench.training.metrics import StepRecord, gradient_norm_variance, merged, rollout_metrics
from agpo_bench.training.rewards import Graded


def rollout(index: int, ids: tuple[int, ...], *, is_finished: bool = True) -> Rollout:
    return Rollout(
        sample_index=index,
        seed=index,
        response_ids=ids,
        logprobs=(0.0,) * len(ids),
        entropies=None,
        text="",
        is_finished=is_finished,
        temperature=1.0,
        weights_version=3,
    )


def batch() -> RolloutBatch:
    """Three groups of four: mixed (one ungraded), all wrong, all right."""
    prompts = [Prompt(prompt_id=f"t{i}", task="ab"[i > 0], text="", reference=Reference(gold="")) for i in range(3)]
    responses = [
        [rollout(0, (1, 2)), rollout(1, (1, 2)), rollout(2, (3,)), rollout(3, (4, 5, 6, 7), is_finished=False)],
        [rollout(i, (9,)) for i in range(4)],
        [rollout(i, (i, 9)) for i in range(4)],
    ]
    groups = [Group(prompt_id=f"t{i}", prompt_ids=(1,), rollouts=tuple(row)) for i, row in enumerate(responses)]
    error = Verdict(score=0.0, answer=None, reason="timeout", is_error=True)
    right, wrong = Verdict(score=1.0, answer="1", reason=""), Verdict(score=0.0, answer="2", reason="")
    none = Verdict(score=0.0, answer=None, reason="no_answer")
    verdicts = [[right, wrong, none, error], [wrong, wrong, none, none], [right] * 4]
    return RolloutBatch(prompts=prompts, groups=groups, graded=Graded.of(verdicts))


def test_reward_metrics_leave_out_what_could_not_be_graded() -> None:
    values = rollout_metrics(batch())
    assert values["reward/mean"] == pytest.approx(5 / 11)
    assert values["reward/error_rate"] == pytest.approx(1 / 12)
    assert values["reward/parse_rate"] == pytest.approx(8 / 11)
    # Bessel deviations: sqrt(1/3) of (1, 0, 0), and twice 0.
    assert values["reward/std"] == pytest.approx(math.sqrt(1 / 3) / 3)
    assert values["reward/frac_zero_std"] == pytest.approx(2 / 3)
    assert values["reward/frac_all0"] == pytest.approx(1 / 3)
    assert values["reward/frac_all1"] == pytest.approx(1 / 3)
    assert values["reward/task/a"] == pytest.approx(1 / 3)
    assert values["reward/task/b"] == pytest.approx(1 / 2)


def test_response_metrics_count_tokens_truncation_and_distinct_responses() -> None:
    values = rollout_metrics(batch())
    assert values["len/mean"] == pytest.approx((2 + 2 + 1 + 4 + 4 + 8) / 12)
    assert values["len/max"] == 4
    assert values["len/trunc_frac"] == pytest.approx(1 / 12)
    assert values["gen/unique_frac"] == pytest.approx((3 / 4 + 1 / 4 + 1) / 3)
    assert values["sync/version"] == 3


def test_kl_estimates_are_means_over_tokens_and_sums_over_sequences() -> None:
    p = torch.tensor([[-1.0, -2.0, 0.0], [-1.0, 0.0, 0.0]])
    q = torch.tensor([[-1.5, -1.0, 7.0], [-1.0, 5.0, 5.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    sample = KlSample.between(p, q, mask)
    # k1 = (0.5, -1, 0); k3 = e^-k1 - 1 + k1.
    k3 = [math.exp(-0.5) - 0.5, math.e - 2, 0.0]
    assert sample.num_tokens == 3
    assert sample.k1 == pytest.approx(-0.5 / 3)
    assert sample.k3 == pytest.approx(sum(k3) / 3)
    assert sample.per_sequence == pytest.approx(-0.25)
    assert sample.per_sequence_k3 == pytest.approx(sum(k3) / 2)
    assert sample.k1_by_group(1).tolist() == pytest.approx([-0.25, 0.0])
    assert sample.k1_by_group(2).tolist() == pytest.approx([-0.5 / 3])


def test_the_gradient_norm_variance_is_the_population_variance() -> None:
    assert gradient_norm_variance([1.0]) is None
    assert gradient_norm_variance([1.0, 2.0, 3.0, 6.0]) == pytest.approx(3.5)


def test_a_value_that_is_not_finite_is_written_as_null() -> None:
    line = json_line(StepRecord(step=4, values={"a": float("nan"), "b": float("inf"), "c": 0.1 + 0.2}).to_json())
    assert line == '{"step":4,"a":null,"b":null,"c":0.30000000000000004}\n'


def test_two_sources_of_one_metric_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="two sources"):
        merged({"a": 1.0}, {"a": 2.0})


def test_rows_are_padded_on_the_right_and_may_be_none() -> None:
    assert pad([[1.0], [2.0, 3.0]]).tolist() == [[1.0, 0.0], [2.0, 3.0]]
    assert pad([]).shape == (0, 0)
