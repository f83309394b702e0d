r"""Answers that are options: SAT, MMLU, Gaokao-QA. The pick and the gold are sets of letters, right when equal.

The last explicit statement counts: ``answer is (B)``, ``Answer: B``, ``\boxed{B}``, ``故选B``, ``答案是 A、D``,
"option C is correct", a closing line that is nothing but the letter. A letter counts when it is a capital that stands
alone, or in parentheses, and is offered. There is no "first capital letter" rule: it reads "A is wrong" as A.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from agpo_bench.grading.extraction import find_boxes, visible_text
from agpo_bench.grading.normalise import MAX_RESPONSE_CHARS, normalise_text
from agpo_bench.records import Reference, Verdict

AMBIGUOUS = "?"
"""What :func:`extract_choice` returns for "A or B": a statement that picks nothing."""

_LETTERS = re.compile("[A-Z]")
_WRAPPERS = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf|rm|bf|textit|mathit|mbox|mathsf|textsf)(?![A-Za-z])"
    r"|[\s$*_{\[\"'`“”‘’「【]|\\[\[({])*"
)
_UNWRAP = r"[\s$*_}\]\"'`“”‘’」】]*(?:\\[\])}])?[\s$*_}]*"
_GOLD = re.compile(r"[\s(\[]*[A-Z](?:[\s,;、()\[\]]{0,4}[A-Z]){0,25}[\s.)\]]*")
_CUE = re.compile(
    r"\b(?:answer|antwort|respuesta|réponse)s?\b[*_\s]{0,3}(?:is\b|are\b|:)[*_]{0,3}"
    r"|\b(?:correct|right|best|final)\s(?:answer|option|choice|statement)s?\s(?:is|are|would be)\b"
    r"|(?<!not )\b(?:choose|select|pick)\b\s?(?:option|choice|answer)?"
    r"|故?(?:正确)?(?:的)?答案(?:应该?)?[是为选]?】?[*_]{0,2}\s?:?[*_]{0,2}"
    r"|(?<!不)正确的(?:选项|结论|命题|说法|序号|一项|有|是|为){1,3}\s?:?"
    r"|(?<![不非别没])选(?:择|项)?(?:为|是)?[*_]{0,2}\s?:?[*_]{0,2}(?!项)",
    re.IGNORECASE,
)
_CONCLUDES = re.compile(
    r"(?:\b(?:option|choice|answer|so|therefore|thus|hence|be|is|are|statements?|options|choices)\b|选项|选|[=:])[\s:$*_]{0,4}$",
    re.IGNORECASE,
)
_NEGATION = re.compile(
    r"(?:\b(?:not|n't|isn't|never|neither|nor|except|exclude|eliminate|rather than|instead of|than)\b"
    r"|cannot be|不是|不选|不能选|而非|排除|不可能是)"
    r"[\s:$*_,]{0,3}(?:option|choice|选项)?[\s($*_]{0,4}$",
    re.IGNORECASE,
)
_IS_REJECTED = re.compile(
    r"[\s)$*_}]{0,4},?\s?(?:is|are|was|has|does|fails?|cannot|can't|isn't|doesn't|would|must|gives|says|states|think|thought|know|believe"
    r"|错|不对|不正确|不成立|有误|不符|不满足|忽略|都)"
)
_PROSE_AFTER = re.compile(r"\s+[a-z]")
_FUNCTION_WORD = re.compile(
    r"\s+(?:is|are|because|since|as|and|or|so|which|that|for|with|given|by|due|but|not|where|when|if|while|have|has|from|rather)\b"
)
_SENTENCE_END = re.compile(r"\n|。|[!?](?=\s|$)|\.(?=\s|$)")
_POSTFIX = re.compile(
    r"(?:\b(?:[Oo]ptions?|[Cc]hoices?|[Ss]tatements?)\s|选项\s?|只有)[($*\s]{0,4}([A-Z])[)$*\s]{0,4}"
    r"(?:is|are|是|为)?\s?(?:the\s|最)?(?:only\s)?(?:correct|right|best|true|正确|对的|对)(?![A-Za-z误])"
    r"|\(([A-Z])\)\s(?:is|are)\s(?:the\s)?(?:only\s)?(?:correct|right|best)\b"
    r"|(?<![A-Za-z0-9_\\^(])\(?([A-Z])\)?\sis\sthe\s(?:(?:correct|right|best|final)\s)?(?:answer|option|choice)\b"
)
_BETWEEN_BOXES = re.compile(r"[\s$)\\]{0,4}(?:,|、|;|和|与|及|\band\b)[\s$(\\]{0,4}")
_OR = re.compile(r"\s*(?:\bor\b|或者?|/)\s*")


class _Statement(NamedTuple):
    position: int
    letters: str


def extract_choice(response: str, *, letters: str = "ABCDE") -> str | None:
    """The letters picked, sorted (``ABD``); None when nothing is stated, ``?`` when the statement hedges."""
    statement = _last_statement(visible_text(response), letters)
    return None if statement is None else statement.letters


class ChoiceGrader:
    """Exact equality of two sets of letters. ``report_single`` adds the alternative ``agieval_single``.

    That alternative is the score of the items whose gold is one letter, absent for the others: the 344 of the 351
    Gaokao-QA items that AGIEval's own rule can score.
    """

    def __init__(self, *, report_single: bool = False) -> None:
        self.report_single = report_single

    def grade(self, response: str, reference: Reference) -> Verdict:
        """Judge one response. Never raises for anything a model can write."""
        started = time.perf_counter()
        gold = _gold_letters(reference.gold)
        offered = _offered(reference, gold)

        def verdict(score: float, answer: str | None, reason: str) -> Verdict:
            is_error = reason == "gold_unreadable"
            alternatives = {"agieval_single": score} if self.report_single and len(gold) == 1 and not is_error else {}
            return Verdict(
                score=score,
                answer=answer,
                reason=reason,
                seconds=time.perf_counter() - started,
                is_error=is_error,
                alternatives=alternatives,
            )

        if not gold or not set(gold) <= set(offered):
            return verdict(0.0, None, "gold_unreadable")
        if len(response) > MAX_RESPONSE_CHARS:
            return verdict(0.0, None, "too_long")
        answer = extract_choice(response, letters=offered)
        if answer is None:
            return verdict(0.0, None, "no_answer")
        if answer == AMBIGUOUS:
            return verdict(0.0, None, "ambiguous")
        is_right = answer == gold
        return verdict(float(is_right), answer, "correct" if is_right else "wrong")

    def grade_many(self, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
        """Judge many; the verdicts come in the order of the pairs, one each."""
        return [self.grade(response, reference) for response, reference in pairs]

    def are_equivalent(self, first: str, second: str) -> bool:
        """Whether two extracted answers are one vote: symmetric and reflexive."""
        return first == second or (bool(_letter_set(first)) and _letter_set(first) == _letter_set(second))


def _letter_set(text: str) -> str:
    return "".join(sorted(set(_LETTERS.findall(text))))


def _gold_letters(gold: str) -> str:
    """Letters of a gold like ``B``, ``(B)``, ``ACD`` or ``A B D``; empty when it is anything else."""
    text = normalise_text(gold)
    return _letter_set(text) if _GOLD.fullmatch(text) else ""


def _offered(reference: Reference, gold: str) -> str:
    """The letters of the options; A to E (or to the gold's last) where the data do not list the options."""
    count = len(reference.options) or max(5, *(ord(letter) - ord("A") + 1 for letter in gold or "A"))
    return "".join(chr(ord("A") + index) for index in range(min(count, 26)))


@lru_cache(maxsize=64)
def _run_pattern(letters: str) -> re.Pattern[str]:
    """A run of offered letters: ``B``, ``(B)``, ``(b)``, ``AD``, ``A、D``, ``(A)(D)``, ``A, C and D``, ``A B D``."""
    alone = r"(?![A-Za-z0-9'_^]|\\(?![\])}(,; ]|quad|text))"  # \cdot after it makes the letter a variable
    size = len(letters)
    bracketed = rf"\([{letters}](?:[ ,、]{{0,2}}[{letters}]){{0,{size}}}\)|\([{letters.lower()}]\)"
    one = rf"(?:{bracketed}|[{letters}]{{1,{size}}}{alone})"
    between = r"(?:[\s$}{、,;&和及与]|and\b|\\&|\\text\{ ?(?:and )?){0,8}"
    return re.compile(rf"(?<![A-Za-z0-9_\\^]){one}(?:{between}{one}){{0,{size}}}")


def _read_run(text: str, start: int, letters: str) -> tuple[str, int] | None:
    """The letters of the run at ``start`` and where it ends, or None: an article, a pronoun, a word is no option."""
    run = _run_pattern(letters).match(text, start)
    if run is None:
        return None
    end = run.end()
    pieces = list(re.finditer(rf"\([{letters} ,、]+\)|\([{letters.lower()}]\)|[{letters}]+", run.group()))
    # "A, B is wrong": a further letter that something else is said of does not belong to the pick.
    while len(pieces) > 1 and (_IS_REJECTED.match(text, end) or _PROSE_AFTER.match(text, end)):
        word = _FUNCTION_WORD.match(text, end)
        if word and not _IS_REJECTED.match(text, end):
            break
        if word and re.match(r"\s+are\b", text[end : end + 8]):
            break
        pieces.pop()
        end = run.start() + pieces[-1].end()
    last = pieces[-1].group()
    if last in ("A", "I") and _PROSE_AFTER.match(text, end) and not _FUNCTION_WORD.match(text, end):
        return None
    picked = "".join(re.sub("[^A-Z]", "", piece.group().upper()) for piece in pieces)
    if len(set(picked)) != len(picked):
        return None
    if (hedge := _OR.match(text, end)) and _run_pattern(letters).match(text, hedge.end()):
        return AMBIGUOUS, end
    return "".join(sorted(picked)), end


_OPTION_WORD = re.compile(
    r"[\s*$]{0,4}(?:the\s)?(?:options?|choices?|letters?|选项|为|是|therefore|thus|clearly|:)?[\s:*$]{0,4}",
    re.IGNORECASE,
)


def _last_statement(text: str, letters: str) -> _Statement | None:
    statements = [*_boxed(text, letters), *_cued(text, letters), *_postfixed(text, letters)]
    best = max(statements, key=lambda statement: statement.position, default=None)
    closing = _closing_line(text, letters)
    if closing is not None and (best is None or closing.position > best.position):
        return closing
    return best


def _closing_line(text: str, letters: str) -> _Statement | None:
    """A last line that is nothing but letters."""
    stripped = text.rstrip()
    start = stripped.rfind("\n") + 1
    picked = _whole(stripped[start:], letters) if len(stripped) - start <= 200 else None
    return None if picked is None else _Statement(start, picked)


def _whole(content: str, letters: str) -> str | None:
    """The pick of a text that is nothing but a run, in wrappers."""
    start = _WRAPPERS.match(content)
    read = _read_run(content, start.end() if start else 0, letters)
    if read is None or not re.fullmatch(rf"{_UNWRAP}[.。,]?{_UNWRAP}", content[read[1] : read[1] + 40]):
        return None
    return read[0] if len(content) - read[1] <= 40 else None


def _boxed(text: str, letters: str) -> list[_Statement]:
    r"""Boxes whose content is a pick: ``B``, ``\text{(B)}``, ``B. 14``, ``C: the mass``, ``14 \text{ (B)}``."""
    statements: list[_Statement] = []
    end = 0
    for box in find_boxes(text)[-20:]:
        if box.end - box.start > 600:
            continue
        content = box.content(text)
        picked = _whole(content, letters) or _labelled(content, letters)
        if picked is None:
            continue
        if statements and box.start - end <= 20 and _BETWEEN_BOXES.fullmatch(text, end, box.start):
            before = statements.pop()  # boxes side by side, "\\boxed{A}, \\boxed{D}", are one pick
            hedges = AMBIGUOUS in (before.letters, picked)
            statements.append(
                _Statement(before.position, AMBIGUOUS if hedges else "".join(sorted({*before.letters, *picked})))
            )
        else:
            statements.append(_Statement(box.start, picked))
        end = box.end
    return statements


def _labelled(content: str, letters: str) -> str | None:
    r"""The letter of a box that gives the option's text too: ``B. 14``, ``(B) 14``, ``14 \text{ (B)}``."""
    wrappers = _WRAPPERS.match(content)
    read = _read_run(content, wrappers.end() if wrappers else 0, letters)
    if read is not None:
        after = re.match(r"[\s*$}]{0,3}[:.)、]|\s{0,2}\\(?:quad|;|,|:)", content[read[1] : read[1] + 12])
        return read[0] if after or content[read[1] - 1] == ")" else None
    closing = re.search(rf"\(([{letters}])\)[\s$}}]{{0,4}}$", content[-12:])
    return closing.group(1) if closing else None


def _cued(text: str, letters: str) -> list[_Statement]:
    statements = []
    cues = list(_CUE.finditer(text))[-100:]
    for cue in cues:
        picked = _after_cue(text[cue.end() : cue.end() + 400], letters)
        if picked is not None:
            statements.append(_Statement(cue.start(), picked))
    return statements


def _after_cue(window: str, letters: str) -> str | None:
    """The pick of a sentence that follows a cue: a run at its very start, else the last run it concludes with."""
    word = _OPTION_WORD.match(window)
    for position in dict.fromkeys((0, word.end() if word else 0)):
        wrappers = _WRAPPERS.match(window, position)
        read = _read_run(window, wrappers.end() if wrappers else position, letters)
        if read is not None and not re.match(r"[)\s]{0,3}(?:错|不对|不正确|有误)", window[read[1] : read[1] + 8]):
            return read[0]
    end = _SENTENCE_END.search(window.lstrip())
    sentence = window.lstrip()[: end.start()] if end else window
    picked = None
    for match in re.finditer(
        rf"\([{letters}{letters.lower()}]\)|(?<![A-Za-z0-9_\\^])[{letters}](?![A-Za-z0-9'_^])", sentence
    ):
        before = sentence[max(0, match.start() - 40) : match.start()]
        is_marked = match.group().startswith("(") or _CONCLUDES.search(before)
        if not is_marked or _NEGATION.search(before):
            continue
        read = _read_run(sentence, match.start(), letters)
        if read is not None and not _IS_REJECTED.match(sentence, read[1]):
            picked = read[0]
    return picked


def _postfixed(text: str, letters: str) -> list[_Statement]:
    return [
        _Statement(match.start(), letter)
        for match in _POSTFIX.finditer(text)
        if (letter := match.group(1) or match.group(2) or match.group(3)) in letters
    ]
