"""Known answers: METHODS.md sections 2-3, worked there or by hand. Groups have eight 0/1 rewards unless said."""

import math

import pytest
import torch

from agpo_bench.methods.advantage import (
    GroupMean,
    GroupZScore,
    LeaveOneOut,
    MedianCentred,
    PassK,
    Raw,
    TrackedValue,
    VirtualReward,
    pass_at_k,
    whiten,
)
from agpo_bench.methods.batch import AdvantageInputs, Advantages, UpdateObserved
from agpo_bench.methods.groups import DropAllRight, DropDegenerate
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.reward import Pkpo, SignWeighted, SoftOverlong
from agpo_bench.methods.shaping import Focal, FourQuadrant, top_entropy_mean
from agpo_bench.methods.token_advantage import Gae, ReturnToGo, generalised_advantage, token_rewards

ALL_PARTS = (
    GroupZScore(),
    GroupZScore(dispersion="mad"),
    GroupZScore(dispersion="iqr", fallback="floor"),
    GroupMean(),
    LeaveOneOut(),
    MedianCentred(),
    PassK(),
)


def binary(c: int, k: int = 8) -> torch.Tensor:
    return torch.tensor([[1.0] * c + [0.0] * (k - c)], dtype=torch.float64)


def inputs(rewards: torch.Tensor, **given) -> AdvantageInputs:
    rewards = rewards.double()
    everything = torch.ones_like(rewards, dtype=torch.bool)
    defaults = {
        "rewards_PG": rewards,
        "scores_PG": rewards,
        "prompt_ids": tuple(f"p{i}" for i in range(len(rewards))),
        "is_valid_PG": everything,
        "is_finished_PG": everything,
    }
    return AdvantageInputs(**(defaults | given))


def advantages(part, rewards: torch.Tensor, **given) -> Advantages:
    return part(inputs(rewards, **given), None, part.start())


@pytest.mark.parametrize(("c", "right", "wrong"), [(1, 2.4749, -0.3536), (2, 1.6202, -0.5401), (4, 0.9354, -0.9354)])
def test_group_zscore_of_binary_groups(c, right, wrong):
    values = advantages(GroupZScore(), binary(c)).advantage_PG[0]
    assert values[:c].tolist() == pytest.approx([right] * c, abs=5e-5)
    assert values[c:].tolist() == pytest.approx([wrong] * (8 - c), abs=5e-5)


@pytest.mark.parametrize("part", ALL_PARTS, ids=lambda part: f"{part.use}-{getattr(part, 'dispersion', '')}")
@pytest.mark.parametrize("value", [0.0, 0.1, 0.35, 1.0])
def test_equal_rewards_give_exactly_no_signal(part, value):
    # Seven float32 values of 0.35 have a computed deviation of 3e-8, and with eps 1e-8 an advantage of 0.7.
    rewards = torch.full((2, 7), value, dtype=torch.float32)
    assert torch.equal(advantages(part, rewards).advantage_PG, torch.zeros(2, 7, dtype=torch.float64))


@pytest.mark.parametrize("mode", ["mad", "iqr"])
def test_robust_dispersion_falls_back_where_it_is_zero_and_counts_it(mode):
    rewards = torch.cat([binary(c) for c in range(9)])
    std = advantages(GroupZScore(), rewards).advantage_PG
    result = advantages(GroupZScore(dispersion=mode), rewards)
    zero = {"mad": [1, 2, 3, 5, 6, 7], "iqr": [1, 7]}[mode]
    assert torch.equal(result.advantage_PG[zero], std[zero])
    assert result.log["disp/fallback_frac"] == len(zero) / 9
    dropped = advantages(GroupZScore(dispersion=mode, fallback="zero"), rewards).advantage_PG
    assert not dropped[zero].any()
    floor = advantages(GroupZScore(dispersion=mode, fallback="floor"), rewards).advantage_PG
    assert float(floor[1, 0]) == pytest.approx(8.75, rel=1e-6)


def test_iqr_gives_the_known_advantage_where_it_is_not_zero():
    values = advantages(GroupZScore(dispersion="iqr"), torch.cat([binary(2), binary(4)])).advantage_PG
    assert values[:, 0].tolist() == pytest.approx([4.05, 0.67], abs=5e-3)


def test_group_mean_is_the_reward_less_its_mean():
    assert advantages(GroupMean(), binary(2)).advantage_PG[0].tolist() == pytest.approx([0.75] * 2 + [-0.25] * 6)


