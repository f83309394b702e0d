"""Votes: who agrees with whom, who abstains, what a tie is worth."""

from __future__ import annotations

import itertools

import pytest

from agpo_bench.grading.graders import get_grader
from agpo_bench.grading.vote import cluster_answers, majority_vote
from agpo_bench.records import Reference, Verdict


def graded(kind: str, gold: str, responses: list[str], **options: object) -> tuple[list[Verdict], object]:
    grader = get_grader(kind, **options)
    return grader.grade_many([(response, Reference(gold=gold)) for response in responses]), grader.are_equivalent


def test_equal_answers_in_different_spellings_are_one_cluster() -> None:
    # facebookresearch/deepconf#15; NVIDIA/TensorRT-LLM#3236
    verdicts, same = graded("number", "3/4", [r"\boxed{\frac{3}{4}}", r"\boxed{0.75}", r"\boxed{3/4}", "5", "5"])
    vote = majority_vote(verdicts, same, num_draws=5)
    assert (vote.value, vote.winner_votes) == (1.0, 3)


def test_negative_answers_keep_their_sign_in_the_vote() -> None:
    verdicts, same = graded("number", "-8", ["-8", "8", "-8.0", "8", "-8"])
    vote = majority_vote(verdicts, same, num_draws=5)
    assert (vote.value, vote.winner, vote.winner_votes) == (1.0, "-8", 3)


def test_samples_without_an_answer_abstain_and_the_answer_a_does_not() -> None:
    # DeepSeek-Math answer_extraction.py; stanfordnlp/dspy#10066
    verdicts, same = graded("number", "9", ["no idea", "who knows", "[invalid]", "9", "9"])
    assert majority_vote(verdicts, same, num_draws=5).value == 1.0
    verdicts, same = graded("choice", "A", ["Answer: A", "Answer: A", "Answer: A", "Answer: B"])
    assert majority_vote(verdicts, same, num_draws=4).value == 1.0


def test_nobody_voting_is_wrong_and_has_no_winner() -> None:
    verdicts, same = graded("number", "9", ["none", "none", "none"])
    vote = majority_vote(verdicts, same, num_draws=3)
    assert (vote.value, vote.winner, vote.num_tied) == (0.0, None, 0)


def test_a_short_draw_is_flagged_and_has_no_value() -> None:
    # scitix/sieval#89
    verdicts, same = graded("number", "9", ["9", "9"])
    vote = majority_vote(verdicts, same, num_draws=4)
    assert vote.value is None
    assert vote.is_short


def test_a_draw_lost_to_the_harness_makes_the_vote_short() -> None:
    verdicts, same = graded("number", "9", ["9", "9", "9"])
    verdicts.append(Verdict(score=0.0, answer=None, reason="worker_died", is_error=True))
    assert majority_vote(verdicts, same, num_draws=4).value is None


def test_a_tie_is_worth_its_expected_value_in_every_order() -> None:
    verdicts, same = graded("number", "9", ["9", "8", "9", "8", "7"])
    values = {majority_vote(order, same, num_draws=5).value for order in itertools.permutations(verdicts)}
    assert values == {0.5}


def test_the_earliest_sample_rule_breaks_a_tie_by_order() -> None:
    verdicts, same = graded("number", "9", ["9", "8", "8", "9"])
    assert majority_vote(verdicts, same, num_draws=4, ties="earliest").value == 1.0
    assert majority_vote(verdicts[::-1][1:] + verdicts[:1], same, num_draws=4, ties="earliest").value == 0.0


def test_a_tolerant_equality_gives_the_same_clusters_in_every_order() -> None:
    """10.1, 10.109 and 10.118 are equal in a chain (1/1000 of the larger), the ends are not."""
    verdicts, same = graded("number", "10.1", ["10.1", "10.109", "10.118"], style="cmath")
    assert not same("10.1", "10.118")
    sizes = {
        tuple(len(cluster.members) for cluster in cluster_answers(order, same))
        for order in itertools.permutations(verdicts)
    }
    assert sizes == {(3,)}


def test_only_the_first_k_samples_vote() -> None:
    verdicts, same = graded("number", "9", ["9", "8", "8", "8"])
    assert majority_vote(verdicts, same, num_draws=1).value == 1.0
    with pytest.raises(ValueError, match="use 1 or more"):
        majority_vote(verdicts, same, num_draws=0)
