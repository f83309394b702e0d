r"""Grading MATH outputs: our expression grader against Math-Verify on the same outputs, each alone on one core.

``python benchmarks/grading_vs_math_verify.py [--data DIR] [--cases FILE] [--outputs 5000]``. Outputs are reference
solutions with the boxed answer left alone, respelled, rearranged or made wrong, seeded; without ``--data`` (a folder
with ``math/test.jsonl``) the answers are those written below. ``--cases`` adds real outputs (``grader_cases.jsonl``).
Two rows: all outputs, and the *remainder*, the outputs that our string rule does not settle. CPU time counts worker
processes and the imports they need for proofs; each side parses a gold once.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from measure import Comparison, Measurement, compared, report, table

from agpo_bench.grading.equality import clean, strings_equal
from agpo_bench.grading.expression import ExpressionGrader, extract_answer
from agpo_bench.grading.workers import shared_pool
from agpo_bench.records import Reference

ANSWERS = (
    "7", "-3", "128", "\\frac{3}{8}", "-\\frac{5}{12}", "2.5", "12,\\!500", "\\sqrt{13}", "4\\sqrt{3}",
    "\\frac{\\sqrt{6}}{3}", "\\frac{7\\pi}{6}", "(3,-2)", "(0,\\infty)", "[-1,4]", "(-\\infty,2)\\cup(5,\\infty)",
    "x^2-4x+7", "3x^3-x", "(x-2)(x+5)", "\\frac{x+1}{x-3}", "2+3i", "1,4", "1+\\sqrt{2}, 1-\\sqrt{2}", "45^\\circ",
    "35\\%", "\\$6.25", "\\text{(C)}", "\\text{even}", "1011_2", "\\begin{pmatrix} 1 & 0 \\\\ -2 & 3 \\end{pmatrix}",
    "y=2x-5", "15\\text{ cm}", "\\frac{1}{1+\\sqrt{5}}", "2^{10}", "\\binom{8}{3}", "\\log_2 9", "\\sin 20^\\circ",
    "\\sqrt{5+2\\sqrt{6}}", "5!", "-\\infty", "n(n+1)",
)  # fmt: skip
_INTEGER = re.compile(r"(?<![\d.,_\\!])\d{1,6}(?![\d.,\\!])")
_FRACTION = re.compile(r"\\[dt]?frac\{(\d+)\}\{(\d+)\}")


class Output(NamedTuple):
    """A response and the gold to judge it by."""

    gold: str
    response: str


def respelled(answer: str, generator: random.Random) -> str:
    """The answer as a model may write it: other spelling, other form of the same value, or another value."""

    def wrong_integer(text: str) -> str:
        found = list(_INTEGER.finditer(text))
        if not found:
            return text + "+1"
        chosen = generator.choice(found)
        value = int(chosen.group()) + generator.choice((-1, 1, 2, 10))
        return text[: chosen.start()] + str(abs(value)) + text[chosen.end() :]

    def doubled_fraction(text: str) -> str:
        return _FRACTION.sub(lambda m: f"\\frac{{{2 * int(m[1])}}}{{{2 * int(m[2])}}}", text, count=1)

    changes: list[Callable[[str], str]] = [
        str,
        str,
        lambda text: text.replace("\\frac", "\\dfrac").replace("(", "\\left(").replace(")", "\\right)"),
        lambda text: _FRACTION.sub(r"\1/\2", text),
        lambda text: text.replace(",\\!", ","),
        doubled_fraction,
        lambda text: f"0+{text}" if text[:1].isalnum() else text,
        lambda text: f"x = {text}",
        lambda text: text.replace(" ", "").replace(",", ", "),
        wrong_integer,
        wrong_integer,
        wrong_integer,
    ]
    return generator.choice(changes)(answer)


def outputs(args: argparse.Namespace) -> list[Output]:
    """The seeded list of outputs."""
    generator = random.Random(args.seed)
    made: list[Output] = []
    if args.cases:
        for line in Path(args.cases).read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            if case["benchmark"] == "math" and case.get("real_output"):
                made.append(Output(case["gold"], case["response_or_pred"]))
    pairs = [(f"Some steps give the result, so the answer is $\\boxed{{{text}}}$.", text) for text in ANSWERS]
    if args.data:
        lines = (Path(args.data) / "math" / "test.jsonl").read_text(encoding="utf-8").splitlines()
        solutions = [json.loads(line)["solution"] for line in lines]
        extracted = [(solution, extract_answer(solution)) for solution in solutions]
        pairs = [(solution, found.answer) for solution, found in extracted if found and found.answer in solution]
    while len(made) < args.outputs:
        solution, gold = generator.choice(pairs)
        head, _, tail = solution.rpartition(gold)
        made.append(Output(gold, head + respelled(gold, generator) + tail))
    if args.remainder:
        made = [output for output in made if not is_settled_by_strings(output)]
    return made[: args.outputs]


def is_settled_by_strings(output: Output) -> bool:
    """Whether the authors' string rule accepts the output: everything else needs mathematics to be accepted or
    refused.
    """
    extracted = extract_answer(output.response)
    return extracted is not None and strings_equal(clean(extracted.answer), clean(output.gold))


def cpu_seconds() -> float:
    """Of this process and of all its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def grade_ours(items: Sequence[Output]) -> int:
    """Graded right, by our rule."""
    grader = ExpressionGrader()
    verdicts = grader.grade_many([(item.response, Reference(gold=item.gold)) for item in items])
    shared_pool().close()
    return sum(verdict.score == 1.0 for verdict in verdicts)


