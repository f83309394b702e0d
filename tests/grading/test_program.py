"""The CodeContests rule: which block is graded, how outputs compare, what a score is. Sources named at each test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agpo_bench.data.embedded import embedded_items
from agpo_bench.grading.program import MAX_SOURCE_CHARS, ProgramGrader, extract_program, outputs_match
from agpo_bench.grading.sandbox import Sandbox
from agpo_bench.records import ProgramTest, Reference

DOUBLE = "print(2 * int(input()))"


@pytest.fixture(scope="module")
def grader() -> ProgramGrader:
    return ProgramGrader()


def reference(*tests: tuple[str, str], **fields: float) -> Reference:
    cases = tuple(ProgramTest(stdin=stdin, expected_stdout=stdout) for stdin, stdout in tests)
    return Reference(gold="", tests=cases, **fields)  # type: ignore[arg-type]


def fenced(program: str, language: str = "python") -> str:
    return f"Some thoughts.\n```{language}\n{program}\n```\nThat is all."


# --- which block ---


@pytest.mark.parametrize(
    "language", ["python", "py", "python3", "Python", "PYTHON3", "", "python title=a.py", "{.python}"]
)
def test_a_fenced_python_block_is_the_program(language: str) -> None:
    assert extract_program(fenced("print(1)\nprint(2)", language)) == "print(1)\nprint(2)"


def test_the_last_block_counts() -> None:
    assert extract_program(fenced("print(1)") + "\n" + fenced("print(2)", "")) == "print(2)"


def test_blocks_of_other_languages_are_passed_over() -> None:
    for language in ("cpp", "text", "json", "pythonx", "java"):
        assert extract_program(fenced("print(1)") + "\n" + fenced("int main() {}", language)) == "print(1)"
    assert extract_program(fenced("int main() {}", "cpp")) is None


def test_a_last_block_that_is_never_closed_is_graded_as_it_stands() -> None:
    assert extract_program(fenced("print(1)") + "\n```python\nprint(2)") == "print(2)"
    assert extract_program(fenced("print(1)") + "\n```cpp\nint x;") == "print(1)"


def test_without_a_fence_there_is_no_program() -> None:
    for response in ("", "print(1)", "`print(1)`", "```print(1)```", "Use ```python``` here.", "The answer is 5."):
        assert extract_program(response) is None, response


def test_fences_follow_common_mark() -> None:
    assert extract_program("~~~python\nprint('```')\n~~~") == "print('```')"
    assert extract_program('````python\ns = """\n```\n"""\n````') == 's = """\n```\n"""'
    assert extract_program("1. Do this:\n   ```python\nprint(1)\n   ```") == "print(1)"
    assert extract_program("```python\r\nprint(1)\r\n```\r\n") == "print(1)"
    assert extract_program("```python\nprint(1)\n``` \t\nmore") == "print(1)"


@given(st.text(alphabet="`~ \npyx", max_size=60))
def test_extraction_never_fails(response: str) -> None:
    program = extract_program(response)
    assert program is None or program in response


# --- how outputs compare: OutputsMatch of google-deepmind/code_contests (execution/tester_sandboxer.cc) ---


@pytest.mark.parametrize(
    ("expected", "actual", "is_match"),
    [
        ("1 2 3\n", "1\n2\t3", True),  # white space only separates
        ("1\r\n2\r\n", "1 \v 2", True),
        ("a b", "a\fb", False),  # a form feed does not separate
        ("YES", "yes", True),
        ("YES", "YESS", False),
        ("", "", True),
        ("", " \n", True),
        ("", "0", False),
        ("1 2", "1", False),  # a right beginning is not enough (open-r1's line-by-line zip accepts it)
        ("1", "1 2", False),
        ("1 2", "2 1", False),  # order counts (verl compares sets)
        ("1 1 2", "1 2 2", False),
        ("3", "3.0", True),
        ("3", "3.000009", True),
        ("3", "3.00001", False),  # strictly less than 1e-5
        ("3", "3.00002", False),
        ("0.1", "0.10001", False),  # exactly 1e-5 apart, which doubles would blur
        ("1000000000.0", "1000000000.1", False),  # absolute, not relative
        ("1e3", "1000", True),
        ("-0", "0", True),
        ("+7", "7", True),
        ("007", "7", True),
        ("-7", "7", False),
        ("1E-9", "0", True),
        (".5", "0.5", True),
        ("5.", "5", True),
        ("9007199254740993", "9007199254740992", False),  # one double, two integers
        ("9007199254740993", "9007199254740992.0", False),
        ("1" + "0" * 6000, "1" + "0" * 6000, True),  # past Python's limit on the digits of int()
        ("1" + "0" * 6000, "1" + "0" * 5999 + "1", False),
        ("1" + "0" * 6000, "01" + "0" * 6000, True),
        ("nan", "NaN", True),
        ("nan", "0", False),
        ("inf", "infinity", False),
        ("0x10", "16", False),
        ("1_000", "1000", False),
        ("18", "１８", False),  # full-width digits are not numbers here, though float() reads them
        ("1e999999999", "2e999999999", False),
        ("1,5", "1.5", False),
    ],
)
def test_outputs_compare_by_tokens(expected: str, actual: str, is_match: bool) -> None:
    assert outputs_match(expected.encode(), actual.encode()) is is_match
    assert outputs_match(actual.encode(), expected.encode()) is is_match


@given(
    st.lists(st.sampled_from(["1", "01", "-0", "2.5", "2.500001", "Yes", "yes", "x", "1e2", "100", "\x00"]), max_size=6)
)
def test_outputs_match_themselves_under_white_space_and_case(tokens: list[str]) -> None:
    first, second = " ".join(tokens).encode(), ("\n" + "\t\n".join(tokens).upper() + " ").encode()
    assert outputs_match(first, first)
    assert outputs_match(first, second)
    assert outputs_match(first, first + b" extra") is False


def test_a_hostile_output_is_not_taken_apart_further_than_needed() -> None:
    import tracemalloc

    output = b"1 " * (8 << 20)
    tracemalloc.start()
    assert not outputs_match(b"1 2 3", output)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(output)


# --- what a score is ---


def test_the_score_is_the_share_of_tests_passed_and_solved_is_all_of_them(grader: ProgramGrader) -> None:
    tests = reference(("1", "2"), ("2", "4"), ("3", "6"), ("4", "9"))
    verdict = grader.grade(fenced(DOUBLE), tests)
    assert (verdict.score, verdict.reason, verdict.alternatives) == (0.75, "wrong", {"solved": 0.0})
    verdict = grader.grade(fenced(DOUBLE), reference(("1", "2"), ("2", "4")))
    assert (verdict.score, verdict.reason, verdict.alternatives) == (1.0, "correct", {"solved": 1.0})


def test_no_tests_is_an_error_of_the_data(grader: ProgramGrader) -> None:
    # mlcommons/endpoints#443: all() of nothing is true.
    verdict = grader.grade(fenced("print('hi')"), reference())
    assert (verdict.score, verdict.reason, verdict.is_error) == (0.0, "no_tests", True)


def test_each_way_to_fail_has_its_reason(grader: ProgramGrader) -> None:
    tests = reference(("1", "2"), ("2", "4"))
    responses = {
        "no_answer": "I do not know.",
        "syntax_error": fenced("print 2"),
        "runtime_error": fenced("print(2)\n1 / 0"),
        "memory": fenced("a = bytearray(10**11)"),
        "output_limit": fenced("while True: print(2)"),
        "too_long": fenced("#" * MAX_SOURCE_CHARS + "\nprint(2)"),
        "wrong": fenced("print(3)"),
    }
    verdicts = grader.grade_many([(response, tests) for response in responses.values()])
    assert [verdict.reason for verdict in verdicts] == list(responses)
    assert all(verdict.score == 0.0 and not verdict.is_error for verdict in verdicts)
    assert [verdict.answer is None for verdict in verdicts] == [True, True, False, False, False, True, False]


def test_empty_blocks_are_no_answer(grader: ProgramGrader) -> None:
    assert grader.grade("```python\n\n```", reference(("1", ""))).reason == "no_answer"


def test_a_program_that_prints_nothing_fails_unless_nothing_was_expected(grader: ProgramGrader) -> None:
    assert grader.grade(fenced("pass"), reference(("1", "1"))).score == 0.0
    assert grader.grade(fenced("pass"), reference(("1", "\n"))).score == 1.0
    # verl-project/verl#7853: a crash with nothing expected is not a pass.
    assert grader.grade(fenced("raise ValueError"), reference(("1", ""))).score == 0.0


def test_stored_inputs_get_their_last_newline(grader: ProgramGrader) -> None:
    # engineer-man/emkc#176: programs that trim the last character lose data.
    program = fenced("import sys\nprint(len(sys.stdin.readline()[:-1]))")
    assert grader.grade(program, reference(("abcde", "5"), ("abc\n", "3"))).score == 1.0
    assert grader.grade(fenced("import sys\nprint(len(sys.stdin.read()))"), reference(("", "0"))).score == 1.0


def test_printing_a_verdict_or_looking_for_the_answers_does_not_help(grader: ProgramGrader) -> None:
    # trampgeek/jobe#2, SWE-bench/SWE-bench#620
    secret = "5040271828"
    for program in (
        "print('{\"passed\": true}')\nprint('PASSED')",
        "import gc\nprint([o for o in gc.get_objects() if isinstance(o, dict) and '"
        + secret[:5]
        + "' in str(o.values())][:1])",
        "import glob\nfor p in glob.glob('**/*', recursive=True) + glob.glob('../**/*'):\n"
        "    try: print(open(p).read())\n    except Exception: pass",
    ):
        assert grader.grade(fenced(program), reference(("7", secret))).score == 0.0


def test_limits_follow_the_stated_rule() -> None:
    grader = ProgramGrader(floor_seconds=2, time_factor=2)
    given = {None: 10.0, 0.5: 4.0, 2.0: 4.0, 3.0: 6.0, 30.0: 10.0}
    for seconds, expected in given.items():
        assert grader.limits(Reference(gold="", time_limit_seconds=seconds)).cpu_seconds == expected
    assert grader.limits(Reference(gold="", memory_limit_bytes=64 << 20)).memory_bytes == 256 << 20
    assert grader.limits(Reference(gold="", memory_limit_bytes=512 << 20)).memory_bytes == 512 << 20


def test_an_endless_program_on_an_embedded_problem_costs_training_a_second_a_test() -> None:
    (item,) = embedded_items("codecontests", "train", count=1)
    assert ProgramGrader().limits(item.reference).cpu_seconds == 1.0
    first, second = (ProgramGrader().grade(fenced("while True: pass"), item.reference) for _ in range(2))
    assert (first.score, first.reason) == (0.0, "timeout")
    assert first.answer == second.answer


def test_a_timeout_fails_its_test_and_only_its_test() -> None:
    grader = ProgramGrader(floor_seconds=0.2, time_factor=1)
    tests = reference(("0", "0"), ("1", "1"), ("2", "2"), time_limit_seconds=0.1)
    verdict = grader.grade(fenced("n = int(input())\nwhile n == 1: pass\nprint(n)"), tests)
    assert (verdict.score, verdict.reason) == (pytest.approx(2 / 3), "timeout")
    stopped = ProgramGrader(floor_seconds=0.2, time_factor=1, max_timeouts=1)
    assert stopped.grade(fenced("n = int(input())\nwhile n == 1: pass\nprint(n)"), tests).score == pytest.approx(1 / 3)
    assert stopped.describe()["max_timeouts"] == 1


def test_a_cap_on_tests_takes_the_first_and_is_recorded() -> None:
    grader = ProgramGrader(max_tests=2)
    assert grader.grade(fenced(DOUBLE), reference(("1", "2"), ("2", "4"), ("3", "7"))).score == 1.0
    assert grader.describe()["max_tests"] == 2


def test_settings_without_sense_are_refused() -> None:
    for options in ({"max_tests": 0}, {"max_timeouts": 0}, {"floor_seconds": 0}, {"time_factor": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            ProgramGrader(**options)  # type: ignore[arg-type]


def test_when_programs_cannot_be_run_nothing_is_scored() -> None:
    grader = ProgramGrader(sandbox=Sandbox(num_workers=1, wrapper=("/nonexistent/wrapper",)))
    verdict = grader.grade(fenced(DOUBLE), reference(("1", "2")))
    assert (verdict.is_error, verdict.reason, verdict.answer) == (True, "infrastructure", None)
    assert verdict.alternatives == {}


def test_the_vote_key_is_what_the_program_did_on_each_test(grader: ProgramGrader) -> None:
    tests = reference(("1", "2"), ("2", "4.0"))
    keys = {
        name: grader.grade(fenced(program), tests).answer
        for name, program in {
            "right": DOUBLE,
            "right, other way": "n = int(input())\nprint(n + n, end='')",
            "right, within tolerance": "print(2 * int(input()) + 1e-7)",
            "wrong": "print(int(input()) ** 2 + 5)",
            "wrong, other white space": "print()\nprint('', int(input()) ** 2 + 5)",
            "wrong, other value": "print(7)",
            "crashes": "1 / 0",
            "half right": "print(2)",
        }.items()
    }
    assert keys["right"] == keys["right, other way"] == keys["right, within tolerance"]
    assert keys["wrong"] == keys["wrong, other white space"]
    assert len(set(keys.values())) == 5
    assert grader.are_equivalent(str(keys["right"]), str(keys["right, other way"]))
    assert not grader.are_equivalent(str(keys["right"]), str(keys["wrong"]))


def test_verdicts_come_in_the_order_of_the_responses(grader: ProgramGrader) -> None:
    pairs = [(fenced(f"print({n})") if n % 3 else "no program", reference(("", str(n)), ("", "x"))) for n in range(30)]
    scores = [verdict.score for verdict in grader.grade_many(pairs)]
    assert scores == [0.5 if n % 3 else 0.0 for n in range(30)]
    assert grader.grade_many([]) == []


def test_equal_programs_for_one_problem_get_one_verdict_and_different_problems_do_not_mix(
    grader: ProgramGrader,
) -> None:
    doubles, squares = reference(("1", "2"), ("3", "6")), reference(("2", "4"), ("3", "9"))
    pairs = [
        (fenced(DOUBLE), doubles),
        (fenced(DOUBLE), squares),
        (fenced("print(6)"), doubles),
        (fenced(DOUBLE), doubles),
    ]
    assert [verdict.score for verdict in grader.grade_many(pairs)] == [1.0, 0.5, 0.5, 1.0]


@pytest.mark.parametrize("nasty", ["\x00", "\ud800", "```", "\x1b[2J", "𝟙" * 100, "\u202e"])
def test_nothing_a_model_writes_makes_the_grader_raise(grader: ProgramGrader, nasty: str) -> None:
    tests = reference(("1", "2"))
    for response in (nasty, fenced(nasty), f"```python\n{nasty}", fenced(f"print('{nasty}')")):
        assert grader.grade(response, tests).score == 0.0


# --- real problems ---

TREE = """
n = int(input())
pairs = [tuple(map(int, input().split())) for _ in range(n - 1)]
count = [0] * (n + 1)
possible = all(b == n for _, b in pairs)
for a, _ in pairs:
    count[a] += 1
