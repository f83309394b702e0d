r"""DeepSeek-Math's evaluation rules (commit b8b0f8c), from their described behaviour: no evaluator, no sympy parser.

Defects are kept where they decide verdicts: an answer 100 times too large or small is right; the last bare number of a
few-shot answer with a thousands comma is its tail; a Chinese answer ends at the first 答案是; brackets of intervals do
not count; only what stands before the first comma is compared symbolically. What the original hands to sympy is
compared by our own exact equality.
"""

from __future__ import annotations

import re

from agpo_bench.grading import hendrycks
from agpo_bench.grading.compat.approximate import approximate
from agpo_bench.grading.compat.minerva import answer_type, normalize, numbers_equal, numeric_value
from agpo_bench.grading.compat.rule import MAX_ANSWER_CHARS, Outcome, RuleGrader
from agpo_bench.grading.extraction import find_boxes
from agpo_bench.records import Reference

_NUMBER = re.compile(r"-?\d+\.?\d*")
_PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_SENTENCE = re.compile(r"final answer is \$(.{0,4000}?)\$\. I hope")
_CHOICE = re.compile(r"the final answer is \(?([abcd])\)?", re.IGNORECASE)
_OCW = re.compile(r"final answer:\s?the final answer is(.*)\. I hope it is correct\.", re.IGNORECASE)
_SYMPY_CANNOT_READ = re.compile(r"\$|\\left.*,|\\mathrm|\\text|\{,\}|[^\x00-\x7f]")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_TOLERANCE = 1e-3
_CJK = re.compile("[\u4e00-\u9fff]")


def deepseek_grader(
    *, kind: str, style: str | None = None, num_few_shot: int = 0, report_single: bool = False
) -> RuleGrader:
    """The grader of one kind: after few-shot examples the rules for base models, else those for instructed ones.

    DeepSeek-Math has no zero-shot rule for choices and blanks: its few-shot rule serves both.
    """
    del report_single  # an official-mode column
    if kind == "number" and style in (None, "gsm8k"):
        rules = {"deepseek_zero_shot": gsm8k_zero_shot, "deepseek_few_shot": gsm8k_few_shot}
    elif kind == "number" and style == "cmath":
        rules = {"deepseek_zero_shot": cmath_zero_shot, "deepseek_few_shot": cmath_few_shot}
    elif kind == "expression" and style in (None, "math"):
        return RuleGrader(math)
    elif kind == "expression" and style == "ocw":
        return RuleGrader(ocw)
    elif kind == "choice":
        return RuleGrader(choice)
    elif kind == "blanks":
        return RuleGrader(blanks)
    else:
        raise ValueError(f"deepseek has no rule for {kind!r} answers of style {style!r}")
    chosen = "deepseek_few_shot" if num_few_shot else "deepseek_zero_shot"
    return RuleGrader(rules.pop(chosen), alternatives=rules)


def gsm8k_few_shot(response: str, reference: Reference) -> Outcome:
    """The last number before the next question; a comma ends a number."""
    numbers = _NUMBER.findall(response.split("\nQ:", maxsplit=1)[0])
    answer = numbers[-1].rstrip(".") if numbers else None
    return Outcome(answer, answer is not None and _numbers_equal(answer, reference.gold.replace(",", "")) is True)


def gsm8k_zero_shot(response: str, reference: Reference) -> Outcome:
    """The first stated answer of :func:`_extract`, whole: "18 dollars" is no number."""
    answer = _extract(response)
    return Outcome(answer, answer is not None and math_equal(answer, reference.gold.replace(",", "")))


def cmath_few_shot(response: str, reference: Reference) -> Outcome:
    """The last number on the line of the first 答案是; without that phrase as zero-shot."""
    if "答案是" not in response:
        return cmath_zero_shot(response, reference)
    line = response.split("答案是")[1].strip().split("\n")[0]
    numbers = _NUMBER.findall(line)
    answer = numbers[-1].rstrip(".") if numbers else None
    return Outcome(answer, answer is not None and math_equal(answer, reference.gold))


