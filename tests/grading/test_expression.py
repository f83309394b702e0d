"""MATH: extraction, equality of strings and of mathematics, the kinds of bugs users of other graders reported."""

from __future__ import annotations

import json
import sys
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agpo_bench.grading import hendrycks
from agpo_bench.grading.equality import canonical, compare
from agpo_bench.grading.expression import ExpressionGrader, expressions_equal, extract_answer
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import Reference


def score(gold: str, response: str) -> float:
    return ExpressionGrader().grade(response, Reference(gold=gold)).score


def answer_of(response: str) -> str | None:
    extracted = extract_answer(response)
    return extracted.answer if extracted else None


# Where the answer stands


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"Hence \boxed{\frac{9}{14}} is the share.", r"\frac{9}{14}"),  # huggingface/trl#5026: braces nest
        (r"First \boxed{4}, no: \boxed{9}.", "9"),  # thinking-machines-lab/tinker-cookbook#903: the last one
        (r"\boxed{\boxed{9}}", "9"),
        (r"so \boxed{\{1, 2\}}.", r"\{1, 2\}"),
        (r"it is $\boxed 7$.", "7"),
        (r"\fbox{8}", "8"),
        (r"Thus \boxed{\frac{5}{6", None),  # EvolvingLMMs-Lab/lmms-eval#1512: cut inside the box
        (r"\boxed{3} and later \boxed{\frac{1}{2", "3"),
        (r"I use \boxed later. It is twelve, $12$.", "12"),  # EleutherAI/lm-evaluation-harness#3477: no brace
        (r"With $a=1$ and $b=2$, \boxed{6}, as $a<b$.", "6"),  # EleutherAI/lm-evaluation-harness#3827
        ("Final Answer: The final answer is $2x$. I hope it is correct.", "2x"),
        ("Final answer: The final answer is 3.5. I hope it is correct.", "3.5"),
        ("The final answer is $(1,2)$.", "(1,2)"),
        ("the final answer is 4\nbut wait, the final answer is 5\n", "5"),
        ("<think>maybe \\boxed{3}? let me", None),  # allenai/olmo-eval#389: an open trace holds no answer
        ("it could be \\boxed{3} </think> It is \\boxed{4}.", "4"),
        ("\\boxed{}", None),
        ("The answer could be 5 or maybe 7, who knows.", None),
        ("42", "42"),
        ("$\\frac{1}{2}$", "\\frac{1}{2}"),
        ("", None),
        ("\n\nCount the parts.\n\nQuestion 1: yes.\n\nSo the count is $\\boxed{2}$.", "2"),
    ],
)
def test_the_answer_is_the_last_box_or_the_sentence_or_the_whole_response(response, answer):
    assert answer_of(response) == answer


def test_the_strict_score_wants_a_box_or_the_sentence():
    grader = ExpressionGrader()
    assert grader.grade("7", Reference(gold="7")).alternatives["strict"] == 0.0
    assert grader.grade("7", Reference(gold="7")).score == 1.0
    assert grader.grade("\\boxed{7}", Reference(gold="7")).alternatives["strict"] == 1.0


# Equality

