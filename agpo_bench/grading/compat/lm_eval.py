r"""The rules of EleutherAI's lm-evaluation-harness (commit 4e7e0d4), written from their described behaviour.

GSM8K flexible-extract (strict and chain-of-thought patterns beside it), MMLU's flan-CoT pattern, AGIEval's
``parse_math_answer`` for the cloze set, Minerva's exact match for MATH; OCW as Llemma's fork of the harness grades it.
The harness scores Gaokao-QA and SAT by log-likelihood, which has no text rule: here they follow the flan-CoT pattern.
"""

from __future__ import annotations

import re
import string

from agpo_bench.grading import hendrycks
from agpo_bench.grading.compat.deepseek import ocw_equal
from agpo_bench.grading.compat.minerva import normalize
from agpo_bench.grading.compat.rule import MAX_ANSWER_CHARS, Outcome, RuleGrader
from agpo_bench.grading.extraction import find_boxes
from agpo_bench.records import Reference

_FLEXIBLE = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_COT = re.compile(r"The answer is (-?[0-9.,]+).")
_FLAN = re.compile(r"(?<=answer is )(.*)(?=.)")
_MINERVA = re.compile(r"Final Answer: The final answer is(.*?)\. I hope it is correct\.", re.DOTALL)
_LLEMMA_OCW = re.compile(r"Final answer: The final answer is(.*?)\. I hope it is correct\.", re.DOTALL)
_DOLLARS = re.compile(r"\$(.*)\$")
_BARE_NUMBER = re.compile(r"\$?\d+(?:\.\d+)?(?![\w\d])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def lm_eval_grader(
    *, kind: str, style: str | None = None, num_few_shot: int = 0, report_single: bool = False
) -> RuleGrader:
    """The grader of one kind; the number of few-shot examples changes no rule here."""
    del num_few_shot, report_single
    if kind == "number":
        return RuleGrader(
            gsm8k_flexible, alternatives={"lm_eval_strict": gsm8k_strict, "lm_eval_cot_strict": gsm8k_cot_strict}
        )
    if kind == "choice":
        return RuleGrader(choice)
    if kind == "blanks":
        return RuleGrader(blanks)
    if kind == "expression" and style in (None, "math"):
        return RuleGrader(minerva_math, alternatives={"lm_eval_hendrycks_math": hendrycks_math})
    if kind == "expression" and style == "ocw":
        return RuleGrader(ocw)
    raise ValueError(f"lm_eval has no rule for {kind!r} answers of style {style!r}")


def gsm8k_flexible(response: str, reference: Reference) -> Outcome:
    """The last match of a loose number pattern."""
    matches = _FLEXIBLE.findall(response)
    return _number_outcome(matches[-1] if matches else None, reference)


def gsm8k_strict(response: str, reference: Reference) -> Outcome:
    """The first ``#### N``."""
    match = _STRICT.search(response)
    return _number_outcome(match.group(1) if match else None, reference)


def gsm8k_cot_strict(response: str, reference: Reference) -> Outcome:
    """The first ``The answer is N`` with any character after it."""
    match = _COT.search(response)
    return _number_outcome(match.group(1) if match else None, reference)


def _number_outcome(answer: str | None, reference: Reference) -> Outcome:
    if answer is None:
        return Outcome(None, False)
    return Outcome(answer, _plain(answer) == _plain(reference.gold))


def _plain(text: str) -> str:
    return re.sub(r"\.$", "", text.rpartition("#### ")[2].replace(",", "").replace("$", "")).strip().lower()


def choice(response: str, reference: Reference) -> Outcome:
    """The first "answer is …", to the last character but one of its line, punctuation and case ignored."""
    match = _FLAN.search(response)
    if match is None:
        return Outcome(None, False)
    answer = match.group(1).translate(_PUNCTUATION).strip()[:MAX_ANSWER_CHARS]
    return Outcome(answer or None, answer.lower() == reference.gold.translate(_PUNCTUATION).strip().lower())


