"""Where in a response its answer stands: rules the text graders share. Each is one pass over the text."""

from __future__ import annotations

import re
from typing import NamedTuple

from agpo_bench.grading.boxed import without_thinking
from agpo_bench.grading.normalise import normalise_text

_BOX_TOKENS = re.compile(r"\\{1,3}(?:boxed|fbox)\s{0,4}\{|\\[\s\S]|[{}]")
_NEXT_QUESTION = re.compile(r"(?:\*\*)?(?:Q|Question|Problem|问题|题目)[ \t]{0,4}[0-9]{0,4}[ \t]{0,4}[:：.]")


def visible_text(response: str) -> str:
    """The response as a grader reads it: normalised, without its reasoning trace, cut at an invented next question."""
    return cut_at_next_question(without_thinking(normalise_text(response)))


class Box(NamedTuple):
    """Where a box stands. The content is not copied: twenty thousand nested boxes would be gigabytes."""

    start: int
    end: int
    content_start: int

    def content(self, text: str) -> str:
        """What it holds."""
        return text[self.content_start : self.end - 1]


def find_boxes(text: str) -> list[Box]:
    r"""Every balanced ``\boxed{…}``, in the order of the starts; braces are counted.

    An escaped brace (``\{``) is a character, not a group. A box that never closes is not there.
    """
    boxes: list[Box] = []
    open_groups: list[tuple[int, int] | None] = []  # (start of the command, start of the content); None: a plain group
    for token in _BOX_TOKENS.finditer(text):
        spelled = token.group()
        if spelled == "{":
            open_groups.append(None)
        elif spelled == "}":
            if open_groups and (box := open_groups.pop()) is not None:
                boxes.append(Box(box[0], token.end(), box[1]))
        elif spelled.endswith("{") and "box" in spelled:
            open_groups.append((token.start(), token.end()))
    return sorted(boxes)


def last_box(text: str) -> Box | None:
    r"""The last balanced, non-empty box.

    Of nested boxes the inner one counts (hendrycks/math takes the last that starts). An empty box is an echo of the
    instruction "put your answer within ``\boxed{}``", not an answer.
    """
    for box in reversed(find_boxes(text)):
        if box.end - box.content_start > 1 and not text[box.content_start : box.end - 1].isspace():
            return box
    return None


def last_boxed(text: str) -> str | None:
    """Content of :func:`last_box`, or None."""
    box = last_box(text)
    return None if box is None else box.content(text).strip()


def cut_at_next_question(text: str) -> str:
    """Drop what follows when a base model runs on into an invented next question.

    Only a header at the start of a line, after a blank line and after some text, marks one: a stop word inside the
    reasoning does not.
    """
    position, previous_is_blank, has_text = 0, False, False
    for line in text.splitlines(keepends=True):
        if previous_is_blank and has_text and _NEXT_QUESTION.match(line):
            return text[:position]
        position += len(line)
        previous_is_blank = not line.strip()
        has_text = has_text or not previous_is_blank
    return text
