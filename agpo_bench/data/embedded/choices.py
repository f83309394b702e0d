"""Problems with four options, answered by a letter: SAT and science in English, school mathematics in Chinese."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agpo_bench.data.embedded.chinese import QUESTION_END as CHINESE_END
from agpo_bench.data.embedded.english import QUESTION_END as ENGLISH_END
from agpo_bench.data.embedded.problem import CHINESE_LEADS, ENGLISH_LEADS, Problem, offered_options, working
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
    leads: tuple[tuple[str, ...], ...],
    statement: str,
) -> Problem:
    """Put the options under the question; ``statement`` holds ``{letter}``."""
    options, letter = offered_options(rng, answer, slips=slips)
    listed = " ".join(f"({mark}) {option}" for mark, option in zip("ABCD", options, strict=True))
    final = statement.format(letter=letter)
    return Problem(
        kind=kind,
        parameters=tuple(numbers),
        prompt=f"{question}\n{listed}{end}",
        reference=Reference(gold=letter, question=question, options=options),
        direct=final,
        worked=working(rng, steps, leads=leads) + final,
    )


def sat(rng: random.Random) -> Problem:
    """School algebra with four options."""
    kind = rng.choice(("linear", "function", "system", "percent"))
    numbers: tuple[int, ...]
    if kind == "linear":
        a, x, b = rng.randint(2, 9), rng.randint(2, 12), rng.randint(1, 30)
        numbers, answer, slips = (a, x, b), x, [a, a * x]
        text = f"If {a}x+{b}={a * x + b}, what is x?"
        steps = [f"{a}x={a * x + b}-{b}={a * x}", f"x={x}"]
    elif kind == "function":
        a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 30)
        answer = a * x + b
        numbers, slips = (a, x, b), [a * x, a + x + b]
        text = f"If f(x)={a}x+{b}, what is f({x})?"
        steps = [f"{a}*{x}={a * x}", f"{a * x}+{b}={answer}"]
    elif kind == "system":
        y = rng.randint(1, 12)
        x = y + rng.randint(1, 12)
        numbers, answer, slips = (x, y), x, [y, x + y]
        text = f"If x+y={x + y} and x-y={x - y}, what is x?"
        steps = [f"2x={x + y}+{x - y}={2 * x}", f"x={x}"]
    else:
        percent, base = rng.choice((10, 20, 30, 40, 50)), 10 * rng.randint(2, 9)
        answer = percent * base // 100
        numbers, slips = (percent, base), [answer * 10, base - answer]
        text = f"What is {percent}% of {base}?"
        steps = [f"{base}/10={base // 10}", f"{base // 10}*{percent // 10}={answer}"]
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
        statement="The final answer is ({letter}).",
    )


def mmlu_stem(rng: random.Random) -> Problem:
    """Short science questions with four options."""
    kind = rng.choice(("force", "atoms", "binary", "cells", "charge"))
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    numbers: tuple[int, ...]
    if kind == "force":
        c = rng.randint(1, 20)
        answer = a * b + c
        numbers, slips = (a, b, c), [a * b, a + b + c]
        text = f"A mass of {a} kg accelerates at {b} m/s^2 against a friction of {c} N. Which force in N acts?"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "atoms":
        c = rng.randint(2, 9)
        answer = c * (a + b)
        numbers, slips = (a, b, c), [a + b, a * b]
        text = f"How many atoms do {c} molecules of C{a}H{b} have?"
        steps = [f"{a}+{b}={a + b}", f"{c}*{a + b}={answer}"]
    elif kind == "binary":
        bits = [1, *(rng.randint(0, 1) for _ in range(rng.randint(2, 4)))]
        places = [2**power for power in reversed(range(len(bits)))]
        summed = [place for place, bit in zip(places, bits, strict=True) if bit]
        answer = sum(summed)
        written = "".join(str(bit) for bit in bits)
        numbers, slips = (int(written),), [answer * 2, answer // 2]
        text = f"Which number is binary {written}?"
        steps = ["+".join(str(place) for place in summed) + f"={answer}"]
    elif kind == "cells":
        doublings = rng.randint(1, 4)
        answer = a * 2**doublings
        numbers, slips = (a, doublings), [a * doublings, a + doublings]
        text = f"Cells double every hour. How many cells come from {a} cells in {doublings} hours?"
        steps = [f"2^{doublings}={2**doublings}", f"{a}*{2**doublings}={answer}"]
    else:
        c = rng.randint(2, 9)
        answer = abs(a * b - c)
        numbers, slips = (a, b, c), [a * b, a * b + c]
        text = f"A body has {a} ions of charge {b} and {c} electrons. Which is the size of its charge?"
        steps = [f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"]
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
        statement="The answer is ({letter}).",
    )


def gaokao_qa(rng: random.Random) -> Problem:
    """Chinese school mathematics with four options."""
    kind = rng.choice(("linear", "sequence", "function", "square"))
    numbers: tuple[int, ...]
    if kind == "linear":
        a, x, b = rng.randint(2, 9), rng.randint(2, 12), rng.randint(1, 30)
        numbers, answer, slips = (a, x, b), x, [a, a * x]
        text = f"已知{a}x+{b}={a * x + b}，则x的值为"
        steps = [f"{a}x={a * x + b}-{b}={a * x}", f"x={x}"]
    elif kind == "sequence":
        start, gap, place = rng.randint(1, 20), rng.randint(2, 9), rng.randint(4, 9)
        answer = start + gap * (place - 1)
        numbers, slips = (start, gap, place), [answer - gap, answer + gap]
        text = f"等差数列的首项为{start}，公差为{gap}，则第{place}项为"
        steps = [f"{gap}*{place - 1}={gap * (place - 1)}", f"{start}+{gap * (place - 1)}={answer}"]
    elif kind == "function":
        a, x, b = rng.randint(2, 9), rng.randint(2, 9), rng.randint(1, 30)
        answer = a * x + b
        numbers, slips = (a, x, b), [a * x, a + x + b]
        text = f"函数f(x)={a}x+{b}，则f({x})的值为"
        steps = [f"{a}*{x}={a * x}", f"{a * x}+{b}={answer}"]
    else:
        a, b = rng.randint(2, 9), rng.randint(1, 20)
        answer = a * a + b
        numbers, slips = (a, b), [2 * a + b, a * a]
        text = f"已知x={a}，则x^2+{b}的值为"
        steps = [f"{a}*{a}={a * a}", f"{a * a}+{b}={answer}"]
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
        statement="故选{letter}",
    )
