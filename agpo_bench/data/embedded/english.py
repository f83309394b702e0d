r"""English problems with a free answer: word problems (``####``), mathematics (``\boxed``), physics with units."""

from __future__ import annotations

import random
from math import gcd

from agpo_bench.data.embedded.problem import Problem, small_or_larger, working
from agpo_bench.records import Reference

NAMES = ("Ann", "Tom", "Mia", "Sam", "Eva", "Leo")
THINGS = ("pens", "coins", "cards", "books", "eggs", "seeds")
QUESTION_END = "\nAnswer:"


def gsm8k(rng: random.Random) -> Problem:
    """Two-step word problem, answered after ``####``."""
    name, other = rng.sample(NAMES, 2)
    things = rng.choice(THINGS)
    kind = rng.choice(("bags", "spent", "change", "share", "sum", "gift"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "bags":
        text = f"{name} has {a} bags of {b} {things} and {c} more. How many {things} in all?"
        steps, answer = [f"{a}*{b}={a * b}", f"{a * b}+{c}={a * b + c}"], a * b + c
    elif kind == "spent":
        c = rng.randint(1, min(9, a * b - 1))
        text = f"{name} has {a} bags of {b} {things} and loses {c}. How many {things} in all?"
        numbers, steps, answer = (a, b, c), [f"{a}*{b}={a * b}", f"{a * b}-{c}={a * b - c}"], a * b - c
    elif kind == "change":
        a = rng.randint(10, 40)
        text = f"{name} had {a} {things}, lost {b} and found {c}. How many {things} now?"
        numbers, steps, answer = (a, b, c), [f"{a}-{b}={a - b}", f"{a - b}+{c}={a - b + c}"], a - b + c
    elif kind == "share":
        text = f"{name} puts {a * b} {things} in {b} equal boxes and adds {c} to each. How many {things} in a box?"
        numbers, steps, answer = (a * b, b, c), [f"{a * b}/{b}={a}", f"{a}+{c}={a + c}"], a + c
    elif kind == "sum":
        a = rng.randint(2, 60)
        text = f"{name} has {a} {things} and {other} has {b}. How many {things} in all?"
        numbers, steps, answer = (a, b), [f"{a}+{b}={a + b}"], a + b
    else:
        a = rng.randint(10, 60)
        text = f"{name} has {a} {things} and gives {other} {b}. How many {things} has {name} now?"
        numbers, steps, answer = (a, b), [f"{a}-{b}={a - b}"], a - b
    final = f"#### {answer}"
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=str(answer), question=text),
        direct=final,
        worked=working(rng, steps, final),
        num_steps=len(steps),
    )


def math(rng: random.Random) -> Problem:
    r"""Algebra and number theory, answered in ``\boxed{}``."""
    kind = rng.choice(("linear", "fraction", "square", "remainder", "bracket", "difference"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "linear":
        text = f"Solve {a}x+{c}={a * b + c} for x."
        answer, steps = str(b), [f"{a * b + c}-{c}={a * b}", f"{a * b}/{a}={b}"]
    elif kind == "fraction":
        top, bottom, factor = a // gcd(a, b), b // gcd(a, b), rng.randint(2, 9)
        numbers = (top, bottom, factor)
        answer = f"\\frac{{{top}}}{{{bottom}}}" if bottom > 1 else str(top)
        text = f"Simplify \\frac{{{top * factor}}}{{{bottom * factor}}}."
        steps = [f"{top * factor}/{factor}={top}", f"{bottom * factor}/{factor}={bottom}"]
    elif kind == "square":
        numbers, answer = (a, c), str(a * a + c)
        text = f"Compute {a}^2+{c}."
        steps = [f"{a}*{a}={a * a}", f"{a * a}+{c}={answer}"]
    elif kind == "remainder":
        divisor = rng.randint(3, 9)
        number = rng.randint(2 * divisor, 10 * divisor - 1)
        product = number // divisor * divisor
        numbers, answer = (number, divisor), str(number - product)
        text = f"Find the remainder when {number} is divided by {divisor}."
        steps = [f"{divisor}*{number // divisor}={product}", f"{number}-{product}={answer}"]
    elif kind == "bracket":
        a, b, c = rng.randint(2, 5), rng.randint(1, 5), rng.randint(1, 5)
        numbers, answer = (a, b, c), str(a * (b + c))
        text = f"Compute {a}({b}+{c})."
        steps = [f"{b}+{c}={b + c}", f"{a}*{b + c}={answer}"]
    else:
        a = rng.randint(10, 60)
        numbers, answer = (a, b), str(a - b)
        text = f"Compute {a}-{b}."
        steps = [f"{a}-{b}={answer}"]
    final = f"\\boxed{{{answer}}}"
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=answer, question=text),
        direct=final,
        worked=working(rng, steps, final),
        num_steps=len(steps),
    )


def ocw(rng: random.Random) -> Problem:
    """Physics with a numeric answer and its unit, stated in the final-answer sentence."""
    kind = rng.choice(("motion", "power", "mass", "level", "rod", "tank"))
    a, b, c = rng.randint(2, 9), rng.randint(2, 9), small_or_larger(rng)
    numbers: tuple[int, ...] = (a, b, c)
    if kind == "motion":
        text = f"A cart starts at {c} m and moves at {a} m/s for {b} s. Find its position in m."
        answer, unit = str(a * b + c), "m"
        steps = [f"{a}*{b}={a * b}", f"{a * b}+{c}={answer}"]
    elif kind == "power":
        c = rng.randint(1, min(9, a * b - 1))
        text = f"A force of {a} N pulls at {b} m/s and {c} W is lost. Find the useful power in W."
        numbers, answer, unit = (a, b, c), str(a * b - c), "W"
        steps = [f"{a}*{b}={a * b}", f"{a * b}-{c}={answer}"]
    elif kind == "mass":
        c = rng.randint(1, 9)
        text = f"A box of mass {c} kg holds {b} balls of 0.{a} kg each. Find the total mass in kg."
        whole, tenth = divmod(a * b, 10)
        numbers, unit = (a, b, c), "kg"
        answer = f"{whole + c}.{tenth}" if tenth else str(whole + c)
        steps = [f"0.{a}*{b}={whole}.{tenth}", f"{whole}.{tenth}+{c}={whole + c}.{tenth}"]
    elif kind == "level":
        d = rng.randint(1, 9)
        text = f"An atom at {a * b + d} eV emits {a} photons of {b} eV. Find its energy in eV."
        numbers, answer, unit = (a, b, d), str(d), "eV"
        steps = [f"{a}*{b}={a * b}", f"{a * b + d}-{a * b}={d}"]
    elif kind == "rod":
        c = rng.randint(10, 60)
        text = f"A rod of {c} cm is cut by {a} cm. Find its length in cm."
        numbers, answer, unit = (a, c), str(c - a), "cm"
        steps = [f"{c}-{a}={answer}"]
    else:
        c = rng.randint(2, 60)
        text = f"A tank of {c} kg takes in {a} kg of water. Find the total mass in kg."
        numbers, answer, unit = (a, c), str(c + a), "kg"
        steps = [f"{c}+{a}={answer}"]
    final = f"Final answer: The final answer is {answer} {unit}. I hope it is correct."
    return Problem(
        kind=kind,
        parameters=numbers,
        prompt=text + QUESTION_END,
        reference=Reference(gold=answer, question=text),
        direct=final,
        worked=working(rng, steps, final),
        num_steps=len(steps),
    )
