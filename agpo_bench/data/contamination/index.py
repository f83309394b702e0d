"""Evaluation items, indexed so that any number of training texts can be screened against them.

The index holds the small side only: every four tokens in a row of every evaluation item. A training text is cut into
the same grams, which are looked up and forgotten, so memory does not grow with the training set and the screen is
exact: every pair that shares a fifth of an item's uncommon grams is seen. (MinHash signatures would have to be computed
for every training text, estimate resemblance instead of containment, and so lose the copy inside a long page.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agpo_bench.data.contamination.batch import Batch, Facts, Text, TrainingTexts
from agpo_bench.data.contamination.table import Hashes, HashTable, Integers, ascending, distinct

SCREEN_TOKENS = 4
WEIGHT_TOKENS = 3
_OTHERS = 0.5
"""Share of the grams that a pair must have which are left to the second count."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_COUNTER_BITS = 17
"""Counters of a batch's pairs; fewer than pairs, and small enough for a core's cache."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every threshold of the comparison; they go into each report."""

    min_coverage: float = 0.8
    """Least weighted share of an item's tokens found in the training text, in order, for a near copy."""
    min_information: float = 8.0
    """An item whose tokens weigh less than this together is compared exactly only: the rest is too common a text."""
    min_shared: float = 0.2
    """Least share of an item's uncommon grams that a pair must have to be aligned at all."""
    max_sharing: int = 64
    """A gram that more evaluation items have is common: it does not make a pair."""
    max_alignments: int = 16
    """Most items that one training text is aligned with: those with the largest share of grams."""
    background: int = 20_000
    """Training texts, evenly spaced, whose grams count towards how common a gram is."""


class Pairs(NamedTuple):
    """Pairs of a training text and an evaluation item, by number."""

    train: Integers
    evaluation: Integers


