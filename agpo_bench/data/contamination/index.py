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
import scipy.sparse
from numpy.typing import NDArray

from agpo_bench.data.contamination.batch import Batch, Facts, Text, TrainingTexts
from agpo_bench.data.contamination.table import Hashes, HashTable, Integers, distinct

SCREEN_TOKENS = 4
WEIGHT_TOKENS = 3


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
        """Pairs that share enough uncommon grams to be worth an alignment."""
        grams, _, text = batch.grams(SCREEN_TOKENS)
        position, gram = self._screen.find(grams)
        rare = np.flatnonzero(self._is_rare[gram])
        position, gram = position[rare], gram[rare]
        if not len(position):
            return Pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        size = len(self._screen)
        bits = size.bit_length()
        occurrences = distinct(text[position] << bits | gram)
        gram_of_text = _rows(occurrences >> bits, occurrences & ((1 << bits) - 1), (len(batch.texts), size))
        shared = gram_of_text @ self._items_of_gram
        kept = np.flatnonzero(shared.data >= self._least_shared[shared.indices])
        train = np.searchsorted(shared.indptr, kept, side="right") - 1
        evaluation = shared.indices[kept].astype(np.int64)
        share = shared.data[kept] / self._num_grams[evaluation]
        order = np.lexsort((evaluation, -share, train))
        train, evaluation = train[order], evaluation[order]
        rank = np.arange(len(train)) - np.searchsorted(train, train)
        first = np.flatnonzero(rank < self.settings.max_alignments)
        return Pairs(train[first], evaluation[first])

    def _weights(self, training: TrainingTexts | None) -> NDArray[np.float64]:
        r"""How telling each token is, in [0, 1].

        A gram that ``df`` of ``N`` texts have weighs log((N + 1) / df) / log(N + 1); a token weighs as much as the most
        common gram it stands in, so that the words of a template weigh little wherever they are cut.
        """
        tokens = self.batch.tokens
        grams, start, text = self.batch.grams(WEIGHT_TOKENS)
        table = HashTable(grams)
        _, member = table.find(grams)
        # Copies of one item among the evaluation sets are one text.
        keys, same = np.unique(self.batch.keys(), return_inverse=True)
        num_texts = len(keys)
        frequency = _document_counts(same[text], member, len(table))
        for batch in training.sampled() if training else ():
            grams_B, _, text_B = batch.grams(WEIGHT_TOKENS)
            position, found = table.find(grams_B)
            frequency += _document_counts(text_B[position], found, len(table))
        num_texts += training.num_sampled if training else 0
        weight_G = np.log((num_texts + 1) / np.maximum(frequency, 1)) / np.log(num_texts + 1)
        # Parts too short for a gram weigh something, or a short option would not count at all.
        weight_K = np.full(len(tokens.hash_K), np.inf)
        for offset in range(WEIGHT_TOKENS):
            np.minimum.at(weight_K, start + offset, weight_G[member])
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
        kept = self.is_target_K[start] & (self.information >= self.settings.min_information)[text]
        grams, text = grams[kept], text[kept]
        self._screen = HashTable(grams)
        _, member = self._screen.find(grams)
        pair = distinct(member * len(self.items) + text)
        member, item = pair // len(self.items), pair % len(self.items)
        self._is_rare = np.bincount(member, minlength=len(self._screen)) <= self.settings.max_sharing
        rare = np.flatnonzero(self._is_rare[member])
        member, item = member[rare], item[rare]
        self._items_of_gram = _rows(member, item, (len(self._screen), len(self.items)))
        self._num_grams = np.maximum(np.bincount(item, minlength=len(self.items)), 1)
        # The least whole number whose quotient, as it is rounded, reaches the share.
        least = np.ceil(self.settings.min_shared * self._num_grams).astype(np.int32)
        least -= (least - 1) / self._num_grams >= self.settings.min_shared
        least += least / self._num_grams < self.settings.min_shared
        self._least_shared = least


class _Grouped:
    """Items by key, several to a key."""

    def __init__(self, keys: Hashes) -> None:
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def match(self, keys: Hashes, *, first_only: bool = False) -> Pairs:
        low = np.searchsorted(self._sorted, keys, side="left")
        count = np.searchsorted(self._sorted, keys, side="right") - low
        if first_only:
            count = np.minimum(count, 1)
        return Pairs(np.repeat(np.arange(len(keys)), count), self._order[ranges(low, count)])


def ranges(start: Integers, count: Integers) -> Integers:
    """The numbers ``start[i] … start[i] + count[i] - 1`` one after another."""
    total = int(count.sum())
    return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(total)


def _rows(row: Integers, column: Integers, shape: tuple[int, int]) -> scipy.sparse.csr_array[np.int32]:
    """A matrix that is one at the given places; the rows in ascending order, no place twice."""
    first = np.searchsorted(row, np.arange(shape[0] + 1)).astype(np.int32)
    return scipy.sparse.csr_array((np.ones(len(row), dtype=np.int32), column.astype(np.int32), first), shape=shape)


def _document_counts(text: Integers, gram: Integers, size: int) -> Integers:
    """In how many texts each gram occurs."""
    bits = size.bit_length()
    pairs = distinct(text << bits | gram)
    return np.bincount(pairs & ((1 << bits) - 1), minlength=size)
