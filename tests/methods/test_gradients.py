"""Whole losses of every recipe on a toy policy: gradients against finite differences, and splits against the whole."""

from dataclasses import replace

import pytest
import torch

from agpo_bench.methods.registry import method_names

EVERY = method_names()
STOPPED = {"cispo": "weight", "p3o": "weight", "ctpo": "position"}
"""Recipes whose gradient is by design not that of their loss's value; each is compared with its frozen form below."""


def finite_differences(function, theta: torch.Tensor, step: float = 1e-6) -> torch.Tensor:
    columns = []
    for index in range(len(theta)):
        move = torch.zeros_like(theta)
        move[index] = step
        columns.append((function(theta + move) - function(theta - move)) / (2 * step))
    return torch.stack(columns).detach()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [name for name in EVERY if name not in STOPPED])
def test_the_gradient_of_the_whole_loss_is_that_of_finite_differences(toy, name, seed):
    case = toy(name, seed=seed)
    gradient = case.gradient()
    assert torch.isfinite(gradient).all()
    assert float(gradient.abs().max()) > 1e-4
    expected = finite_differences(case.loss, case.theta)
    assert torch.allclose(gradient, expected, rtol=1e-5, atol=1e-6 * float(gradient.abs().max()))


def frozen_loss(case, theta: torch.Tensor) -> torch.Tensor:
    """The loss with its stopped quantities held at the case's parameters, written out from the papers' formulas."""
    batch = case.batch
    mask = batch.mask_BT
    every = list(range(len(case.tokens_BT)))
    logp, here = case.logprobs(theta, every)[0], case.logprobs(case.theta, every)[0]
    moved = (here - batch.old_logprob_BT).masked_fill(~mask, 0.0)
    advantage = batch.advantage_BT
    if case.method.name == "cispo":
        loss = -moved.exp().clamp(0.0, 5.0) * advantage * logp
    elif case.method.name == "p3o":
        weights = moved[mask].exp()
        ess = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
        log_ratio = logp - batch.old_logprob_BT
        loss = -moved.exp().clamp(max=float(ess)) * advantage * logp
        loss = loss + (1 - ess) * (log_ratio + (-log_ratio).exp() - 1)
    else:
        ratio = (moved.cumsum(1) + logp - here).exp()
        growth = torch.arange(1, 4).double().sqrt()
        clipped = ratio.clamp(torch.exp(-0.025 * growth), torch.exp(0.05 * growth))
        loss = torch.maximum(-advantage * ratio, -advantage * clipped)
        capped = torch.minimum(loss, -advantage * torch.exp(0.05 * growth))
        loss = torch.where(advantage < 0, capped, loss)
    return (loss.masked_fill(~mask, 0.0)).sum() / mask.sum()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", STOPPED)
def test_a_loss_with_stopped_factors_has_the_gradient_of_its_frozen_form(toy, name, seed):
    case = toy(name, seed=seed, spread=0.05)
    assert float(case.loss(case.theta)) == pytest.approx(float(frozen_loss(case, case.theta)), rel=1e-12)
    expected = finite_differences(lambda theta: frozen_loss(case, theta), case.theta)
    gradient = case.gradient()
    assert float(gradient.abs().max()) > 1e-4
    assert torch.allclose(gradient, expected, rtol=1e-5, atol=1e-8)


def whole_pairs(name: str, case, parts: list[list[int]]) -> list[list[int]]:
    """Rows of micro-batches: for pairs, a chosen row comes with its rejected one, chosen first."""
    if case.method.loop != "preference":
        return parts
    half = len(case.tokens_BT) // 2
    parts = [[row for row in part if row < half] for part in parts]
    return [part + [row + half for row in part] for part in parts if part]