class EvaluationIndex:
    """The evaluation items of one check."""

    def __init__(
        self, items: Sequence[Text], *, training: TrainingTexts | None = None, settings: Settings | None = None
    ) -> None:
        self.items = items
        self.settings = settings or Settings()
        self.batch = Batch(items)
        self._exact = _Grouped(self.batch.keys())
        self._questions = _Grouped(self.batch.question_keys)
        self._masked = _Grouped(self.batch.keys(mask_numbers=True))
        self.has_number = np.zeros(len(items), dtype=np.bool_)
        self.has_number[self.batch.text_of_part[self.batch.part_K[self.batch.tokens.is_number_K]]] = True
        self.weight_K = self._weights(training)
        self.is_target_K, self.information, self.asks_enough = self._targets()
        self.question_facts = Facts(self.batch, question_only=True)
        self._build_screen()

    def exact(self, batch: Batch) -> Pairs:
        """Pairs with equal tokens; the options in any order.

        Where only one side shows options, the questions must be equal, and tell enough by themselves.
        """
        same = self._exact.match(batch.keys())
        asked = self._questions.match(batch.question_keys)
        differs = batch.has_options[asked.train] != self.batch.has_options[asked.evaluation]
        differs &= self.asks_enough[asked.evaluation]
        return Pairs(
            np.concatenate([same.train, asked.train[differs]]),
            np.concatenate([same.evaluation, asked.evaluation[differs]]),
        )

    def same_but_numbers(self, batch: Batch) -> Pairs:
        """Pairs whose tokens are equal once every number is masked: for each training text the first such item."""
        pairs = self._masked.match(batch.keys(mask_numbers=True), first_only=True)
        kept = self.has_number[pairs.evaluation]
        return Pairs(pairs.train[kept], pairs.evaluation[kept])

    def candidates(self, batch: Batch) -> Pairs:
        """Pairs that share enough uncommon grams to be worth an alignment.

        First every pair is counted by the telling grams of its item, of which it needs so many that no other pair can
        share enough; then those few by the others too.
        """
        grams, _, text = batch.grams(SCREEN_TOKENS)
        position, gram = self._screen.find(grams)
        rare = np.flatnonzero(self._is_rare.take(gram))
        if not len(rare):
            return Pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        size = len(self._screen)
        bits = size.bit_length()
        occurrences = distinct(
            text.take(position.take(rare)) << bits | gram.take(rare), num_bits=bits + len(batch.texts).bit_length()
        )
        train, evaluation, num_shared = self._telling_pairs(occurrences, bits)
        others = ranges(self._first_other.take(evaluation), self._num_others.take(evaluation))
        pair = np.repeat(np.arange(len(train)), self._num_others.take(evaluation))
        wanted = train.take(pair) << bits | self._others.take(others)
        there = occurrences.take(np.minimum(np.searchsorted(occurrences, wanted), len(occurrences) - 1)) == wanted
        num_shared += np.bincount(pair.take(np.flatnonzero(there)), minlength=len(train))
        enough = np.flatnonzero(num_shared >= self._least_shared.take(evaluation))
        train, evaluation, num_shared = train.take(enough), evaluation.take(enough), num_shared.take(enough)
        share = num_shared / self._num_grams.take(evaluation)
        order = np.lexsort((evaluation, -share, train))
        train, evaluation = train.take(order), evaluation.take(order)
        rank = np.arange(len(train)) - np.searchsorted(train, train)
        first = np.flatnonzero(rank < self.settings.max_alignments)
        return Pairs(train.take(first), evaluation.take(first))

    def _telling_pairs(self, occurrences: Integers, bits: int) -> tuple[Integers, Integers, Integers]:
        """Pairs that share enough telling grams, in no order, and how many; a gram is the last ``bits`` of a number."""
        gram = occurrences & ((1 << bits) - 1)
        num_items = self._num_telling.take(gram)
        item = self._telling_items.take(ranges(self._first_telling.take(gram), num_items))
        pair = np.repeat(occurrences >> bits, num_items) * len(self.items) + item
        # Most pairs share one gram. Counts by a hash of the pair, which are at least the pair's own, leave few.
        slot = (pair.astype(np.uint64) * _SPREAD >> np.uint64(64 - _COUNTER_BITS)).view(np.int64)
        count = np.bincount(slot, minlength=1 << _COUNTER_BITS).astype(np.int32)
        maybe = np.flatnonzero(count.take(slot) >= self._least_telling.take(item))
        pair = pair.take(maybe)
        pair = pair.take(ascending(pair, num_bits=int(pair.max(initial=0)).bit_length()))
        first = np.flatnonzero(np.append(True, pair[1:] != pair[:-1])) if len(pair) else maybe
        num_shared = np.diff(np.append(first, len(pair)))
        train, evaluation = np.divmod(pair.take(first), len(self.items))
        enough = np.flatnonzero(num_shared >= self._least_telling.take(evaluation))
        return train.take(enough), evaluation.take(enough), num_shared.take(enough)

    def _weights(self, training: TrainingTexts | None) -> NDArray[np.float64]:
        r"""How telling each token is, in [0, 1].

        A gram that ``df`` of ``N`` texts have weighs log((N + 1) / df) / log(N + 1); a token weighs as much as the most
        common gram it stands in, so that the words of a template weigh little wherever they are cut.
        """
        tokens = self.batch.tokens
        grams, start, text = self.batch.grams(WEIGHT_TOKENS)
        table = HashTable(grams)
        # Copies of one item among the evaluation sets are one text.
        first_of_key = np.unique(self.batch.keys(), return_index=True)[1]
        is_counted = np.zeros(len(self.items), dtype=np.bool_)
        is_counted[first_of_key] = True
        member, item = _pairs(table, text)
        frequency = np.bincount(member.take(np.flatnonzero(is_counted.take(item))), minlength=len(table))
        for batch in training.sampled() if training else ():
            grams_B, _, text_B = batch.grams(WEIGHT_TOKENS)
            position, found = table.find(grams_B)
            frequency += _document_counts(text_B.take(position), found, len(table), len(batch.texts))
        num_texts = len(first_of_key) + (training.num_sampled if training else 0)
        weight_G = np.log((num_texts + 1) / np.maximum(frequency, 1)) / np.log(num_texts + 1)
        # Parts too short for a gram weigh something, or a short option would not count at all.
        weight_K = np.full(len(tokens.hash_K), np.inf)
        number = table.numbers
        weight = weight_G.take(number)
        for offset in range(WEIGHT_TOKENS):
            weight_K[start + offset] = np.minimum(weight_K[start + offset], weight)
        self._frequency_K = np.zeros(len(tokens.hash_K), dtype=np.int64)
        self._frequency_K[start] = frequency.take(number)
        weight_K[np.isinf(weight_K)] = 0.5
        weight_K[tokens.is_drawing_K] = 0.0
        return weight_K

    def _targets(self) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.bool_]]:
        """Which tokens of each item are compared, their weight together, and whether they are the question alone.

        The question where it tells enough by itself, so that a copy without the options is found; else all.
        """
        is_question_P = np.zeros(self.batch.tokens.num_texts, dtype=np.bool_)
        is_question_P[self.batch.first_part[:-1]] = True
        text_K = self.batch.text_of_part[self.batch.part_K]
        is_question_K = is_question_P[self.batch.part_K]
        of_question = np.bincount(text_K[is_question_K], self.weight_K[is_question_K], minlength=len(self.items))
        of_all = np.bincount(text_K, self.weight_K, minlength=len(self.items))
        is_enough = of_question >= self.settings.min_information
        return is_question_K | ~is_enough[text_K], np.where(is_enough, of_question, of_all), is_enough

    def _build_screen(self) -> None:
        grams, start, text = self.batch.grams(SCREEN_TOKENS)
        kept = np.flatnonzero(
            self.is_target_K.take(start) & (self.information >= self.settings.min_information).take(text)
        )
        grams, start, text = grams.take(kept), start.take(kept), text.take(kept)
        self._screen = HashTable(grams)
        member, item = _pairs(self._screen, text)
        self._is_rare = np.bincount(member, minlength=len(self._screen)) <= self.settings.max_sharing
        rare = np.flatnonzero(self._is_rare.take(member))
        member, item = member.take(rare), item.take(rare)
        self._num_grams = np.maximum(np.bincount(item, minlength=len(self.items)), 1)
        # The least whole number whose quotient, as it is rounded, reaches the share.
        least = np.ceil(self.settings.min_shared * self._num_grams).astype(np.int32)
        least -= (least - 1) / self._num_grams >= self.settings.min_shared
        least += least / self._num_grams < self.settings.min_shared
        self._least_shared = least
        # A gram is no commoner than the two runs of three that it is made of.
        frequency = np.zeros(len(self._screen), dtype=np.int64)
        frequency[self._screen.numbers] = np.minimum(self._frequency_K.take(start), self._frequency_K.take(start + 1))
        self._split_counts(member, item, frequency)

    def _split_counts(self, member: Integers, item: Integers, frequency: Integers) -> None:
        """Leave the commonest grams of each item to the second count: most of what a text shares with items is such."""
        self._num_others = ((self._least_shared - 1) * _OTHERS).astype(np.int64)
        self._first_other = np.cumsum(self._num_others) - self._num_others
        self._least_telling = self._least_shared - self._num_others.astype(np.int32)
        by_frequency = ascending(np.minimum(frequency.take(member), 65_535), num_bits=16)
        order = by_frequency.take(ascending(item.take(by_frequency), num_bits=len(self.items).bit_length()))
        member, item = member.take(order), item.take(order)
        end = np.cumsum(np.bincount(item, minlength=len(self.items)))
        is_other = np.arange(len(member)) >= (end - self._num_others).take(item)
        self._others = member.take(np.flatnonzero(is_other))
        telling = np.flatnonzero(~is_other)
        telling = telling.take(ascending(member.take(telling), num_bits=len(self._screen).bit_length()))
        self._telling_items = item.take(telling)
        self._num_telling = np.bincount(member.take(telling), minlength=len(self._screen))
        self._first_telling = np.cumsum(self._num_telling) - self._num_telling


