"""One training text beside one evaluation item: what of the item is in it, and whether they ask the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agpo_bench.data.contamination.batch import Batch, Facts
from agpo_bench.data.contamination.index import WEIGHT_TOKENS, EvaluationIndex, ranges
from agpo_bench.data.contamination.spelling import ngrams
from agpo_bench.data.contamination.table import Hashes

_ROUNDING = 1e-9
"""A bound adds the weights in another order than the coverage it bounds."""
_SPAN_TOKENS = 3
"""Runs at least this long say where in the training text the copy starts and ends."""


class Span(NamedTuple):
    """A run of equal tokens; positions count from the start of the item's part and of the training text."""

    part: int
    """0 is the question, 1 the first option."""
    eval_start: int
    train_start: int
    length: int


class Comparison(NamedTuple):
    """How much of an item a training text holds."""

    coverage: float
    """Weighted share of the item's tokens that the training text has in order, numbers included; names may differ."""
    text_coverage: float
    """The same without numbers and signs; 0 where the words alone do not tell enough."""
    same_facts: bool
    """Whether numbers and signs agree one by one over the copied stretch."""
    spans: tuple[Span, ...]


class Bounds:
    """Quick upper bounds that spare most pairs an alignment. Remembers what it needs of each item."""

    def __init__(self, index: EvaluationIndex) -> None:
        self._index = index
        self._bags: dict[int, _ItemBag] = {}

    def of(self, batch: Batch) -> BatchBounds:
        """The bounds for the texts of a batch."""
        return BatchBounds(self, batch)

    def bag(self, item: int) -> _ItemBag:
        """An item's tokens without their order."""
        if item not in self._bags:
            self._bags[item] = _ItemBag(self._index, item)
        return self._bags[item]

    def has_facts(self, item: int, facts: bytes) -> bool:
        """Whether a text has the facts of the question in a row: without them ``same_facts`` is false."""
        return self._index.question_facts.of(item) in facts

    @property
    def least(self) -> float:
        """What a share must reach."""
        return self._index.settings.min_coverage - _ROUNDING


class BatchBounds:
    """Upper bounds for the texts of one batch. Remembers what it needs of one text, so ask for pairs text by text."""

    def __init__(self, bounds: Bounds, batch: Batch) -> None:
        self._bounds = bounds
        self._batch = batch
        self._facts = Facts(batch)
        self._text = -1
        self._held: frozenset[int] = frozenset()

    def may_copy(self, item: int, text: int) -> bool:
        """Whether the text has the facts of the question in a row, and enough of the item's tokens in any order."""
        if not self._bounds.has_facts(item, self._facts.of(text)):
            return False
        return self._bounds.bag(item).share(self._tokens(text)) >= self._bounds.least

    def may_vary(self, item: int, text: int) -> bool:
        """Whether the text has enough of the item's words in any order."""
        return self._bounds.bag(item).share_of_words(self._tokens(text)) >= self._bounds.least

    def _tokens(self, text: int) -> frozenset[int]:
        if text != self._text:
            first, parts = self._batch.tokens.first, self._batch.first_part
            self._text = text
            self._held = frozenset(self._batch.tokens.hash_K[first[parts[text]] : first[parts[text + 1]]].tolist())
        return self._held


class _ItemBag:
    """An item's tokens without their order, and their weights."""

    def __init__(self, index: EvaluationIndex, item: int) -> None:
        tokens, parts = index.batch.tokens, index.batch.first_part
        here = slice(int(tokens.first[parts[item]]), int(tokens.first[parts[item + 1]]))
        self._hashes: list[int] = tokens.hash_K[here].tolist()
        weights = index.weight_K[here] * index.is_target_K[here]
        self._weights: list[float] = weights.tolist()
        self._word_weights: list[float] = np.where(tokens.is_fact_K[here], 0.0, weights).tolist()
        # A token that occurs twice or more may be a name that was changed.
        self._often = frozenset(token for token, times in Counter(self._hashes).items() if times > 1)

    def share(self, held: frozenset[int]) -> float:
        """Weighted share of the tokens that a text has or may have under another name."""
        return self._share(held, self._weights)

    def share_of_words(self, held: frozenset[int]) -> float:
        """The same without numbers and signs."""
        return self._share(held, self._word_weights)

    def _share(self, held: frozenset[int], weights: list[float]) -> float:
        total, often = sum(weights), self._often
        there = sum([w for token, w in zip(self._hashes, weights, strict=True) if token in held or token in often])
        return there / total if total else 0.0


