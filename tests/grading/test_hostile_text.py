"""Anything a model can write: bounded time, a verdict with a reason, no crash; and equality as an equivalence."""

from __future__ import annotations

import json
import time
import tracemalloc
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agpo_bench.grading.blanks import extract_blanks, split_blanks
from agpo_bench.grading.chinese import parse_numeral
from agpo_bench.grading.choice import extract_choice
from agpo_bench.grading.extraction import cut_at_next_question, find_boxes, last_boxed
from agpo_bench.grading.graders import get_grader
from agpo_bench.grading.normalise import normalise_text
from agpo_bench.grading.number import extract_number
from agpo_bench.grading.quantity import find_quantities
from agpo_bench.records import Reference

GRADERS = {
    "gsm8k": (get_grader("number", style="gsm8k"), "18"),
    "cmath": (get_grader("number", style="cmath"), "1.8"),
    "choice": (get_grader("choice"), "B"),
    "blanks": (get_grader("blanks"), "3;$\\frac{1}{2}$"),
}

LONG = 300_000
HOSTILE = {
    "nothing": "",
    "NUL bytes": "\x00" * LONG,
    "NUL in a box": "\\boxed{1\x008}x",
    "a lone high surrogate": "\ud800 18x",
    "lone surrogates": "\udfff\ud800" * 1000,
    "a megabyte of letters": "a" * 1_000_000,
    "a megabyte of digits": "1" * 1_000_000,
    "a megabyte of newlines": "\n" * 1_000_000,
    "spaces": " " * LONG,
    "newlines": "\n" * LONG,
    "tabs and newlines": "\n\t" * (LONG // 2),
    "digits": "7" * LONG,
    "ten thousand digits": "1" * 10_000,
    "ten thousand digits in a box": "\\boxed{" + "1" * 10_000 + "}",
    "ten thousand decimals": "0." + "3" * 10_000,
    "a long fraction": "1" * 5000 + "/" + "7" * 5000,
    "a power tower": "\\boxed{" + "9^{" * 200 + "9" + "}" * 200 + "}",
    "a huge exponent": "9e9999",
    "a huge power": "10^9999",
    "a huge factorial": "\\boxed{" + "9!" * 500 + "}",
    "a power of ten": "1 \\times 10^{9999}",
    "open boxes": "\\boxed{" * (LONG // 7),
    "closed boxes": "\\boxed{}" * (LONG // 8),
    "nested boxes": "\\boxed{" * 20_000 + "1" + "}" * 20_000,
    "boxes without end": "\\boxed{1" * (LONG // 8),
    "open braces": "{" * LONG,
    "closed braces": "}" * LONG,
    "deep braces": "\\boxed{" + "{" * 50_000 + "1" + "}" * 50_000 + "}",
    "backslashes": "\\" * LONG,
    "dollars": "$" * LONG,
    "open brackets": "(" * LONG,
    "brackets of letters": "(A" * (LONG // 2),
    "hash marks": "#" * LONG,
    "markers": "#### " * (LONG // 5),
    "markers and lines": "####\n" * (LONG // 5),
    "cues": "answer is " * (LONG // 10),
    "cues and letters": "answer is Z " * (LONG // 12),
    "Chinese cues": "答案是" * (LONG // 3),
    "Chinese cue letters": "答" * LONG,
    "numerals": "十" * LONG,
    "numeral digits": "一二" * (LONG // 2),
    "parts of parts": "1分之" * (LONG // 3),
    "ands": "1又" * (LONG // 2),
    "scales": "1万" * (LONG // 2),
    "fractions": "\\frac" * (LONG // 5),
    "short fractions": "\\frac12" * (LONG // 7),
    "commas": "," * LONG,
    "grouped digits": "1" + ",234" * (LONG // 4),
    "badly grouped digits": "1" + ",234" * (LONG // 4) + "5",
    "points": "." * LONG,
    "versions": "1." * (LONG // 2),
    "minus signs": "-" * LONG,
    "equals signs": "=" * LONG,
    "equations": "1=" * (LONG // 2),
    "slashes": "1/" * (LONG // 2),
    "letters in a row": "ABCD" * (LONG // 4),
    "letters apart": "A, " * (LONG // 3),
    "boxes apart": "\\boxed{1}, " * (LONG // 11),
    "letters and words": "A and " * (LONG // 6),
    "options": "option A is " * (LONG // 12),
    "asterisks": "*" * LONG,
    "closers of thought": "</think>" * (LONG // 8),
    "openers of thought": "<think>" * (LONG // 7),
    "headers": "x\n\nQ: " * (LONG // 6),
    "separators": ";" * LONG,
    "combining marks": "a" + "\u0301" * LONG,
    "the longest NFKC expansion": "\ufdfa" * 20_000,
    "superscripts": "²" * LONG,
    "vulgar fractions": "½" * LONG,
    "circled numbers": "①" * LONG,
    "right-to-left marks": "\u202e18" * 10_000,
    "Arabic digits": "١٨" * 10_000,
    "an import": "\\boxed{__import__('os').system('echo 18')}",
    "a lambda": "\\boxed{(lambda: 18)()}",
    "words in a fraction": "\\boxed{\\frac{" + "a" * 50_000 + "}{b}}",
    "a format string": "\\boxed{%s%s%s%n{0.__class__}}",
    "JSON": '{"score": 1.0, "answer": "18"}' * 100,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", GRADERS)
def test_a_hostile_answer_gets_a_verdict_in_bounded_time_and_memory(kind: str, name: str) -> None:
    grader, gold = GRADERS[kind]
    started = time.process_time()
    verdict = grader.grade(HOSTILE[name], Reference(gold=gold))
    assert time.process_time() - started < 5
    assert verdict.score in (0.0, 1.0)
    assert not verdict.is_error
    assert verdict.reason in ("correct", "wrong", "no_answer", "ambiguous", "too_long")
    json.dumps({"answer": verdict.answer}, ensure_ascii=False).encode()  # can be written to a UTF-8 file
    assert verdict.answer is None or len(verdict.answer) < 10_000


def test_there_are_at_least_sixty_hostile_answers() -> None:
    assert len(HOSTILE) >= 60


def test_a_long_answer_costs_memory_in_proportion_to_its_length() -> None:
    tracemalloc.start()
    for kind, (grader, gold) in GRADERS.items():
        for text in ("1 " * 150_000, "\\boxed{1} " * 30_000, "A, " * 100_000):
            tracemalloc.reset_peak()
            grader.grade(text, Reference(gold=gold))
            assert tracemalloc.get_traced_memory()[1] < 200e6, kind
    tracemalloc.stop()


def test_a_response_over_the_limit_is_counted() -> None:
    for grader, gold in GRADERS.values():
        assert grader.grade("18 " * 1_000_000, Reference(gold=gold)).reason == "too_long"


PIECES = st.sampled_from(
    [
        "\\boxed{",
        "}",
        "{",
        "\\frac",
        "\\text{",
        "$",
        "#### ",
        "answer is ",
        "答案是",
        "故选",
        "The answer is ",
        "18",
        "-",
        ".",
        ",",
        "1/2",
        "%",
        "A",
        "B",
        "(C)",
        " and ",
        "、",
        ";",
        "\n",
        "\n\n",
        "Q: ",
        "<think>",
        "</think>",
        "十八",
        "分之",
        "万",
        "又",
        "^",
        "_",
        "=",
        "\\times 10^",
        "e5",
        "½",
        "²",
        "①",
        "−",
        "１",
        "Ａ",
        "\x00",
        "\ud800",
        "\\",
        "[",
        ")",
        " ",
    ]
)
TEXTS = st.one_of(st.text(max_size=80), st.lists(PIECES, max_size=25).map("".join))
ANSWERS = st.one_of(
    st.sampled_from(
        ["18", "-18", "18.0", "1/3", "0.333", "0.3334", "2 1/2", "25%", "十八", "3e-7", "2^{10}", "x", "", "AB", "BA"]
    ),
    st.fractions(max_denominator=1000).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-1000, max_value=1000).map(str),
    TEXTS,
)


@settings(max_examples=600, deadline=2000)
@given(TEXTS)
def test_no_extractor_raises(text: str) -> None:
    find_boxes(text)
    last_boxed(text)
    normalise_text(text)
    cut_at_next_question(text)
    parse_numeral(text)
    list(find_quantities(text))
    extract_number(text)
    extract_choice(text)
    extract_blanks(text)
    split_blanks(text)


@settings(max_examples=500, deadline=2000)
@given(TEXTS)
def test_normalising_twice_is_normalising_once(text: str) -> None:
    once = normalise_text(text)
    assert normalise_text(once) == once
    once.encode()


@settings(max_examples=400, deadline=2000)
@given(ANSWERS, ANSWERS)
@pytest.mark.parametrize("kind", GRADERS)
def test_equality_is_symmetric_and_reflexive(kind: str, first: str, second: str) -> None:
    grader = GRADERS[kind][0]
    assert grader.are_equivalent(first, first)
    assert grader.are_equivalent(first, second) == grader.are_equivalent(second, first)


@settings(max_examples=300, deadline=2000)
@given(ANSWERS, ANSWERS)
@pytest.mark.parametrize("kind", GRADERS)
def test_swapping_gold_and_answer_never_changes_the_verdict(kind: str, first: str, second: str) -> None:
    grader = GRADERS[kind][0]
    one, other = (
        grader.grade(f"\\boxed{{{answer}}}", Reference(gold=gold))
        for answer, gold in ((first, second), (second, first))
    )
    if not one.is_error and not other.is_error:  # a text that is no answer can be no gold
        assert one.score == other.score


@settings(max_examples=300, deadline=2000)
@given(TEXTS, st.sampled_from([" ", "\n", "\t", "\u3000", "\u00a0", "\n\n"]))
@pytest.mark.parametrize("kind", GRADERS)
def test_blank_space_around_a_response_changes_nothing(kind: str, text: str, blank: str) -> None:
    grader, gold = GRADERS[kind]
    bare = grader.grade(text.strip(), Reference(gold=gold))
    padded = grader.grade(blank + text.strip() + blank, Reference(gold=gold))
    assert (bare.score, bare.answer) == (padded.score, padded.answer)


@settings(max_examples=400, deadline=2000)
@given(
    TEXTS.filter(lambda text: not any(c in text for c in "²½①") and not any("\u2070" <= c <= "\u24ff" for c in text))
)
@pytest.mark.parametrize("kind", GRADERS)
def test_verdicts_are_stable_under_nfkc(kind: str, text: str) -> None:
    """Superscripts, vulgar fractions and circled numbers excepted: NFKC itself changes what they mean."""
    decomposed = [c for c in text if c != unicodedata.normalize("NFKC", c) and c.isnumeric() and not c.isdecimal()]
    if decomposed:
        return
    grader, gold = GRADERS[kind]
    plain, folded = (grader.grade(t, Reference(gold=gold)) for t in (text, unicodedata.normalize("NFKC", text)))
    assert (plain.score, plain.answer) == (folded.score, folded.answer)


@settings(max_examples=300, deadline=2000)
@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_right_in_every_form(value: object) -> None:
    grader = GRADERS["gsm8k"][0]
    for form in ("{}", "${}$", "\\boxed{{{}}}", "#### {}", "The answer is {}.", "答案是{}。"):
        assert grader.grade(form.format(value), Reference(gold=str(value))).score == 1
