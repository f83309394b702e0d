"""Boxes, headers of a next question, and the text both graders and votes read."""

from __future__ import annotations

import pytest

from agpo_bench.grading.extraction import cut_at_next_question, find_boxes, last_boxed
from agpo_bench.grading.normalise import normalise_text


@pytest.mark.parametrize(
    ("response", "content"),
    [
        (r"It is \boxed{\frac{5}{11}}.", r"\frac{5}{11}"),  # huggingface/trl#5026: braces nest
        (r"\boxed{2}, no, \boxed{3}.", "3"),  # thinking-machines-lab/tinker-cookbook#903: the last box
        (r"\boxed{2}\boxed{3}", "3"),
        (r"so \boxed{\frac{3}{7", None),  # EvolvingLMMs-Lab/lmms-eval#1512: cut inside the box
        (r"I will use \boxed here.", None),  # EleutherAI/lm-evaluation-harness#3477: the bare word
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"{{ \boxed{4}", "4"),
        (r"\boxed{ \boxed{5} }", "5"),
        (r"\boxed {6}", "6"),
        (r"\fbox{7}", "7"),
        (r"\boxed{8} within \boxed{}", "8"),
        ("} } } \\boxed{9}", "9"),
    ],
)
def test_the_last_balanced_box_is_taken(response: str, content: str | None) -> None:
    assert last_boxed(response) == content


def test_every_box_is_found_with_its_place() -> None:
    text = r"a \boxed{1} b \boxed{\frac{2}{3}} c"
    assert [text[start:end] for start, end, _ in find_boxes(text)] == [r"\boxed{1}", r"\boxed{\frac{2}{3}}"]


def test_only_a_header_after_a_blank_line_starts_a_next_question() -> None:
    assert cut_at_next_question("a\n\nQ: b") == "a\n\n"
    assert cut_at_next_question("a\nQ: b") == "a\nQ: b"
    assert cut_at_next_question("a\n\nQuestions come") == "a\n\nQuestions come"
    assert cut_at_next_question("\n\nQ: b") == "\n\nQ: b"
    assert cut_at_next_question("a\n\n问题 6.  b") == "a\n\n"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("１８．５％", "18.5%"),
        ("−3 – 4", "-3 - 4"),
        ("m²", "m^{2}"),
        ("10⁻⁷", "10^{-7}"),
        ("2½", "2 1/2"),
        ("½", "1/2"),
        ("a\u200bb\x00c", "abc"),
        ("x\ud800y", "x\ufffdy"),
        ("（Ａ）", "(A)"),
    ],
)
def test_text_has_one_form(text: str, normal: str) -> None:
    assert normalise_text(text) == normal
    assert normalise_text(normal) == normal


def test_normalised_text_can_be_written_as_utf8() -> None:
    normalise_text("".join(map(chr, range(0xD7F0, 0xE010)))).encode()
