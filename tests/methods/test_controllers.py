"""The adaptive radius, temperature and KL coefficient. Values: METHODS.md D.5, D.6, D.12 and sections 2-3."""

import json

import pytest
import torch

from agpo_bench.methods.batch import ClipObserved, UpdateObserved
from agpo_bench.methods.clip import AdaptiveClip, GroupClip
from agpo_bench.methods.kl import AdaptiveRewardKl
from agpo_bench.methods.probe import ProbeStatistics
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.state import MethodState
from agpo_bench.methods.temperature import AdaptiveTemperature

SCORES = torch.zeros(1, 8, dtype=torch.float64)


def signals(*, sigma=0.0, kappa=0.0, votes=0.0, prompts=1) -> ProbeStatistics:
    def of(value):
        return torch.full((prompts,), value, dtype=torch.float64)

    return ProbeStatistics(sigma_P=of(sigma), kappa_abs_P=of(kappa), vote_entropy_P=of(votes))


def radius(part: AdaptiveClip, *, entropy, step_kl=0.0, **probe) -> tuple[float, dict[str, float]]:
    observed = ClipObserved(scores_PG=SCORES, entropy=entropy)
    _, bounds = part(part.start(), observed, probe=signals(**probe), step_kl=step_kl)
    assert torch.equal(bounds.low_PG, bounds.high_PG)
    return float(bounds.low_PG[0, 0]), bounds.log


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"entropy": 1.2, "votes": 0.5, "sigma": 0.4, "kappa": 0.3, "step_kl": 0.01}, 0.1859),
        ({"entropy": 1.5, "votes": 1.0, "sigma": 0.35, "kappa": 0.8, "step_kl": 0.003}, 0.2587),
        ({"entropy": 1.0, "votes": 1.0, "sigma": 0.35, "kappa": 0.8, "step_kl": 0.003}, 0.1725),
        ({"entropy": 0.6, "votes": 1.0, "sigma": 0.35, "kappa": 0.8, "step_kl": 0.003}, 0.1035),
        ({"entropy": 0.4, "votes": 1.0, "sigma": 0.35, "kappa": 0.8, "step_kl": 0.003}, 0.0690),
        ({"entropy": 0.3, "votes": 1.0, "sigma": 0.35, "kappa": 0.8, "step_kl": 0.003}, 0.0517),
        ({"entropy": 0.2, "votes": 1.0, "sigma": 0.35, "kappa": 0.8, "step_kl": 0.003}, 0.05),
        ({"entropy": 1.0, "votes": 1.0, "sigma": 0.4629, "kappa": 1.4402, "step_kl": 0.01}, 0.1558),
        ({"entropy": 0.3, "votes": 0.5, "sigma": 0.3, "kappa": 1.0, "step_kl": 0.01}, 0.05),
    ],
)
def test_radius_follows_equation_4(given, expected):
    value, _ = radius(AdaptiveClip(), **given)
    assert value == pytest.approx(expected, abs=6e-5)


def test_radius_to_the_last_digit_known():
    value, _ = radius(AdaptiveClip(), entropy=1.2, votes=0.5, sigma=0.4, kappa=0.3, step_kl=0.01)
    assert value == pytest.approx(0.1859155, abs=5e-8)
    value, _ = radius(AdaptiveClip(), entropy=1.0, votes=1.0, sigma=0.4629, kappa=1.4402, step_kl=0.01)
    assert value == pytest.approx(0.15585, abs=5e-6)


def test_low_entropy_puts_the_radius_at_its_lower_bound_and_says_so():
    value, log = radius(AdaptiveClip(), entropy=0.24)
    assert (value, log["ctrl/eps_at_min"], log["ctrl/eps_at_max"]) == (0.05, 1.0, 0.0)
    assert log["ctrl/eps_raw"] == pytest.approx(0.048)
    value, log = radius(AdaptiveClip(), entropy=3.0)
    assert (value, log["ctrl/eps_at_max"]) == (0.4, 1.0)


