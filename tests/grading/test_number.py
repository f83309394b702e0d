"""GSM8K and CMATH: where the number stands, how it is read, when two are equal. Sources are upstream reports."""

from __future__ import annotations

import itertools

import pytest

from agpo_bench.grading.graders import get_grader
from agpo_bench.grading.number import extract_number
from agpo_bench.records import Reference

GSM8K = get_grader("number", style="gsm8k")
CMATH = get_grader("number", style="cmath")


def score(response: str, gold: str, *, style: str = "gsm8k", question: str = "") -> float:
    return get_grader("number", style=style).grade(response, Reference(gold=gold, question=question)).score


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First \boxed{3}, no: \boxed{7}. #### 9 The answer is 11, or 13.", "7"),
        ("#### 9\nThe answer is 11, or 13.", "9"),
        ("#### 8\n#### 9", "9"),
        ("The answer is 11. Check: 5 + 6 = 11, and 13 is too much.", "11"),
        ("First I thought the answer is 11. So the answer is 12.", "12"),
        ("Tom had 3, then 5, so he ends with 8 pears.", "8"),
        ("The answer is 4 * 5 = 20.", "20"),
        ("The answer is:\n\n$$\n20\n$$", "20"),
        ("The answer is $20 for 2 nights, not $40.", "20"),
        ("no number here", None),
        ("", None),
        (r"Put it in \boxed{}. The answer is 6.", "6"),
        (r"\boxed{\text{six}} 6", None),
        (r"\boxed{5 \text{ or } 6}", None),
        (r"\boxed{x = 6 \text{ cm}}", "6"),
        (r"\boxed{6\text{ cm}^2}", "6"),
        (r"\boxed{12\,500}", "12500"),
    ],
)
def test_the_box_comes_before_the_marker_before_the_sentence_before_the_last_number(
    response: str, answer: str | None
) -> None:
    assert extract_number(response) == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        # EleutherAI/lm-evaluation-harness#3214; open-compass/opencompass#2426: dollar, cents, comma, full stop
        ("Altogether the chairs cost $46.00.", "46"),
        ("Thus the firm earns $1,203,400.", "1203400"),
        # jundot/omlx#3484; stanford-crfm/helm#4337: a comma after the number is no number
        ("He kept 39 stamps, in the end.", "39"),
        # nielstron/quantulum3#87: digits of exponents and units
        (r"The mass is $4 \times 10^{-5}$ kg", "0.00004"),
        ("The garden has 64 m^2.", "64"),
        ("The garden has 64 m².", "64"),
        ("Burn it to CO2.", None),
    ],
)
def test_what_sticks_to_a_number_does_not_change_it(response: str, answer: str | None) -> None:
    assert extract_number(response) == answer


def test_a_marker_followed_by_a_long_epilogue_still_counts() -> None:
    # verl-project/verl#7274: only the last 300 characters were searched
    assert extract_number("7*8=56\n#### 56\n" + "All steps were checked with 3 methods. " * 200) == "56"


def test_an_invented_next_question_is_cut_off() -> None:
    # open-compass/opencompass#1818
    assert (
        extract_number("3+9=12. The answer is 12.\n\nQuestion: How many are 5 and 5?\nAnswer: The answer is 10.")
        == "12"
    )
    assert extract_number("答案是12。\n\n问题：又有5个？\n答案是10。") == "12"


def test_a_stop_word_inside_the_reasoning_cuts_nothing() -> None:
    # sgl-project/sglang#29264; EleutherAI/lm-evaluation-harness#3700
    assert extract_number("Let me put the Question simply.\n\n4 boxes of 6.\n\n#### 24") == "24"


def test_a_reasoning_trace_holds_no_answer() -> None:
    # allenai/olmo-eval#389; 0xBakeer/inference-atlas#32
    assert extract_number(r"<think>perhaps \boxed{3}, let me see") is None
    assert extract_number(r"perhaps \boxed{3}</think>So \boxed{4}.") == "4"


