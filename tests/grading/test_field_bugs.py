"""Every collected upstream bug that concerns reading answers, votes and running programs, with its right value.

Each has examples of its own kind in the other files of this folder, which need no collected data.
"""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agpo_bench.evaluation.estimators import clustered_standard_error, pass_at_k
from agpo_bench.grading.choice import extract_choice
from agpo_bench.grading.expression import expressions_equal, extract_answer
from agpo_bench.grading.extraction import last_boxed
from agpo_bench.grading.graders import get_grader
from agpo_bench.grading.latex.grammar import parse
from agpo_bench.grading.latex.symbolic import to_wire
from agpo_bench.grading.number import extract_number, number_value
from agpo_bench.grading.program import outputs_match
from agpo_bench.grading.quantity import find_quantities
from agpo_bench.grading.sandbox import shared_sandbox
from agpo_bench.grading.vote import majority_vote
from agpo_bench.grading.workers import WorkerPool
from agpo_bench.records import ProgramTest, Reference, Verdict

pytestmark = pytest.mark.shared

NUMBER_EQUALITY = {29, 30, 32, 42, 43, 44, 54, 58}
"""Equality cases whose answers are plain numbers: the number grader must agree with the expression grader on them."""


def rows(shared: Path) -> dict[int, dict[str, Any]]:
    lines = (shared / "cases" / "field_bugs.jsonl").read_text().splitlines()
    return {row["id"]: row for row in map(json.loads, lines)}


def same_number(found: str | None, expected: str) -> bool:
    return found is not None and number_value(found) == number_value(expected)


def check_extract_number(given: dict[str, Any], expected: list[str]) -> None:
    texts = given.get("cases") or [given["head"] + given["tail_unit"] * given["tail_repeat"]]
    assert all(same_number(extract_number(text), right) for text, right in zip(texts, expected, strict=True))


def check_truncated(given: dict[str, Any], expected: str) -> None:
    assert same_number(extract_number(given["response"]), expected)


def check_extract_numbers(given: dict[str, Any], expected: list[list[str]]) -> None:
    for text, right in zip(given["responses"], expected, strict=True):
        # the graders look at Chinese numerals (两个) only where there are no digits
        found = [quantity.value for quantity in find_quantities(text) if not quantity.is_numeral]
        assert found == [number_value(r)[0] for r in right]  # type: ignore[index]


def check_extract_boxed(given: dict[str, Any], expected: str | None) -> None:
    assert last_boxed(given["response"]) == expected


def check_extract_choice(given: dict[str, Any], expected: list[str]) -> None:
    assert [extract_choice(text, letters=given["letters"]) for text in given["responses"]] == expected


def check_grade_choice(given: dict[str, Any], expected: list[bool]) -> None:
    reference = Reference(gold=given["gold"], options=("",) * 4)
    assert [get_grader("choice").grade(text, reference).score == 1 for text in given["preds"]] == expected


