r"""Answers that fill blanks: Gaokao-Cloze. All blanks right, in order, as many as the gold has.

The answer stands after the last 答案是 / 答案为 / 故填, or in the last box (or the boxes that stand side by side),
whichever comes later. Both sides are split by the same rule and each blank is compared by the equality of
mathematical expressions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from agpo_bench.grading.boxed import without_thinking
from agpo_bench.grading.extraction import Box, cut_at_next_question, find_boxes
from agpo_bench.grading.normalise import MAX_RESPONSE_CHARS, normalise_text
from agpo_bench.records import Reference, Verdict

MAX_BLANKS = 20
"""The sets have at most three; a longer list is not an answer."""
MAX_BLANK_CHARS = 2000
_CIRCLED = {chr(0x2460 + index): f"\\textcircled{{{index + 1}}}" for index in range(20)}
_CIRCLED_PATTERN = re.compile("[" + "".join(_CIRCLED) + "]")
_CUE = re.compile(
    r"(?:故?答案(?:应?[是为]|\s?:)|故答案|[故应]填[为:]?|填\s?:)[\s:]{0,3}|\banswers?\s?(?:(?:is|are)\b\s?:?|:)",
    re.IGNORECASE,
)
_STOP = re.compile(r"\n|。")
_NOTHING_SAID = re.compile(r"[\s$\\\[\](){}*:]*")
_BETWEEN_BOXES = re.compile(r"[\s$)\\]{0,6}(?:[;,、和与及]|and\b|\\text\{\s?(?:and|和|与)\s?\}|\\quad)[\s$(\\]{0,6}")
_TOKEN = re.compile(r"\\text\s?\{\s?(?:and|和|与|及)\s?\}|\sand\s|\\[^A-Za-z(){}\[\]]|[()\[\]{};,、和]")
_DELIMITER = re.compile(r"\$|\\[()]|\\\[(?!\d)|\\\]|\*\*")
_THOUSANDS_COMMA = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_CIRCLED_RUN = re.compile(r"(?:\\textcircled\{[0-9]+\}\s?)+")
_MEASURE_WORD = re.compile(
    r"(?<=[0-9})π])\s?(?:\\text\{\s?)?(?:[个元人次种天年秒度岁条项组件名位米克吨]|厘米|千米|千克|分钟|小时|平方(?:厘|千|分)?米|立方(?:厘|分)?米)"
    r"\s?\}?$"
)
"""A unit in Chinese behind a value: 2个 fills the blank that 2 fills."""
_SPACES = re.compile(r"\s+")
_SYMBOL = re.compile(
    r"\s*\|?(?:\\[A-Za-z]{1,12}\s?\{?)?[A-Za-z]{1,4}'?\}?(?:_\{?[A-Za-z0-9+-]{1,6}\}?)?(?:\([^()=]{1,12}\))?\|?\s*="
)


class BlanksGrader:
    """All-or-nothing on the blanks of one item; the fraction of right blanks is logged as ``blanks_fraction``."""

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        started = time.perf_counter()

        def verdict(score: float, answer: str | None, reason: str, fraction: float = 0.0) -> Verdict:
            return Verdict(
                score=score,
                answer=answer,
                reason=reason,
                seconds=time.perf_counter() - started,
                is_error=reason == "gold_unreadable",
                alternatives={"blanks_fraction": fraction},
            )

        gold = split_blanks(_normalise(reference.gold))
        if not gold or len(gold) > MAX_BLANKS:
            return verdict(0.0, None, "gold_unreadable")
        if len(response) > MAX_RESPONSE_CHARS:
            return verdict(0.0, None, "too_long")
        stated = extract_blanks(response)
        if stated is None:
            return verdict(0.0, None, "no_answer")
        if len(stated) > MAX_BLANK_CHARS:
            return verdict(0.0, None, "too_long")
        given = split_blanks(stated)
        if not given:
            return verdict(0.0, None, "no_answer")
        if len(given) > MAX_BLANKS:
            return verdict(0.0, None, "too_long")
        is_right, fraction = _compare(given, gold)
        return verdict(float(is_right), ";".join(given), "correct" if is_right else "wrong", fraction)

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        return [self.grade(response, reference) for response, reference in pairs]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers are one vote: symmetric and reflexive."""
        if first == second:
            return True
        one, other = split_blanks(first), split_blanks(second)
        return 0 < len(one) <= MAX_BLANKS and 0 < len(other) <= MAX_BLANKS and _compare(one, other)[0]


def extract_blanks(response: str) -> str | None:
    r"""The stated list of blanks, ``$`` and closing stop removed, ``\boxed{5};\boxed{10}`` as ``5;10``, or None."""
    text = cut_at_next_question(without_thinking(_normalise(response)))
    cue_end = max((cue.end() for cue in _CUE.finditer(text)), default=None)
    boxes = _last_boxes(text)
    if cue_end is not None and (boxes is None or cue_end > boxes[0]):
        stated = _clean(_stated_after(text, cue_end))
        if stated:
            return stated
    if boxes is not None:
        return boxes[1]
    bare = text.strip()
    # A response of one line that states nothing in words is its own answer.
    return _clean(bare) or None if bare and "\n" not in bare else None


