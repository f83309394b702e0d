r"""English problems with a free answer: word problems (``####``), mathematics (``\boxed``), physics with units."""

from __future__ import annotations

import random
from math import gcd

from agpo_bench.data.embedded.problem import Problem, working
from agpo_bench.records import Reference

NAMES = ("Ann", "Tom", "Mia", "Sam", "Eva", "Leo")
THINGS = ("pens", "coins", "cards", "books", "eggs", "seeds")
QUESTION_END = "\nAnswer:"


def gsm8k(rng: random.Random) -> Problem:
    """Two-step word problem, answered after ``####``."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    kind = rng.choice(("bags", "change", "share", "times", "both"))
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    numbers: tuple[int, ...]
    if kind == "bags":
        c = rng.randint(2, 40)
        text = f"{name} has {a} bags of {b} {things} and {c} more. How many {things} in all?"
        numbers, steps, answer = (a, b, c), [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"], a * b + c
    elif kind == "change":
        a, c = rng.randint(12, 70), rng.randint(2, 29)
        b = rng.randint(2, a - 1)
        text = f"{name} had {a} {things}, lost {b} and found {c}. How many {things} now?"
        numbers, steps, answer = (a, b, c), [f"{a}-{b}={a - b}", f"{a - b}+{c}={a - b + c}"], a - b + c
    elif kind == "share":
        c = rng.randint(2, 30)
        text = f"{name} puts {a * b} {things} in {b} equal boxes and adds {c} to each. How many {things} in a box?"
        numbers, steps, answer = (a * b, b, c), [f"{a * b}/{b}={a}", f"{a}+{c}={a + c}"], a + c
    elif kind == "times":
        a = rng.randint(2, 19)
        text = f"{name} has {a} {things}. {other} has {b} times as many. How many {things} in all?"
        numbers, steps, answer = (a, b), [f"{a}*{b}={a * b}", f"{a}+{a * b}={a + a * b}"], a + a * b
    else:
        c, d = rng.randint(2, 9), rng.randint(2, 9)
        text = f"{name} buys {a} bags of {b} {things} and {c} bags of {d} {things}. How many {things} in all?"
        first, second = a * b, c * d
        numbers, answer = (a, b, c, d), first + second
        steps = [f"{a}*{b}={first}", f"{c}*{d}={second}", f"{first}+{second}={answer}"]
    final = f"#### {answer}"
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=str(answer), question=text),
        direct=final,
        worked=working(rng, steps) + final,
    )


def math(rng: random.Random) -> Problem:
    r"""Algebra and number theory, answered in ``\boxed{}``."""
    kind = rng.choice(("linear", "fraction", "square", "remainder", "evaluate"))
    numbers: tuple[int, ...]
    if kind == "linear":
        a, x, b = rng.randint(2, 9), rng.randint(2, 12), rng.randint(1, 30)
        numbers, answer = (a, x, b), str(x)
        text = f"Solve {a}x+{b}={a * x + b} for x."
        steps = [f"{a}x={a * x + b}-{b}={a * x}", f"x={x}"]
    elif kind == "fraction":
        top, bottom, factor = rng.randint(1, 9), rng.randint(2, 9), rng.randint(2, 9)
        bottom += bottom == top
        top, bottom = top // gcd(top, bottom), bottom // gcd(top, bottom)
        numbers = (top, bottom, factor)
        answer = f"\\frac{{{top}}}{{{bottom}}}" if bottom > 1 else str(top)
        text = f"Simplify \\frac{{{top * factor}}}{{{bottom * factor}}}."
        steps = [f"{top * factor}/{factor}={top}", f"{bottom * factor}/{factor}={bottom}"]
    elif kind == "square":
        a, b = rng.randint(2, 12), rng.randint(1, 40)
        minus = rng.random() < 0.5 and b < a * a
        result = a * a - b if minus else a * a + b
        sign = "-" if minus else "+"
        numbers, answer = (a, -b if minus else b), str(result)
        text = f"Compute {a}^2{sign}{b}."
        steps = [f"{a}^2={a * a}", f"{a * a}{sign}{b}={result}"]
    elif kind == "remainder":
        divisor = rng.randint(3, 9)
        number = rng.randint(2 * divisor, 10 * divisor - 1)
        product = number // divisor * divisor
        numbers, answer = (number, divisor), str(number - product)
        text = f"Find the remainder when {number} is divided by {divisor}."
        steps = [f"{divisor}*{number // divisor}={product}", f"{number}-{product}={number - product}"]
    else:
        a, b, c = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 9)
        numbers, answer = (a, b, c), str(a * (b + c))
        text = f"Compute {a}({b}+{c})."
        steps = [f"{b}+{c}={b + c}", f"{a}*{b + c}={a * (b + c)}"]
    final = f"\\boxed{{{answer}}}"
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=answer, question=text),
        direct=final,
        worked=working(rng, steps) + final,
    )


def ocw(rng: random.Random) -> Problem:
    """Physics with a numeric answer and its unit, stated in the final-answer sentence."""
    kind = rng.choice(("motion", "power", "mass", "level", "lens"))
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    numbers: tuple[int, ...]
    if kind == "motion":
        c = rng.randint(2, 40)
        text = f"A cart starts at {c} m and moves at {a} m/s for {b} s. Find its position in m."
        numbers, answer, unit = (a, b, c), str(a * b + c), "m"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "power":
        c = rng.randint(1, a * b - 1)
        text = f"A force of {a} N pulls at {b} m/s and {c} W is lost. Find the useful power in W."
        numbers, answer, unit = (a, b, c), str(a * b - c), "W"
        steps = [f"{a}*{b}={a * b}", f"{a * b}-{c}={answer}"]
    elif kind == "mass":
        c = rng.randint(1, 9)
        text = f"A box of mass {c} kg holds {b} balls of 0.{a} kg each. Find the total mass in kg."
        whole, tenth = divmod(a * b, 10)
        numbers, unit = (a, b, c), "kg"
        answer = f"{whole + c}.{tenth}" if tenth else str(whole + c)
        steps = [f"0.{a}*{b}={whole}.{tenth}", f"{whole}.{tenth}+{c}={answer}"]
    elif kind == "level":
        c, d = rng.randint(2, 9), rng.randint(11, 40)
        text = f"An atom at {d} eV emits {c} photons of {a} eV. Find its energy in eV."
        numbers, answer, unit = (a, c, d), str(d - c * a), "eV"
        steps = [f"{c}*{a}={c * a}", f"{d}-{c * a}={answer}"]
    else:
        c = rng.randint(11, 60)
        text = f"A rod of {c} cm is cut by {a} cm and then grows by {b} cm. Find its length in cm."
        numbers, answer, unit = (a, b, c), str(c - a + b), "cm"
        steps = [f"{c}-{a}={c - a}", f"{c - a}+{b}={answer}"]
    final = f"Final answer: The final answer is {answer} {unit}. I hope it is correct."
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=answer, question=text),
        direct=final,
        worked=working(rng, steps) + final,
    )