@pytest.mark.parametrize("name", EVERY)
def test_any_micro_batch_split_gives_the_same_gradient(toy, name):
    case = toy(name)
    count = len(case.tokens_BT)
    whole = case.gradient()
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3)).tolist()
    for size in (1, 2, 3, count // 2):
        parts = whole_pairs(name, case, [order[i : i + size] for i in range(0, count, size)])
        total = sum(case.gradient(part) for part in parts)
        assert torch.allclose(total, whole, rtol=1e-10, atol=1e-12 * max(1.0, float(whole.abs().max())))


@pytest.mark.parametrize("name", [name for name in EVERY if name not in ("clip_cov", "kl_cov")])
def test_a_batch_seen_twice_has_the_same_loss(toy, name):
    case = toy(name)
    if case.method.loop == "preference":
        half = len(case.tokens_BT) // 2
        chosen, rejected = list(range(half)), list(range(half, 2 * half))
        # The denominator is the number of pairs of the minibatch: twice the rows, twice the pairs.
        doubled = case.loss(case.theta, chosen * 2 + rejected * 2) / 2
    else:
        counts = replace(
            case.denominators,
            num_tokens=2 * case.denominators.num_tokens,
            num_sequences=2 * case.denominators.num_sequences,
        )
        every = list(range(len(case.tokens_BT)))
        doubled = replace(case, denominators=counts).loss(case.theta, every * 2)
    assert float(doubled) == pytest.approx(float(case.loss(case.theta)), rel=1e-12)


@pytest.mark.parametrize("name", EVERY)
def test_padding_carries_no_gradient_and_no_value(toy, name):
    case = toy(name)
    junk = case.batch.mask_BT.logical_not()
    other = replace(
        case,
        batch=replace(
            case.batch,
            old_logprob_BT=case.batch.old_logprob_BT.masked_fill(junk, -3.0),
            ref_logprob_BT=None
            if case.batch.ref_logprob_BT is None
            else case.batch.ref_logprob_BT.masked_fill(junk, float("nan")),
        ),
    )
    assert torch.equal(other.loss(case.theta), case.loss(case.theta))
    assert torch.equal(other.gradient(), case.gradient())


def test_the_literal_sequence_ratio_is_available_for_agpo_and_passes_the_same_check(toy):
    for level in ("sequence", "sequence_mean"):
        case = toy("agpo", {"ratio.use": level}, spread=0.1)
        expected = finite_differences(case.loss, case.theta)
        assert torch.allclose(case.gradient(), expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_every_kl_estimator_passes_the_same_check(toy, estimator):
    case = toy("grpo", {"kl.estimator": estimator, "kl.coefficient": 1.0})
    expected = finite_differences(case.loss, case.theta)
    assert torch.allclose(case.gradient(), expected, rtol=1e-5, atol=1e-8)


def test_with_its_weights_at_zero_agpo_is_grpo_bit_for_bit(toy):
    # base * 1 / 1 = 0.2 exactly; the temperature has no gain.
    still = {
        "clip.alpha": 0, "clip.gamma": 0, "clip.delta": 0, "clip.zeta": 0, "clip.use_entropy": False,
        "temperature.gain": 0,
    }  # fmt: skip
    agpo, grpo = toy("agpo", still), toy("grpo")
    assert torch.equal(agpo.batch.clip_high_B1, grpo.batch.clip_high_B1)
    assert torch.equal(agpo.loss(agpo.theta), grpo.loss(grpo.theta))
    assert torch.equal(agpo.gradient(), grpo.gradient())
    differs = [not torch.equal(toy("agpo", seed=s).gradient(), toy("grpo", seed=s).gradient()) for s in range(4)]
    assert any(differs)


def test_without_a_ratio_the_clip_cannot_act_and_agpo_at_fixed_temperature_is_grpo(toy):
    """The first update after sampling: ratio 1, so the radius has no effect on value or gradient."""
    agpo, grpo = toy("agpo_no_ats", spread=0.0), toy("grpo", spread=0.0)
    assert not torch.equal(agpo.batch.clip_high_B1, grpo.batch.clip_high_B1)
    assert torch.equal(agpo.gradient(), grpo.gradient())


def test_gapo_with_equal_bounds_is_gspo(toy):
    gapo, gspo = toy("gapo", {"clip.high_max": 3e-3}), toy("gspo_sym")
    assert torch.equal(gapo.loss(gapo.theta), gspo.loss(gspo.theta))
    assert torch.equal(gapo.gradient(), gspo.gradient())
    narrow = {"spread": 0.006}
    differs = [
        not torch.equal(toy("gapo", seed=s, **narrow).gradient(), toy("gspo_sym", seed=s, **narrow).gradient())
        for s in range(30)
    ]
    assert any(differs)


def test_dr_grpo_is_grpo_without_scale_and_reference_and_with_a_constant_denominator(toy):
    dr = toy("dr_grpo")
    grpo = toy("grpo", {"advantage.use": "group_mean", "kl.use": "none", "aggregation.use": "constant"})
    assert torch.equal(dr.loss(dr.theta), grpo.loss(grpo.theta))
    assert torch.equal(dr.gradient(), grpo.gradient())


def test_focal_shaping_with_exponent_zero_is_its_base(toy):
    shaped = toy("f_gspo", {"shaping.gamma": 0})
    assert torch.equal(shaped.gradient(), toy("gspo_asym").gradient())


def test_p3o_on_policy_is_plain_policy_gradient(toy):
    case, plain = toy("p3o", spread=0.0), toy("p3o", {"surrogate.use": "unclipped"}, spread=0.0)
    assert torch.allclose(case.gradient(), plain.gradient(), atol=1e-12)


def test_clip_cov_that_selects_nothing_is_the_clipped_surrogate(toy):
    none = {"surrogate.minimum": 1e6, "surrogate.maximum": 1e7}
    plain = {"surrogate.use": "clipped", "surrogate.dual_clip": 10.0}
    assert torch.equal(toy("clip_cov", none).gradient(), toy("clip_cov", plain).gradient())


def test_loss_counts_active_tokens_of_each_sequence(toy):
    case = toy("grpo", {"kl.use": "none", "clip.low": 0.0, "clip.high": 0.0})
    every = list(range(len(case.tokens_BT)))
    logprob = case.logprobs(case.theta, every)[0]
    output = case.method.loss(replace(case.batch, logprob_BT=logprob), case.denominators)
    ratio = (logprob - case.batch.old_logprob_BT).exp()
    advantage = case.batch.advantage_BT.expand_as(ratio)
    expected = (((ratio > 1) & (advantage > 0)) | ((ratio < 1) & (advantage < 0))) & case.batch.mask_BT
    assert output.active_tokens_B.tolist() == expected.sum(1).tolist()
    assert 0 < int(output.active_tokens_B.sum()) < int(case.batch.mask_BT.sum())
    high = (ratio > 1) & (advantage > 0) & case.batch.mask_BT
    assert output.sums["clip/high_tokens"] == int(high.sum())
