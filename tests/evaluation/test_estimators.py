"""Estimators against enumeration of every subset, and against worked numbers from the sources named."""

from __future__ import annotations

import itertools
import math
import random
import time

import pytest

from agpo_bench.evaluation.estimators import average_at_k, clustered_standard_error, majority_at_k, pass_at_k
from agpo_bench.grading.vote import majority_vote
from agpo_bench.records import Verdict


def same(first: str, second: str) -> bool:
    return first == second


def draws(text: str, right: str) -> list[Verdict]:
    """One verdict a character; a dot abstains."""
    return [
        Verdict(score=float(c == right), answer=None if c == "." else c, reason="no_answer" if c == "." else "wrong")
        for c in text
    ]


def test_pass_at_k_is_the_mean_over_all_subsets() -> None:
    for n, c, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if c > n or k > n:
            continue
        subsets = list(itertools.combinations([1] * c + [0] * (n - c), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets), abs=1e-15)


def test_pass_at_k_of_fewer_samples_than_k_is_no_number() -> None:
    # openai/human-eval#35, nuprl/MultiPL-E#40: the shortcut for n - c < k returned 1.0
    assert pass_at_k(3, 0, 5) is None
    assert pass_at_k(3, 3, 5) is None


def test_pass_at_k_refuses_more_right_than_samples() -> None:
    with pytest.raises(ValueError, match="4 right in 3 samples"):
        pass_at_k(3, 4, 1)


@pytest.mark.parametrize("seed", range(40))
def test_unbiased_majority_equals_the_mean_over_every_subset(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randint(1, 9)
    verdicts = draws("".join(rng.choice("aaabbcd.") for _ in range(n)), "a")
    for k in range(1, n + 1):
        votes = [majority_vote(list(s), same, num_draws=k).value for s in itertools.combinations(verdicts, k)]
        expected = math.fsum(vote for vote in votes if vote is not None) / len(votes)
        assert majority_at_k(verdicts, same, k=k) == pytest.approx(expected, abs=1e-15)


def test_the_earliest_rule_has_the_same_mean_over_every_order() -> None:
    verdicts = draws("aabbc.", "a")
    orders = list(itertools.permutations(verdicts, 4))
    values = [majority_vote(order, same, num_draws=4, ties="earliest").value for order in orders]
    mean = math.fsum(value for value in values if value is not None) / len(values)
    assert majority_at_k(verdicts, same, k=4) == pytest.approx(mean, abs=1e-12)


def test_unbiased_majority_of_all_draws_is_the_vote_itself() -> None:
    verdicts = draws("aabbcc..", "b")
    assert (
        majority_at_k(verdicts, same, k=8) == majority_vote(verdicts, same, num_draws=8).value == pytest.approx(1 / 3)
    )


def test_majority_of_one_is_the_mean_score() -> None:
    verdicts = draws("aab.c", "a")
    assert majority_at_k(verdicts, same, k=1) == average_at_k([v.score for v in verdicts], 5) == pytest.approx(0.4)


def test_more_draws_than_a_power_of_two_still_count_exactly() -> None:
    """256 draws, k = 64, one right in three, the rest all different: no overflow, and quick."""
    verdicts = draws("a" * 80 + "." * 6 + "".join(chr(0x4E00 + i) for i in range(170)), "a")
    started = time.process_time()
    value = majority_at_k(verdicts, same, k=64)
    assert time.process_time() - started < 5
    assert value is not None
    assert 0.999 < value <= 1


def test_large_even_split_is_worth_one_half() -> None:
    assert majority_at_k(draws("a" * 500 + "b" * 500, "a"), same, k=64) == 0.5


def test_a_short_draw_or_a_lost_one_has_no_majority() -> None:
    # scitix/sieval#89
    assert majority_at_k(draws("aa", "a"), same, k=4) is None
    lost = [*draws("aaa", "a"), Verdict(score=0.0, answer=None, reason="worker_died", is_error=True)]
    assert majority_at_k(lost, same, k=2) is None


def test_average_of_k_needs_k_draws() -> None:
    assert average_at_k([1.0, 0.0, 0.0, 0.0], 2) == 0.5
    assert average_at_k([1.0], 2) is None


def test_repeats_that_always_agree_do_not_shrink_the_error() -> None:
    # morluto/jacobian#1597: 50 questions, 30 right, 8 equal repeats: 0.0700, not 0.0245
    scores = [[1.0] * 8] * 30 + [[0.0] * 8] * 20
    assert clustered_standard_error(scores) == pytest.approx(math.sqrt(0.6 * 0.4 / 49), abs=1e-15)
    assert clustered_standard_error(scores) == pytest.approx(0.07, abs=5e-5)


def test_one_question_has_no_standard_error() -> None:
    assert clustered_standard_error([[1.0, 0.0]]) is None