EQUAL = [
    (r"\text{Friday}", "Friday"),  # EvolvingLMMs-Lab/lmms-eval#1509: the wrapper goes with its braces
    ("21", r"\text{21}"),  # huggingface/Math-Verify#37
    (r"\text{odd}", "Odd"),
    (r"\text{(B)}", "B"),
    (r"\left(3,\frac{\pi}{2}\right)", r"(3,\frac{\pi}{2})"),  # EleutherAI/lm-evaluation-harness#4160: no "ft" in \left
    (r"(2,\infty)", r"\left(2,\infty\right)"),
    ("0.375", r"\dfrac{3}{8}"),  # sympy/sympy#20317
    (r"\frac{1}{3}", r"\frac13"),
    ("2", r"\sqrt[3]{8}"),
    ("7/4", "1 3/4"),  # huggingface/Math-Verify#34: a mixed number is a sum
    ("3.5", r"3\frac{1}{2}"),
    ("-2.5", "-2 1/2"),  # huggingface/Math-Verify#3: the sign covers the whole of it
    ("x<5", r"(-\infty,5)"),  # huggingface/Math-Verify#71, in both orders
    (r"t \ge \sqrt{5}", r"t \in [\sqrt{5},\infty)"),
    (r"2 \le x < 7", "[2,7)"),
    (r"\{5,-2\}", r"\{-2,5\}"),  # EleutherAI/lm-evaluation-harness#3785: sets have no order
    ("3,-1", "-1, 3"),
    (r"1 \pm \sqrt{2}", r"1-\sqrt2, 1+\sqrt2"),
    (r"x = \pm 3", "3, -3"),
    ("12345678", r"12,\!345,\!678"),  # rasbt/reasoning-from-scratch#133
    ("20{,}000", "20,000"),
    ("4x+2y-6=0", r"y=-2x+3"),  # huggingface/Math-Verify#60: up to a factor
    ("a^2+b^2=c^2", "c^2=a^2+b^2"),
    ("5", "x=5"),  # huggingface/Math-Verify#26
    ("9", "AB = 9"),
    (r"x \in [-1,4]", "[-1,4]"),
    ("23", "023"),  # aisa-group/PostTrainBench#44: leading zeros
    ("2.25", "２．２５"),  # maziyarpanahi/openmed#1468: full width
    ("-0.6", "−0.6"),  # fathom-lab/styxx#77: U+2212
    ("-3", "－3"),
    (r"\frac{x+4}{9}", r"\frac{x}{9}+\frac{4}{9}"),  # verl-project/verl#7437
    (r"\frac{2}{\sqrt{6}}", r"\frac{\sqrt{6}}{3}"),
    (r"\frac{1}{\sqrt{3}-1}", r"\frac{1+\sqrt3}{2}"),
    (r"x^2-1", "(x-1)(x+1)"),
    (r"\frac{1}{x}-\frac{1}{x+1}", r"\frac{1}{x(x+1)}"),
    (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3"),
    (r"\sin^2 t", r"1-\cos^2 t"),
    (r"\cos 60^\circ", "0.5"),
    (r"120^\circ", r"180^\circ - 2 \cdot 30^\circ"),
    ("120", r"180^\circ - 60^\circ"),
    (r"\log_2 32", "5"),
    (r"e^{2\ln 3}", "9"),
    (r"2^{n+2}", r"4\cdot 2^n"),
    (r"10!/7!", "720"),
    (r"\binom{6}{2}", "15"),
    (r"\lfloor 3.7 \rfloor", "3"),
    (r"0.\overline{27}", r"\frac{3}{11}"),
    (r"\frac{5}{8}", r"62.5\%"),
    ("35\\%", "35"),
    ("0.28", "28 percent"),
    ("12\\text{ cm}", "12"),
    ("12\\text{ cm}", "12 cm"),
    ("\\$7.50", "7.5"),
    ("14^\\circ", "14"),
    (r"\begin{pmatrix} 2 \\ -1 \end{pmatrix}", r"\begin{bmatrix} 2\\-1\end{bmatrix}"),
    (r"\begin{pmatrix} 1/2 & 0 \end{pmatrix}", r"\begin{pmatrix} 0.5 & 0 \end{pmatrix}"),
    (r"(-\infty,1)\cup(3,5]", r"(3,5]\cup(-\infty,1)"),
    ("1101_2", "1101_{2}"),
    ("3x^2 + 2i", "2i+3x^{2}"),
    (r"\frac{\pi}{3}", "π/3"),
    (r"2\sqrt{3}", "2√3"),
    ("x²", "x^2"),
]

DIFFERENT = [
    ("6", r"\sqrt"),  # mathllm/MATH-V#11: an empty root
    ("0.25", "25"),  # Qwen2.5-Math grader.py: no factor of 100
    ("500", "5"),
    ("234567", "234570"),
    (r"\sqrt{3}", "1.732"),
    (r"\frac{1}{3}", "0.333333"),
    (r"\frac{1}{2^{90}}", r"\frac{1}{2^{91}}"),  # huggingface/Math-Verify#14
    ("3.2e-14", "5.1e-14"),
    ("-1.5", "-2 1/2"),
    ("(5,-2)", "(-2,5)"),
    ("(2,3)", "(3,2)"),
    ("34_8", "348"),
    ("34_8", "34_9"),
    ("34_8", "34"),
    ("(0,2)", "[0,2]"),  # Qwen2.5-Math grader.py: ends of intervals
    ("(0,2]", "[0,2)"),
    ("3x+1", "3(x+1)"),
    ("a+c", "b+c"),  # Qwen2.5-Math parser.py: letters are no units
    ("6", "6t"),
    ("2x-y+1=0", "2x+y+1=0"),
    ("x<5", "x>5"),
    ("x<5", r"x\le 5"),
    ("13", "513"),  # UKGovernmentBEIS/inspect_ai#3916
    ("-8", "8"),
    ("2.5", "32.5"),
    ("0.6", "−0.6"),
    ("4", "－4"),
    (r"\frac{31}{200}", r"\frac{32}{200}"),
    ("1,2", "1"),
    ("1,1,2", "1,2,2"),
    ("1,2", "(1,2)"),
    (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "(1,2)"),
    (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    (r"\sqrt{x^2}", "x"),
    ("A", "B"),
    ("A", "a"),
    (r"\text{even}", r"\text{odd}"),
    (r"\text{ even}", r"\text{ odd}"),
    ("f(x)", "f(y)"),
    ("I(0)", "0"),
    (r"\frac{dy}{dx}", r"\frac{y}{x}"),
    (r"\infty", r"-\infty"),
    ("3:4", "4:3"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    (r"120^\circ", r"180 - 60^\circ"),
    ("5 \\mbox{ cm}^2", "5 \\mbox{ m}^2"),
]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_answers_are_equal_in_both_orders(first, second):
    assert compare(first, second).is_equal
    assert compare(second, first).is_equal


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different_answers_are_different_in_both_orders(first, second):
    assert not compare(first, second).is_equal
    assert not compare(second, first).is_equal


@pytest.mark.parametrize("answer", sorted({text for pair in EQUAL + DIFFERENT for text in pair}))
def test_every_answer_equals_itself_and_its_canonical_spelling(answer):
    grader = ExpressionGrader()
    assert grader.are_equivalent(answer, answer)
    assert grader.are_equivalent(answer, canonical(answer))
    assert canonical(canonical(answer)) == canonical(answer)


def test_equal_numbers_have_one_canonical_spelling():
    spellings = ["0.5", "1/2", "\\frac12", "\\frac{2}{4}", "\\dfrac{1}{2}", ".5", "\\frac{1}{2}"]
    assert len({canonical(spelling) for spelling in spellings}) == 1
    assert len({canonical(text) for text in ("x^2+2x+1", "(x+1)^2", "1+x(x+2)")}) == 1
    assert canonical("3, 1") == canonical("1,3")
    assert canonical("(3,1)") != canonical("(1,3)")


def test_a_step_of_an_approximation_is_not_the_answer():
    assert expressions_equal(r"\frac{2}{3}", r"\frac{2}{3} \approx 0.67")
    assert not expressions_equal("0.67", r"\frac{2}{3} \approx 0.67")


# The official string rule


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\tfrac 5{12}", r"\frac{5}{12}"),
        ("0.5", r"\frac{1}{2}"),
        (".5", r"\frac{1}{2}"),
        ("3/8", r"\frac{3}{8}"),
        (r"x = 4", "4"),
        (r"\sqrt7", r"\sqrt{7}"),
        (r"12\text{ miles}", "12"),
        (r"40\%", "40"),
        (r"90^\circ", "90"),
        (r"\left[ 1, 2 \right)", "[1,2)"),
        (r"1,\!024", "1,024"),
        (r"\$8", "8"),
        ("ab = 4", "4"),
        ("abc = 4", "abc=4"),
        (r"\text{ a} \text{ b}", None),
        (r"2\sqrt", None),
    ],
)
def test_the_authors_normal_form(text, form):
    # hendrycks/math modeling/math_equivalence.py, rules in PROTOCOLS.
    assert hendrycks.normalize(text) == form


def test_the_string_score_is_logged_beside_the_official_one():
    verdict = ExpressionGrader().grade(r"\boxed{\frac{2}{4}}", Reference(gold=r"\frac{1}{2}"))
    assert verdict.score == 1.0
    assert verdict.alternatives["math_hendrycks"] == 0.0
    verdict = ExpressionGrader().grade(r"\boxed{0.5}", Reference(gold=r"\frac{1}{2}"))
    assert verdict.alternatives["math_hendrycks"] == 1.0


# Verdicts


@pytest.mark.parametrize("gold", ["", "  ", "$$", "\\frac{1}{", "}", "3" * 3_000])
def test_an_unreadable_gold_is_an_error_of_the_data_and_never_a_reward(gold):
    # huggingface/open-r1#215, #566
    for response in ("\\boxed{3}", "\\boxed{}", "", gold):
        verdict = ExpressionGrader().grade(response, Reference(gold=gold))
        assert verdict.score == 0.0
        assert verdict.is_error
        assert verdict.reason == "gold_unreadable"


def test_there_is_one_verdict_for_each_response_in_order():
    # NVIDIA-NeMo/RL#3058
    pairs = [(response, Reference(gold="4")) for response in ("\\boxed{4}", "\\boxed{", "\\boxed{5}", "\\boxed{2^2}")]
    verdicts = ExpressionGrader().grade_many(pairs)
    assert [verdict.score for verdict in verdicts] == [1.0, 0.0, 0.0, 1.0]
    assert [verdict.reason for verdict in verdicts] == ["correct", "no_answer", "wrong", "correct"]


def test_a_grader_works_outside_the_main_thread():
    # verl-project/verl#5635; huggingface/Math-Verify#55
    scores: list[float] = []
    thread = threading.Thread(target=lambda: scores.append(score(r"\sin^2 a", r"\boxed{1-\cos^2 a}")))
    thread.start()
    thread.join()
    assert scores == [1.0]


def test_the_reasons_name_the_limit():
    def reason(answer: str) -> str:
        return ExpressionGrader().grade(f"\\boxed{{{answer}}}", Reference(gold="3")).reason

    assert reason("1" * 2_500) == "too_long"
    assert reason("(" * 60 + "1" + ")" * 60) == "too_deep"
    assert reason("9^{9^{9^9}}") == "too_complex"
    assert reason("\\foo{1}") == "unparsed"
    assert reason("4") == "wrong"


def test_a_caller_deep_in_its_own_recursion_gets_a_verdict():
    def deeper(levels: int) -> str:
        return deeper(levels - 1) if levels else ExpressionGrader().grade(response, Reference(gold="3")).reason

    response = "\\boxed{" + "(" * 38 + "x+1" + ")" * 38 + "}"
    assert deeper(sys.getrecursionlimit() - 250) in ("wrong", "too_deep")


def test_votes_go_by_equality_and_keep_the_sign():
    # facebookresearch/deepconf#15
    grader = get_grader("expression", style="math")
    assert grader.are_equivalent("0.5", "\\frac{1}{2}")
    assert not grader.are_equivalent("-3", "3")
    assert grader.are_equivalent("-3", "-3.0")


def test_unknown_styles_and_options_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match="no expression style 'latex'; there are math, ocw"):
        ExpressionGrader("latex")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ocw_rtol is 2"):
        ExpressionGrader("ocw", ocw_rtol=2)


