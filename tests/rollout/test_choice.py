"""Choosing a token: exact probabilities, golden values, and randomness that belongs to the row."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, kstest

from agpo_bench.rollout.choice import _GAMMA, _mix, choose, entropy, row_settings, truncate, uniforms


def _draw(logits: list[float], *, num: int, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0):
    settings = row_settings(
        temperatures=[temperature] * num,
        top_ps=[top_p] * num,
        seeds=list(range(seed * num, (seed + 1) * num)),
        device="cpu",
    )
    return choose(torch.tensor([logits] * num), settings, np.zeros(num, dtype=np.int64), with_entropy=True)


def test_the_generator_is_splitmix64() -> None:
    # The first outputs of SplitMix64 with seed 1234567, as its published implementations print them.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = np.uint64(1234567) + np.arange(1, 5, dtype=np.uint64) * _GAMMA
    assert _mix(states).tolist() == published


def test_uniform_numbers_are_uniform_along_seeds_positions_and_draws() -> None:
    seeds = np.arange(20_000, dtype=np.uint64)
    zero = np.zeros(20_000, dtype=np.int64)
    positions = np.arange(20_000)
    assert kstest(uniforms(seeds, zero, draw=0), "uniform").pvalue > 1e-3
    assert kstest(uniforms(seeds * 0 + 7, positions, draw=0), "uniform").pvalue > 1e-3
    pairs = np.stack([uniforms(seeds, zero, draw=0), uniforms(seeds, zero, draw=1), uniforms(seeds, zero + 1, draw=0)])
    assert np.abs(np.corrcoef(pairs) - np.eye(3)).max() < 0.03


def test_no_two_seeds_positions_or_draws_share_a_number() -> None:
    seeds, positions = np.meshgrid(np.arange(200, dtype=np.uint64), np.arange(200))
    numbers = [uniforms(seeds.ravel(), positions.ravel(), draw=draw) for draw in (0, 1)]
    assert len(np.unique(np.concatenate(numbers))) == 2 * 200 * 200


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.5])
def test_tokens_come_with_their_softmax_probabilities(temperature: float) -> None:
    logits = [1.2, -0.3, 0.0, 2.0, -4.0]
    num = 40_000
    counts = torch.bincount(_draw(logits, num=num, temperature=temperature).token_B, minlength=5).numpy()
    expected = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, -1).numpy() * num
    assert chisquare(counts, expected).pvalue > 1e-3


def test_top_p_draws_from_the_renormalised_nucleus() -> None:
    probabilities = [0.05, 0.3, 0.45, 0.2]
    num = 40_000
    counts = torch.bincount(_draw(np.log(probabilities).tolist(), num=num, top_p=0.8).token_B, minlength=4).numpy()
    # .45 + .3 = .75 < .8, so the third token enters and the fourth does not.
    assert counts[0] == 0
    expected = np.array([0.3, 0.45, 0.2]) / 0.95 * num
    assert chisquare(counts[1:], expected).pvalue > 1e-3


def test_top_p_leaves_the_log_probabilities_of_the_full_vocabulary() -> None:
    # probabilities [.6, .3, .1], top-p .85: kept mass .9; renormalised log-probabilities would be .105361 higher.
    choice = _draw(np.log([0.6, 0.3, 0.1]).tolist(), num=2_000, top_p=0.85)
    assert set(choice.token_B.tolist()) == {0, 1}
    expected = torch.tensor([math.log(0.6), math.log(0.3)])[choice.token_B]
    torch.testing.assert_close(choice.logprob_B, expected, atol=1e-6, rtol=0)
    kept = truncate(torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([0.85], dtype=torch.float64))
    assert -math.log(float(kept.sum())) == pytest.approx(0.105361, abs=1e-6)


def test_a_tiny_top_p_keeps_the_most_probable_token() -> None:
    assert set(_draw([0.0, 0.1, -1.0], num=500, top_p=1e-6).token_B.tolist()) == {1}


def test_the_temperature_is_in_the_log_probability() -> None:
    # logits [2, 0] at temperature .5: log sigmoid(4) = -.018150, not log sigmoid(2) = -.126928.
    choice = _draw([2.0, 0.0], num=200, temperature=0.5)
    drawn = choice.logprob_B[choice.token_B == 0]
    torch.testing.assert_close(drawn, torch.full_like(drawn, -0.018150), atol=1e-6, rtol=0)


def test_the_entropy_is_that_of_temperature_one() -> None:
    # Four equal logits: ln 4. And [2, 0] has .365335 nats whatever the sampling temperature.
    assert float(entropy(torch.zeros(1, 4))) == pytest.approx(1.386294, abs=1e-6)
    p = 1 / (1 + math.exp(-2))
    expected = -(p * math.log(p) + (1 - p) * math.log(1 - p))
    for temperature in (0.5, 1.0, 1.5):
        assert float(_draw([2.0, 0.0], num=1, temperature=temperature).entropy_B) == pytest.approx(expected, abs=1e-6)


def test_an_impossible_token_has_no_part_in_the_entropy_and_is_never_drawn() -> None:
    choice = _draw([0.0, -math.inf, 0.0], num=1_000)
    assert set(choice.token_B.tolist()) == {0, 2}
    torch.testing.assert_close(choice.entropy_B, torch.full((1_000,), math.log(2)))


def test_temperature_zero_takes_the_best_token_among_sampling_rows() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 400)
    settings = row_settings(temperatures=[0.0, 5.0] * 200, top_ps=[1.0] * 400, seeds=list(range(400)), device="cpu")
    choice = choose(logits, settings, np.zeros(400, dtype=np.int64))
    assert set(choice.token_B[::2].tolist()) == {1}
    assert set(choice.token_B[1::2].tolist()) == {0, 1, 2}
    expected = torch.log_softmax(logits[0], -1)[1]
    torch.testing.assert_close(choice.logprob_B[::2], expected.expand(200))


def test_a_rare_token_of_a_large_vocabulary_keeps_its_probability() -> None:
    # 50,000 equal tokens: a cumulative sum in float32 would be off by whole tokens at the end.
    num, size = 4_000, 50_000
    settings = row_settings(temperatures=[1.0] * num, top_ps=[1.0] * num, seeds=list(range(num)), device="cpu")
    tokens = torch.cat(
        [
            choose(
                torch.zeros(500, size),
                settings._replace(temperature_B1=settings.temperature_B1[:500], seed_B=settings.seed_B[i : i + 500]),
                np.zeros(500, dtype=np.int64),
            ).token_B
            for i in range(0, num, 500)
        ]
    )
    expected = np.floor(uniforms(settings.seed_B, np.zeros(num, dtype=np.int64), draw=0) * size)
    assert (tokens.numpy() == expected).mean() > 0.999
