"""Copies planted by a seeded generator, and texts that only look like copies: what precision and recall are taken on.

A positive is an evaluation item changed in one way (``KINDS``). A negative is ``crossed`` (the first two fifths of one
item and the last two fifths of another: every phrase occurs in the evaluation set, neither question does) or ``fresh``
(a text of the corpus that fillers come from, which equals no item).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from agpo_bench.data.contamination.batch import Text
from agpo_bench.data.contamination.check import REMOVALS, Report

Kind = Literal["verbatim", "latex", "case", "spacing", "options", "names", "numbers", "page", "crossed", "fresh"]
KINDS: tuple[Kind, ...] = ("verbatim", "latex", "case", "spacing", "options", "names", "numbers", "page")
NEGATIVES: tuple[Kind, ...] = ("crossed", "fresh")

_NAMES = ("Amara", "Bruno", "Chidi", "Dalia", "Emre", "Farah", "Goran", "Hana", "Imani", "Jorge", "Kavya", "Oksana")
_CHINESE_NAMES = "芸航岚宁策瑶铭妍"
_CJK = re.compile(r"[\u4e00-\u9fff]")
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b")
_CHINESE_NAME = re.compile(r"小[\u4e00-\u9fff]")
_MATH = re.compile(r"((?<!\\)\$[^$\\]*(?:\\[^$][^$\\]*)*\$)")
_NUMBER = re.compile(r"(?<![\d.\\^_{])\d+(?![\d.]*[}\d])")


@dataclass(frozen=True, kw_only=True)
class Planted:
    """One training text and the truth about it."""

    text: Text
    kind: Kind
    source_id: str | None
    """The item it is a copy of; None for a negative."""


def plant(
    items: Sequence[Text], corpus: Sequence[Text], *, per_kind: int, num_negatives: int, seed: int
) -> list[Planted]:
    """``per_kind`` copies of each kind (fewer where fewer items allow it) and the negatives, half of each sort."""
    rng = random.Random(seed)
    planted: list[Planted] = []
    for kind in KINDS:
        order = rng.sample(range(len(items)), len(items))
        made = 0
        for number in order:
            if made == per_kind:
                break
            copy = _CHANGES[kind](items[number], rng, corpus)
            if copy is not None:
                text = replace(copy, text_id=f"{kind}/{made}")
                planted.append(Planted(text=text, kind=kind, source_id=items[number].text_id))
                made += 1
    asked = {item.question for item in items}
    # The code of a figure would leave a question whole in two fifths of its text, and a long item may hold another.
    long = [item for item in items if 80 <= len(item.question) <= 400 and "[asy]" not in item.question]
    for number in range(num_negatives // 2 if len(long) > 1 else 0):
        first, second = rng.sample(long, 2)
        question = first.question[: _cut(first.question, 0.4)] + second.question[_cut(second.question, 0.6) :]
        planted.append(
            Planted(text=Text(text_id=f"crossed/{number}", question=question), kind="crossed", source_id=None)
        )
    fresh = [text for text in corpus if text.question not in asked]
    for number, text in enumerate(rng.sample(fresh, min(len(fresh), num_negatives - num_negatives // 2))):
        planted.append(Planted(text=replace(text, text_id=f"fresh/{number}"), kind="fresh", source_id=None))
    rng.shuffle(planted)
    return planted


@dataclass(frozen=True, kw_only=True)
class Score:
    """How one kind fared."""

    num: int
    num_found: int
    """Copies of which the very item was found; for negatives, those taken for a copy of anything."""


def score(planted: Sequence[Planted], report: Report) -> dict[Kind, Score]:
    """Count what was found by kind. Other numbers make a variant; every other change leaves a copy to be removed."""
    removals: dict[str, set[str]] = {}
    variants: dict[str, set[str]] = {}
    for found in report.findings:
        side = removals if found.stage in REMOVALS else variants
        side.setdefault(found.train_id, set()).add(found.eval_id)
    scores: dict[Kind, Score] = {}
    for kind in (*KINDS, *NEGATIVES):
        of_kind = [one for one in planted if one.kind == kind]
        where = variants if kind == "numbers" else removals
        hits = sum(
            bool(where.get(one.text.text_id))
            if one.source_id is None
            else one.source_id in where.get(one.text.text_id, ())
            for one in of_kind
        )
        scores[kind] = Score(num=len(of_kind), num_found=hits)
    return scores


def _cut(text: str, share: float) -> int:
    """The last word boundary before a share of a text."""
    position = int(len(text) * share)
    space = text.rfind(" ", 0, position)
    return space if space > 0 else position


def _verbatim(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    return item


def _latex(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    """Other spellings of the same formulas."""

    def respell(formula: re.Match[str]) -> str:
        inside = formula[0][1:-1].replace("\\dfrac", "\\frac").replace("\\frac", "\\dfrac")
        inside = re.sub(r"\^(\w)(?!\w)", r"^{\1}", inside).replace("\\leq", "\\le").replace("\\geq", "\\ge")
        inside = re.sub(r"(?<![\\a-zA-Z])\(", r"\\left( ", inside) if inside.count("(") == inside.count(")") else inside
        inside = inside.replace(")", " \\right)") if "\\left(" in inside else inside
        return "\\(" + re.sub(r"([=+])", r" \1 ", inside) + "\\)"

    changed = _MATH.sub(respell, item.question)
    return replace(item, question=changed) if changed != item.question else None


def _case(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    parts = _MATH.split(item.question)
    changed = "".join(part if part.startswith("$") or "\\" in part else part.upper() for part in parts)
    return replace(item, question=changed) if changed != item.question else None


def _spacing(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    """Blanks between Chinese characters, and Western punctuation."""
    if not _CJK.search(item.question):
        return None
    spaced = _CJK.sub(lambda character: character[0] + " " * (rng.random() < 0.5), item.question)
    return replace(item, question=spaced.translate(str.maketrans("，？：；（）", ",?:;()")))


def _options(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    """Another order, half of them written out below the question."""
    if len(item.options) < 2:
        return None
    order = rng.sample(item.options, len(item.options))
    if tuple(order) == item.options:
        order.reverse()
    if rng.random() < 0.5:
        return replace(item, options=tuple(order))
    listed = "\n".join(f"({chr(ord('A') + i)}) {option}" for i, option in enumerate(order))
    return replace(item, question=f"{item.question}\n{listed}", options=())


def _names(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    changed = item.question
    names = sorted(set(_NAME.findall(changed)))
    for old, new in zip(names, rng.sample(_NAMES, min(len(names), len(_NAMES))), strict=False):
        changed = re.sub(rf"\b{old}\b", new, changed)
    people = sorted(set(_CHINESE_NAME.findall(changed)))
    for old, new in zip(people, rng.sample(_CHINESE_NAMES, min(len(people), len(_CHINESE_NAMES))), strict=False):
        changed = changed.replace(old, "小" + new)
    return replace(item, question=changed) if changed != item.question else None


def _numbers(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    def other(match: re.Match[str]) -> str:
        low, high = 10 ** (len(match[0]) - 1), 10 ** len(match[0]) - 1
        return str(
            rng.choice([n for n in (rng.randint(low, high) for _ in range(8)) if str(n) != match[0]] or [low + 1])
        )

    changed = _NUMBER.sub(other, item.question)
    return replace(item, question=changed) if changed != item.question else None


def _page(item: Text, rng: random.Random, corpus: Sequence[Text]) -> Text | None:
    """Between other texts, as a page of exercises has it."""
    around = [rng.choice(corpus).question for _ in range(10)]
    at = rng.randint(1, 9)
    exercise = "\n".join([item.question, *(f"({chr(ord('A') + i)}) {option}" for i, option in enumerate(item.options))])
    return Text(text_id="", question="\n\n".join([*around[:at], exercise, *around[at:]]))


_CHANGES: dict[Kind, Callable[[Text, random.Random, Sequence[Text]], Text | None]] = {
    "verbatim": _verbatim,
    "latex": _latex,
    "case": _case,
    "spacing": _spacing,
    "options": _options,
    "names": _names,
    "numbers": _numbers,
    "page": _page,
}
