"""Known answers by enumeration and by hand."""

import math

import pytest
import torch

from agpo_bench.methods.batch import AdvantageInputs, LossBatch
from agpo_bench.methods.kl import LossKl, RewardKl, kl_estimate
from agpo_bench.methods.ratio import CumulativeRatio, SequenceMeanRatio, SequenceRatio, TokenRatio


def batch(new, old, *, mask=None, ref=None) -> LossBatch:
    new, old = torch.as_tensor(new).double(), torch.as_tensor(old).double()
    one = torch.ones(len(new), 1, dtype=torch.float64)
    return LossBatch(
        logprob_BT=new,
        old_logprob_BT=old,
        mask_BT=torch.ones_like(new, dtype=torch.bool) if mask is None else torch.tensor(mask),
        advantage_BT=one,
        clip_low_B1=0.2 * one,
        clip_high_B1=0.2 * one,
        ref_logprob_BT=None if ref is None else torch.as_tensor(ref).double(),
    )


def test_the_three_ratio_levels_of_a_known_sequence():
    old, new = torch.tensor([[0.5, 0.4, 0.2]]).log(), torch.tensor([[0.55, 0.36, 0.30]]).log()
    given = batch(new, old)
    assert TokenRatio()(given).exp()[0].tolist() == pytest.approx([1.1, 0.9, 1.5], rel=1e-6)
    assert float(SequenceRatio()(given).exp()) == pytest.approx(1.485, rel=1e-6)
    assert float(SequenceMeanRatio()(given).exp()) == pytest.approx(1.140886, abs=1e-6)
    assert CumulativeRatio()(given).exp()[0].tolist() == pytest.approx([1.1, 0.99, 1.485], rel=1e-6)
    assert CumulativeRatio(is_mean=True)(given).exp()[0].tolist() == pytest.approx(
        [1.1, math.sqrt(0.99), 1.485 ** (1 / 3)], rel=1e-6
    )


def test_a_small_drift_over_three_hundred_tokens_is_large_only_for_the_product():
    new = torch.full((1, 300), -1.0).double()
    given = batch(new, new - 0.001)
    assert float(SequenceRatio()(given).exp()) == pytest.approx(1.3499, abs=5e-5)
    assert float(SequenceMeanRatio()(given).exp()) == pytest.approx(1.0010, abs=5e-5)
    assert float(TokenRatio()(given).exp()[0, 0]) == pytest.approx(1.0010, abs=5e-5)


@pytest.mark.parametrize("part", [TokenRatio(), SequenceRatio(), SequenceMeanRatio(), CumulativeRatio()])
def test_padding_changes_no_ratio(part):
    short = batch([[-1.0, -0.5]], [[-1.1, -0.7]])
    padded = batch([[-1.0, -0.5, -9.0]], [[-1.1, -0.7, math.nan]], mask=[[True, True, False]])
    assert torch.allclose(part(padded)[:, :2], part(short))
    assert torch.isfinite(part(padded)).all()


def test_a_broken_update_gives_a_number_and_not_infinity():
    for part in (TokenRatio(), SequenceRatio(), SequenceMeanRatio(), CumulativeRatio()):
        assert torch.isfinite(part(batch([[0.0] * 50], [[-100.0] * 50])).exp()).all()


Z, REF = torch.tensor([0.3, -0.2, 0.5]).double(), torch.tensor([0.0, 0.1, -0.4]).double()


def expected_loss_gradient(estimator: str) -> list[float]:
    """Mean over the policy's own samples of d/dz of the per-sample loss, by enumeration of the three tokens."""
    z = Z.clone().requires_grad_()
    logp, ref = z.log_softmax(0), REF.log_softmax(0)
    given = LossBatch(
        logprob_BT=logp[:, None],
        old_logprob_BT=logp.detach()[:, None],
        mask_BT=torch.ones(3, 1, dtype=torch.bool),
        advantage_BT=torch.zeros(3, 1),
        clip_low_B1=torch.zeros(3, 1),
        clip_high_B1=torch.zeros(3, 1),
        ref_logprob_BT=ref[:, None],
    )
    per_sample = LossKl(estimator=estimator).loss(given)[:, 0]
    (logp.detach().exp() * per_sample).sum().backward()
    return z.grad.tolist()


def test_estimators_have_the_known_gradients_in_the_loss():
    logp, ref = Z.log_softmax(0), REF.log_softmax(0)
    assert float((logp.exp() * (logp - ref)).sum()) == pytest.approx(0.111738, abs=1e-6)
    true = [-0.046132, -0.156667, 0.202799]
    assert expected_loss_gradient("k1") == pytest.approx([0, 0, 0], abs=1e-12)
    assert expected_loss_gradient("k2") == pytest.approx(true, abs=1e-6)
    assert expected_loss_gradient("k3") == pytest.approx([-0.006682, -0.183711, 0.190392], abs=1e-6)
    assert expected_loss_gradient("k3_ratio") == pytest.approx(true, abs=1e-6)


def test_k1_and_k3_have_the_kl_as_their_mean_and_all_are_zero_at_the_reference():
    logp, ref = Z.log_softmax(0), REF.log_softmax(0)
    for estimator in ("k1", "k3"):
        assert float((logp.exp() * kl_estimate(logp, ref, estimator)).sum()) == pytest.approx(0.111738, abs=1e-6)
    for estimator in ("k1", "k2", "k3"):
        assert float(kl_estimate(logp, logp, estimator).abs().max()) == 0.0


def test_the_penalty_in_the_reward_is_k1_of_the_old_policy_and_nothing_on_padding():
    scores = torch.zeros(1, 1)
    everything = torch.ones(1, 1, dtype=torch.bool)
    inputs = AdvantageInputs(
        rewards_PG=scores,
        scores_PG=scores,
        prompt_ids=("p",),
        is_valid_PG=everything,
        is_finished_PG=everything,
        mask_BT=torch.tensor([[True, True, False]]),
        old_logprob_BT=torch.tensor([[-1.0, -2.0, 5.0]]),
        ref_logprob_BT=torch.tensor([[-1.5, -1.0, -50.0]]),
    )
    penalty = RewardKl(coefficient=0.1).reward_penalty(inputs, {})
    assert penalty[0].tolist() == pytest.approx([-0.05, 0.1, 0.0])
    assert penalty.dtype == torch.float64