def blanks(response: str, reference: Reference) -> Outcome:
    """AGIEval's ``parse_math_answer`` on both sides, compared by the MATH authors' string rule."""
    answer, gold = _parse_math_answer(response), _parse_math_answer(reference.gold)
    if answer is None or gold is None:
        return Outcome(answer, answer is None and gold is None)  # two unreadable answers are equal
    return Outcome(answer[:MAX_ANSWER_CHARS], len(answer) <= MAX_ANSWER_CHARS and hendrycks.is_equal(answer, gold))


def _parse_math_answer(text: str) -> str | None:
    """The last box; else what the outermost dollars of a line hold, after ``=``; else after ``=``; else a number."""
    if "\\boxed" in text or "\\fbox" in text:
        boxes = find_boxes(text)
        return boxes[-1].content(text) if boxes else None
    if dollars := _DOLLARS.findall(text):
        return str(dollars[-1]).rpartition("=")[2].lstrip(" ") or None
    if "=" in text:
        return text.rpartition("=")[2].lstrip(" ").rstrip(".").split("\n")[0] or None
    numbers = _BARE_NUMBER.findall(text)
    return numbers[-1] if numbers else None


def minerva_math(response: str, reference: Reference) -> Outcome:
    """Minerva's sentence, Minerva's normalisation, then the difference must vanish: equal strings are not enough."""
    match = _MINERVA.search(response + "I hope it is correct.")
    if match is None or len(match.group(1)) > MAX_ANSWER_CHARS:
        return Outcome(None, False)
    answer = normalize(match.group(1))
    return Outcome(answer or None, minerva_equal(answer, normalize(reference.gold)))


_UNREADABLE = re.compile(
    r"inty|\\infty|%|\\le|\{\{\}|\{\\\}|[<>]"  # what the normaliser leaves of infinity, \left and \frac9{5}; percent
    r"|^\.|(?:^|:)0[0-9]"  # no leading digit, or a leading zero (the comma of "0,1" is gone)
    r"|^\\begin.*(?:&|\\[0-9]|\\\\)"  # a matrix; with every row break merged into a minus it is read
    r"|^(?:\\\{|[(\[])[^()\[\]]*(?:,(?![0-9]{3})|\()"  # a tuple, an interval, a set
)


def minerva_equal(answer: str, gold: str) -> bool:
    """Whether two normalised answers differ by zero, as far as sympy's LaTeX parser reads them: to the first comma.

    It reads no interval, tuple, set, percentage or (most often) matrix, so such a gold equals nothing, itself included.
    """
    from agpo_bench.grading.expression import expressions_equal

    heads = []
    for side in (answer, gold):
        if not side or _UNREADABLE.search(side):
            return False
        head, depth = side, 0
        for position, character in enumerate(side):
            depth += (character in "([{") - (character in ")]}")
            if character == "," and depth <= 0:
                head = side[:position]
                break
        heads.append(head)
    return heads[0] == heads[1] or expressions_equal(heads[0], heads[1])


def hendrycks_math(response: str, reference: Reference) -> Outcome:
    """What stands between the first and the last dollar sign (else everything), by the MATH authors' string rule."""
    first, last = response.find("$"), response.rfind("$")
    answer = response[first + 1 : last] if first != last else response
    if len(answer) > MAX_ANSWER_CHARS:
        return Outcome(None, False)
    return Outcome(answer or None, hendrycks.is_equal(answer, reference.gold))


def ocw(response: str, reference: Reference) -> Outcome:
    """Llemma's OCW rule: Minerva's sentence in its own spelling; every equation is wrong (its import is missing)."""
    match = _LLEMMA_OCW.search(response)
    if match is None or len(match.group(1)) > MAX_ANSWER_CHARS:
        return Outcome(None, False)
    answer = match.group(1).strip()
    return Outcome(answer or None, ocw_equal(answer, reference.gold, equations=False))
