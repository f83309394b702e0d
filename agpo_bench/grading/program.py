"""CodeContests: run the program of a response on every test and score the share that pass.

The rule (``PROTOCOL`` names it in results): Python 3, the last fenced block whose language is ``python``, ``python3``,
``py`` or not given; one fresh sandboxed process a test; outputs compared as the data set's own tester does
(google-deepmind/code_contests, execution/tester_sandboxer.cc, ``OutputsMatch``), integers exactly. The score is the
test pass rate, which the AGPO paper uses as reward; ``alternatives["solved"]`` is the data set's own metric, 1 only
when every test passes.

A last block that is never closed is graded as it stands: a stop string or a length limit may have cut just the closing
fence, and a program that was cut half-way fails by itself. An earlier, complete block is not graded in its place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import NamedTuple

from agpo_bench.grading.sandbox import Job, Limits, Result, Sandbox, shared_sandbox
from agpo_bench.records import ProgramTest, Reference, Verdict

PYTHON_LANGUAGES = frozenset({"", "python", "python3", "py"})
MAX_SOURCE_CHARS = 1 << 17
"""Longer programs are refused (``too_long``); contest judges stop at 64 KiB."""
MAX_CPU_SECONDS = 10.0
"""No test gets more, whatever the data say (the data set's own sandbox defaults to 10 s)."""
DEFAULT_MEMORY_BYTES = 256 << 20

_FENCE = re.compile(r"[ \t]*(?:>[ \t]?)*(`{3,}|~{3,})[ \t]*([^`]*)$")
_SPACE = b" \n\t\r\v"
_SPLIT = re.compile(rb"[ \n\t\r\v]+")
_INTEGER = re.compile(rb"([+-]?)0*([0-9]+)\Z")
_DECIMAL = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e([+-]?[0-9]{1,4}))?\Z")
_MAX_DECIMAL_CHARS = 400
_MAX_CANONICAL_BYTES = 1 << 20
_EXACT = Context(prec=2000, Emin=-100_000, Emax=100_000)
_TOLERANCE = Decimal("1e-5")


def extract_program(response: str) -> str | None:
    """The text of the last fenced Python block; None when there is none.

    A fence is a line of three or more backticks or tildes, and at least as many of the same close it. Blocks in
    another language are passed over.
    """
    program: str | None = None
    lines: list[str] = []
    fence, is_python = "", False
    for line in response.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        if not fence:
            if match:
                words = match[2].split(maxsplit=1)
                language = words[0].lower().strip("{.}") if words else ""
                fence, is_python, lines = match[1], language in PYTHON_LANGUAGES, []
        elif match and match[1].startswith(fence) and not match[2].strip():
            program = "\n".join(lines) if is_python else program
            fence = ""
        else:
            lines.append(line)
    return "\n".join(lines) if fence and is_python else program


def _tokens(output: bytes, *, at_most: int = 0) -> list[bytes]:
    """The tokens in lower case; with ``at_most``, the last may be all the rest."""
    return [token for token in _SPLIT.split(output.strip(_SPACE).lower(), maxsplit=at_most) if token]


def _token_matches(expected: bytes, actual: bytes) -> bool:
    if expected == actual:
        return True
    expected_integer, actual_integer = _INTEGER.match(expected), _INTEGER.match(actual)
    if expected_integer and actual_integer:
        same_digits = expected_integer[2] == actual_integer[2]
        same_sign = (expected_integer[1] == b"-") == (actual_integer[1] == b"-")
        return same_digits and (same_sign or actual_integer[2] == b"0")
    if max(len(expected), len(actual)) > _MAX_DECIMAL_CHARS or not (
        _DECIMAL.match(expected) and _DECIMAL.match(actual)
    ):
        return False
    difference = _EXACT.subtract(Decimal(expected.decode()), Decimal(actual.decode()))
    return abs(difference) < _TOLERANCE


def outputs_match(expected: bytes, actual: bytes) -> bool:
    """Whether two outputs agree: the same number of tokens, each equal in lower case or numbers within 1e-5 (absolute).

    Two integers must be equal exactly. Departure: the data set's tester reads them as doubles, so 9007199254740992
    passes for 9007199254740993 there. Numbers over 400 characters or with exponents over four digits compare as text.
    """
    expected_tokens = _tokens(expected)
    # One token more than wanted settles it: a hostile output is not taken apart into millions.
    actual_tokens = _tokens(actual, at_most=len(expected_tokens))
    if expected_tokens == actual_tokens:
        return True
    return len(expected_tokens) == len(actual_tokens) and all(map(_token_matches, expected_tokens, actual_tokens))


def _output_digest(output: bytes) -> str:
    """Equal for outputs whose tokens are the same in lower case, integers in canonical form."""
    if len(output) > _MAX_CANONICAL_BYTES:
        return hashlib.sha256(output).hexdigest()
    return hashlib.sha256(b" ".join(map(_canonical_token, _tokens(output)))).hexdigest()


def _canonical_token(token: bytes) -> bytes:
    integer = _INTEGER.match(token)
    if integer:
        return (b"-" if integer[1] == b"-" and integer[2] != b"0" else b"") + integer[2]
    return token


class _Outcome(NamedTuple):
    """One test of one program."""

    reason: str
    digest: str
    """What the vote key says of the test: that it passed, how it failed, or a hash of a wrong output."""
    seconds: float


def _judge(test: ProgramTest, result: Result) -> _Outcome:
    if result.status != "ok":
        return _Outcome(result.status, result.status, result.wall_seconds)
    if outputs_match(test.expected_stdout.encode("utf-8", "surrogatepass"), result.stdout):
        return _Outcome("correct", "correct", result.wall_seconds)
    return _Outcome("wrong", _output_digest(result.stdout), result.wall_seconds)


