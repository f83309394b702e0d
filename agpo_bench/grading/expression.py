r"""MATH answers: the last box, equal as strings by the authors' rule or equal exactly as mathematics."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence

from agpo_bench.grading import hendrycks
from agpo_bench.grading.boxed import answer_only, final_answer_sentence, last_boxed, without_thinking
from agpo_bench.records import Reference, Verdict

_MINUS_SIGNS = str.maketrans({"−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "﹣": "-", "－": "-"})


def fold(text: str) -> str:
    """NFKC, and every dash that stands for a minus as ``-`` (NFKC leaves U+2212 alone)."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", text).translate(_MINUS_SIGNS)


def expressions_equal(first: str, second: str) -> bool:
    """Whether two answers are equal: as strings by the MATH authors' rule, or exactly as mathematics.

    Symmetric and reflexive. Never raises for anything a model can write; bounded in time and memory.
    """
    return hendrycks.is_equal(fold(first), fold(second))


class ExpressionGrader:
    r"""The MATH rule: last balanced ``\boxed{}``, else Minerva's sentence, else a response that is only an answer."""

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        started = time.perf_counter()
        text = without_thinking(fold(response))
        boxed = last_boxed(text)
        answer = boxed if boxed is not None else final_answer_sentence(text) or answer_only(text)
        seconds = time.perf_counter() - started
        if not answer:
            return Verdict(score=0.0, answer=None, reason="no_answer", seconds=seconds)
        is_right = expressions_equal(answer, reference.gold)
        return Verdict(
            score=float(is_right),
            answer=hendrycks.normalize(answer) or answer,
            reason="correct" if is_right else "wrong",
            seconds=time.perf_counter() - started,
        )

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        return [self.grade(response, reference) for response, reference in pairs]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers are one vote."""
        return expressions_equal(first, second)
