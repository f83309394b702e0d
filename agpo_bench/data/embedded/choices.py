"""Problems with four options, answered by a letter: SAT and science in English, school mathematics in Chinese."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agpo_bench.data.embedded.chinese import QUESTION_END as CHINESE_END
from agpo_bench.data.embedded.english import QUESTION_END as ENGLISH_END
from agpo_bench.data.embedded.problem import (
    CHINESE_LEADS,
    ENGLISH_LEADS,
    Problem,
    offered_options,
    small_or_larger,
    working,
)
from agpo_bench.records import Reference


def _choice(
    rng: random.Random,
    *,
    kind: str,
    numbers: Sequence[int],
    question: str,
    steps: Sequence[str],
    answer: int,
    slips: Sequence[int],
    end: str,
    leads: tuple[Sequence[str], Sequence[str]],
    heading: str,
    statement: str,
) -> Problem:
    """Put the options under the question; ``statement`` holds ``{letter}``."""
    options, letter = offered_options(rng, answer, slips=slips)
    listed = "".join(f" ({mark}){option}" for mark, option in zip("ABCD", options, strict=True))
    final = statement.format(letter=letter)
    return Problem(
        kind=kind,
        parameters=tuple(numbers),
        prompt=f"{question}\n{heading}{listed}{end}",
        reference=Reference(gold=letter, question=question, options=options),
        direct=final,
        worked=working(rng, [*steps[:-1], f"{steps[-1]} ({letter})"], final, leads=leads),
        num_steps=len(steps),
    )


def sat(rng: random.Random) -> Problem:
    """School algebra with four options."""
    kind = rng.choice(("linear", "function", "difference", "sum", "intercept"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "linear":
        answer, slips = b, [a, c, a * b]
        text = f"If {a}x+{c}={a * b + c}, what is x?"
        steps = [f"{a * b + c}-{c}={a * b}", f"{a * b}/{a}={b}"]
    elif kind == "function":
        answer, slips = a * b + c, [a * b, a + b + c]
        text = f"If f(x)={a}x+{c}, what is f({b})?"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "difference":
        x = rng.randint(10, 60)
        numbers, answer, slips = (x, b), x - b, [x + b, b]
        text = f"If x+{b}={x}, what is x?"
        steps = [f"{x}-{b}={x - b}"]
    elif kind == "sum":
        x = rng.randint(10, 60)
        numbers, answer, slips = (x, b), x + b, [x - b, b]
        text = f"If x-{b}={x}, what is x?"
        steps = [f"{x}+{b}={x + b}"]
    else:
        c = rng.randint(2, 40)
        numbers, answer, slips = (a, c), c, [a, a + c, a * c]
        text = f"If f(x)={a}x+{c}, what is f(0)?"
        steps = [f"f(0)={c}"]
    return _choice(
        rng,
        kind=kind,
        numbers=numbers,
        question=text,
        steps=steps,
        answer=answer,
        slips=slips,
        end=ENGLISH_END,
        leads=ENGLISH_LEADS,
        heading="Options:",
        statement="The final answer is ({letter}).",
    )


def mmlu_stem(rng: random.Random) -> Problem:
    """Short science questions with four options."""
    kind = rng.choice(("force", "atoms", "binary", "charge", "nucleus", "number"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "force":
        answer, slips = a * b + c, [a * b, a + b + c]
        text = f"A mass of {a} kg accelerates at {b} m/s^2 against a friction of {c} N. Which force in N acts?"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "atoms":
        c = rng.randint(2, 9)
        answer, slips, numbers = a + b + c, [a + b, b + c, a * b], (a, b, c)
        text = f"How many atoms has a molecule C{a}H{b}O{c}?"
        steps = [f"{a}+{b}={a + b}", f"{a + b}+{c}={answer}"]
    elif kind == "binary":
        bits = [1, *(rng.randint(0, 1) for _ in range(rng.randint(2, 4)))]
        places = [2**power for power in reversed(range(len(bits)))]
        summed = [place for place, bit in zip(places, bits, strict=True) if bit]
        answer = sum(summed)
        written = "".join(str(bit) for bit in bits)
        numbers, slips = (int(written),), [answer * 2, answer // 2, len(bits)]
        text = f"Which number is binary {written}?"
        steps = ["+".join(str(place) for place in summed) + f"={answer}"]
    elif kind == "charge":
        c = rng.randint(1, min(9, a * b - 1))
        answer, slips, numbers = a * b - c, [a * b, a * b + c], (a, b, c)
        text = f"A body has {a} ions of charge {b} and {c} electrons. Which is its charge?"
        steps = [f"{a}*{b}={a * b}", f"{a * b}-{c}={answer}"]
    elif kind == "nucleus":
        mass = rng.randint(11, 60)
        answer, slips, numbers = mass - a, [mass + a, a], (mass, a)
        text = f"A nucleus of mass number {mass} has {a} protons. How many neutrons has it?"
        steps = [f"{mass}-{a}={answer}"]
    else:
        protons, mass = rng.randint(2, 40), rng.randint(41, 90)
        answer, slips, numbers = protons, [mass, mass - protons], (protons, mass)
        text = f"An atom has {protons} protons and mass number {mass}. Which is its charge number?"
        steps = [f"Z={protons}"]
    return _choice(
        rng,
        kind=kind,
        numbers=numbers,
        question=text,
        steps=steps,
        answer=answer,
        slips=slips,
        end=ENGLISH_END,
        leads=ENGLISH_LEADS,
        heading="Options:",
        statement="The answer is ({letter}).",
    )


def gaokao_qa(rng: random.Random) -> Problem:
    """Chinese school mathematics with four options."""
    kind = rng.choice(("linear", "sequence", "function", "square", "intercept"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "linear":
        answer, slips = b, [a, c, a * b]
        text = f"已知{a}x+{c}={a * b + c}，则x的值为"
        steps = [f"{a * b + c}-{c}={a * b}", f"{a * b}/{a}={b}"]
    elif kind == "sequence":
        first, second = rng.randint(10, 60), rng.randint(2, 9)
        numbers, answer, slips = (first, second), first + second, [first - second, first + 2 * second]
        text = f"等差数列的公差为{second}，第3项为{first}，则第4项为"
        steps = [f"{first}+{second}={answer}"]
    elif kind == "function":
        answer, slips = a * b + c, [a * b, a + b + c]
        text = f"函数f(x)={a}x+{c}，则f({b})的值为"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "square":
        answer, slips, numbers = a * a + c, [2 * a + c, a * a], (a, c)
        text = f"已知x={a}，则x^2+{c}的值为"
        steps = [f"{a}*{a}={a * a}", f"{a * a}+{c}={answer}"]
    else:
        c = rng.randint(2, 40)
        numbers, answer, slips = (a, c), c, [a, a + c, a * c]
        text = f"函数f(x)={a}x+{c}，则f(0)的值为"
        steps = [f"f(0)={c}"]
    return _choice(
        rng,
        kind=kind,
        numbers=numbers,
        question=text,
        steps=steps,
        answer=answer,
        slips=slips,
        end=CHINESE_END,
        leads=CHINESE_LEADS,
        heading="选项：",
        statement="答案是 ({letter})",
    )
