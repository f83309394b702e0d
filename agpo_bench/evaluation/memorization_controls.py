"""What the memorization probe asks beside the items: the same with other values, half of it, the options moved.

A control must differ from its item in nothing but memory. So other numbers and names come from the other items of the
split, as often as they stand there: a model that has never seen the items, but others of their kind, finds one as usual
as the other. Names or numbers from elsewhere would be continued worse without any memory.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from agpo_bench.data.rows import Item

_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b|小[\u4e00-\u9fff]")
_NUMBER = re.compile(r"(?<![\d.\\^_{])\d+(?![\d.]*[}\d])")
_VALUE = re.compile(f"{_NUMBER.pattern}|{_NAME.pattern}")
_TRIES = 20


def question_of(item: Item) -> str:
    """What is asked; an embedded item is its prompt."""
    return item.question or item.prompt or ""


def skeleton(question: str) -> str:
    """The question without its numbers and names. Items with one skeleton are made alike: no independent draws."""
    return _NAME.sub("N", _NUMBER.sub("0", question))


def recalled_values(prefix: str, truth: str, said: str) -> float | None:
    """Share of the numbers and names of ``truth``, less those that the prefix has, which ``said`` has in order."""
    known = set(_values(prefix))
    wanted = [value for value in _values(truth) if value not in known]
    if not wanted:
        return None
    given = _values(said)
    blocks = SequenceMatcher(None, given, wanted, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(wanted)


def _values(text: str) -> list[str]:
    return _VALUE.findall(text)


class Paraphraser:
    """Questions with the numbers and names of other items of their split."""

    def __init__(self, items: Sequence[Item], *, seed: int) -> None:
        self._seed = seed
        self._asked = {question_of(item) for item in items}
        self._names: list[str] = []
        self._numbers: dict[int, list[str]] = {}
        for question in map(question_of, items):
            self._names += set(_NAME.findall(question))
            for number in _NUMBER.findall(question):
                self._numbers.setdefault(len(number), []).append(number)

    def paraphrases(self, item: Item, *, count: int) -> list[str]:
        """Up to ``count`` different paraphrases, none of them an item of the split."""
        rng = random.Random(f"{self._seed}/{item.prompt_id}")
        found: dict[str, None] = {}
        for _ in range(_TRIES):
            if len(found) < count and (changed := self._changed(question_of(item), rng)) not in self._asked:
                found[changed] = None
        return list(found)

    def _changed(self, question: str, rng: random.Random) -> str:
        """Equal numbers stay equal, different people stay different, the number of digits stays."""
        names = sorted(set(_NAME.findall(question)))
        renamed = question
        becomes: dict[str, str] = {}
        for old in names:
            taken = {*names, *becomes.values()}
            pool = [name for name in self._names if name not in taken and name.isascii() == old.isascii()]
            if pool:
                becomes[old] = rng.choice(pool)
        if becomes:
            # Where it starts a sentence too. Chinese has no word boundaries.
            pattern = "|".join(rf"\b{name}\b" if name.isascii() else name for name in becomes)
            renamed = re.sub(pattern, lambda match: becomes[match[0]], question)
        numbers: dict[str, str] = {}

        def other(match: re.Match[str]) -> str:
            if match[0] not in numbers:
                pool = [number for number in self._numbers.get(len(match[0]), ()) if number != match[0]]
                numbers[match[0]] = rng.choice(pool) if pool else match[0]
            return numbers[match[0]]

        return _NUMBER.sub(other, renamed)


def cut_in_half(item: Item) -> Item:
    """The item with the second half of its question gone; what a prompt puts after the question stays."""
    question = item.question or question_of(item)
    half = question[: question.rfind(" ", 0, len(question) // 2 + 1)] if " " in question[: len(question) // 2] else ""
    half = half or question[: len(question) // 2]
    prompt = None if item.prompt is None else item.prompt.replace(question, half, 1)
    return replace(item, prompt=prompt, reference=replace(item.reference, question=half))


def another(items: Sequence[Item], number: int) -> Item | None:
    """The next item whose reference differs, so that a response right for one is wrong for the other."""
    for offset in range(1, len(items)):
        other = items[(number + offset) % len(items)]
        if other.reference.gold != items[number].reference.gold or other.reference.options:
            return other
    return None


def rotated(item: Item) -> Item | None:
    """The options rotated by one, each gold letter with its option; None for an item without options."""
    options = item.reference.options
    if len(options) < 2:
        return None
    count = len(options)
    gold = "".join(sorted(chr(ord("A") + (ord(letter) - ord("A") + 1) % count) for letter in item.reference.gold))
    moved = (options[-1], *options[:-1])
    prompt = item.prompt
    if prompt is not None:
        # An embedded prompt has its options written out: the texts change places, the letters stay.
        start = 0
        for number, (old, new) in enumerate(zip(options, moved, strict=True)):
            marker = f"({chr(ord('A') + number)})"
            at = prompt.find(marker, start)
            at = prompt.find(old, at + len(marker)) if at >= 0 else -1
            if at < 0:
                return None
            prompt = prompt[:at] + new + prompt[at + len(old) :]
            start = at + len(new)
    return replace(item, prompt=prompt, reference=replace(item.reference, options=moved, gold=gold))