class _Grouped:
    """Items by key, several to a key."""

    def __init__(self, keys: Hashes) -> None:
        self._table = HashTable(keys)
        self._end = np.append(self._table.first[1:], len(keys))

    def match(self, keys: Hashes, *, first_only: bool = False) -> Pairs:
        position, number = self._table.find(keys)
        low = self._table.first.take(number)
        count = np.ones_like(low) if first_only else self._end.take(number) - low
        return Pairs(np.repeat(position, count), self._table.order.take(ranges(low, count)))


def ranges(start: Integers, count: Integers) -> Integers:
    """The numbers ``start[i] … start[i] + count[i] - 1`` one after another."""
    total = int(count.sum())
    return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(total)


def _pairs(table: HashTable, text: Integers) -> tuple[Integers, Integers]:
    """The distinct pairs of a hash's number and a text that has it, in ascending order; ``text`` ascends."""
    owner = text.take(table.order)
    number = table.number_in_order
    is_new = np.ones(len(number), dtype=np.bool_)
    np.logical_or(number[1:] != number[:-1], owner[1:] != owner[:-1], out=is_new[1:])
    new = np.flatnonzero(is_new)
    return number.take(new), owner.take(new)


def _document_counts(text: Integers, gram: Integers, size: int, num_texts: int) -> Integers:
    """In how many texts each gram occurs."""
    bits = size.bit_length()
    pairs = distinct(text << bits | gram, num_bits=bits + num_texts.bit_length())
    return np.bincount(pairs & ((1 << bits) - 1), minlength=size)