def cmath_zero_shot(response: str, reference: Reference) -> Outcome:
    """The last box, else the last number."""
    answer = _extract(response)
    return Outcome(answer, answer is not None and math_equal(answer, reference.gold))


def choice(response: str, reference: Reference) -> Outcome:
    """English: the first letter after "the final answer is". Chinese: after 答案是, what first occurs last."""
    if _CJK.search(reference.question) or "答案是" in response:
        return _chinese_choice(response, reference)
    match = _CHOICE.search(response)
    answer = match.group(1).upper() if match else None
    return Outcome(answer, answer == reference.gold.strip())


def _chinese_choice(response: str, reference: Reference) -> Outcome:
    pieces = response.split("答案是")
    if len(pieces) < 2:
        return Outcome(None, False)
    positions = {letter: pieces[1].find(letter) for letter in "ABCD"}
    answer = max(positions, key=lambda letter: positions[letter])
    return Outcome(answer, answer == reference.gold) if positions[answer] >= 0 else Outcome(None, False)


def blanks(response: str, reference: Reference) -> Outcome:
    """The line of the first 答案是, split at ``;`` and top-level commas; only the gold is normalised."""
    pieces = response.split("答案是")
    if len(pieces) < 2:
        return Outcome(None, False)
    line = pieces[1].strip().split("\n")[0].strip().strip("$")
    if len(line) > MAX_ANSWER_CHARS:
        return Outcome(None, False)
    gold = [_strip_string(part) for part in reference.gold.split(";")]
    given = [part.strip() for piece in line.split(";") for part in _split_at_commas(piece)]
    last = given[-len(gold) :]
    is_right = len(last) == len(gold) and all(math_equal(one, other) for one, other in zip(last, gold, strict=True))
    return Outcome(line or None, is_right)


def math(response: str, reference: Reference) -> Outcome:
    """All boxes, the last as many as the gold has parts, matched as sets with :func:`math_equal`."""
    boxes = [box for box in find_boxes(response)[-20:] if box.end - box.start <= MAX_ANSWER_CHARS]
    if boxes:
        given = [part for box in boxes for part in box.content(response).split("\\text{ and }")]
    else:
        stated = _extract(response)
        given = [] if stated is None else [stated]
    given = [_strip_string(part) for part in given if len(part) <= MAX_ANSWER_CHARS]
    splits = "separated by commas" in reference.question
    gold = _split_at_commas(reference.gold) if splits else [reference.gold]
    if splits:
        given = [part for content in given for part in _split_at_commas(content)]
    gold = [_strip_string(part) for part in gold]
    last = given[-len(gold) :]
    if not last:
        return Outcome(None, False)
    is_right = all(any(math_equal(one, other) for one in last) for other in gold) and all(
        any(math_equal(one, other) for other in gold) for one in last
    )
    return Outcome(", ".join(last), is_right)


def ocw(response: str, reference: Reference) -> Outcome:
    """Minerva's sentence on one line; the gold's type decides how to compare."""
    match = _OCW.search(response)
    if match is None or len(match.group(1)) > MAX_ANSWER_CHARS:
        return Outcome(None, False)
    return Outcome(match.group(1).strip() or None, ocw_equal(match.group(1).strip(), reference.gold, equations=True))


def ocw_equal(answer: str, gold: str, *, equations: bool) -> bool:
    """Equality by the type of the gold; with ``equations`` false every equation is wrong, as in Llemma's harness."""
    kind = answer_type(gold)
    if kind == "numeric":
        return numbers_equal(numeric_value(answer), numeric_value(gold))
    if kind == "equation":
        bare = [side.replace("$", "").replace(" ", "").strip() for side in (answer, gold)]
        return equations and bool(bare[0]) and bare[0] == bare[1]
    return normalize(answer) == normalize(gold)