def test_each_logged_factor_is_the_radius_over_the_radius_without_that_term():
    given = {"entropy": 1.2, "votes": 0.5, "sigma": 0.4, "kappa": 0.3, "step_kl": 0.01}
    _, log = radius(AdaptiveClip(), **given)
    without = {
        "H": radius(AdaptiveClip(use_entropy=False), **given)[1]["ctrl/eps_raw"],
        "E": radius(AdaptiveClip(), **(given | {"votes": 0.0}))[1]["ctrl/eps_raw"],
        "sigma": radius(AdaptiveClip(), **(given | {"sigma": 0.0}))[1]["ctrl/eps_raw"],
        "kappa": radius(AdaptiveClip(), **(given | {"kappa": 0.0}))[1]["ctrl/eps_raw"],
        "D": radius(AdaptiveClip(), **(given | {"step_kl": 0.0}))[1]["ctrl/eps_raw"],
    }
    for name, raw in without.items():
        assert log[f"ctrl/eps_factor_{name}"] == pytest.approx(log["ctrl/eps_raw"] / raw, rel=1e-12)


def test_a_negative_step_kl_widens_unless_it_is_clamped():
    literal, batch = AdaptiveClip(), AdaptiveClip(step_kl_clamp="batch")
    observed = UpdateObserved(num_episodes=8, step_kl_k1=-0.02)
    assert literal.observe(literal.start(), observed)["step_kl"] == -0.02
    assert batch.observe(batch.start(), observed)["step_kl"] == 0.0
    assert radius(literal, entropy=1.0, step_kl=-0.02)[0] > radius(literal, entropy=1.0)[0]


def test_a_group_clamp_is_biased_upward_against_the_batch_clamp():
    part = AdaptiveClip(step_kl_clamp="group", step_kl_rho=0.9)
    drift = torch.tensor([0.03, -0.01], dtype=torch.float64)
    observed = UpdateObserved(num_episodes=8, step_kl_k1=0.01, step_kl_k1_P=drift)
    assert part.observe(part.start(), observed)["step_kl"] == pytest.approx(0.1 * 0.015)


def test_a_masked_step_kl_reaches_neither_the_radius_nor_the_log():
    for mask, expected in (("1111", 0.5), ("1110", 0.0)):
        method = load_method("agpo_no_ats", {"probe.signals_mask": f"'{mask}'"})
        state = method.observe_update(method.start(), UpdateObserved(num_episodes=8, step_kl_k1=0.5))
        _, bounds = method.clip_bounds(state, ClipObserved(scores_PG=SCORES, entropy=1.0), signals())
        assert bounds.log["ctrl/D_step"] == expected


def test_relative_entropy_starts_at_one_and_is_clipped():
    part = AdaptiveClip(entropy="relative")
    state = part.start()
    factors = []
    for entropy in (0.5, 0.5, 2.0, 0.01):
        observed = ClipObserved(scores_PG=SCORES, entropy=entropy)
        state, bounds = part(state, observed, probe=signals(), step_kl=0.0)
        factors.append(bounds.log["ctrl/eps_factor_H"])
    assert factors == [1.0, 1.0, 1.5, 0.5]
    mean = 0.99 * 0.5 + 0.01 * 2.0
    assert state["entropy_mean"] == pytest.approx(0.99 * mean + 0.01 * 0.01)


def temperatures(part: AdaptiveTemperature, uncertainties) -> tuple[list[float], list[float]]:
    state, values, means = part.start(), [], []
    for value in uncertainties:
        state, choice = part(state, signals(sigma=value), is_per_prompt=False)
        values.append(choice.value)
        means.append(choice.log["ctrl/U_bar"])
    return values, means


def test_temperature_follows_equations_9_to_12_with_the_lagged_mean():
    values, means = temperatures(AdaptiveTemperature(), [1.2, 0.8, 1.5, 0.2])
    assert means == pytest.approx([0, 0.06, 0.097, 0.16715], abs=1e-12)
    assert values == pytest.approx([1.18, 1.111, 1.21045, 1.004927], abs=6e-7)


def test_a_constant_uncertainty_heats_for_54_steps_when_the_mean_starts_at_zero():
    values, _ = temperatures(AdaptiveTemperature(), [1.0] * 60)
    assert values[:4] == pytest.approx([1.15, 1.1425, 1.135375, 1.128606], abs=5e-7)
    assert next(t for t, value in enumerate(values, start=1) if value < 1.01) == 54


@pytest.mark.parametrize("init", ["first", "debias"])
def test_a_constant_uncertainty_leaves_the_base_temperature_under_the_other_starts(init):
    values, _ = temperatures(AdaptiveTemperature(ema_init=init), [1.0] * 5)
    assert values == pytest.approx([1.0] * 5, abs=1e-12)


