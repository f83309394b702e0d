"""A published rule as a grader: what it extracts, and whether it calls that right."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agpo_bench.grading.normalise import MAX_RESPONSE_CHARS
from agpo_bench.records import Reference, Verdict


class Outcome(NamedTuple):
    """What a rule says of one response."""

    answer: str | None
    is_right: bool


Rule = Callable[[str, Reference], Outcome]

MAX_ANSWER_CHARS = 2000
"""A longer extracted answer is wrong by every rule here; it is not compared."""


class RuleGrader:
    """The first rule gives the score, the others are logged beside it under their names.

    Votes follow the extracted string, as these references count them.
    """

    def __init__(self, rule: Rule, *, alternatives: Mapping[str, Rule] | None = None) -> None:
        self.rule = rule
        self.alternatives = dict(alternatives or {})

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        started = time.perf_counter()
        if not reference.gold.strip():
            return Verdict(score=0.0, answer=None, reason="gold_unreadable", is_error=True)
        if len(response) > MAX_RESPONSE_CHARS:
            return Verdict(
                score=0.0, answer=None, reason="too_long", alternatives=dict.fromkeys(self.alternatives, 0.0)
            )
        outcome = self.rule(response, reference)
        others = {name: float(rule(response, reference).is_right) for name, rule in self.alternatives.items()}
        wrong = "wrong" if outcome.answer else "no_answer"
        return Verdict(
            score=float(outcome.is_right),
            answer=None if not outcome.answer else outcome.answer[:MAX_ANSWER_CHARS],
            reason="correct" if outcome.is_right else wrong,
            seconds=time.perf_counter() - started,
            alternatives=others,
        )

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        return [self.grade(response, reference) for response, reference in pairs]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers are one vote: the same string."""
        return first == second
