r"""Where an answer stands in a response: the last box, the Minerva sentence, or a response that is nothing else.

One linear pass each, whatever the text: a megabyte of ``\boxed{`` costs a megabyte of scanning.
"""

from __future__ import annotations

import re

_UNBRACED_BOX = re.compile(r"\\boxed[ ~]{1,4}(-?[0-9][0-9.,]{0,40})(?=\$|\Z)")
_NAMED_BOX = re.compile(r"\\boxed(?![A-Za-z])(?!\s{0,4}\{)")
_ANY_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{")
_FORMULA = re.compile(r"(?<![\\$])\$([^$\n]{1,400})(?<!\\)\$(?!\$)")
_SENTENCE = re.compile(r"final\s+answer\s+is\s*:?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"I\s+hope\s+it\s+is\s+correct", re.IGNORECASE)
_CLOSE_THINK = re.compile(r"</think(?:ing)?>", re.IGNORECASE)
_OPEN_THINK = re.compile(r"<think(?:ing)?>", re.IGNORECASE)
_MATH_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z][a-z]{2,}(?![A-Za-z])|[^\W\d_A-Za-z]{2,4}")
_MATH_MARK = re.compile(r"(?<!\\)\$|\\[(\[]")
_TEXT_GROUP = re.compile(r"\\(?:begin|end|text|textbf|textit|textrm|mbox|mathrm|mathbf|operatorname)\s*\{[^{}]*\}")
_MAX_ANSWER_ONLY_CHARS = 400
"""A response longer than this is a derivation, not an answer; the longest gold of the nine sets has under 200."""


def without_thinking(text: str) -> str:
    """The part of a response after its reasoning trace.

    Everything up to the last ``</think>`` is thinking, opener or not. A trace that was opened and never closed was cut
    by the length limit: what follows the opener holds no answer.
    """
    end = 0
    for match in _CLOSE_THINK.finditer(text):
        end = match.end()
    rest = text[end:]
    opened = _OPEN_THINK.search(rest)
    return rest[: opened.start()] if opened else rest


def last_boxed(text: str) -> str | None:
    r"""Content of the last balanced box (``extraction.last_box``), or of a later ``\boxed 7$`` without braces.

    The second form is TeX for a box of one token, here a numeral; reference solutions of MATH use it.
    """
    from agpo_bench.grading.extraction import last_box

    box = last_box(text)
    unbraced = None
    for match in _UNBRACED_BOX.finditer(text):
        unbraced = match
    if unbraced is not None and (box is None or unbraced.start() > box.start):
        return unbraced.group(1).strip()
    return None if box is None else box.content(text).strip()


def final_answer_sentence(text: str) -> str | None:
    """X of the last "(The) final answer is X. I hope it is correct." (Minerva's closing), dollar signs removed.

    Without the second sentence X ends at the line's end; ``$X$`` ends at its dollar sign.
    """
    start = None
    for match in _SENTENCE.finditer(text):
        start = match.end()
    if start is None:
        return None
    rest = text[start:]
    end = _SENTENCE_END.search(rest)
    span = rest[: end.start()] if end else rest.strip().split("\n", 1)[0]
    span = span.strip()
    if span.startswith("$") and not span.startswith("$$"):
        close = span.find("$", 1)
        while close > 0 and span[close - 1] == "\\":
            close = span.find("$", close + 1)
        if close > 0 and span[close + 1 :].strip(" .。") == "":
            span = span[: close + 1]
    span = unwrap_math(span.rstrip(" .。") if not span.endswith("\\.") else span)
    return span or None


def formula_of_named_box(text: str) -> str | None:
    r"""The last ``$…$`` of a response that writes the word ``\boxed`` and never a group behind it; else None.

    The response meant to mark its answer and did not; a group that is opened and cut off is no answer.
    """
    if not _NAMED_BOX.search(text) or _ANY_BOX.search(text):
        return None
    formulas = _FORMULA.findall(text)
    return formulas[-1].strip() or None if formulas else None


def unwrap_math(text: str) -> str:
    r"""``$X$``, ``$$X$$``, ``\(X\)`` or ``\[X\]`` as a whole gives X; anything else comes back stripped."""
    text = text.strip()
    for opening, closing in _MATH_WRAPPERS:
        if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : len(text) - len(closing)]
            if opening not in inner.replace("\\$", ""):
                return inner.strip()
    return text


def answer_only(text: str) -> str | None:
    r"""The whole response, if it is nothing but an answer: short, one paragraph, not a sentence.

    Whoever answers ``42`` or ``$\frac{1}{2}$`` and nothing more has answered; prose without a box has not.
    """
    text = text.strip()
    if not text or len(text) > _MAX_ANSWER_ONLY_CHARS or "\n\n" in text:
        return None
    inner = unwrap_math(text.rstrip(".。") if text.endswith(("$.", "$。")) else text)
    num_words = len(_PROSE_WORD.findall(_TEXT_GROUP.sub(" ", inner)))
    if "boxed" in inner or num_words > (0 if _MATH_MARK.search(inner) else 1):
        return None
    return inner or None
