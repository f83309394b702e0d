"""The part of the grading page that concerns programs: the comparator, the runs, and the attack suites."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from agpo_bench.data.benchmarks import load_task, open_source
from agpo_bench.grading.program import MAX_SOURCE_CHARS, ProgramGrader, outputs_match
from agpo_bench.records import Reference

_ROOT = Path(__file__).resolve().parents[2]
_LOOK_UP = "import sys\nANSWERS = {answers!r}\nsys.stdout.write(ANSWERS[sys.stdin.read().strip()])\n"
SUITES = {
    "tests/grading/test_sandbox_attacks.py": "hostile programs: escapes, hangs, leftovers, floods",
    "tests/grading/test_hostile_math.py": "hostile mathematics: towers, nesting, huge numbers, code",
    "tests/grading/test_hostile_text.py": "hostile text: NUL, surrogates, megabytes, fuzzed extraction",
    "tests/grading/test_hedges.py": "answers that list, hedge, bound or deny",
}
"""Test files of the checkout, and what they throw at the graders."""


@dataclass(frozen=True, kw_only=True)
class Programs:
    """What the comparator and the sandbox do with the tests of real problems."""

    problems: int
    tests: int
    outputs_equal: int
    """Expected outputs that match themselves with blanks and case changed."""
    pairs: int
    pairs_equal: int
    """Pairs of expected outputs of one problem that differ as tokens and still match: numbers within 1e-5."""
    looked_up: int
    """Tests passed by a program that looks the answer up by its input: input and output reach and leave it unharmed."""
    look_ups: int
    contradictory: int
    """Tests whose input another test of the problem has too, with another output: no program passes both."""
    silent_passed: int
    """Tests passed by a program that prints nothing."""
    isolation: str


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One run of a test file."""

    file: str
    about: str
    cases: int
    failed: int
    skipped: int


def program_evidence(data_dir: Path, *, limit: int | None = None, seed: int = 0) -> Programs:
    """Grade the CodeContests problems of a folder with programs whose right verdict is known."""
    source, task = open_source(str(data_dir)), load_task("codecontests")
    items = [
        item
        for split in ("train", "test")
        if split in source.splits(task)
        for item in source.load(task, split).items[:limit]
        if item.reference.tests
    ]
    generator = random.Random(seed)
    equal = pairs = pairs_equal = 0
    for item in items:
        outputs = [test.expected_stdout for test in item.reference.tests]
        for output in outputs:
            changed = "  ".join(output.swapcase().split(" ")) + " \n"
            equal += outputs_match(output.encode(), changed.encode())
        different = [
            (first, second)
            for index, first in enumerate(outputs)
            for second in outputs[:index]
            if first.lower().split() != second.lower().split()
        ]
        for first, second in generator.sample(different, min(20, len(different))):
            pairs += 1
            pairs_equal += outputs_match(first.encode(), second.encode())
    grader = ProgramGrader()
    look_ups = [(_look_up(item.reference), item.reference) for item in items]
    look_ups = [(response, reference) for response, reference in look_ups if len(response) < MAX_SOURCE_CHARS]
    verdicts = grader.grade_many(look_ups)
    silent = grader.grade_many([("```python\npass\n```", item.reference) for item in items])
    return Programs(
        problems=len(items),
        tests=sum(len(item.reference.tests) for item in items),
        outputs_equal=equal,
        pairs=pairs,
        pairs_equal=pairs_equal,
        looked_up=_passed(verdicts_of=[v.score for v in verdicts], references=[r for _, r in look_ups]),
        look_ups=sum(len(reference.tests) for _, reference in look_ups),
        contradictory=sum(
            len(item.reference.tests) - len(_answers(item.reference)) for item in items if _contradicts(item.reference)
        ),
        silent_passed=_passed(verdicts_of=[v.score for v in silent], references=[item.reference for item in items]),
        isolation=grader.sandbox.isolation,
    )


def _answers(reference: Reference) -> dict[str, str]:
    return {test.stdin.strip(): test.expected_stdout for test in reference.tests}


def _contradicts(reference: Reference) -> bool:
    answers = _answers(reference)
    return any(answers[test.stdin.strip()] != test.expected_stdout for test in reference.tests)


def _look_up(reference: Reference) -> str:
    return f"```python\n{_LOOK_UP.format(answers=_answers(reference))}```"


def _passed(*, verdicts_of: Sequence[float], references: Sequence[Reference]) -> int:
    return sum(round(score * len(reference.tests)) for score, reference in zip(verdicts_of, references, strict=True))


def run_suites() -> list[Suite]:
    """Run the hostile test files of the checkout; empty for an installed wheel, which has no tests."""
    found = []
    for file, about in SUITES.items():
        if not (_ROOT / file).is_file():
            continue
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", f"--junitxml={report}", file]
            subprocess.run(command, cwd=_ROOT, env=os.environ, capture_output=True, check=False)
            suite = next(ElementTree.parse(report).iter("testsuite")).attrib
        found.append(
            Suite(
                file=file,
                about=about,
                cases=int(suite["tests"]),
                failed=int(suite["failures"]) + int(suite["errors"]),
                skipped=int(suite["skipped"]),
            )
        )
    return found


def render_programs(programs: Programs, suites: Sequence[Suite]) -> list[str]:
    """The two sections, as lines of Markdown."""
    p = programs
    lines = [
        "",
        "## Programs",
        "",
        f"{p.problems:,} CodeContests problems with {p.tests:,} tests, run as `{p.isolation}`.",
        "",
        "| what | count |",
        "| --- | --- |",
        f"| expected output accepted with other blanks and other case | {p.outputs_equal:,} / {p.tests:,} |",
        f"| different outputs of a problem that match: numbers within 1e-5 | {p.pairs_equal:,} / {p.pairs:,} |",
        f"| tests passed by a program that looks each answer up by its input | {p.looked_up:,} / {p.look_ups:,} |",
        f"| tests that repeat an input and want another output: no program passes both | {p.contradictory:,} |",
        f"| tests passed by a program that prints nothing | {p.silent_passed:,} / {p.tests:,} |",
    ]
    if suites:
        lines += [
            "",
            "## Hostile answers and programs",
            "",
            "Each case must end in bounded time with the right verdict and leave nothing behind.",
            "",
            "| test file | what | cases | failed | skipped |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [f"| {s.file} | {s.about} | {s.cases} | {s.failed} | {s.skipped} |" for s in suites]
    return lines
