"""What a grader is: one object that is reward, metric and vote key at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from agpo_bench.records import Reference, Verdict

GradingMode = Literal["official", "deepseek", "lm_eval"]
"""``official`` is our rule; the others reproduce published rules, defects included, to compare with old numbers."""


class Grader(Protocol):
    """Grades one kind of answer. Implementations are safe to call from any thread."""

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        ...

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        ...

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers (``Verdict.answer``) are one vote: symmetric and reflexive."""
        ...
