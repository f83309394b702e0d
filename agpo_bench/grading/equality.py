"""Whether two answers are equal: as strings first, then exactly as mathematics; within limits, in every thread."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from agpo_bench.grading import hendrycks
from agpo_bench.grading.boxed import unwrap_math
from agpo_bench.grading.latex.compare import Comparison
from agpo_bench.grading.latex.grammar import parse
from agpo_bench.grading.latex.limits import MAX_CHARS, LimitError, UnparsedError
from agpo_bench.grading.latex.render import render
from agpo_bench.grading.latex.symbolic import to_wire
from agpo_bench.grading.latex.tokens import NOT_A_UNIT
from agpo_bench.grading.latex.tree import Node
from agpo_bench.grading.normalise import normalise_text
from agpo_bench.grading.workers import shared_pool

_BLANKS = re.compile(r"\s+")
_LEADING = re.compile(r"(?:=|\\approx(?![A-Za-z])|\\equiv(?![A-Za-z]))\s*")
_WORD_GROUP = re.compile(r"\\(?:text|textbf|textit|textrm|textnormal|mbox|mathrm|operatorname|hbox)\s*\{([^{}]*)\}")
_PLAIN_IGNORED = re.compile(r"\\[ ,;!:]|[\s$~]")
_WORDS = re.compile(r"[^\W\d_]{3,}")
_ONLY_WORDS = re.compile(r"(?:[^\W_]|[.,'()-])+")
_NUMBER_EQUATION = re.compile(r"\s*[0-9.]+\s*=")
_TEXT_TAIL = re.compile(r"\\text\{ ([^{}]*)\}(.*)", re.DOTALL)
_UNIT_TAIL = re.compile(r"[\s~.,;$]*(?:\^\s?\{?\s?-?[0-9]\s?\}?|\^\s?\{?\s?\\circ\s?\}?)?[\s~.,;$]*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_MAX_CACHED_CHARS = 400


class Outcome(NamedTuple):
    """Whether two answers are equal, and, where it was not decided, why."""

    is_equal: bool
    reason: str | None = None
    """``too_long``, ``too_deep``, ``too_complex``, ``unparsed``, ``timeout``, ``memory``, ``undecided``,
    ``worker_died``."""

    @property
    def is_error(self) -> bool:
        """Whether the harness failed to decide by its own fault."""
        return self.reason == "worker_died"


def clean(text: str) -> str:
    r"""An extracted answer as it is compared: normalised, one blank for many, without ``$`` around and a full stop
    behind.
    """
    text = unwrap_math(_BLANKS.sub(" ", normalise_text(text)).strip())
    while text and text[-1] in ".,;:。 " and not text.endswith(("\\.", "\\,", "\\;", "\\:", "\\ ")):
        text = text[:-1].rstrip()
    return _LEADING.sub("", unwrap_math(text), count=1) if text[:1] in ("=", "\\") and _LEADING.match(text) else text


def is_readable(gold: str) -> bool:
    """Whether a gold answer can be compared with at all: not empty, not beyond the limits, braces balanced."""
    text = clean(gold)
    if not any(character.isalnum() or character == "\\" for character in text) or len(text) > MAX_CHARS:
        return False
    level = 0
    for match in _BRACE.finditer(text):
        level += (match.group() == "{") - (match.group() == "}")
        if level < 0:
            return False
    return level == 0


def compare(first: str, second: str) -> Outcome:
    """Equality of two answers. Symmetric by construction: the pair is put in a fixed order first."""
    if first == second:
        return Outcome(True)
    one, other = sorted((clean(first), clean(second)))
    if one == other and one:
        return Outcome(True)
    if max(len(one), len(other)) > MAX_CHARS:
        return Outcome(False, "too_long")
    try:
        return _remembered(one, other)
    except RecursionError:  # the caller's own stack is nearly used up; nothing of this is remembered
        return Outcome(False, "too_deep")


def _remembered(one: str, other: str) -> Outcome:
    if len(one) + len(other) <= _MAX_CACHED_CHARS:
        outcome = _cached_compare(one, other)
        if outcome.reason in ("timeout", "memory", "worker_died"):
            _cached_compare.cache_clear()  # the clock or the machine decided; the next call may do better
        return outcome
    return _compare(one, other)


def _compare(one: str, other: str) -> Outcome:
    return Outcome(True) if strings_equal(one, other) else compare_mathematics(one, other)


def compare_mathematics(first: str, second: str) -> Outcome:
    """Equality of two cleaned answers without the authors' string rule, by which ``P=5`` and ``Q=5`` are both 5."""
    one, other = sorted((first, second))
    if one == other or _plain_equal(one, other):
        return Outcome(True)
    trees: list[Node] = []
    for text in (one, other):
        try:
            trees.append(parse(text))
        except LimitError as error:
            return Outcome(False, error.reason)
        except UnparsedError:
            return Outcome(False, "unparsed")
    comparison = Comparison(_ask_worker)
    if comparison.are_equal(*trees):
        return Outcome(True)
    return Outcome(False, next(iter(sorted(comparison.problems, key=_severity)), None))


