"""Which grader a kind of answer has. Imports are lazy: asking for one kind loads nothing of the others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_args

from agpo_bench.grading.answer import Grader, GradingMode

KINDS = ("number", "expression", "choice", "blanks", "program")


def get_grader(kind: str, *, mode: GradingMode = "official", **options: Any) -> Grader:
    """The grader of one kind of answer.

    ``number`` takes ``style="gsm8k"|"cmath"``, ``choice`` takes ``style="single"|"set"``, ``expression`` takes
    ``style="math"|"ocw"``, ``blanks`` takes nothing. In the modes ``deepseek`` and ``lm_eval`` the same options are
    understood, and ``num_few_shot`` (those references extract differently after a few-shot prompt); ``program`` has
    one rule in every mode. Raises ValueError for an unknown kind, mode, or option.
    """
    if kind not in KINDS:
        raise ValueError(f"no grader kind {kind!r}; there are {', '.join(KINDS)}")
    if mode not in get_args(GradingMode):
        raise ValueError(f"no grading mode {mode!r}; there are {', '.join(get_args(GradingMode))}")
    make = _official(kind) if mode == "official" or kind == "program" else _compatible(mode)
    if make is None:
        raise ValueError(f"grader kind {kind!r} has no mode {mode!r}")
    if mode == "official" or kind == "program":
        known = inspect.signature(make).parameters
        options.pop("num_few_shot", None)  # our own rules do not depend on the prompt
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise ValueError(f"grader {kind!r} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
        return make(**options)
    return make(kind=kind, **options)


def _official(kind: str) -> Callable[..., Grader]:
    if kind == "number":
        from agpo_bench.grading.number import NumberGrader

        return NumberGrader
    if kind == "choice":
        from agpo_bench.grading.choice import ChoiceGrader

        return ChoiceGrader
    if kind == "blanks":
        from agpo_bench.grading.blanks import BlanksGrader

        return BlanksGrader
    if kind == "expression":
        from agpo_bench.grading.expression import ExpressionGrader

        return ExpressionGrader
    from agpo_bench.grading.program import ProgramGrader

    return ProgramGrader


def _compatible(mode: GradingMode) -> Callable[..., Grader]:
    if mode == "deepseek":
        from agpo_bench.grading.compat.deepseek import deepseek_grader

        return deepseek_grader
    from agpo_bench.grading.compat.lm_eval import lm_eval_grader

    return lm_eval_grader