def test_leave_one_out_of_one_right_in_four():
    values = advantages(LeaveOneOut(), binary(1, 4)).advantage_PG[0].tolist()
    assert values == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])


def test_virtual_reward_gives_all_wrong_groups_a_signal_and_all_right_ones_none():
    rewards = torch.cat([binary(0), binary(2), binary(8)])
    values = advantages(VirtualReward(), rewards).advantage_PG
    assert values[0].tolist() == pytest.approx([-0.3333] * 8, abs=5e-5)
    assert values[1].tolist() == pytest.approx([1.3333] * 2 + [-0.6667] * 6, abs=5e-5)
    assert values[2].tolist() == [0.0] * 8


def test_median_centring_drops_exactly_one_rollout_at_the_median():
    result = advantages(MedianCentred(scale="none"), torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]]))
    assert int((~result.is_trained_PG).sum()) == 1
    assert result.advantage_PG[~result.is_trained_PG].tolist() == [0.0]
    # Two of five are away from the median 0: each is scaled by 5 / 2.
    assert sorted(result.advantage_PG[0].tolist()) == pytest.approx([0, 0, 0, 2.5, 2.5])


def test_median_deviation_of_an_odd_binary_group_is_zero_so_advantages_are_near_a_thousand():
    for c in (1, 2, 3, 4):
        values = advantages(MedianCentred(), binary(c, 9)).advantage_PG[0]
        assert values[:c].tolist() == pytest.approx([1000.0 * 9 / c] * c)
    graded = torch.tensor([[0.0, 0.25, 0.5, 0.75, 1.0]])
    values = advantages(MedianCentred(), graded).advantage_PG[0].tolist()
    # Median 0.5, deviations .5 .25 0 .25 .5, their median .25; four of five are nonzero.
    assert values == pytest.approx([x / 0.251 * 5 / 4 for x in (-0.5, -0.25, 0, 0.25, 0.5)])


def test_pass_at_k_training_advantages():
    result = advantages(PassK(), torch.cat([binary(1), binary(2), binary(0), binary(5)])).advantage_PG
    assert (float(result[0, 0]), float(result[0, 7])) == pytest.approx((1.0, -0.1429), abs=5e-5)
    assert (float(result[1, 0]), float(result[1, 7])) == pytest.approx((0.5222, -0.1741), abs=5e-5)
    assert not result[2:].any()


def test_pkpo_rewards_and_that_their_mean_is_pass_at_k():
    everything = torch.ones(1, 8, dtype=torch.bool)
    rewards = Pkpo()(binary(2), torch.ones(1, 8), everything, 10)[0]
    assert (float(rewards[0]), float(rewards[7])) == pytest.approx((0.5, 0.3571), abs=5e-5)
    assert pass_at_k(8, 2, 4) == pytest.approx(1 - 15 / 70)


def test_pkpo_reward_gradient_is_that_of_pass_at_k_by_enumeration():
    """Policy: success with probability p, score d/dp log P. d/dp (1 - (1-p)^k) = k (1-p)^(k-1)."""
    p, n, k = 0.3, 5, 3
    total = 0.0
    for c in range(n + 1):
        rewards = Pkpo(k=k)(binary(c, n), torch.ones(1, n), torch.ones(1, n, dtype=torch.bool), 1)[0]
        score = [1 / p if i < c else -1 / (1 - p) for i in range(n)]
        estimate = sum(float(r) * s for r, s in zip(rewards, score, strict=True))
        total += math.comb(n, c) * p**c * (1 - p) ** (n - c) * estimate
    assert total == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


def test_sign_weights_of_psr_nsr_and_their_mixture():
    everything = torch.ones(1, 2, dtype=torch.bool)
    scores = torch.tensor([[1.0, 0.0]])
    for right, wrong in ((1.0, 0.0), (0.0, -1.0), (0.1, -1.0)):
        rewards = SignWeighted(right=right, wrong=wrong)(scores, torch.ones(1, 2), everything, 1)
        assert advantages(Raw(), rewards).advantage_PG[0].tolist() == [right, wrong]


def test_overlong_penalty_falls_linearly_over_the_last_fifth():
    lengths = torch.tensor([[100, 16384, 18432, 20480, 20481]])
    rewards = SoftOverlong()(torch.zeros(1, 5), lengths, torch.ones(1, 5, dtype=torch.bool), 20480)
    assert rewards[0].tolist() == pytest.approx([0, 0, -0.5, -1, -1])