def split_blanks(text: str) -> list[str]:
    """The blanks of a list: at top-level ``;`` if there is one, else at top-level ``,``, ``、`` and 和 / "and"."""
    parts = _split_top_level(text, at_semicolon=True)
    if len(parts) == 1:
        parts = _split_top_level(text, at_semicolon=False)
        if len(parts) > 1 and all(_CIRCLED_RUN.fullmatch(_clean(part)) for part in parts):
            return ["".join(map(_clean, parts))]  # ①、③ is the one answer ①③
    return [part for part in map(_clean, parts) if part]


def _split_top_level(text: str, *, at_semicolon: bool) -> list[str]:
    parts, depth, start = [], 0, 0
    for token in _TOKEN.finditer(text):
        spelled = token.group()
        if spelled in "([{":
            depth += 1
        elif spelled in ")]}":
            depth = max(0, depth - 1)
        elif (
            depth == 0 and not (spelled.startswith("\\") and "text" not in spelled) and (spelled == ";") == at_semicolon
        ):
            parts.append(text[start : token.start()])
            start = token.end()
    return [*parts, text[start:]]


def _last_boxes(text: str) -> tuple[int, str] | None:
    """Start and content of the last box; boxes with nothing but a separator between them are one list."""
    outermost: list[Box] = []
    for box in find_boxes(text):
        if (not outermost or box.start >= outermost[-1].end) and not text[box.content_start : box.end - 1].isspace():
            outermost.append(box)
    outermost = [box for box in outermost[-MAX_BLANKS - 5 :] if box.end - box.content_start > 1]
    if not outermost:
        return None
    start = outermost[-1].start
    contents = [_clean(_unbox(outermost[-1].content(text)))]
    for left in reversed(outermost[:-1]):
        if start - left.end > 40 or not _BETWEEN_BOXES.fullmatch(text, left.end, start):
            break
        start = left.start
        contents.append(_clean(_unbox(left.content(text))))
    return start, ";".join(reversed(contents))


def _unbox(text: str) -> str:
    r"""``\boxed{X}`` -> X, for the boxes inside a short answer."""
    if len(text) > MAX_BLANK_CHARS:
        return text
    for box in reversed(find_boxes(text)):
        text = text[: box.start] + text[box.content_start : box.end - 1] + text[box.end :]
    return text


def _stated_after(text: str, start: int) -> str:
    """The rest of the line or sentence; the next line with something on it if that is empty."""
    window = text[start : start + 2 * MAX_BLANK_CHARS]
    offset = 0
    for _ in range(6):
        stop = _STOP.search(window, offset)
        if stop is None:
            break
        if not _NOTHING_SAID.fullmatch(window, 0, stop.start()):
            return window[: stop.start()]
        offset = stop.end()
    return window


def _clean(text: str) -> str:
    """Without math delimiters, bold marks, and the punctuation a sentence ends with."""
    return _DELIMITER.sub(" ", text).strip(" \t\r\n").rstrip(".。;,: \t\r\n").lstrip(":;, ").strip()


def _compare(given: list[str], gold: list[str]) -> tuple[bool, float]:
    from agpo_bench.grading.expression import expressions_equal

    if len(given) != len(gold):
        if 1 not in (len(given), len(gold)):
            return False, 0.0
        # One side is a single blank: the other may have been split at a thousands comma or inside a set.
        one, other = (_THOUSANDS_COMMA.sub("", ",".join(side)) for side in (given, gold))
        is_right = _blank_equal(one, other, expressions_equal)
        return is_right, float(is_right)
    right = sum(_blank_equal(one, other, expressions_equal) for one, other in zip(given, gold, strict=True))
    return right == len(gold), right / len(gold)


def _blank_equal(first: str, second: str, expressions_equal: Callable[[str, str], bool]) -> bool:
    bare_first, bare_second = _SPACES.sub("", first), _SPACES.sub("", second)
    if bare_first == bare_second:
        return True
    if max(len(bare_first), len(bare_second)) > MAX_BLANK_CHARS:
        return False
    first, second = _MEASURE_WORD.sub("", first), _MEASURE_WORD.sub("", second)
    if expressions_equal(first, second):
        return True
    # "S_n = 5" fills the blank that "5" fills.
    named_first, named_second = _SYMBOL.match(first), _SYMBOL.match(second)
    if (named_first is None) == (named_second is None) or "=" in (first if named_second else second):
        return False
    bare = [side[named.end() :] if named else side for side, named in ((first, named_first), (second, named_second))]
    return expressions_equal(bare[0], bare[1])


def _normalise(text: str) -> str:
    """As every grader, but ① stays itself: NFKC would make ①③ the number 13."""
    return normalise_text(_CIRCLED_PATTERN.sub(lambda match: _CIRCLED[match.group()], text))
