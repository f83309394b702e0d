"""Tiny programming problems, answered by a Python program that tests judge."""

from __future__ import annotations

import random

from agpo_bench.data.embedded.english import QUESTION_END
from agpo_bench.data.embedded.problem import Problem
from agpo_bench.records import ProgramTest, Reference

TIME_LIMIT_SECONDS = 0.25
"""Right programs take milliseconds; a sampled endless loop must not cost training the 10 s of a test without limit."""
_WORDS = {"+": "add {}", "-": "subtract {}", "*": "multiply by {}", "//": "divide by {}"}
_INVERSE = {"+": "-", "-": "+", "*": "//", "//": "*"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "//": 2}


def codecontests(rng: random.Random) -> Problem:
    """Two to four operations on one integer, to be carried out (``forward``) or undone (``inverse``)."""
    kind = rng.choice(("forward", "inverse"))
    described = [(rng.choice(("+", "-", "*")), _constant(rng)) for _ in range(rng.randint(2, 4))]
    spoken = ", then ".join(_WORDS[sign].format(number) for sign, number in described)
    if kind == "forward":
        text = f"Read n. {spoken.capitalize()}. Print the result."
        program = described
        inputs = rng.sample(range(1, 100), 2)
    else:
        text = f"A secret number was changed: {spoken}. Read the result n. Print the secret number."
        program = [(_INVERSE[sign], number) for sign, number in reversed(described)]
        inputs = [_apply(described, secret) for secret in rng.sample(range(1, 100), 2)]
    expression, last = "n", 3
    for sign, number in program:
        inner = f"({expression})" if last < _PRECEDENCE[sign] else expression
        expression, last = f"{inner}{sign}{number}", _PRECEDENCE[sign]
    lines = "".join(rng.choice((f"n=n{sign}{number}\n", f"n{sign}={number}\n")) for sign, number in program)
    head, tail = "```python\nn=int(input())\n", "```"
    tests = tuple(
        ProgramTest(stdin=f"{value}\n", expected_stdout=f"{_apply(program, value)}\n") for value in sorted(inputs)
    )
    return Problem(
        kind=kind,
        parameters=tuple(part for operation in described for part in operation),
        prompt=text + QUESTION_END,
        reference=Reference(gold="", question=text, tests=tests, time_limit_seconds=TIME_LIMIT_SECONDS),
        direct=f"{head}print({expression})\n{tail}",
        worked=f"{head}{lines}print(n)\n{tail}",
        num_steps=len(program),
    )


def _constant(rng: random.Random) -> int:
    return rng.randint(2, 9) if rng.random() < 0.5 else rng.randint(10, 99)


def _apply(operations: list[tuple[str, int]], value: int) -> int:
    """Carry out the operations from left to right in exact integers."""
    for sign, number in operations:
        if sign == "+":
            value += number
        elif sign == "-":
            value -= number
        elif sign == "*":
            value *= number
        else:
            value //= number
    return value
