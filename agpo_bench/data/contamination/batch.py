"""Texts cut into tokens, a batch at a time, and the order in which a training set is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from agpo_bench.data.contamination.spelling import Tokens, masked, ngrams, tokenise, whole_texts
from agpo_bench.data.contamination.table import Hashes, Integers

BATCH_CHARACTERS = 1_000_000
"""Enough to load the tables of the evaluation items into a core's cache seldom, few enough to leave them there."""
KEPT_CHARACTERS = 8_000_000
"""Sampled texts that are kept as tokens, to be read once; some 20 bytes of memory each."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A question as it is compared: what is asked, and the options offered if any."""

    text_id: str
    question: str
    options: tuple[str, ...] = ()


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
        hash_P = whole_texts(masked(tokens), tokens.first) if mask_numbers else self._part_hashes
        is_question = np.zeros(len(hash_P), dtype=np.bool_)
        is_question[self.first_part[:-1]] = True
        # A sum does not see the order of the options; the factor keeps a question from counting as one of them.
        mixed = np.where(is_question, hash_P * np.uint64(0x9FB21C651E98DF25), hash_P)
        sums: Hashes = np.add.reduceat(mixed, self.first_part[:-1]) if len(mixed) else mixed
        return sums

    @property
    def question_keys(self) -> Hashes:
        """One hash a text, of its question alone."""
        found: Hashes = self._part_hashes[self.first_part[:-1]]
        return found

    @cached_property
    def _part_hashes(self) -> Hashes:
        return whole_texts(self.tokens.hash_K, self.tokens.first)

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


class Facts:
    """The numbers, signs, single letters and telling words of each text in order, as bytes that ``in`` can search."""

    def __init__(self, batch: Batch, *, question_only: bool = False) -> None:
        tokens, parts = batch.tokens, batch.first_part
        facts = np.flatnonzero(tokens.is_fact_K)
        self._bytes = tokens.hash_K.take(facts).tobytes()
        self._start, self._end = (
            (8 * np.searchsorted(facts, tokens.first.take(of))).tolist()
            for of in (parts[:-1], parts[:-1] + 1 if question_only else parts[1:])
        )

    def of(self, text: int) -> bytes:
        """The facts of one text, eight bytes each."""
        return self._bytes[self._start[text] : self._end[text]]


def batches(texts: Sequence[Text], numbers: Iterable[int] | None = None) -> Iterator[tuple[Integers, Batch]]:
    """Cut texts (all, or those of the given numbers) into batches; yields the numbers of the texts in each.

    Texts of ASCII alone share no batch with others: their characters take a quarter of the memory.
    """
    gathered: tuple[list[int], list[int]] = [], []
    size = [0, 0]
    for number in range(len(texts)) if numbers is None else numbers:
        text = texts[number]
        is_ascii, length = text.question.isascii(), len(text.question)
        for option in text.options:
            is_ascii, length = is_ascii and option.isascii(), length + len(option)
        size[is_ascii] += length
        gathered[is_ascii].append(number)
        if size[is_ascii] >= BATCH_CHARACTERS or len(gathered[is_ascii]) >= 50_000:
            yield _batch(texts, gathered[is_ascii])
            gathered[is_ascii].clear()
            size[is_ascii] = 0
    for rest in gathered:
        if rest:
            yield _batch(texts, rest)


def _batch(texts: Sequence[Text], numbers: list[int]) -> tuple[Integers, Batch]:
    return np.array(numbers, dtype=np.int64), Batch([texts[number] for number in numbers])


class TrainingTexts:
    """A training set that is read twice in part: first an even sample, then everything.

    The tokens of the sample are kept for the second time unless they are too many.
    """

    def __init__(self, texts: Sequence[Text], *, max_sample: int) -> None:
        self._texts = texts
        self._sample = range(0, len(texts), max(1, -(-len(texts) // max_sample)))
        self._kept: list[tuple[Integers, Batch]] = []

    @property
    def num_sampled(self) -> int:
        """Texts of the sample."""
        return len(self._sample)

    def sampled(self) -> Iterator[Batch]:
        """The sample."""
        self._kept = []
        kept_characters = 0
        for numbers, batch in batches(self._texts, self._sample):
            kept_characters += len(batch.tokens.joined)
            if kept_characters <= KEPT_CHARACTERS:
                self._kept.append((numbers, batch))
            yield batch

    def read(self) -> Iterator[tuple[Integers, Batch]]:
        """Every text once, in no particular order, with the numbers of the texts in each batch."""
        is_left = np.ones(len(self._texts), dtype=np.bool_)
        while self._kept:
            numbers, batch = self._kept.pop()
            is_left[numbers] = False
            yield numbers, batch
        yield from batches(self._texts, np.flatnonzero(is_left).tolist())
