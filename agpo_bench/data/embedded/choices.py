"""Problems with four options, answered by a letter: SAT and science in English, school mathematics in Chinese.

Most questions offer classes of results in their natural order (ranges, remainders, quadrants, periods), as a model of
two layers learns to class a number long before it learns to find it among shuffled ones. One kind in each family
shuffles its options.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agpo_bench.data.embedded.chinese import QUESTION_END as CHINESE_END
from agpo_bench.data.embedded.english import QUESTION_END as ENGLISH_END
from agpo_bench.data.embedded.problem import (
    CHINESE_LEADS,
    ENGLISH_LEADS,
    Problem,
    shuffled_options,
    small_or_larger,
    working,
)
from agpo_bench.records import Reference

RANGES = ("0-14", "15-29", "30-44", "45-199")
REMAINDERS = ("0", "1", "2", "3")
QUADRANTS = ("一", "二", "三", "四")
PERIODS = ("1", "2", "3", "4")
_LAST_OF_PERIOD = (2, 10, 18, 36)


@dataclass(frozen=True)
class Question:
    """A question before its options are written under it."""

    kind: str
    numbers: tuple[int, ...]
    text: str
    steps: list[str]
    options: tuple[str, ...]
    place: int
    """Index of the right option."""


def sat(rng: random.Random) -> Problem:
    """School algebra with four options."""
    kind = rng.choice(("function", "product", "difference", "sum", "remainder", "intercept"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    if kind == "function":
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"]
        question = _ranged(kind, (a, b, c), f"If f(x)={a}x+{c}, in which range is f({b})?", steps, a * b + c)
    elif kind == "product":
        c = rng.randint(1, min(9, a * b - 1))
        steps = [f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"]
        question = _ranged(kind, (a, b, c), f"If x={b}, in which range is {a}x-{c}?", steps, a * b - c)
    elif kind == "difference":
        x = rng.randint(10, 70)
        question = _ranged(kind, (x, b), f"If x+{b}={x}, in which range is x?", [f"{x}-{b}={x - b}"], x - b)
    elif kind == "sum":
        x = rng.randint(1, 60)
        question = _ranged(kind, (x, b), f"If x-{b}={x}, in which range is x?", [f"{x}+{b}={x + b}"], x + b)
    elif kind == "remainder":
        x = rng.randint(10, 90)
        steps = [f"{x}+{b}={x + b}", f"{x + b}-{(x + b) // 4 * 4}={(x + b) % 4}"]
        text = f"What is the remainder when {x}+{b} is divided by 4?"
        question = Question(kind, (x, b), text, steps, REMAINDERS, (x + b) % 4)
    else:
        c = rng.randint(2, 40)
        options, place = shuffled_options(rng, c, slips=[a, a + c, a * c])
        question = Question(kind, (a, c), f"If f(x)={a}x+{c}, what is f(0)?", [f"f(0)={c}"], options, place)
    return _english(rng, question, "The final answer is")


def mmlu_stem(rng: random.Random) -> Problem:
    """Short science questions with four options."""
    kind = rng.choice(("force", "charge", "atoms", "nucleus", "period", "number"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    if kind == "force":
        text = (
            f"A mass of {a} kg accelerates at {b} m/s^2 against a friction of {c} N. In which range is the force in N?"
        )
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"]
        question = _ranged(kind, (a, b, c), text, steps, a * b + c)
    elif kind == "charge":
        c = rng.randint(1, min(9, a * b - 1))
        text = f"A body has {a} ions of charge {b} and {c} electrons. In which range is its charge?"
        steps = [f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"]
        question = _ranged(kind, (a, b, c), text, steps, a * b - c)
    elif kind == "atoms":
        c = rng.randint(2, 40)
        text = f"In which range is the number of atoms of C{a}H{c}O{b}?"
        steps = [f"{c}+{a}={a + c}", f"{a + c}+{b}={a + b + c}"]
        question = _ranged(kind, (a, b, c), text, steps, a + b + c)
    elif kind == "nucleus":
        mass = rng.randint(11, 70)
        text = f"A nucleus of mass number {mass} has {a} protons. In which range is its number of neutrons?"
        question = _ranged(kind, (mass, a), text, [f"{mass}-{a}={mass - a}"], mass - a)
    elif kind == "period":
        place = rng.randrange(4)
        protons = rng.randint((0, *_LAST_OF_PERIOD)[place] + 1, _LAST_OF_PERIOD[place])
        neutrons = rng.randint(1, 9)
        text = f"An atom of mass number {protons + neutrons} has {neutrons} neutrons. In which period is it?"
        steps = [f"{protons + neutrons}-{neutrons}={protons}"]
        question = Question(kind, (protons, neutrons), text, steps, PERIODS, place)
    else:
        protons, mass = rng.randint(2, 40), rng.randint(41, 90)
        options, place = shuffled_options(rng, protons, slips=[mass, mass - protons])
        text = f"An atom has {protons} protons and mass number {mass}. Which is its charge number?"
        question = Question(kind, (protons, mass), text, [f"Z={protons}"], options, place)
    return _english(rng, question, "The answer is")


def gaokao_qa(rng: random.Random) -> Problem:
    """Chinese school mathematics with four options."""
    kind = rng.choice(("sequence", "function", "square", "quadrant", "remainder", "intercept"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    if kind == "sequence":
        term = rng.randint(2, 60)
        text = f"等差数列的公差为{b}，第3项为{term}，则第4项的范围为"
        question = _ranged(kind, (term, b), text, [f"{term}+{b}={term + b}"], term + b)
    elif kind == "function":
        text = f"函数f(x)={a}x+{c}，则f({b})的范围为"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"]
        question = _ranged(kind, (a, b, c), text, steps, a * b + c)
    elif kind == "square":
        text = f"已知x={a}，则x^2+{c}的范围为"
        steps = [f"{a}*{a}={a * a}", f"{a * a}+{c}={a * a + c}"]
        question = _ranged(kind, (a, c), text, steps, a * a + c)
    elif kind == "quadrant":
        first, second = rng.sample(range(1, 10), 2), rng.sample(range(1, 10), 2)
        x, y = first[0] - first[1], second[0] - second[1]
        text = f"点({first[0]}-{first[1]}，{second[0]}-{second[1]})在第几象限"
        steps = [f"{first[0]}-{first[1]}={x}", f"{second[0]}-{second[1]}={y}"]
        place = (0 if x > 0 else 1) if y > 0 else (3 if x > 0 else 2)
        question = Question(kind, (*first, *second), text, steps, QUADRANTS, place)
    elif kind == "remainder":
        x = rng.randint(10, 90)
        steps = [f"{x}-{b}={x - b}", f"{x - b}-{(x - b) // 4 * 4}={(x - b) % 4}"]
        question = Question(kind, (x, b), f"{x}-{b}除以4的余数为", steps, REMAINDERS, (x - b) % 4)
    else:
        c = rng.randint(2, 40)
        options, place = shuffled_options(rng, c, slips=[a, a + c, a * c])
        question = Question(kind, (a, c), f"函数f(x)={a}x+{c}，则f(0)的值为", [f"f(0)={c}"], options, place)
    return _problem(
        rng, question, heading="选项：", end=CHINESE_END, leads=CHINESE_LEADS, statement="答案是 ({letter})"
    )


def _ranged(kind: str, numbers: tuple[int, ...], text: str, steps: list[str], value: int) -> Question:
    place = sum(value >= int(span.split("-")[0]) for span in RANGES) - 1
    return Question(kind, numbers, text, steps, RANGES, place)


def _english(rng: random.Random, question: Question, opening: str) -> Problem:
    return _problem(
        rng,
        question,
        heading="Options:",
        end=ENGLISH_END,
        leads=ENGLISH_LEADS,
        statement=opening + " ({letter}).",
    )


def _problem(
    rng: random.Random,
    question: Question,
    *,
    heading: str,
    end: str,
    leads: tuple[Sequence[str], Sequence[str]],
    statement: str,
) -> Problem:
    """Write the options under the question; ``statement`` holds ``{letter}``."""
    letter = "ABCD"[question.place]
    listed = "".join(f" ({mark}){option}" for mark, option in zip("ABCD", question.options, strict=True))
    final = statement.format(letter=letter)
    lines = [*question.steps[:-1], f"{question.steps[-1]} ({letter})"]
    return Problem(
        kind=question.kind,
        parameters=question.numbers,
        prompt=f"{question.text}\n{heading}{listed}{end}",
        reference=Reference(gold=letter, question=question.text, options=question.options),
        direct=final,
        worked=working(rng, lines, final, leads=leads),
        num_steps=len(question.steps),
    )