def _extract(response: str) -> str | None:
    if sentence := _SENTENCE.search(response):
        return _strip_string(sentence.group(1))
    boxes = find_boxes(response)
    if boxes:
        return _strip_string(boxes[-1].content(response)[:MAX_ANSWER_CHARS])
    if "\\boxed" in response:
        return None
    if "he answer is" in response:
        return _strip_string(response.rpartition("he answer is")[2].strip().rstrip(".。").strip("$ "))
    numbers = _NUMBER.findall(response.replace(",", ""))
    return numbers[-1].rstrip(".") if numbers else None


def _strip_string(text: str) -> str:
    text = text.strip().rstrip(".").replace("\\$", "").replace("$", "").replace(",\\!", "")
    text = re.sub(r"\\mathrm\{([a-z])\}", r"\1", text)
    text = hendrycks.normalize(text) or text
    text = re.sub(r"\\text\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"\\(begin|end)\{[pbBvV]?matrix\}", r"\\\1{pmatrix}", text)
    return text[:MAX_ANSWER_CHARS]


def _split_at_commas(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            parts.append(text[start:position])
            start = position + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _as_number(text: str) -> float | None:
    text = text.replace(",", "").strip()
    is_percent = text.endswith("%")
    text = text.rstrip("%").rstrip("\\")
    if not text.isascii() and not text.replace(".", "").lstrip("-").isdigit():
        return None
    if not _PLAIN_NUMBER.fullmatch(text) or len(text) > 400:
        return None
    value = float(text)
    return value / 100 if is_percent else value


def _numbers_equal(answer: str, gold: str) -> bool | None:
    """Within 1e-3 of the gold, of a hundredth of it, or of a hundred times it; None if one side is no number."""
    given, expected = _as_number(answer), _as_number(gold)
    if given is None or expected is None:
        return None
    return any(abs(given - scaled) <= _TOLERANCE for scaled in (expected, expected / 100, expected * 100))


def math_equal(answer: str, gold: str, *, depth: int = 0) -> bool:
    """DeepSeek's ``math_equal``: strings, then numbers (times 100), then brackets element by element, then symbols."""
    if answer == gold:
        return True
    as_numbers = _numbers_equal(answer, gold)
    if as_numbers is not None:
        return as_numbers
    if not answer or not gold or depth > 3:
        return False
    if _without_grouping(answer) == _without_grouping(gold):
        return True
    if all(side[0] in "([" and side[-1] in ")]" for side in (answer, gold)):
        parts = [_split_at_commas(side[1:-1]) for side in (answer, gold)]
        if len(parts[0]) == len(parts[1]) and all(
            math_equal(one, other, depth=depth + 1) for one, other in zip(*parts, strict=True)
        ):
            return True
        if not all("\\cup" in side for side in (answer, gold)):
            return False
    return _symbols_equal(answer, gold)


def _without_grouping(text: str) -> str:
    return re.sub(r"[{}()]", "", text).lower()


def _words(text: str) -> list[str]:
    """What our grammar would take for units, and sympy for products of variables."""
    return _WORD.findall(text)


def _symbols_equal(answer: str, gold: str) -> bool:
    from agpo_bench.grading.expression import expressions_equal

    if any(_SYMPY_CANNOT_READ.search(side) for side in (answer, gold)):
        return False
    if all("\\cup" in side or side.startswith("\\begin") for side in (answer, gold)):
        return expressions_equal(answer, gold)
    # sympy's parser stops at a comma outside brackets; a plain number has been read without its commas
    one, other = (
        side.replace(",", "") if _as_number(side) is not None else next(iter(_split_at_commas(side)), "")
        for side in (answer, gold)
    )
    if not one or not other or ("\\circ" in one) != ("\\circ" in other) or _words(one) != _words(other):
        return False
    if expressions_equal(one, other):
        return True
    values = approximate(one), approximate(other)
    return values[0] is not None and values[1] is not None and abs(values[0] - values[1]) <= _TOLERANCE