_cached_compare = lru_cache(maxsize=32768)(_compare)


def strings_equal(first: str, second: str) -> bool:
    r"""The string rule of the MATH authors. An empty normal form (all of it was units) equals nothing but itself.

    Departure: that rule cuts at ``\text{ `` whatever follows, which makes ``5\text{ or }6`` the answer 5. A tail
    that is no unit is not cut here; the score ``math_hendrycks`` still does it.
    """
    if _states_more(first) or _states_more(second):
        return False
    first_form = hendrycks.normalize(first)
    if not first_form:
        return first == second
    return first_form == hendrycks.normalize(second)


def _states_more(text: str) -> bool:
    r"""Whether the string rule would drop more than a unit or a name.

    That is: what follows the first ``\text{ `` is "or", a number or more mathematics, or ``=`` has a number before it
    (``7 = 11a+c`` is not the answer ``11a+c``).
    """
    if _NUMBER_EQUATION.match(text):
        return True
    tail = _TEXT_TAIL.search(text)
    return tail is not None and (bool(NOT_A_UNIT.search(tail[1])) or _UNIT_TAIL.fullmatch(tail[2]) is None)


def _severity(reason: str) -> int:
    order = ("worker_died", "timeout", "memory", "too_deep", "too_complex", "unparsed", "undecided")
    return order.index(reason) if reason in order else len(order)


def _plain_equal(first: str, second: str) -> bool:
    r"""Equal once ``\text{…}`` is opened and blanks are gone; words also in either case (``\text{Even}``, ``even``)."""
    if "\\" not in first and "\\" not in second and not _WORDS.search(first):
        return False
    one, other = _plain(first), _plain(second)
    if not one or not other:
        return False
    if one == other:
        return True
    return (
        len(one) == len(other)
        and bool(_WORDS.search(one))
        and _ONLY_WORDS.fullmatch(one) is not None
        and _ONLY_WORDS.fullmatch(other) is not None
        and one.casefold() == other.casefold()
    )


def _plain(text: str) -> str:
    return _PLAIN_IGNORED.sub("", _WORD_GROUP.sub(r"\1", text)).rstrip(".")


def _ask_worker(task: str, first: Node, second: Node) -> tuple[bool | None, str | None]:
    try:
        wires = to_wire(first), to_wire(second)
    except ValueError:
        return None, "unparsed"
    reply = shared_pool().ask(task, first=wires[0], second=wires[1])
    return reply.value, reply.reason


@lru_cache(maxsize=32768)
def canonical(answer: str) -> str:
    r"""One spelling for answers that are equal, as far as exact algebra sees it: ``0.5``, ``1/2`` and ``\frac{2}{4}``
    are one.

    The spelling is an answer again, equal to the one it came from. Where algebra has no say it is the string normal
    form.
    """
    text = clean(answer)
    if len(text) > MAX_CHARS:
        return text
    if "%" in text:
        # "25\\%" is the string 25 and the number 1/4; its own spelling is the only one that is equal to both.
        return _PLAIN_IGNORED.sub("", text.replace("\\%", "%")).replace("%", "\\%")
    string_form = hendrycks.normalize(text) or text
    try:
        tree = parse(text)
    except (LimitError, UnparsedError, RecursionError):
        return string_form
    for source in (text, string_form):
        try:
            spelled = render(parse(source))
            if spelled is not None and Comparison(_never_ask).are_equal(parse(spelled), tree):
                return spelled
        except (LimitError, UnparsedError, RecursionError):
            continue
    return string_form if compare(string_form, text).is_equal else text


def _never_ask(task: str, first: Node, second: Node) -> tuple[bool | None, str | None]:
    return None, None