def test_math_verify_is_an_alternative_that_runs_in_a_worker():
    pytest.importorskip("math_verify")
    grader = ExpressionGrader(with_math_verify=True)
    assert grader.grade(r"\boxed{\frac{2}{4}}", Reference(gold="1/2")).alternatives["math_verify"] == 1.0
    assert grader.grade(r"\boxed{3}", Reference(gold="1/2")).alternatives["math_verify"] == 0.0
    assert grader.grade("no answer here at all", Reference(gold="1/2")).alternatives["math_verify"] == 0.0


# Fuzz

PIECES = st.sampled_from(
    [
        "1", "2", "10", "0.5", "x", "y", "n", "i", "e", "\\pi", "\\infty", "\\frac", "\\sqrt", "{", "}", "(",
        ")", "[", "]",
        "\\{", "\\}", "+", "-", "*", "/", "^", "_", "!", "\\%", ",", ";", ":", "=", "<", "\\le", "\\in",
        "\\cup", "\\pm",
        "\\sin", "\\ln", "\\log", "|", "\\text{ cm}", "\\text{and}", "\\left", "\\right", "\\\\", "&",
        "\\begin{pmatrix}",
        "\\end{pmatrix}", " ", "$", "\\,", "\\!", "'", "\\binom", "\\lfloor", "\\rfloor", "^\\circ",
        "\\overline{3}", "½", "²", "，",
    ]
)  # fmt: skip
ANSWERS = st.one_of(st.lists(PIECES, max_size=14).map("".join), st.text(max_size=30))