def check_equal(given: dict[str, Any], expected: list[bool]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        first = case["gold"]
        second = case.get("pred", "1" * 7945)
        for style in ("gsm8k", "cmath"):
            grader = get_grader("number", style=style)
            for gold, answer in ((first, second), (second, first)):
                verdict = grader.grade(f"\\boxed{{{answer}}}", Reference(gold=gold))
                assert (verdict.score == 1) == right, (gold, answer, verdict)


def check_expressions(given: dict[str, Any], expected: list[bool]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        for first, second in ((case["gold"], case["pred"]), (case["pred"], case["gold"])):
            assert expressions_equal(first, second) is right, case
            for style in ("math", "ocw")[: 1 + ("=" not in first + second)]:  # OCW types an equation by its gold
                verdict = get_grader("expression", style=style).grade(f"\\boxed{{{first}}}", Reference(gold=second))
                assert (verdict.score == 1) is right, (style, case)


def check_in_a_thread(given: dict[str, Any], expected: list[bool]) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(check_expressions, given, expected).result()
        executor.submit(check_equal, given, expected).result()


def check_symmetric(given: dict[str, Any], expected: dict[str, Any]) -> None:
    for (first, second), right in zip(given["pairs"], expected["value"], strict=True):
        assert expressions_equal(first, second) is expressions_equal(second, first) is right


def check_extract_math(given: dict[str, Any], expected: list[str | None]) -> None:
    found = [extract_answer(response) for response in given["responses"]]
    assert [None if answer is None else answer.answer for answer in found] == expected


def check_reward(given: dict[str, Any], expected: list[float | None]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        for kind in ("expression", "number", "blanks"):
            verdict = get_grader(kind).grade(case["response"], Reference(gold=case["gold"]))
            assert verdict.score == 0
            assert verdict.is_error is (right is None)


def check_worker_that_dies(given: dict[str, Any], expected: dict[str, Any]) -> None:
    pool = WorkerPool(num_workers=1)
    done = threading.Event()

    def kill_every_worker() -> None:
        while not done.is_set():
            for worker in list(pool._workers):
                worker.process.kill()
            done.wait(0.005)

    killer = threading.Thread(target=kill_every_worker)
    killer.start()
    try:
        wires = (to_wire(parse(given[side])) for side in ("gold", "pred"))
        started = time.process_time()
        reply = pool.ask("equal", first=next(wires), second=next(wires))
    finally:
        done.set()
        killer.join()
        pool.close()
    assert expected == {"returns": True, "status": "grader_error"}
    assert reply.is_error
    assert reply.value is None
    assert time.process_time() - started < given["budget_s"]


def grade_program(code: str, tests: list[dict[str, str]], limit: float | None = None) -> Verdict:
    reference = Reference(
        gold="",
        tests=tuple(
            ProgramTest(stdin=t.get("stdin", ""), expected_stdout=t.get("stdout", t.get("expected", ""))) for t in tests
        ),
        time_limit_seconds=limit,
    )
    return get_grader("program").grade(f"```python\n{code}\n```", reference)


def check_programs(given: dict[str, Any], expected: dict[str, Any]) -> None:
    programs = given.get("programs") or [given]
    passed = expected["passed"] if isinstance(expected["passed"], list) else [expected["passed"]]
    for program, right in zip(programs, passed, strict=True):
        code = program["code"]
        if given.get("mode") == "call":  # our programs read standard input; the same failure, raised when run
            code += "\nprint(solve(1))"
        verdict = grade_program(code, program["tests"], 0.4)  # 1.6 s; each is decided long before
        assert verdict.alternatives.get("solved", 0.0) == right, verdict
        if "status" in expected:
            assert verdict.reason == expected["status"]


def check_endless_output(given: dict[str, Any], expected: dict[str, Any]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_programs(given, expected)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mib < expected["parent_rss_growth_mb_below"]


def check_fork_bomb(given: dict[str, Any], expected: dict[str, Any]) -> None:
    neighbour = {"code": given["parallel_neighbour"], "tests": [{"stdout": "1"}] * 8}
    grade_program(neighbour["code"], neighbour["tests"])  # every server is started
    before = server_processes()
    with ThreadPoolExecutor(1) as executor:
        beside = executor.submit(grade_program, neighbour["code"], neighbour["tests"])
        check_programs(given, expected)
        assert (beside.result().score == 1) is expected["neighbour_passed"]
    assert (server_processes() != before) is expected["process_left"]


def server_processes() -> set[int]:
    """The idle servers and the processes under them."""
    servers = {server.process.pid for server in list(shared_sandbox()._idle.queue) if server is not None}
    return servers | {int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _parent(path) in servers}


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def check_outputs(given: dict[str, Any], expected: list[bool]) -> None:
    found = [outputs_match(case["want"].encode(), case["got"].encode()) for case in given["cases"]]
    assert found == expected


def check_mixed(given: dict[str, Any], expected: list[Any]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        if case["op"] == "equal":
            check_equal({"cases": [case]}, [right])
        else:
            assert extract_choice(case["response"], letters=case["letters"]) == right


def check_vote(given: dict[str, Any], expected: list[dict[str, Any]]) -> None:
    for case, right in zip(given["cases"], expected, strict=True):
        kind = "choice" if case["gold"].isalpha() else "expression"
        grader = get_grader(kind)
        reference = Reference(gold=case["gold"])
        verdicts = [
            Verdict(score=0.0, answer=None, reason="no_answer")
            if answer in (None, "[invalid]")
            else grader.grade(f"\\boxed{{{answer}}}", reference)
            for answer in case["answers"]
        ]
        vote = majority_vote(verdicts, grader.are_equivalent, num_draws=len(verdicts))
        assert (vote.value == 1) == right["correct"]
        assert vote.winner_votes == right.get("winner_votes", vote.winner_votes)
        assert "winner" not in right or vote.winner is None


def check_short_draw(given: dict[str, Any], expected: dict[str, Any]) -> None:
    grader = get_grader("number")
    verdicts = [grader.grade(answer, Reference(gold=given["gold"])) for answer in given["answers"]]
    vote = majority_vote(verdicts, grader.are_equivalent, num_draws=given["k"])
    assert vote.value is expected["value"]
    assert vote.is_short


def check_pass_at_k(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert pass_at_k(given["n"], given["c"], given["k"]) in expected["acceptable"]


def check_standard_error(given: dict[str, Any], expected: dict[str, float]) -> None:
    right = given["right_questions"]
    scores = [[1.0] * given["repeats"]] * right + [[0.0] * given["repeats"]] * (given["n_questions"] - right)
    assert clustered_standard_error(scores) == pytest.approx(expected["se"], abs=5e-5)


def check_batch(given: dict[str, Any], expected: dict[str, list[int]]) -> None:
    pairs = [(text, Reference(gold=gold)) for text, gold in zip(given["responses"], given["golds"], strict=True)]
    for kind in ("number", "expression", "blanks"):
        assert [verdict.score for verdict in get_grader(kind).grade_many(pairs)] == expected["rewards"]


CHECKS: dict[int, Callable[[Any, Any], None]] = {
    **dict.fromkeys((1, 2, 4, 5, 7, 47), check_extract_number),
    16: check_truncated,
    46: check_extract_numbers,
    **dict.fromkeys((8, 9, 14), check_extract_boxed),
    **dict.fromkeys((17, 18, 20, 21, 24), check_extract_choice),
    23: check_grade_choice,
    **dict.fromkeys(NUMBER_EQUALITY - {43}, check_equal),
    43: check_mixed,
    **dict.fromkeys((49, 50), check_vote),
    52: check_short_draw,
    53: check_pass_at_k,
    88: check_standard_error,
    60: check_batch,
    **dict.fromkeys((11, 15), check_extract_math),
    **dict.fromkeys((12, 26, 27, 35, 36, 38, 39, 41, 55), check_expressions),
    33: check_symmetric,
    54: check_in_a_thread,
    57: check_worker_that_dies,
    61: check_reward,
    **dict.fromkeys((62, 63, 65, 66, 74, 75), check_programs),
    68: check_endless_output,
    69: check_fork_bomb,
    **dict.fromkeys((71, 72), check_outputs),
}
AREAS = (
    "extract-number", "extract-boxed", "extract-cot", "choice", "equality", "zh-unicode", "vote", "grader-safety",
    "sandbox",
)  # fmt: skip
"""The collected areas that are this folder's; the others have tests beside what they concern."""


def test_every_collected_bug_of_grading_has_its_check(shared: Path) -> None:
    assert {number for number, row in rows(shared).items() if row["area"] in AREAS} - set(CHECKS) == set()


@pytest.mark.parametrize("number", sorted(CHECKS))
def test_a_collected_bug_does_not_occur(shared: Path, number: int) -> None:
    row = rows(shared)[number]
    CHECKS[number](row["input"], row["expected"])
