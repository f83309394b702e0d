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
    num_steps: int
    """Operations the question takes."""


Family = Callable[[random.Random], Problem]
"""Draws one problem. Depends on nothing but the generator passed in."""

ENGLISH_LEADS = (
    ("First, ", "We have ", "Note that ", "Clearly, ", "Here ", "We see "),
    ("So ", "Then ", "Now ", "Thus ", "Hence ", "Next, "),
)
CHINESE_LEADS = (("首先", "先算", "由题意", "可知", "这里", "我们有"), ("再算", "然后", "所以", "因此", "于是", "那么"))
"""Connectives that open the first line of a worked solution, and the later ones."""


def small_or_larger(rng: random.Random) -> int:
    """One digit in three draws of four, else 10 to 30: the spread of difficulty within a template."""
    return rng.randint(1, 9) if rng.random() < 0.75 else rng.randint(10, 30)


def working(
    rng: random.Random, lines: Sequence[str], final: str, *, leads: tuple[Sequence[str], Sequence[str]] = ENGLISH_LEADS
) -> str:
    """Join worked lines and the final statement, half of them opened by a connective, as people's solutions vary."""
    opened = [
        (rng.choice(leads[min(row, 1)]) if rng.random() < 0.5 else "") + line
        for row, line in enumerate((*lines, final))
    ]
    return "\n".join(opened)


def shuffled_options(rng: random.Random, answer: int, *, slips: Sequence[int]) -> tuple[tuple[str, ...], int]:
    """Four numbers in random order, no two with the same last digit, and the index of ``answer``.

    The wrong ones are results of likely slips where these fit, filled up with neighbours; none is negative.
    """
    near = [answer + offset for offset in (-11, -9, -3, -2, -1, 1, 2, 3, 9, 11)]
    rng.shuffle(near)
    options = [answer]
    for candidate in [*rng.sample(list(slips), len(slips)), *near]:
        if len(options) < 4 and candidate >= 0 and candidate % 10 not in {option % 10 for option in options}:
            options.append(candidate)
    rng.shuffle(options)
    return tuple(str(option) for option in options), options.index(answer)