def test_debiased_mean_is_the_weighted_mean_of_what_was_seen():
    _, means = temperatures(AdaptiveTemperature(ema_init="debias"), [1.2, 0.8, 1.5])
    assert means[1] == pytest.approx(1.2)
    assert means[2] == pytest.approx((0.95 * 1.2 + 0.8) / 1.95)


def test_uncertainty_weighs_its_three_signals():
    _, choice = AdaptiveTemperature()(
        AdaptiveTemperature().start(), signals(sigma=0.4, votes=0.5, kappa=0.3), is_per_prompt=False
    )
    assert choice.log["ctrl/U"] == pytest.approx(0.4 + 0.5 + 0.03)


def test_temperature_stays_within_its_limits_and_above_zero():
    values, _ = temperatures(AdaptiveTemperature(), [50.0, -50.0])
    assert values == [1.5, 0.5]
    with pytest.raises(ValueError, match="minimum"):
        load_method("agpo", {"temperature.minimum": 0})


def test_released_variant_runs_prompt_by_prompt_through_one_mean():
    method = load_method("agpo_released")
    probe = ProbeStatistics(
        sigma_P=torch.tensor([0.5, 0.25]), kappa_abs_P=torch.zeros(2), vote_entropy_P=torch.tensor([0.5, 0.25])
    )
    state, choice = method.choose_temperature(method.start(), probe)
    # First call: no deviation, mean = 1. Second: (0.5 - 1) / 1 = -0.5, so 1 - 0.15 * 0.5.
    assert choice.value_P.tolist() == pytest.approx([1.0, 0.925], abs=1e-8)
    state, _ = method.choose_temperature(state, probe)
    # Means before each call: 1, 1, 0.95 (= .9 + .1 * .5), 0.955; the last uncertainty enters at the next call.
    assert state.temperature["mean"] == pytest.approx(0.9 * 0.95 + 0.1 * 1.0)


def test_released_variant_has_one_radius_a_prompt():
    method = load_method("agpo_released")
    probe = signals(sigma=0.2, prompts=2)
    observed = ClipObserved(
        scores_PG=torch.zeros(2, 4).double(), entropy=0.6, entropy_P=torch.tensor([0.5, 1.0], dtype=torch.float64)
    )
    _, bounds = method.clip_bounds(method.start(), observed, probe)
    assert bounds.low_PG.shape == (2, 4)
    # The second prompt has twice the mean entropy: its factor is capped at 1.5.
    assert bounds.low_PG[:, 0].tolist() == pytest.approx([0.2 / 1.2, 0.3 / 1.2])


def test_paper_variant_ignores_per_prompt_entropies():
    method = load_method("agpo")
    observed = ClipObserved(scores_PG=torch.zeros(2, 4).double(), entropy=0.6, entropy_P=torch.tensor([0.1, 9.0]))
    _, bounds = method.clip_bounds(method.start(), observed, signals(prompts=2))
    assert bounds.low_PG.unique().tolist() == [pytest.approx(0.12)]


def test_group_clip_gives_the_known_bounds_for_each_number_of_right_rollouts():
    expected = [0.005, 0.004714, 0.004429, 0.004143, 0.003857, 0.003571, 0.003286, 0.003]
    for c, high in enumerate(expected, start=1):
        scores = torch.tensor([[1.0] * c + [0.0] * (8 - c)], dtype=torch.float64)
        _, bounds = GroupClip()({}, ClipObserved(scores_PG=scores), probe=None, step_kl=0.0)
        assert bounds.high_PG[0, :c].tolist() == pytest.approx([high] * c, abs=5e-7)
        assert bounds.high_PG[0, c:].tolist() == pytest.approx([0.003] * (8 - c))
        assert set(bounds.low_PG.flatten().tolist()) == {0.003}
    token = GroupClip(low=0.2, high_max=0.28)
    scores = torch.tensor([[1.0, 1.0] + [0.0] * 6], dtype=torch.float64)
    _, bounds = token({}, ClipObserved(scores_PG=scores), probe=None, step_kl=0.0)
    assert float(bounds.high_PG[0, 0]) == pytest.approx(0.26857, abs=5e-6)