def grade_peer(items: Sequence[Output]) -> int:
    """Graded right, by Math-Verify, with its timeouts off so that no time goes into alarms."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    configurations = [LatexExtractionConfig(), ExprExtractionConfig()]

    @cache
    def parsed_gold(gold: str) -> list[object]:
        return list(parse(f"${gold}$", configurations, parsing_timeout=None))

    right = 0
    for item in items:
        answer = parse(item.response, configurations, parsing_timeout=None)
        right += bool(verify(parsed_gold(item.gold), answer, timeout_seconds=None))
    return right


def run(args: argparse.Namespace) -> Measurement:
    """One side in this process. Imports, and one answer to load what a side loads lazily, come before the clock."""
    items = outputs(args)
    grade = {"ours": grade_ours, "peer": grade_peer}[args.side]
    grade([Output("1", "\\boxed{1}"), Output("x^2-1", "\\boxed{(x-1)(x+1)}")])
    cpu, wall = cpu_seconds(), time.perf_counter()
    right = grade(items)
    measured = Measurement(
        tokens=len(items),
        cpu_seconds=cpu_seconds() - cpu,
        wall_seconds=time.perf_counter() - wall,
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
    print(f"{args.side}: {right} of {len(items)} right")
    return measured


def compare(args: argparse.Namespace) -> list[Comparison]:
    """All outputs, and the remainder. Reads ``repeats`` and, where present, ``data``, ``cases``, ``outputs``."""
    options = ["--outputs", str(getattr(args, "outputs", 5000)), "--seed", str(getattr(args, "seed", 0))]
    for name in ("data", "cases"):
        if getattr(args, name, None):
            options += [f"--{name}", str(getattr(args, name))]
    found = []
    for name, extra, target in (
        ("MATH outputs graded, Math-Verify", [], 10.0),
        ("those the string rule does not settle", ["--remainder"], 1.0),
    ):
        ours, peer = compared(Path(__file__).name, repeats=args.repeats, options=[*options, *extra])
        found.append(Comparison(name=name, ours=ours, peer=peer, target=target, what="items/s"))
    return found


def main() -> None:
    """One side, or both and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "peer"))
    parser.add_argument("--data", help="folder with math/test.jsonl")
    parser.add_argument("--cases", help="grader_cases.jsonl with real outputs")
    parser.add_argument("--outputs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--remainder", action="store_true", help="only what the string rule does not settle")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    if args.side:
        report(run(args))
    else:
        print(table(compare(args)))


if __name__ == "__main__":
    main()