class ProgramGrader:
    """Scores the test pass rate of a Python 3 program.

    A test's CPU limit is ``max(given, floor_seconds) * time_factor``, at most 10 s, and 10 s where the data give none.
    The factor is there because contest limits are set for compiled programs: one of 1 s gives Python 4 s.
    ``max_tests`` grades only the first so many tests of a problem (public before private before generated, as the data
    order them). ``max_timeouts`` stops a program after that many tests ran out of time, in the order of the tests; the
    rest count as failed. Both are departures from the official rule, off by default; ``describe`` records them.
    """

    def __init__(
        self,
        *,
        floor_seconds: float = 0.25,
        time_factor: float = 4.0,
        max_tests: int | None = None,
        max_timeouts: int | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        for name, value in {"max_tests": max_tests, "max_timeouts": max_timeouts}.items():
            if value is not None and value < 1:
                raise ValueError(f"program grader: {name} is {value}; use 1 or more, or leave it out")
        if floor_seconds <= 0 or time_factor <= 0:
            raise ValueError(
                f"program grader: floor_seconds {floor_seconds} and time_factor {time_factor} must be above 0"
            )
        self.floor_seconds, self.time_factor = floor_seconds, time_factor
        self.max_tests, self.max_timeouts = max_tests, max_timeouts
        self._sandbox = sandbox

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox the programs run in: the one given, else the process-wide one."""
        return self._sandbox or shared_sandbox()

    def describe(self) -> dict[str, str | float | int | None]:
        """What a result must record of how its programs were run."""
        return {
            "isolation": self.sandbox.isolation,
            "floor_seconds": self.floor_seconds,
            "time_factor": self.time_factor,
            "max_cpu_seconds": MAX_CPU_SECONDS,
            "max_tests": self.max_tests,
            "max_timeouts": self.max_timeouts,
        }

    def limits(self, reference: Reference) -> Limits:
        """The limits of each test of a problem."""
        given = reference.time_limit_seconds
        cpu = MAX_CPU_SECONDS if given is None else max(given, self.floor_seconds) * self.time_factor
        memory = max(reference.memory_limit_bytes or 0, DEFAULT_MEMORY_BYTES)
        return Limits(cpu_seconds=min(cpu, MAX_CPU_SECONDS), memory_bytes=memory)

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response; its tests run in parallel."""
        return self.grade_many([(response, reference)])[0]

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many responses, in parallel over problems and tests; verdicts in the order of the pairs."""
        verdicts: dict[int, Verdict] = {}
        first_of: dict[tuple[str, int], int] = {}
        same_as: dict[int, int] = {}
        jobs: list[Job] = []
        tests: list[ProgramTest] = []
        for index, (response, reference) in enumerate(pairs):
            program = extract_program(response)
            if not reference.tests:
                verdicts[index] = Verdict(score=0.0, answer=None, reason="no_tests", is_error=True)
            elif program is None or not program.strip():
                verdicts[index] = Verdict(score=0.0, answer=None, reason="no_answer", alternatives={"solved": 0.0})
            elif len(program) > MAX_SOURCE_CHARS:
                verdicts[index] = Verdict(score=0.0, answer=None, reason="too_long", alternatives={"solved": 0.0})
            elif (first := first_of.setdefault((program, id(reference)), index)) != index:
                same_as[index] = first  # The same program again, as in a group of rollouts: run once.
            else:
                source, limits = program.encode("utf-8", "surrogatepass"), self.limits(reference)
                for test in reference.tests[: self.max_tests]:
                    jobs.append(Job(source=source, stdin=_stdin(test.stdin), limits=limits, program=index))
                    tests.append(test)
        outcomes: dict[int, list[_Outcome]] = {}
        judged = self.sandbox.judge_many(
            jobs, judge=lambda index, result: _judge(tests[index], result), max_timeouts=self.max_timeouts
        )
        for job, outcome in zip(jobs, judged, strict=True):
            assert job.program is not None
            outcomes.setdefault(job.program, []).append(outcome)
        verdicts |= {index: _verdict(of_program) for index, of_program in outcomes.items()}
        return [verdicts[same_as.get(index, index)] for index in range(len(pairs))]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Two programs are one vote when each test came out the same: passed, or failed with the same output."""
        return first == second


def _verdict(outcomes: Sequence[_Outcome]) -> Verdict:
    """The verdict on a program, given its tests in order; its reason is that of the first test that failed."""
    seconds = sum(outcome.seconds for outcome in outcomes)
    reasons = [outcome.reason for outcome in outcomes]
    if "infrastructure" in reasons:
        return Verdict(score=0.0, answer=None, reason="infrastructure", seconds=seconds, is_error=True)
    num_passed = reasons.count("correct")
    # After a syntax error nothing ran, so there is no vector of outcomes to vote with.
    vector = None if reasons[0] == "syntax_error" else json.dumps([outcome.digest for outcome in outcomes]).encode()
    return Verdict(
        score=num_passed / len(reasons),
        answer=None if vector is None else hashlib.sha256(vector).hexdigest(),
        reason=next((reason for reason in reasons if reason != "correct"), "correct"),
        seconds=seconds,
        alternatives={"solved": float(num_passed == len(reasons))},
    )


def _stdin(text: str) -> bytes:
    """What the program reads: POSIX lines end with a newline, stored inputs often lack the last (emkc#176)."""
    return (text if not text or text.endswith("\n") else text + "\n").encode("utf-8", "surrogatepass")
