r"""Answers that are mathematics: MATH and OCW. Extraction here; equality in ``equality`` and ``ocw``.

The answer is the content of the last balanced ``\boxed{}``, else Minerva's "final answer is X", else the whole
response when it is nothing but an answer (PROTOCOLS: a verbatim gold is right with or without a box; prose without a
box states nothing). A response that only names ``\boxed``, with no group behind it, states its last ``$…$``. MATH:
right if the strings are equal after the authors' normalisation, or if an exact symbolic check succeeds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from agpo_bench.grading import hendrycks
from agpo_bench.grading.boxed import (
    answer_only,
    final_answer_sentence,
    formula_of_named_box,
    last_boxed,
    without_thinking,
)
from agpo_bench.grading.equality import Outcome, canonical, clean, compare, is_readable
from agpo_bench.grading.extraction import cut_at_next_question
from agpo_bench.grading.latex.limits import MAX_CHARS
from agpo_bench.grading.normalise import MAX_RESPONSE_CHARS, normalise_text
from agpo_bench.grading.ocw import answer_type, compare_numbers, ocw_compare
from agpo_bench.grading.workers import shared_pool
from agpo_bench.records import Reference, Verdict

_LENIENT_OCW_RTOL = Fraction(1, 100)
"""The tolerance that the references mention and do not apply; reported beside the official one."""


class Extracted(NamedTuple):
    """An answer and whether it stood where the prompt asks for it (a box or the sentence)."""

    answer: str
    is_marked: bool


def extract_answer(response: str) -> Extracted | None:
    """The answer of a response, or None. Linear in the response's length.

    Read up to an invented next question; a solution that numbers its own parts "Question 1:" is read to its end.
    """
    text = without_thinking(normalise_text(response))
    head = cut_at_next_question(text)
    return _extract(head) or (_extract(text) if len(head) < len(text) else None)


def _extract(text: str) -> Extracted | None:
    stated = last_boxed(text) or final_answer_sentence(text)
    if stated:
        return Extracted(stated, True)
    bare = answer_only(text) or formula_of_named_box(text)
    return Extracted(bare, False) if bare else None


def expressions_equal(first: str, second: str) -> bool:
    """Whether two answers are equal: as strings by the MATH authors' rule, or exactly as mathematics.

    Symmetric and reflexive. Never raises for anything a model can write; bounded in time and memory.
    """
    return compare(first, second).is_equal


class ExpressionGrader:
    r"""MATH (``style="math"``) or OCW (``style="ocw"``).

    ``ocw_rtol`` is the relative tolerance of numeric OCW answers. ``with_math_verify`` adds that package's verdict as
    the alternative ``math_verify``; it is slow, runs in a worker process, and raises ValueError here if the package
    is not installed.
    """

    def __init__(
        self, style: Literal["math", "ocw"] = "math", *, ocw_rtol: float = 1e-5, with_math_verify: bool = False
    ) -> None:
        if style not in ("math", "ocw"):
            raise ValueError(f"no expression style {style!r}; there are math, ocw")
        if not 0 <= ocw_rtol < 1:
            raise ValueError(f"ocw_rtol is {ocw_rtol}; a relative tolerance lies in [0, 1)")
        if with_math_verify:
            require_math_verify()
        self.style = style
        self.rtol = Fraction(str(ocw_rtol))
        self.with_math_verify = with_math_verify

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        started = time.perf_counter()
        if not is_readable_gold(reference.gold):
            return _verdict(started, 0.0, None, "gold_unreadable", is_error=True)
        if len(response) > MAX_RESPONSE_CHARS:
            return _verdict(started, 0.0, None, "too_long", alternatives=self._scores())
        extracted = extract_answer(response)
        if extracted is None:
            return _verdict(started, 0.0, None, "no_answer", alternatives=self._scores())
        if len(extracted.answer) > MAX_CHARS:
            return _verdict(started, 0.0, None, "too_long", alternatives=self._scores())
        outcome = self._compare(extracted.answer, reference.gold)
        if outcome.is_error:
            return _verdict(started, 0.0, canonical(extracted.answer), "worker_died", is_error=True)
        return _verdict(
            started,
            float(outcome.is_equal),
            canonical(extracted.answer),
            "correct" if outcome.is_equal else outcome.reason or "wrong",
            alternatives=self._scores(extracted, outcome, response, reference.gold),
        )

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        return [self.grade(response, reference) for response, reference in pairs]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers are one vote: symmetric and reflexive."""
        if self.style == "ocw" and answer_type(first) == answer_type(second) == "numeric":
            return compare_numbers(first, second, rtol=self.rtol).is_equal
        return expressions_equal(first, second)

    def _compare(self, answer: str, gold: str) -> Outcome:
        return ocw_compare(answer, gold, rtol=self.rtol) if self.style == "ocw" else compare(answer, gold)

    def _scores(
        self,
        extracted: Extracted | None = None,
        outcome: Outcome = Outcome(False),  # noqa: B008 - an immutable constant
        response: str = "",
        gold: str = "",
    ) -> Mapping[str, float]:
        """The scores by other rules; all zero when nothing was extracted."""
        scores = {"strict": float(outcome.is_equal and extracted is not None and extracted.is_marked)}
        if self.style == "ocw":
            scores["ocw_rtol_1e-2"] = float(
                extracted is not None and ocw_compare(extracted.answer, gold, rtol=_LENIENT_OCW_RTOL).is_equal
            )
        else:
            scores["math_hendrycks"] = float(
                extracted is not None
                and extracted.is_marked
                and hendrycks.is_equal(extracted.answer, normalise_text(gold))
            )
        if self.with_math_verify:
            reply = shared_pool().ask("math_verify", gold=gold, answer=response) if extracted is not None else None
            scores["math_verify"] = float(reply is not None and bool(reply.value))
        return scores


@lru_cache(maxsize=16384)
def is_readable_gold(gold: str) -> bool:
    """Whether a gold answer can be compared with; one that cannot is an error of the data and never a reward."""
    return bool(clean(gold)) and is_readable(gold)


def require_math_verify() -> None:
    """ValueError if the optional package is missing."""
    from importlib.util import find_spec

    if find_spec("math_verify") is None:
        raise ValueError("the math_verify score needs the package math-verify; pip install 'agpo-bench[math-verify]'")


def _verdict(
    started: float,
    score: float,
    answer: str | None,
    reason: str,
    *,
    is_error: bool = False,
    alternatives: Mapping[str, float] | None = None,
) -> Verdict:
    return Verdict(
        score=score,
        answer=answer,
        reason=reason,
        seconds=time.perf_counter() - started,
        is_error=is_error,
        alternatives=alternatives or {},
    )
