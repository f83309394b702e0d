"""Surrogates and aggregations: known answers by hand and from METHODS.md."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Generator

from agpo_bench.methods.batch import LossBatch, LossDenominators, MinibatchExtras
from agpo_bench.methods.clip import Band, PositionClip
from agpo_bench.methods.critic import ValueHead
from agpo_bench.methods.objective import (
    ClipCov,
    ClippedSurrogate,
    ConstantLength,
    EffectiveSampleCap,
    KlCov,
    SequenceMean,
    SequenceSum,
    TokenMean,
    UnclippedSurrogate,
    WeightedLogLikelihood,
)
from agpo_bench.methods.preference import Dpo, PreferenceBatch
from agpo_bench.methods.ratio import TokenRatio
from agpo_bench.methods.recipe import load_method

MASK = torch.arange(8)[None, :] < torch.tensor([[2], [8]])


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (TokenMean(), 2.6),
        (SequenceMean(), 2.0),
        (SequenceSum(), 13.0),
        (ConstantLength(length=10), 1.3),
        (ConstantLength(), 1.3),
    ],
)
def test_aggregations_of_two_ones_and_eight_threes(part, expected):
    losses = torch.tensor([[1.0] * 8, [3.0] * 8])
    counts = LossDenominators(num_tokens=10, num_sequences=2, max_new_tokens=10)
    assert float((part(MASK.float(), counts) * losses).sum()) == pytest.approx(expected)
    split = sum(float((part(MASK[i : i + 1].float(), counts) * losses[i : i + 1]).sum()) for i in (0, 1))
    assert split == pytest.approx(expected)
    twice = LossDenominators(num_tokens=20, num_sequences=4, max_new_tokens=10)
    doubled = part(torch.cat([MASK, MASK]).float(), twice) * torch.cat([losses, losses])
    assert float(doubled.sum()) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "agpo", "gspo_sym", "clip_cov", "p3o"])
def test_a_batch_with_nothing_to_train_on_has_loss_zero_and_finite_gradients(name):
    method = load_method(name)
    logprob = torch.full((2, 3), -1.0, requires_grad=True)
    given = LossBatch(
        logprob_BT=logprob,
        old_logprob_BT=logprob.detach(),
        ref_logprob_BT=logprob.detach(),
        mask_BT=torch.zeros(2, 3, dtype=torch.bool),
        advantage_BT=torch.ones(2, 1),
        clip_low_B1=torch.full((2, 1), 0.2),
        clip_high_B1=torch.full((2, 1), 0.2),
        kl_coefficient=0.03,
    )
    extras = method.prepare_minibatch(given, Generator().manual_seed(0))
    counts = LossDenominators(num_tokens=0, num_sequences=0, max_new_tokens=3)
    output = method.loss(given, counts, extras)
    output.loss.backward()
    assert float(output.loss.detach()) == 0.0
    assert torch.equal(logprob.grad, torch.zeros(2, 3))


def rows(ratio, advantage, *, low=0.2, high=0.2) -> tuple[LossBatch, torch.Tensor, Band]:
    ratio = torch.tensor([ratio], dtype=torch.float64)
    old = torch.full_like(ratio, -1.0)
    one = torch.ones(1, 1, dtype=torch.float64)
    given = LossBatch(
        logprob_BT=old + ratio.log(),
        old_logprob_BT=old,
        mask_BT=torch.ones_like(ratio, dtype=torch.bool),
        advantage_BT=torch.tensor([advantage], dtype=torch.float64),
        clip_low_B1=low * one,
        clip_high_B1=high * one,
    )
    return given, TokenRatio()(given), Band(lower=one - low, upper=one + high)


def test_the_clipped_surrogate_is_pessimistic_on_both_sides():
    given, log_ratio, band = rows([0.5, 1.1, 1.5, 0.5, 1.1, 1.5], [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    result = ClippedSurrogate()(given, log_ratio, band, MinibatchExtras())
    assert result.loss_BT[0].tolist() == pytest.approx([-0.5, -1.1, -1.2, 0.8, 1.1, 1.5])
    assert result.active_BT[0].tolist() == [False, False, True, True, False, False]


def test_the_band_is_one_less_low_to_one_plus_high():
    given, _, _ = rows([1.0], [1.0], low=0.16, high=0.24)
    band = load_method("ngrpo").clip.band(given)
    assert (float(band.lower), float(band.upper)) == pytest.approx((0.84, 1.24))


def test_covariance_does_not_change_when_every_advantage_moves_by_the_same():
    given, log_ratio, band = covariance_case()
    shifted = replace(given, advantage_BT=given.advantage_BT + 3.0)
    part = KlCov(fraction=0.25)
    first = part.prepare(given, log_ratio, band, Generator()).selected_BT
    assert first.tolist() == part.prepare(shifted, log_ratio, band, Generator()).selected_BT.tolist()
    assert first[0].tolist() == [False, True, False, False]


def test_ratio_one_makes_the_surrogate_the_advantage():
    given, log_ratio, band = rows([1.0, 1.0], [0.7, -0.3])
    for part in (ClippedSurrogate(), UnclippedSurrogate()):
        assert part(given, log_ratio, band, MinibatchExtras()).loss_BT[0].tolist() == pytest.approx([-0.7, 0.3])


def test_dual_clip_caps_what_a_bad_rollout_can_cost():
    given, log_ratio, band = rows([20.0, 2.0, 20.0], [-1.0, -1.0, 1.0])
    result = ClippedSurrogate(dual_clip=10.0)(given, log_ratio, band, MinibatchExtras())
    assert result.loss_BT[0].tolist() == pytest.approx([10.0, 2.0, -1.2])
    # Both the cap and the band take a gradient away; the ratio 2 with A < 0 keeps its own.
    assert result.active_BT[0].tolist() == [True, False, True]


def test_cispo_weighs_with_the_clipped_ratio_between_zero_and_five():
    method = load_method("cispo")
    given, log_ratio, _ = rows([0.01, 2.0, 9.0], [1.0, 1.0, 1.0], low=1.0, high=4.0)
    result = WeightedLogLikelihood()(given, log_ratio, method.clip.band(given), MinibatchExtras())
    weights = (result.loss_BT / -given.logprob_BT)[0].tolist()
    assert weights == pytest.approx([0.01, 2.0, 5.0])
    assert result.active_BT[0].tolist() == [False, False, True]


def test_cispo_inside_the_band_has_the_gradient_of_the_policy_gradient():
    logprob = torch.tensor([[-0.9, -1.2]], dtype=torch.float64, requires_grad=True)
    given, _, band = rows([1.1, 0.8], [0.7, -0.3], low=0.5, high=0.5)
    given = replace(given, logprob_BT=logprob)
    gradients = []
    for part in (WeightedLogLikelihood(), UnclippedSurrogate()):
        (gradient,) = torch.autograd.grad(
            part(given, TokenRatio()(given), band, MinibatchExtras()).loss_BT.sum(), logprob
        )
        gradients.append(gradient)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-15)


def covariance_case() -> tuple[LossBatch, torch.Tensor, Band]:
    logprob = torch.tensor([[-0.1, -6.0, -0.2, -3.0]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    given = LossBatch(
        logprob_BT=logprob,
        old_logprob_BT=logprob.clone(),
        mask_BT=torch.ones(1, 4, dtype=torch.bool),
        advantage_BT=torch.tensor([[1.5, -1.0, -1.0, 0.5]], dtype=torch.float64),
        clip_low_B1=one,
        clip_high_B1=one,
    )
    return given, TokenRatio()(given), Band(lower=0 * one, upper=2 * one)


def test_clip_cov_silences_only_candidates_between_its_bounds():
    given, log_ratio, band = covariance_case()
    # mean A = 0, mean log pi = -2.325: covariances 3.3375, 3.675, -2.125, -0.3375.
    for seed in range(5):
        part = ClipCov(fraction=0.5, minimum=1.0, maximum=3.5)
        extras = part.prepare(given, log_ratio, band, Generator().manual_seed(seed))
        assert extras.selected_BT[0].tolist() == [True, False, False, False]
    both = ClipCov(fraction=0.5).prepare(given, log_ratio, band, Generator().manual_seed(0))
    assert both.selected_BT[0].tolist() == [True, True, False, False]
    result = ClipCov()(given, log_ratio, band, both)
    assert result.loss_BT[0].tolist() == pytest.approx([0.0, 0.0, 1.0, -0.5])


def test_clip_cov_draws_the_same_tokens_for_the_same_seed_and_at_least_one():
    given, log_ratio, band = covariance_case()
    part = ClipCov(fraction=0.0)
    chosen = [part.prepare(given, log_ratio, band, Generator().manual_seed(s)).selected_BT for s in range(12)]
    assert all(int(selected.sum()) == 1 for selected in chosen)
    assert torch.equal(chosen[3], part.prepare(given, log_ratio, band, Generator().manual_seed(3)).selected_BT)
    assert len({tuple(selected[0].tolist()) for selected in chosen}) == 2


def test_kl_cov_makes_the_top_tokens_pay_for_moving():
    given, _, band = covariance_case()
    moved = replace(given, old_logprob_BT=given.logprob_BT - torch.tensor([[0.1, -0.3, 0.0, 0.2]]))
    part = KlCov(fraction=0.25, coefficient=2.0)
    extras = part.prepare(moved, TokenRatio()(moved), band, Generator())
    assert extras.selected_BT[0].tolist() == [False, True, False, False]
    result = part(moved, TokenRatio()(moved), band, extras)
    expected = [-1.5 * math.exp(0.1), math.exp(-0.3) + 0.6, 1.0, -0.5 * math.exp(0.2)]
    assert result.loss_BT[0].tolist() == pytest.approx(expected)


def test_kl_cov_takes_no_gradient_from_the_rounding_of_equal_policies():
    given, _, band = covariance_case()
    logprob = given.logprob_BT.clone().requires_grad_()
    residue = replace(given, logprob_BT=logprob, old_logprob_BT=given.logprob_BT + 1e-7)
    part = KlCov(fraction=1.0, coefficient=1.0)
    extras = part.prepare(residue, TokenRatio()(residue), band, Generator())
    assert bool(extras.selected_BT.all())
    (gradient,) = torch.autograd.grad(part(residue, TokenRatio()(residue), band, extras).loss_BT.sum(), logprob)
    # That of -r A alone, at r = 1.
    assert torch.allclose(gradient, -given.advantage_BT.expand_as(gradient), atol=1e-6)


def test_effective_sample_fraction_is_one_on_policy_and_known_off_it():
    given, log_ratio, band = rows([1.0, 1.0, 1.0], [1.0, -1.0, 0.5])
    extras = EffectiveSampleCap().prepare(given, log_ratio, band, Generator())
    assert extras.effective_sample_fraction == pytest.approx(1.0)
    plain = EffectiveSampleCap()(given, log_ratio, band, extras).loss_BT
    assert torch.allclose(plain, -given.advantage_BT * given.logprob_BT)
    given, log_ratio, band = rows([1.0, 2.0], [1.0, 1.0])
    extras = EffectiveSampleCap().prepare(given, log_ratio, band, Generator())
    assert extras.effective_sample_fraction == pytest.approx(9 / 10)
    loss = EffectiveSampleCap()(given, log_ratio, band, extras).loss_BT[0]
    log2 = math.log(2)
    assert loss.tolist() == pytest.approx([0.9 * 1.0, 0.9 * (1 - log2) + 0.1 * (log2 + 0.5 - 1)])


def test_position_bounds_widen_with_the_square_root_of_the_position():
    given, _, _ = rows([1.0] * 4, [1.0] * 4, low=0.025, high=0.05)
    band = PositionClip().band(given)
    assert band.lower[0].log().tolist() == pytest.approx([-0.025, -0.025 * math.sqrt(2), -0.025 * math.sqrt(3), -0.05])
    assert float(band.upper[0, 3].log()) == pytest.approx(0.1)
    assert float(band.dual[0, 3].log()) == pytest.approx(0.1)


def test_value_loss_is_the_larger_of_the_plain_and_the_clipped_error():
    given, _, _ = rows([1.0, 1.0, 1.0], [0.0, 0.0, 0.0])
    values = torch.tensor([[0.9, 0.1, 5.0]], dtype=torch.float64)
    given = replace(
        given,
        value_BT=values,
        old_value_BT=torch.tensor([[0.5, 0.0, 5.0]], dtype=torch.float64),
        return_BT=torch.tensor([[1.0, 1.0, 5.0]], dtype=torch.float64),
        mask_BT=torch.tensor([[True, True, False]]),
    )
    # Clipped to 0.7: error 0.09 beats 0.01. Inside the band: 0.81.
    assert ValueHead()(given)[0].tolist() == pytest.approx([0.1 * 0.5 * 0.09, 0.1 * 0.5 * 0.81, 0.0])


def preference_batch(chosen, rejected, ref_chosen, ref_rejected) -> PreferenceBatch:
    logprob = torch.tensor([chosen, rejected], dtype=torch.float64)
    return PreferenceBatch(
        logprob_BT=logprob,
        ref_logprob_BT=torch.tensor([ref_chosen, ref_rejected], dtype=torch.float64),
        mask_BT=torch.ones_like(logprob, dtype=torch.bool),
    )


def test_dpo_is_ln_2_at_the_reference_and_known_at_a_margin_of_two():
    same = preference_batch([-1.0, -2.0], [-3.0, -1.0], [-1.0, -2.0], [-3.0, -1.0])
    assert float(Dpo()(same, 1).loss) == pytest.approx(0.693147, abs=1e-6)
    apart = preference_batch([-1.0, -2.0], [-3.0, -2.0], [-1.5, -2.5], [-2.5, -1.5])
    output = Dpo()(apart, 1)
    assert float(output.loss) == pytest.approx(0.598139, abs=1e-6)
    assert output.sums["pairs/margin"] == pytest.approx(0.2)


def test_dpo_sums_over_tokens_ignores_padding_and_flips_with_the_pair():
    apart = preference_batch([-1.0, -2.0], [-3.0, -2.0], [-1.5, -2.5], [-2.5, -1.5])
    flipped = preference_batch([-3.0, -2.0], [-1.0, -2.0], [-2.5, -1.5], [-1.5, -2.5])
    assert Dpo()(flipped, 1).sums["pairs/margin"] == pytest.approx(-0.2)
    padded = PreferenceBatch(
        logprob_BT=torch.cat([apart.logprob_BT, torch.full((2, 3), -9.0)], 1),
        ref_logprob_BT=torch.cat([apart.ref_logprob_BT, torch.full((2, 3), math.nan)], 1),
        mask_BT=torch.cat([apart.mask_BT, torch.zeros(2, 3, dtype=torch.bool)], 1),
    )
    assert torch.equal(Dpo()(padded, 1).loss, Dpo()(apart, 1).loss)


def test_pairs_are_best_against_worst_and_groups_without_both_give_none():
    scores = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.2, 0.9]])
    valid = torch.ones_like(scores, dtype=torch.bool)
    found = [(p.prompt_index, p.chosen_index, p.rejected_index) for p in Dpo().pairs(scores, valid)]
    assert found == [(0, 1, 0), (3, 2, 1)]
    valid[0, 0] = False
    assert [p.prompt_index for p in Dpo().pairs(scores, valid)] == [3]