@pytest.mark.parametrize("wrong", ["1800", "0.18", "18.0005", "17", "-18", "118", "81"])
def test_no_tolerance_and_no_percentage_rule(wrong: str) -> None:
    """DeepSeek-Math and Qwen2.5-Math accept a hundredth, a hundredfold and anything within 1e-3."""
    assert score(f"The answer is {wrong}.", "18") == 0


@pytest.mark.parametrize(
    "spelling", ["18", "18.0", "18.00", "$18", "18%", "１８", "+18", "1.8e1", "36/2", r"\frac{36}{2}", "018"]
)
def test_every_spelling_of_a_value_is_the_value(spelling: str) -> None:
    assert score(f"The answer is {spelling}.", "18") == 1


@pytest.mark.parametrize(
    ("first", "second", "is_equal"),
    [
        # aisa-group/PostTrainBench#44; UKGovernmentBEIS/inspect_ai#3916; NVIDIA-NeMo/Skills#1074
        ("13", "613", False),
        ("-9", "9", False),
        ("27", "027", True),
        ("2.71", "42.71", False),
        # huggingface/Math-Verify#34 and #3: mixed numbers, the sign covers all of it
        ("7/4", "1 3/4", True),
        ("3.5", r"3\frac{1}{2}", True),
        ("-2.5", "-2 1/2", True),
        ("-1.5", "-2 1/2", False),
        # fathom-lab/styxx#77; maziyarpanahi/openmed#1468: minus signs and full-width forms
        ("-0.37", "\u22120.37", True),
        ("0.37", "\u22120.37", False),
        ("-6", "\uff0d6", True),
        ("2.5", "２．５", True),
        # huggingface/Math-Verify#14; mitdbg/Kramabench#33: tiny values are not all equal
        ("3.1e-13", "5.2e-13", False),
        ("1/1024", "1/1025", False),
        # Qwen2.5-Math grader.py: integers within 1e-4 of each other
        ("654321", "654325", False),
        # UTF: superscripts and vulgar fractions
        ("2.5", "2½", True),
        ("1/10000", "10⁻⁴", True),
    ],
)
def test_equality_is_of_exact_values_and_symmetric(first: str, second: str, is_equal: bool) -> None:
    assert score(second, first) == score(first, second) == float(is_equal)
    assert GSM8K.are_equivalent(first, second) == GSM8K.are_equivalent(second, first) == is_equal


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("所以答案是：27。", "27", 1),
        ("答案是27元。", "27", 1),
        ("答案是二十七。", "27", 1),
        ("答案是：27元，不是30元。", "27", 1),
        ("答案是：26，检验27", "27", 0),
        ("20+7=27，所以答案是：26。", "27", 0),
        ("答案是：27.1。", "27", 0),
        ("答案是5分之2。", "2/5", 1),
        ("答案是五分之二。", "2/5", 1),
        ("答案是：\\frac{2}{5}。", "2/5", 1),
        ("答案是0.4", "2/5", 1),
        ("答案是二又二分之一。", "2.5", 1),
        ("答案是2又1/2。", "5/2", 1),
        ("答案是3万。", "30000", 1),
        ("共有1.2亿人。", "120000000", 1),
        ("便宜了25%。", "25%", 1),
        ("答案是百分之二十五。", "25%", 1),
        ("答案是0.25。", "25%", 1),
        ("答案是25。", "25%", 0),
        ("答案是25%。", "0.25", 1),
        ("答：小明有3个苹果，一共有18个。", "18", 1),
        ("一共是三角形的十八倍。", "18", 1),
        ("答案是3千米。", "3", 1),
        ("答案是负三。", "-3", 1),
        ("答案是零点五。", "0.5", 1),
    ],
)
def test_chinese_answers(response: str, gold: str, right: int) -> None:
    assert score(response, gold, style="cmath") == right


def test_the_last_cue_is_the_answer() -> None:
    # deepseek-ai/DeepSeek-Math answer_extraction.py: the text after the first 答案是
    assert extract_number("答案是9吗？不对。\n再算一次，答案是11。") == "11"


def test_joining_digits_across_a_comma_needs_groups_of_three() -> None:
    # XiaoMi/cmath utils.py: "3,5" became 35
    assert extract_number("两个数是4,7") == "7"
    assert extract_number("一共4,700") == "4700"