def test_group_clip_counts_only_rollouts_that_were_judged():
    scores = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True, False]])
    _, bounds = GroupClip()({}, ClipObserved(scores_PG=scores, is_valid_PG=valid), probe=None, step_kl=0.0)
    assert bounds.high_PG[0].tolist() == pytest.approx([0.005, 0.003, 0.003, 0.003])


def test_adaptive_kl_moves_by_the_known_step_and_is_still_at_its_target():
    part = AdaptiveRewardKl()
    state = part.observe(part.start(), UpdateObserved(num_episodes=256, ref_kl_per_sequence=12.0))
    assert part.coefficient_now(state) == pytest.approx(0.201024, abs=1e-12)
    still = part.observe(part.start(), UpdateObserved(num_episodes=256, ref_kl_per_sequence=6.0))
    assert part.coefficient_now(still) == 0.2
    down = part.observe(part.start(), UpdateObserved(num_episodes=256, ref_kl_per_sequence=0.0))
    assert part.coefficient_now(down) == pytest.approx(0.2 * (1 - 0.2 * 256 / 10000))


@pytest.mark.parametrize("name", ["agpo", "agpo_released", "ppo_adaptive_kl", "spo", "four_q"])
def test_state_comes_back_from_json_to_the_same_bits(name):
    method = load_method(name)
    state = method.start()
    if method.needs.probe:
        state, _ = method.choose_temperature(state, signals(sigma=1 / 3, votes=0.7, kappa=0.1))
        observed = ClipObserved(scores_PG=SCORES, entropy=0.7, entropy_P=torch.tensor([0.7], dtype=torch.float64))
        state, _ = method.clip_bounds(state, observed, signals(sigma=1 / 3))
    state = method.observe_update(
        state,
        UpdateObserved(
            num_episodes=8,
            step_kl_k1=1 / 7,
            step_kl_k1_P=torch.tensor([1 / 7], dtype=torch.float64),
            ref_kl_per_sequence=11 / 3,
            prompt_ids=("p",),
            scores_PG=torch.tensor([[1.0]]),
        ),
    )
    back = method.restore(state.to_json())
    assert back == state
    assert json.loads(MethodState.from_json(state.to_json()).to_json()) == json.loads(state.to_json())


def test_replay_follows_the_log_and_holds_its_last_value(tmp_path):
    log = tmp_path / "agpo" / "seed-42" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    lines = [{"step": i, "ctrl/tau": 1.0 + i / 10, "ctrl/eps": 0.1 + i / 100} for i in range(3)]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "ctrl/t')  # torn tail
    method = load_method("agpo_replay").with_logs(out=tmp_path, seed=42)
    state, taus, radii = method.start(), [], []
    for _ in range(4):
        state, choice = method.choose_temperature(state, signals())
        state, bounds = method.clip_bounds(state, ClipObserved(scores_PG=SCORES), signals())
        taus.append(choice.value)
        radii.append(float(bounds.high_PG[0, 0]))
    assert taus == pytest.approx([1.0, 1.1, 1.2, 1.2])
    assert radii == pytest.approx([0.1, 0.11, 0.12, 0.12])
    mean = load_method("grpo_tau_mean").with_logs(out=tmp_path, seed=42)
    _, choice = mean.choose_temperature(mean.start(), None)
    assert choice.value == pytest.approx(1.1)


def test_replay_without_a_log_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"needs a log"):
        load_method("agpo_replay").start()
    with pytest.raises(ValueError, match=r"no log .*metrics\.jsonl to replay"):
        load_method("grpo_tau_mean").with_logs(out=tmp_path, seed=1).start()
    log = tmp_path / "grpo.jsonl"
    log.write_text('{"step": 0}\n')
    with pytest.raises(ValueError, match="line 1 has no 'ctrl/eps'"):
        load_method("agpo_replay", {"clip.path": str(log)}).clip.start()


def test_filling_in_the_paths_of_logs_reaches_every_view_of_the_method(tmp_path):
    method = load_method("agpo_replay")
    assert method.logs == ("{out}/agpo/seed-{seed}/metrics.jsonl",)
    filled = method.with_logs(out=tmp_path, seed=7)
    assert filled.logs == (f"{tmp_path}/agpo/seed-7/metrics.jsonl",)
    assert filled.parts["clip"] == filled.clip != method.clip