def numbers() -> st.SearchStrategy[str]:
    atoms = st.one_of(
        st.integers(-9, 99).map(lambda n: f"({n})"), st.sampled_from(["x", "y", "\\sqrt{2}", "\\pi", "\\frac{1}{3}"])
    )
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda p: f"({p[0]}+{p[1]})"),
            st.tuples(inner, inner).map(lambda p: f"({p[0]}\\cdot {p[1]})"),
            st.tuples(inner, st.integers(0, 3)).map(lambda p: f"({p[0]})^{{{p[1]}}}"),
        ),
        max_leaves=6,
    )


@settings(max_examples=400, deadline=2_000)
@given(ANSWERS, ANSWERS)
def test_equality_never_raises_and_is_symmetric_and_reflexive(first, second):
    assert expressions_equal(first, first)
    assert expressions_equal(first, second) == expressions_equal(second, first)


@settings(max_examples=300, deadline=2_000)
@given(ANSWERS)
def test_equality_is_stable_under_nfkc_and_blanks(text):
    assert expressions_equal(text, f"  {text}\n")
    folded = unicodedata.normalize("NFKC", text)
    if not any(character in text for character in "²³¹½¼¾⁰⁴⁵⁶⁷⁸⁹⁺⁻") and unicodedata.normalize("NFKD", text) == folded:
        assert expressions_equal(text, folded)