def compare(index: EvaluationIndex, item: int, batch: Batch, text: int) -> Comparison:
    """Align an item with a text.

    coverage = sum of w over matched tokens / sum of w over the compared tokens of the item, with w of
    ``EvaluationIndex``; matched means in a block of the alignment (Ratcliff and Obershelp, as ``difflib`` has it).
    """
    theirs, ours = batch.tokens, index.batch.tokens
    base = int(theirs.first[batch.first_part[text]])
    end = int(theirs.first[batch.first_part[text + 1]])
    train_hash = theirs.hash_K[base:end]
    first_part, last_part = int(index.batch.first_part[item]), int(index.batch.first_part[item + 1])
    item_start, item_end = int(ours.first[first_part]), int(ours.first[last_part])
    compared = index.is_target_K[item_start:item_end]
    low, high = _window(train_hash, ours.hash_K[item_start:item_end][compared])
    window = train_hash[low:high].tolist()
    matched = np.zeros(item_end - item_start, dtype=np.bool_)
    spans: list[Span] = []
    same_facts = True
    for part in range(first_part, last_part):
        start, stop = int(ours.first[part]), int(ours.first[part + 1])
        if start == stop or not compared[start - item_start]:
            continue
        asked = ours.hash_K[start:stop].tolist()
        matcher = SequenceMatcher(None, window, asked, autojunk=False)
        blocks = [block for block in matcher.get_matching_blocks() if block.size]
        for block in blocks:
            matched[start - item_start + block.b : start - item_start + block.b + block.size] = True
        matched[start - item_start : stop - item_start] |= _renamed(matcher, window, asked, ours.is_fact_K[start:stop])
        spans += [Span(part - first_part, block.b, low + block.a, block.size) for block in blocks if block.size > 1]
        is_fact = ours.is_fact_K[start:stop]
        if part > first_part:
            same_facts &= bool(matched[start - item_start : stop - item_start][is_fact].all())
            continue
        long = [block for block in blocks if block.size >= _SPAN_TOKENS]
        if not long:
            same_facts = False
            continue
        # The copied stretch, with as much before and after as the item has there.
        from_ = max(0, low + long[0].a - long[0].b)
        to = min(len(train_hash), low + long[-1].a + (stop - start) - long[-1].b)
        there = slice(base + from_, base + to)
        same_facts &= np.array_equal(theirs.hash_K[there][theirs.is_fact_K[there]], ours.hash_K[start:stop][is_fact])
    weight = np.where(compared, index.weight_K[item_start:item_end], 0.0)
    words = np.where(ours.is_fact_K[item_start:item_end], 0.0, weight)
    is_telling = words.sum() >= index.settings.min_information
    return Comparison(
        coverage=float(weight[matched].sum() / max(weight.sum(), 1e-12)),
        text_coverage=float(words[matched].sum() / words.sum()) if is_telling else 0.0,
        same_facts=same_facts,
        spans=tuple(spans),
    )


def _renamed(
    matcher: SequenceMatcher[int], train: Sequence[int], item: Sequence[int], is_fact: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Tokens of the item whose every occurrence the training text replaces by one and the same other token.

    At least two occurrences, and no two tokens by the same one: people who are called something else, not a word that
    happens to differ.
    """
    renamed = np.zeros(len(item), dtype=np.bool_)
    became: dict[int, set[int]] = {}
    where: dict[int, list[int]] = {}
    for action, train_low, train_high, low, high in matcher.get_opcodes():
        if action == "replace" and train_high - train_low == high - low:
            for offset in range(high - low):
                became.setdefault(item[low + offset], set()).add(train[train_low + offset])
                where.setdefault(item[low + offset], []).append(low + offset)
    news = [next(iter(new)) for new in became.values() if len(new) == 1]
    for old, new in became.items():
        positions = where[old]
        is_every = len(positions) == item.count(old) >= 2
        if len(new) == 1 and is_every and news.count(next(iter(new))) == 1 and not is_fact[positions].any():
            renamed[positions] = True
    return renamed


def _window(train_hash: Hashes, item_hash: Hashes) -> tuple[int, int]:
    """The stretch of a training text where a copy of the item would be; the whole text unless it is much longer.

    A copy puts its grams at one distance from those of the item, so the distance with the most grams wins.
    """
    size, length = len(item_hash), len(train_hash)
    slack = size // 2 + 20
    if length <= size + 2 * slack:
        return 0, length
    grams, position = ngrams(item_hash, np.zeros(size, dtype=np.int64), WEIGHT_TOKENS)
    order = np.argsort(grams, kind="stable")
    theirs, there = ngrams(train_hash, np.zeros(length, dtype=np.int64), WEIGHT_TOKENS)
    low = np.searchsorted(grams[order], theirs, side="left")
    count = np.searchsorted(grams[order], theirs, side="right") - low
    distance = np.sort(np.repeat(there, count) - position[order[ranges(low, count)]])
    if not len(distance):
        return 0, size + 2 * slack
    # Insertions and deletions move the distance a little along the copy.
    held = np.searchsorted(distance, distance + size // 4, side="right") - np.arange(len(distance))
    best = int(distance[int(np.argmax(held))])
    return max(0, best - slack), min(length, best + size + size // 4 + slack)