free = [v for v in range(1, n) if count[v] == 0]
edges = []
for v in range(1, n):
    if count[v] and possible:
        chain = [n] + [free.pop(0) for _ in range(count[v] - 1) if free and free[0] < v] + [v]
        possible = len(chain) == count[v] + 1
        edges += zip(chain, chain[1:])
print("YES" if possible else "NO")
for edge in edges if possible else ():
    print(*edge)
"""

SORTING = """
import sys
n, m, *words = sys.stdin.read().split()
flip = {ord(c): ord("Z") - ord(c) + ord("A") for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
def key(i):
    word = words[i]
    return [ord(c) if k % 2 == 0 else flip[ord(c)] for k, c in enumerate(word)]
print(*[i + 1 for i in sorted(range(int(n)), key=key)])
"""


def _problem(path: Path, name: str) -> dict[str, object]:
    with path.open() as file:
        return next(row for row in map(json.loads, file) if str(row["name"]).startswith(name))


@pytest.mark.shared
def test_a_right_program_solves_a_problem_of_the_test_split(grader: ProgramGrader, shared: Path) -> None:
    row = _problem(shared / "data/codecontests/test_split_one_problem.jsonl", "1575_A")
    pools = [row[pool] for pool in ("public_tests", "private_tests", "generated_tests")]
    tests = [pair for pool in pools for pair in zip(pool["input"], pool["output"], strict=True)]  # type: ignore[index]
    assert len(tests) > 10
    right, wrong, broken = grader.grade_many(
        [(fenced(program), reference(*tests)) for program in (SORTING, SORTING.replace("== 0", "== 1"), SORTING[:-20])]
    )
    assert (right.score, right.alternatives["solved"], right.reason) == (1.0, 1.0, "correct")
    assert wrong.alternatives["solved"] == 0.0
    assert wrong.score < 0.5
    assert broken.reason == "syntax_error"


@pytest.mark.shared
def test_a_problem_with_many_valid_answers_shows_as_a_partial_pass_rate(grader: ProgramGrader, shared: Path) -> None:
    row = _problem(shared / "data/codecontests/train_subset.jsonl", "1041_E")
    pool = row["tests"]
    tests = list(zip(pool["input"], pool["output"], strict=True))  # type: ignore[index]
    verdict = grader.grade(fenced(TREE), reference(*tests))
    num_no = sum(output.strip() == "NO" for _, output in tests)
    # One reference output a test and no special judge: a valid tree in another order does not pass.
    assert num_no / len(tests) <= verdict.score <= 1.0
    assert not verdict.is_error
