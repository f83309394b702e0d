"""Known answers: METHODS.md D.8-D.11, recomputed there independently; entropies by hand."""

import math

import pytest
import torch

from agpo_bench.methods.probe import GroupProbe, ProbeStatistics, dispersion, is_constant, skewness, vote_entropy


def binary(c: int, k: int = 8) -> torch.Tensor:
    return torch.tensor([1.0] * c + [0.0] * (k - c), dtype=torch.float64)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("std", [0, 0.3536, 0.4629, 0.5175, 0.5345, 0.5175, 0.4629, 0.3536, 0]),
        ("mad", [0, 0, 0, 0, 0.7413, 0, 0, 0, 0]),
        ("iqr", [0, 0, 0.1853, 0.7413, 0.7413, 0.7413, 0.1853, 0, 0]),
    ],
)
def test_dispersion_of_binary_groups_of_eight_is_the_known_table(mode, expected):
    assert [round(dispersion(binary(c), mode), 4) for c in range(9)] == expected


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("g1", [2.2678, 1.1547, 0.5164, 0.0]),
        ("adjusted", [2.8284, 1.4402, 0.6441, 0.0]),
        ("bessel", [1.8562, 0.9451, 0.4227, 0.0]),
        ("released", [2.3150, 1.1788, 0.5272, 0.0]),
    ],
)
def test_skewness_estimators_give_the_known_table_and_change_sign_by_symmetry(estimator, expected):
    assert [round(skewness(binary(c), estimator), 4) for c in (1, 2, 3, 4)] == expected
    for c in (1, 2, 3):
        assert skewness(binary(8 - c), estimator) == pytest.approx(-skewness(binary(c), estimator), abs=1e-12)


def test_vote_entropy_counts_missing_answers_as_one_class_unless_told_otherwise():
    answers = ["42"] * 4 + [None] * 4
    assert vote_entropy(answers, "shared") == pytest.approx(0.693147, abs=1e-6)
    assert vote_entropy(answers, "separate") == pytest.approx(
        -(0.5 * math.log(0.5) + 4 * 0.125 * math.log(0.125)), abs=1e-12
    )
    assert vote_entropy(answers, "dropped") == 0.0
    assert vote_entropy([None] * 4, "dropped") == 0.0


def test_four_unparseable_answers_as_classes_of_their_own_reach_the_entropy_of_four_classes():
    assert vote_entropy([None] * 4, "separate") == pytest.approx(1.386294, abs=1e-6)


def test_vote_entropy_of_five_two_one_and_of_eight_different_answers():
    assert vote_entropy(list("aaaaabbc"), "shared") == pytest.approx(0.90026, abs=1e-5)
    assert vote_entropy(list("abcdefgh"), "shared") == pytest.approx(math.log(8), abs=1e-12)


def test_rounding_residue_of_equal_rewards_is_not_dispersion():
    residue = torch.full((7,), 0.35, dtype=torch.float32)
    assert float(residue.std()) >= 0
    for mode in ("std", "mad", "iqr"):
        assert dispersion(residue, mode) == 0.0
    nearly = torch.tensor([0.1 + 0.2, 0.3] * 4, dtype=torch.float64)
    assert dispersion(nearly, "std") == 0.0
    assert bool(is_constant(nearly[None])[0])


def test_equal_rewards_still_have_a_vote_entropy_and_lower_the_mean_dispersion():
    scores = torch.stack([binary(4), binary(0)])
    probe = GroupProbe()(scores, [["a"] * 4 + ["b"] * 4, list("abcdefgh")])
    assert probe.sigma == pytest.approx(0.5345 / 2, abs=1e-4)
    assert probe.vote_entropy == pytest.approx((math.log(2) + math.log(8)) / 2)
    assert probe.kappa_abs == 0.0


def test_absolute_skewness_is_taken_before_the_mean_over_prompts():
    probe = GroupProbe()(torch.stack([binary(1), binary(7)]), [["a"] * 8] * 2)
    assert probe.kappa_abs == pytest.approx(2.2678, abs=1e-4)


def test_robust_dispersion_silences_the_skewness_where_it_is_zero():
    mad = GroupProbe(dispersion="mad")
    iqr = GroupProbe(dispersion="iqr")
    for c in range(9):
        assert mad(binary(c)[None], [["a"] * 8]).kappa_abs == 0.0
    alive = [c for c in range(9) if iqr(binary(c)[None], [["a"] * 8]).kappa_abs > 0]
    assert alive == [2, 3, 5, 6]


@pytest.mark.parametrize("bit", range(3))
def test_a_masked_signal_is_zero_and_the_others_stay(bit):
    scores, answers = torch.stack([binary(2)]), [list("aaaaabbc")]
    full = GroupProbe()(scores, answers)
    masked = GroupProbe(signals_mask="".join("0" if i == bit else "1" for i in range(4)))(scores, answers)
    for index, name in enumerate(("sigma", "kappa_abs", "vote_entropy")):
        assert getattr(masked, name) == (0.0 if index == bit else getattr(full, name))


def test_rollouts_the_harness_failed_on_are_in_no_statistic():
    scores = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True, True, False]])
    probe = GroupProbe()(scores, [["a", "b", "a", "b", "zzz"]], is_valid_PG=valid)
    assert probe.sigma == pytest.approx(math.sqrt(1 / 3))
    assert probe.vote_entropy == pytest.approx(math.log(2))


def test_ranks_joined_in_order_give_the_same_bits_as_one_rank():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 2, (13, 8), generator=generator).double()
    answers = [[str(int(x)) for x in row] for row in torch.randint(0, 4, (13, 8), generator=generator)]
    part = GroupProbe()
    whole = part(scores, answers)
    joined = ProbeStatistics.concatenate([part(scores[:5], answers[:5]), part(scores[5:], answers[5:])])
    assert (joined.sigma, joined.kappa_abs, joined.vote_entropy) == (whole.sigma, whole.kappa_abs, whole.vote_entropy)
    assert whole.sigma_P.dtype == torch.float64