@settings(max_examples=300, deadline=2_000)
@given(ANSWERS, ANSWERS)
def test_grading_never_raises_and_gives_a_score_of_zero_or_one(response, gold):
    verdict = ExpressionGrader().grade(response, Reference(gold=gold))
    assert verdict.score in (0.0, 1.0)
    assert verdict.reason
    assert verdict.score == 0.0 or not verdict.is_error


@settings(max_examples=200, deadline=5_000)
@given(numbers())
def test_rearranged_expressions_are_equal_and_shifted_ones_are_not(text):
    assert expressions_equal(text, f"({text})\\cdot 1")
    assert expressions_equal(text, f"2({text})-({text})")
    assert not expressions_equal(text, f"({text})+1")
    assert ExpressionGrader().are_equivalent(text, canonical(text))


# On the real files


def golds_of_math(shared: Path) -> Iterator[tuple[str, str]]:
    for path in [shared / "data/math/test.jsonl", *sorted((shared / "data/math").glob("train_*.jsonl"))]:
        for line in path.read_text().splitlines():
            solution = json.loads(line)["solution"]
            extracted = extract_answer(solution)
            yield solution, extracted.answer if extracted and "\\boxed{}" not in solution else ""


@pytest.mark.shared
def test_every_reference_solution_of_math_grades_one(shared):
    grader = ExpressionGrader()
    counts = {"correct": 0, "empty box": 0}
    for solution, gold in golds_of_math(shared):
        if gold:
            assert grader.grade(solution, Reference(gold=gold)).score == 1.0, gold
        counts["correct" if gold else "empty box"] += 1
    assert counts == {"correct": 12_498, "empty box": 2}


@pytest.mark.shared
def test_every_gold_of_math_is_accepted_bare_in_dollars_boxed_and_in_the_sentence(shared):
    grader = ExpressionGrader()
    for gold in sorted({gold for _, gold in golds_of_math(shared) if gold}):
        for response in (
            gold,
            f"${gold}$",
            f"So we get $\\boxed{{{gold}}}$.",
            f"Final Answer: The final answer is ${gold}$. I hope it is correct.",
        ):
            assert grader.grade(response, Reference(gold=gold)).score == 1.0, response


@pytest.mark.shared
def test_the_verdicts_on_real_outputs_are_those_upstream(shared):
    rows = map(json.loads, (shared / "cases/grader_cases.jsonl").read_text().splitlines())
    real = [row for row in rows if row["benchmark"] == "math" and row.get("real_output")]
    grader = ExpressionGrader()
    wrong = [
        row["source"]
        for row in real
        if bool(grader.grade(row["response_or_pred"], Reference(gold=row["gold"])).score) != row["expected"]
    ]
    assert len(real) == 389
    assert wrong == []
