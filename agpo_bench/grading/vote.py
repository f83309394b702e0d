"""Maj@k: the answer most samples agree on, where "agree" is the grader's own equivalence.

A sample without an answer has no vote. Answers are one cluster when a chain of equivalent answers joins them (the
equality of decimals has a tolerance and is not transitive), so the clusters do not depend on the order of the samples.
Equally large clusters share the vote: the value is the mean of their scores, what drawing one at random is worth.
``ties="earliest"`` gives the vote to the tied cluster seen first instead (Llemma harness).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from agpo_bench.records import Verdict

Equivalence = Callable[[str, str], bool]
Ties = Literal["expected", "earliest"]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Samples whose answers are one answer."""

    members: tuple[int, ...]
    """Indices of the samples, ascending."""
    answer: str
    """The answer of the earliest member."""
    score: float
    """Mean score of the members: they are equivalent, so it is 0 or 1 but where the equality is not transitive."""


@dataclass(frozen=True, kw_only=True)
class MajorityVote:
    """The outcome of one vote."""

    value: float | None
    """Score of the winner (ties: see above), 0 when nobody voted; None when the draw is short."""
    winner: str | None
    """The winner's answer; of tied winners the one seen first."""
    winner_votes: int
    num_tied: int
    """How many clusters share the largest size; 0 when nobody voted."""
    num_votes: int
    is_short: bool
    """Fewer than the k samples asked for, or one lost to an infrastructure failure: what is left is no random draw."""


def cluster_answers(verdicts: Sequence[Verdict], are_equivalent: Equivalence) -> list[Cluster]:
    """The clusters of a draw, in the order of their earliest members; abstentions and errors are in none."""
    spellings: dict[str, list[int]] = {}
    for index, verdict in enumerate(verdicts):
        if verdict.answer is not None and not verdict.is_error:
            spellings.setdefault(verdict.answer, []).append(index)
    groups: list[list[str]] = []
    for answer in spellings:
        joined = [group for group in groups if any(are_equivalent(answer, other) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([other for group in joined for other in group] + [answer])
    clusters = []
    for group in groups:
        members = tuple(sorted(index for answer in group for index in spellings[answer]))
        first = verdicts[members[0]].answer
        assert first is not None
        score = float(sum(Fraction(verdicts[index].score) for index in members) / len(members))
        clusters.append(Cluster(members=members, answer=first, score=score))
    return sorted(clusters, key=lambda cluster: cluster.members[0])


def majority_vote(
    verdicts: Sequence[Verdict], are_equivalent: Equivalence, *, num_draws: int, ties: Ties = "expected"
) -> MajorityVote:
    """Vote among the first ``num_draws`` verdicts (Maj@k with k = ``num_draws``).

    ``are_equivalent`` is the grader's method. To use more draws than k, see
    :func:`agpo_bench.evaluation.estimators.majority_at_k`.
    """
    if num_draws < 1:
        raise ValueError(f"a vote among {num_draws} samples has no meaning; use 1 or more")
    if ties not in ("expected", "earliest"):
        raise ValueError(f"no rule {ties!r} for ties; there are expected, earliest")
    drawn = verdicts[:num_draws]
    is_short = len(drawn) < num_draws or any(verdict.is_error for verdict in drawn)
    clusters = cluster_answers(drawn, are_equivalent)
    num_votes = sum(len(cluster.members) for cluster in clusters)
    most = max((len(cluster.members) for cluster in clusters), default=0)
    tied = [cluster for cluster in clusters if len(cluster.members) == most]
    value: float | None = 0.0
    if is_short:
        value = None
    elif tied:
        shared = sum(Fraction(cluster.score) for cluster in tied) / len(tied)
        value = float(shared) if ties == "expected" else tied[0].score
    return MajorityVote(
        value=value,
        winner=tied[0].answer if tied else None,
        winner_votes=most,
        num_tied=len(tied),
        num_votes=num_votes,
        is_short=is_short,
    )