def test_a_scale_word_multiplies_unless_the_question_asks_for_it() -> None:
    assert score("The answer is 1.45 million.", "1450000") == 1
    assert score("He saw 26 billion miles.", "26", question="How many billions of miles did he see?") == 1
    assert score("盈利48万元", "48", style="cmath", question="本月盈利多少万元？") == 1
    assert score("盈利48万元", "480000", style="cmath", question="本月盈利多少元？") == 1


def test_cmath_tolerance_holds_between_two_decimals_only() -> None:
    """1/1000 of the larger; nothing near an integer, nothing near a fraction without finite expansion."""
    assert score("3.142", "3.14", style="cmath") == score("3.14", "3.142", style="cmath") == 1
    assert score("3.15", "3.14", style="cmath") == score("3.14", "3.15", style="cmath") == 0
    assert score("18.001", "18", style="cmath") == score("18", "18.001", style="cmath") == 0
    assert score("0.333", "1/3", style="cmath") == score("1/3", "0.333", style="cmath") == 0
    assert score("3.142", "3.14", style="gsm8k") == 0


def test_the_strict_score_asks_for_a_marker() -> None:
    for response, strict in (
        (r"\boxed{5}", 1.0),
        ("#### 5", 1.0),
        ("The answer is 5.", 0.0),
        ("5", 0.0),
        ("#### 6", 0.0),
    ):
        assert GSM8K.grade(response, Reference(gold="5")).alternatives["strict"] == strict


def test_the_lenient_alternative_takes_either_of_the_last_two_numbers_within_one_percent() -> None:
    def lenient(response: str, gold: str) -> float:
        return CMATH.grade(response, Reference(gold=gold)).alternatives["xiaomi_lenient"]

    assert lenient("18个，不对，是19个", "18") == 1
    assert lenient("700", "700.6") == 1
    assert lenient("19", "18") == 0


def test_the_canonical_answer_is_one_spelling_a_value() -> None:
    spellings = {
        "0.5": ("0.50", "1/2", ".5", r"\frac{1}{2}", "5e-1"),
        "1/3": ("2/6", r"\frac13"),
        "-1200": ("-1,200", "-1200.0"),
    }
    for canonical, written in spellings.items():
        assert {extract_number(f"\\boxed{{{text}}}") for text in written} == {canonical}


def test_an_unreadable_gold_is_an_error_of_the_data_and_never_a_reward() -> None:
    # huggingface/open-r1#215 and #566
    for gold in ("", "none", "3 or 4"):
        verdict = GSM8K.grade("3", Reference(gold=gold))
        assert (verdict.score, verdict.reason, verdict.is_error) == (0.0, "gold_unreadable", True)


def test_the_gold_may_be_a_whole_reference_solution() -> None:
    assert score("The answer is 12", "3*4 = 12 apples\n#### 12") == 1


def test_too_many_digits_are_counted_and_not_read() -> None:
    # NovaSky-AI/SkyThought#28: over 4,300 digits raise in CPython
    verdict = GSM8K.grade("1" * 7945, Reference(gold="12"))
    assert (verdict.score, verdict.reason) == (0.0, "too_long")


def test_verdicts_come_one_a_response_and_in_order() -> None:
    # NVIDIA-NeMo/RL#3058
    pairs = [
        (r"\boxed{4}", Reference(gold="4")),
        (r"\boxed{", Reference(gold="4")),
        (r"\boxed{5}", Reference(gold="5")),
    ]
    assert [verdict.score for verdict in GSM8K.grade_many(pairs)] == [1, 0, 1]


def test_equality_is_symmetric_over_all_pairs_of_spellings() -> None:
    texts = ["18", "18.0", "-18", "1/3", "0.333", "0.3334", "2.5", "25%", "1 1/2", "3e-7", "10^3", "1000", "x", ""]
    for grader in (GSM8K, CMATH):
        for first, second in itertools.product(texts, texts):
            assert grader.are_equivalent(first, second) == grader.are_equivalent(second, first)
        assert all(grader.are_equivalent(text, text) for text in texts)