def test_gae_gives_the_known_values_and_padding_changes_nothing():
    values = torch.tensor([[0.2, 0.4, 0.6]], dtype=torch.float64)
    rewards = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    result = generalised_advantage(rewards, values, mask, gamma=1.0, lam=0.95)
    assert result[0].tolist() == pytest.approx([0.751, 0.58, 0.4])
    assert (result + values)[0].tolist() == pytest.approx([0.951, 0.98, 1.0])
    padded = generalised_advantage(
        torch.cat([rewards, torch.zeros(1, 2).double()], 1),
        torch.cat([values, torch.full((1, 2), 99.0).double()], 1),
        torch.tensor([[True, True, True, False, False]]),
        gamma=1.0,
        lam=0.95,
    )
    assert padded[0].tolist() == pytest.approx([0.751, 0.58, 0.4, 0, 0])


def test_the_reward_sits_on_the_last_token_and_never_on_padding():
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    rewards = token_rewards(torch.tensor([[1.0, 0.5]]), mask, None)
    assert rewards.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0.5]]


def test_critic_targets_are_not_whitened_and_advantages_are():
    mask = torch.tensor([[True, True, True], [True, False, False]])
    given = {"mask_BT": mask, "value_BT": torch.tensor([[0.2, 0.4, 0.6], [0.1, 9.0, 9.0]])}
    result = advantages(Gae(), torch.tensor([[1.0, 0.0]]), **given)
    assert result.return_BT[0].tolist() == pytest.approx([0.951, 0.98, 1.0])
    assert result.return_BT[1].tolist() == pytest.approx([0.0, 0.0, 0.0])
    assert float(result.advantage_BT[mask].mean()) == pytest.approx(0, abs=1e-12)
    assert float(result.advantage_BT[mask].std()) == pytest.approx(1, abs=1e-7)
    assert not result.advantage_BT[~mask].any()


def test_whitening_knows_only_the_masked_entries_and_equal_ones_give_zero():
    values = torch.tensor([1.0, 2.0, 3.0, 1e9]).double()
    assert whiten(values, torch.tensor([1, 1, 1, 0]))[:3].tolist() == pytest.approx([-1, 0, 1], abs=1e-7)
    assert whiten(torch.full((7,), 0.35), torch.ones(7)).tolist() == [0.0] * 7


def test_return_to_go_adds_the_kl_penalty_of_later_tokens():
    mask = torch.tensor([[True, True], [True, True]])
    penalty = torch.tensor([[-0.1, -0.2], [0.0, 0.0]]).double()
    part = ReturnToGo()
    result = part(inputs(torch.tensor([[1.0, 0.0]]), mask_BT=mask), penalty, {})
    returns = torch.tensor([0.7, 0.8, 0.0, 0.0]).double()
    expected = (returns - returns.mean()) / (returns.std() + 1e-8)
    assert result.advantage_BT.flatten().tolist() == pytest.approx(expected.tolist())


def test_kl_in_the_reward_enters_the_leave_one_out_baseline_as_a_sum_over_tokens():
    method = load_method("rloo", {"kl.coefficient": 0.5})
    mask = torch.tensor([[True, True], [True, False]])
    old = torch.tensor([[-1.0, -1.0], [-1.0, 7.0]]).double()
    ref = torch.tensor([[-1.2, -1.4], [-1.0, -9.0]]).double()
    given = inputs(torch.tensor([[1.0, 0.0]]), mask_BT=mask, old_logprob_BT=old, ref_logprob_BT=ref)
    _, result = method.advantages(method.start(), given)
    # R = (1 - 0.5 * 0.6, 0): each against the other.
    assert result.advantage_PG[0].tolist() == pytest.approx([0.7, -0.7])


def test_tracked_value_is_used_before_it_sees_the_reward_and_then_moves():
    part = TrackedValue()
    state = {"tracker": {"p0": [3.0, 1.0]}}
    rewards = torch.tensor([[1.0], [1.0], [0.0]])
    values = part(inputs(rewards), None, state).advantage_PG.flatten()
    centred = torch.tensor([0.25, 0.5, -0.5]).double()
    assert values.tolist() == pytest.approx(((centred - centred.mean()) / (centred.std() + 1e-8)).tolist())
    after = part.observe(state, UpdateObserved(num_episodes=3, prompt_ids=("p0", "p1", "p2"), scores_PG=rewards))
    assert after["tracker"]["p0"] == pytest.approx([0.875 * 3 + 1, 0.875])
    assert after["tracker"]["p2"] == pytest.approx([0.4375, 1.4375])
    failed = UpdateObserved(
        num_episodes=1, prompt_ids=("p0",), scores_PG=rewards[:1], is_valid_PG=torch.tensor([[False]])
    )
    assert part.observe(state, failed) == state
    weights = part.prompt_weights(after, ("p0", "new"))
    p = 3.625 / 4.5
    assert weights == pytest.approx([math.sqrt(p * (1 - p)) + 0.05, 0.55])


