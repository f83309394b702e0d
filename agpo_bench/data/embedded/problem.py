"""What every family of embedded problems draws: one problem with two demonstrated solutions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agpo_bench.records import Reference

Parameter = int | str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One problem before it is given to a split."""

    kind: str
    """The template within the family."""
    parameters: tuple[Parameter, ...]
    """What the question asks (numbers and operations; not names, wording or options): this alone decides the split."""
    prompt: str
    reference: Reference
    direct: str
    """Demonstrated response that states the answer at once."""
    worked: str
    """Demonstrated response that first writes the intermediate results."""


Family = Callable[[random.Random], Problem]
"""Draws one problem. Depends on nothing but the generator passed in."""

ENGLISH_LEADS = (
    ("", "First, ", "We have ", "Note that "),
    ("", "So ", "Then ", "Now "),
    ("", "So ", "Thus ", "Hence "),
)
CHINESE_LEADS = (("", "首先", "先算", "由题意"), ("", "再算", "然后", "所以"), ("", "所以", "因此", "于是"))


def working(rng: random.Random, lines: Sequence[str], *, leads: tuple[tuple[str, ...], ...] = ENGLISH_LEADS) -> str:
    """Join the lines of a worked solution, each opened with a connective or none, as people's solutions vary."""
    opened = [rng.choice(leads[min(row, len(leads) - 1)]) + line for row, line in enumerate(lines)]
    return "".join(f"{line}\n" for line in opened)


def offered_options(rng: random.Random, answer: int, *, slips: Sequence[int]) -> tuple[tuple[str, ...], str]:
    """Four different numbers in random order, and the letter of ``answer``.

    The wrong ones are results of likely slips, filled up with neighbours; none is negative.
    """
    wrong: list[int] = []
    candidates = [*slips, answer + 1, answer + 2, answer + 10, answer - 1, answer - 2, answer - 10, answer + 3]
    rng.shuffle(candidates)
    for candidate in candidates:
        if candidate >= 0 and candidate != answer and candidate not in wrong:
            wrong.append(candidate)
    options = [answer, *wrong[:3]]
    rng.shuffle(options)
    return tuple(str(option) for option in options), "ABCD"[options.index(answer)]
