"""Evaluation items, indexed so that any number of training texts can be screened against them.

The index holds the small side only: every four tokens in a row of every evaluation item. A training text is cut into
the same grams, which are looked up and forgotten, so memory does not grow with the training set and the screen is
exact: every pair that shares a fifth of an item's uncommon grams is seen. (MinHash signatures would have to be computed
for every training text, estimate resemblance instead of containment, and so lose the copy inside a long page.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agpo_bench.data.contamination.spelling import (
    Hashes,
    Integers,
    Tokens,
    masked,
    ngrams,
    tokenise,
    whole_texts,
)

SCREEN_TOKENS = 4
WEIGHT_TOKENS = 3
BATCH_CHARACTERS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Text:
    """A question as it is compared: what is asked, and the options offered if any."""

    text_id: str
    question: str
    options: tuple[str, ...] = ()


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


class GramTable:
    """A set of hashes that answers for whole arrays which member each query is."""

    def __init__(self, hashes: Hashes) -> None:
        self.hashes = _distinct(hashes)
        bits = max(12, int(16 * len(self.hashes)).bit_length())
        self._shift = np.uint64(64 - bits)
        self._quick = np.zeros(1 << bits, dtype=np.bool_)
        self._quick[self.hashes >> self._shift] = True

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, queries: Hashes) -> tuple[Integers, Integers]:
        """Positions in ``queries`` of those that are members, and the number of the member."""
        # The table of the leading bits settles nearly all non-members with one look.
        maybe = np.flatnonzero(self._quick[queries >> self._shift])
        if not len(maybe) or not len(self.hashes):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        member = np.minimum(np.searchsorted(self.hashes, queries[maybe]), len(self.hashes) - 1)
        hit = self.hashes[member] == queries[maybe]
        return maybe[hit], member[hit]


class Batch:
    """Some texts cut into parts (question, options) and tokens."""

    def __init__(self, texts: Sequence[Text]) -> None:
        self.texts = texts
        parts: list[str] = []
        first_part = [0]
        for text in texts:
            parts.append(text.question)
            parts += text.options
            first_part.append(len(parts))
        self.first_part = np.array(first_part, dtype=np.int64)
        self.tokens: Tokens = tokenise(parts)
        self.part_K = self.tokens.owners()
        self.text_of_part = np.repeat(np.arange(len(texts)), np.diff(self.first_part))

    def keys(self, *, mask_numbers: bool = False) -> Hashes:
        """One hash a text: its question, and its options in any order."""
        tokens = self.tokens
        hash_P = whole_texts(masked(tokens) if mask_numbers else tokens.hash_K, tokens.first)
        is_question = np.zeros(len(hash_P), dtype=np.bool_)
        is_question[self.first_part[:-1]] = True
        # A sum does not see the order of the options; the factor keeps a question from counting as one of them.
        mixed = np.where(is_question, hash_P * np.uint64(0x9FB21C651E98DF25), hash_P)
        sums: Hashes = np.add.reduceat(mixed, self.first_part[:-1]) if len(mixed) else mixed
        return sums

    @property
    def question_keys(self) -> Hashes:
        """One hash a text, of its question alone."""
        tokens = self.tokens
        found: Hashes = whole_texts(tokens.hash_K, tokens.first)[self.first_part[:-1]]
        return found

    @property
    def has_options(self) -> NDArray[np.bool_]:
        """Whether each text offers options."""
        found: NDArray[np.bool_] = np.diff(self.first_part) > 1
        return found

    def num_tokens(self) -> Integers:
        """Tokens of each text."""
        first: Integers = self.tokens.first[self.first_part]
        return np.diff(first)

    def grams(self, size: int) -> tuple[Hashes, Integers, Integers]:
        """Grams inside one part, the token each starts at, and the text it is of."""
        grams, start = ngrams(self.tokens.hash_K, self.part_K, size)
        return grams, start, self.text_of_part[self.part_K[start]]


def batches(texts: Sequence[Text]) -> Iterator[tuple[int, Batch]]:
    """Cut a sequence of texts into batches; yields the number of the first text of each."""
    start = size = 0
    for number, text in enumerate(texts):
        size += len(text.question) + sum(map(len, text.options))
        if size >= BATCH_CHARACTERS or number - start >= 50_000:
            yield start, Batch(texts[start : number + 1])
            start, size = number + 1, 0
    if start < len(texts):
        yield start, Batch(texts[start:])


class Pairs(NamedTuple):
    """Pairs of a training text and an evaluation item, by number."""

    train: Integers
    evaluation: Integers


class EvaluationIndex:
    """The evaluation items of one check."""

    def __init__(
        self, items: Sequence[Text], *, training: Sequence[Text] = (), settings: Settings | None = None
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
        if not len(position):
            return Pairs(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        size = len(self._screen)
        distinct = _distinct(text[position] * size + gram)
        text_D, gram_D = distinct // size, distinct % size
        count_D = self._first[gram_D + 1] - self._first[gram_D]
        item = self._postings[ranges(self._first[gram_D], count_D)]
        pairs = np.sort(np.repeat(text_D, count_D) * len(self.items) + item)
        edge = np.flatnonzero(np.concatenate([[True], pairs[1:] != pairs[:-1]]))
        pair, shared = pairs[edge], np.diff(np.append(edge, len(pairs)))
        train, evaluation = pair // len(self.items), pair % len(self.items)
        share = shared / self._num_grams[evaluation]
        kept = share >= self.settings.min_shared
        train, evaluation, share = train[kept], evaluation[kept], share[kept]
        order = np.lexsort((evaluation, -share, train))
        train, evaluation = train[order], evaluation[order]
        rank = np.arange(len(train)) - np.searchsorted(train, train)
        kept = rank < self.settings.max_alignments
        return Pairs(train[kept], evaluation[kept])

    def _weights(self, training: Sequence[Text]) -> NDArray[np.float64]:
        r"""How telling each token is, in [0, 1].

        A gram that ``df`` of ``N`` texts have weighs log((N + 1) / df) / log(N + 1); a token weighs as much as the most
        common gram it stands in, so that the words of a template weigh little wherever they are cut.
        """
        tokens = self.batch.tokens
        grams, start, text = self.batch.grams(WEIGHT_TOKENS)
        table = GramTable(grams)
        member = np.searchsorted(table.hashes, grams)
        # Copies of one item among the evaluation sets are one text.
        distinct = np.unique(self.batch.keys(), return_inverse=True)[1]
        num_texts = len(np.unique(distinct))
        frequency = _document_counts(distinct[text], member, len(table))
        sample = training[:: max(1, -(-len(training) // self.settings.background))] if training else ()
        for _, batch in batches(sample):
            grams_B, _, text_B = batch.grams(WEIGHT_TOKENS)
            position, found = table.find(grams_B)
            frequency += _document_counts(text_B[position], found, len(table))
        num_texts += len(sample)
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
        hashes = _distinct(grams)
        member = np.searchsorted(hashes, grams)
        pair = _distinct(member * len(self.items) + text) if len(grams) else np.empty(0, dtype=np.int64)
        member, text = pair // max(1, len(self.items)), pair % max(1, len(self.items))
        count = np.bincount(member, minlength=len(hashes))
        is_common = count > self.settings.max_sharing
        self._screen = GramTable(hashes[~is_common])
        kept = ~is_common[member]
        self._postings = text[kept]
        self._first = np.concatenate([[0], np.cumsum(count[~is_common])]).astype(np.int64)
        self._num_grams = np.maximum(np.bincount(self._postings, minlength=len(self.items)), 1)


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


def _distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Sorted distinct values, by sorting: the hash table of ``numpy.unique`` is several times slower on hashes."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def ranges(start: Integers, count: Integers) -> Integers:
    """The numbers ``start[i] … start[i] + count[i] - 1`` one after another."""
    total = int(count.sum())
    return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(total)


def _document_counts(text: Integers, gram: Integers, size: int) -> Integers:
    """In how many texts each gram occurs."""
    pairs = _distinct(text.astype(np.int64) * max(1, size) + gram)
    return np.bincount(pairs % max(1, size), minlength=size)