def test_focal_shaping_fades_easy_groups_and_exponent_zero_changes_nothing():
    given = inputs(binary(6))
    base = Advantages(advantage_PG=given.rewards_PG - 0.75, is_trained_PG=given.is_valid_PG)
    _, shaped = Focal(gamma=2.0)({}, base, given)
    assert shaped.advantage_PG[0, 0] == pytest.approx(0.25 * 0.25**2)
    _, same = Focal(gamma=0.0)({}, base, given)
    assert torch.equal(same.advantage_PG, base.advantage_PG)


def test_top_entropy_pooling_takes_at_least_one_token_and_no_padding():
    entropy = torch.tensor([[0.1, 0.9, 0.5, 9.0], [0.3, 9.0, 9.0, 9.0]])
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert top_entropy_mean(entropy, mask, 0.1).tolist() == pytest.approx([0.9, 0.3])
    assert top_entropy_mean(entropy, mask, 0.6).tolist() == pytest.approx([0.7, 0.3])


def test_four_quadrant_bonus_by_hand_and_its_running_moments():
    part = FourQuadrant()
    entropy = torch.tensor([[1.0], [2.0], [3.0], [2.0]])
    given = inputs(
        torch.tensor([[1.0, 0.0], [1.0, 0.0]]),
        mask_BT=torch.ones(4, 1, dtype=torch.bool),
        entropy_BT=entropy,
        is_finished_PG=torch.tensor([[True, True], [False, True]]),
    )
    base = Advantages(advantage_PG=torch.zeros(2, 2).double(), is_trained_PG=given.is_valid_PG)
    state, shaped = part(part.start(), base, given)
    std = math.sqrt(2 / 3)
    confident = 1 / (1 + math.exp(-1 / std))  # logistic(-z) at z = -1 / std
    bonus = [0.5 * confident, -0.3 * 0.5, 0.0, -0.3 * 0.5]  # the third is truncated
    mean = sum(bonus) / 4
    assert shaped.advantage_PG.flatten().tolist() == pytest.approx([b - mean for b in bonus], abs=1e-7)
    assert (state["count"], state["mean"], state["sum_squares"]) == (4, 2.0, 2.0)
    state, _ = part(state, base, inputs(given.rewards_PG, mask_BT=given.mask_BT, entropy_BT=entropy + 1))
    seen = torch.cat([entropy, entropy + 1]).double()
    assert state["mean"] == pytest.approx(float(seen.mean()))
    assert state["sum_squares"] == pytest.approx(float(((seen - seen.mean()) ** 2).sum()))


def test_a_rollout_the_harness_failed_on_gets_no_advantage_and_leaves_the_mean():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    valid = torch.tensor([[True, True, True, False]])
    without = advantages(GroupZScore(), rewards[:, :3]).advantage_PG
    for part in (*ALL_PARTS, VirtualReward(), Raw()):
        result = advantages(part, rewards, is_valid_PG=valid)
        assert float(result.advantage_PG[0, 3]) == 0.0
        assert not bool(result.is_trained_PG[0, 3])
        assert torch.isfinite(result.advantage_PG).all()
    assert torch.equal(advantages(GroupZScore(), rewards, is_valid_PG=valid).advantage_PG[:, :3], without)


def test_a_group_that_failed_entirely_is_finite_and_silent():
    valid = torch.zeros(1, 4, dtype=torch.bool)
    for part in (*ALL_PARTS, VirtualReward(), Raw(), TrackedValue()):
        assert not advantages(part, binary(1, 4), is_valid_PG=valid).advantage_PG.any()


def test_group_filters_read_scores_by_spread_not_by_rounding():
    scores = torch.cat([binary(0), binary(3), binary(8), torch.full((1, 8), 0.35).double()])
    valid = torch.ones_like(scores, dtype=torch.bool)
    assert DropDegenerate()(scores, valid).tolist() == [False, True, False, False]
    assert DropAllRight()(scores, valid).tolist() == [True, True, False, True]


def test_statistics_are_float64_whatever_comes_in():
    for part in (*ALL_PARTS, VirtualReward(), Raw(), TrackedValue()):
        assert advantages(part, binary(3).float()).advantage_PG.dtype == torch.float64
