r"""Does a model know the test items by heart? Three probes at low temperature, each against a control.

prefix
    The model is given the first half of a question as plain text and continues it. The score of an item is the longest
    run of characters that its continuation has in common with the true rest, as a share of the rest; exact and
    normalised matches are counted beside it. Two controls: fresh items of the same kind that nobody can have trained
    on (where the caller has some), and four paraphrases of the item, with the numbers and names of other items of the
    split (paired: the item less their mean). Item and paraphrase are one text but for these values, so they are
    compared by the share of the rest's values that the continuation has in order. A model that has learnt
    the style of a benchmark continues both alike; one that has learnt the items continues only those.
answer
    The model is asked with the second half of the question cut off and must answer all the same; the score is its own,
    less what the same response scores against another item's reference.
order
    Multiple choice: the score with the options in the published order, less the score with the options rotated.

Half a question can be worth something, and a list of numbers out of order can confuse, without any memory; so these two
are evidence only against fresh items put the same way (``answer_fresh``, ``order_fresh``). Where there are none they
are reported and left out of the verdict.

Every difference comes with a 99 % interval, clustered by template (``memorization_intervals``).
Sampled tokens are counted in the result and never against a training budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from agpo_bench.data.benchmarks import grader_for
from agpo_bench.data.contamination.spelling import tokenise
from agpo_bench.data.rows import Item
from agpo_bench.evaluation.memorization_controls import (
    Paraphraser,
    another,
    cut_in_half,
    question_of,
    recalled_values,
    rotated,
    skeleton,
)
from agpo_bench.evaluation.memorization_intervals import Difference, Scored, paired, unpaired
from agpo_bench.rollout.encoding import PromptEncoder
from agpo_bench.rollout.sampler import Sampler, SamplingRequest, sampling_seed

if TYPE_CHECKING:
    from agpo_bench.data.sources import LoadedSplit
    from agpo_bench.training.model import LoadedModel

Probe = Literal["prefix_paraphrase", "prefix_fresh", "answer", "answer_fresh", "order", "order_fresh"]
_EVIDENCE: tuple[Probe, ...] = ("prefix_paraphrase", "prefix_fresh", "answer_fresh", "order_fresh")
_FRESH: dict[Probe, Probe] = {"answer": "answer_fresh", "order": "order_fresh"}
NOTABLE = 0.1
"""A difference whose whole interval lies above this is called memorised; one whose interval lies above 0, doubtful."""
_MAX_CONTINUATION = 64
_NUM_PARAPHRASES = 4
"""Per item: one alone would add its own chance to every difference."""
_MIN_TOKENS = 8
"""Shorter questions have no half that tells one from another."""


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Memorization(_Closed):
    """What the probes say about one model and one split of a benchmark."""

    task: str
    split: str
    data_source: str
    model: str
    model_fingerprint: str
    temperature: float
    seed: int
    probes: dict[Probe, Difference]
    """A probe that does not apply (no options, no paraphrase, no fresh items) is absent."""
    exact_rate: float
    """Share of items continued token for token."""
    normalised_rate: float
    """Share of items continued alike up to typesetting, case and punctuation."""
    num_tokens: int
    """Tokens sampled by the probes; outside every budget."""

    @property
    def verdict(self) -> str:
        """One sentence."""
        evidence = {name: one for name, one in self.probes.items() if name in _EVIDENCE}
        told = {name: one for name, one in evidence.items() if one.low > 0}
        if not evidence:
            return f"{self.task}/{self.split}: too few items to tell."
        if not told:
            return f"{self.task}/{self.split}: no sign of memorization in {len(evidence)} comparisons."
        name, most = max(told.items(), key=lambda pair: pair[1].low)
        word = "memorized" if most.low > NOTABLE else "a doubtful sign of memorization"
        return (
            f"{self.task}/{self.split}: {word} ({name} {most.difference:+.2f}, "
            f"99 % interval {most.low:+.2f} to {most.high:+.2f})."
        )


def probe_memorization(
    loaded: LoadedModel,
    sampler: Sampler,
    split: LoadedSplit,
    *,
    fresh: Sequence[Item] = (),
    limit: int | None = None,
    temperature: float = 0.0,
    max_new_tokens: int | None = None,
    seed: int = 0,
) -> Memorization:
    """Probe a model with the first ``limit`` items of a split. ``temperature`` 0 is greedy decoding.

    ``max_new_tokens`` bounds the answers; by default as the task says.
    """
    if not 0 <= temperature <= 1:
        raise ValueError(f"a memorization probe at temperature {temperature} would measure chance; use 0 to 1")
    run = _Run(loaded, sampler, split, temperature=temperature, seed=seed, max_new_tokens=max_new_tokens)
    items = list(split.items[:limit])
    rng = np.random.default_rng(seed)
    probes: dict[Probe, Difference | None] = {}
    of_items = run.continue_prefixes([question_of(item) for item in items], name="items")
    continued = [(item, one) for item, one in zip(items, of_items, strict=True) if one]
    probes["prefix_paraphrase"] = paired(run.beside_paraphrases(continued, Paraphraser(split.items, seed=seed)), rng)
    of_fresh = run.continue_prefixes([question_of(item) for item in fresh], name="fresh")
    controls = [(item, one) for item, one in zip(fresh, of_fresh, strict=True) if one]
    probes["prefix_fresh"] = unpaired([_alone(*pair) for pair in continued], [_alone(*pair) for pair in controls], rng)
    asks: tuple[tuple[Probe, Callable[[Sequence[Item]], list[Scored]]], ...] = (
        ("answer", run.answer_without_question),
        ("order", run.answer_in_two_orders),
    )
    for name, ask in asks:
        asked = ask(items)
        probes[name] = paired(asked, rng)
        if probes[name] is not None:
            probes[_FRESH[name]] = unpaired(asked, ask(fresh), rng)
    return Memorization(
        task=split.task.name,
        split=split.split,
        data_source=split.source.description,
        model=loaded.source,
        model_fingerprint=loaded.fingerprint,
        temperature=temperature,
        seed=seed,
        probes={name: one for name, one in probes.items() if one is not None},
        exact_rate=float(np.mean([one.is_exact for _, one in continued])) if continued else 0.0,
        normalised_rate=float(np.mean([one.is_normalised for _, one in continued])) if continued else 0.0,
        num_tokens=run.num_tokens,
    )


class _Continuation(_Closed):
    overlap: float
    values: float | None
    """Share of the rest's numbers and names, less those of the prefix, that it has in order; None where it has none."""
    is_exact: bool
    is_normalised: bool


def _alone(item: Item, continuation: _Continuation) -> Scored:
    return Scored(continuation.overlap, 0.0, skeleton(question_of(item)))


class _Run:
    """Samples for one probe and counts what it samples."""

    def __init__(
        self,
        loaded: LoadedModel,
        sampler: Sampler,
        split: LoadedSplit,
        *,
        temperature: float,
        seed: int,
        max_new_tokens: int | None,
    ) -> None:
        self.num_tokens = 0
        self._tokenizer = loaded.tokenizer
        self._encoder = PromptEncoder(loaded.tokenizer)
        self._sampler = sampler
        self._split = split
        self._temperature = temperature
        self._seed = seed
        self._max_new_tokens = max_new_tokens or split.task.max_new_tokens
        self._grader = grader_for(split.task.name)

    def continue_prefixes(self, questions: Sequence[str], *, name: str) -> list[_Continuation | None]:
        """Continue the first half of each question; None for one that is too short."""
        requests, rests, firsts = [], [], []
        for number, question in enumerate(questions):
            ids = self._plain_ids(question)
            half = len(ids) - (len(ids) // 2)
            rest = ids[half : half + _MAX_CONTINUATION]
            rests.append(rest)
            firsts.append(ids[:half])
            if len(ids) >= _MIN_TOKENS:
                requests.append(self._request(f"{name}/{number}", ids[:half], len(rest)))
        texts = self._sample(requests)
        found: list[_Continuation | None] = []
        for number, (first, rest) in enumerate(zip(firsts, rests, strict=True)):
            response = texts.get(f"{name}/{number}")
            found.append(None if response is None else self._compared(response[0], response[1], first, rest))
        return found

    def beside_paraphrases(
        self, continued: Sequence[tuple[Item, _Continuation]], paraphraser: Paraphraser
    ) -> list[Scored]:
        """Values recalled of each item beside the mean of its paraphrases; items without any are left out.

        Item and paraphrase share every other word, so that all else of a continuation only adds noise.
        """
        changed = [paraphraser.paraphrases(item, count=_NUM_PARAPHRASES) for item, _ in continued]
        flat = iter(self.continue_prefixes([one for own in changed for one in own], name="paraphrases"))
        found = []
        for (item, of_item), own in zip(continued, changed, strict=True):
            values = [one.values for one in [next(flat) for _ in own] if one and one.values is not None]
            if values and of_item.values is not None:
                control = float(np.mean(values))
                found.append(Scored(of_item.values, control, skeleton(question_of(item)), len(values)))
        return found

    def answer_without_question(self, items: Sequence[Item]) -> list[Scored]:
        """Score, and score against the next item's reference, of answers to questions cut in half."""
        kept = [item for item in items if not item.reference.tests and len(question_of(item)) >= _MIN_TOKENS]
        prompts = [self._split.render(cut_in_half(item)) for item in kept]
        scores = []
        answers = self._answers(prompts, name="answer")
        for number, (item, answer) in enumerate(zip(kept, answers, strict=True)):
            other = another(kept, number)
            if other is not None:
                right, by_chance = self._grader.grade_many([(answer, item.reference), (answer, other.reference)])
                scores.append(Scored(right.score, by_chance.score, skeleton(question_of(item))))
        return scores

    def answer_in_two_orders(self, items: Sequence[Item]) -> list[Scored]:
        """Score as published, and score with the options rotated by one."""
        pairs = [(item, rotated(item)) for item in items]
        kept = [(item, moved) for item, moved in pairs if moved is not None]
        before = self._answers([self._split.render(item) for item, _ in kept], name="order")
        after = self._answers([self._split.render(moved) for _, moved in kept], name="rotated")
        first = self._grader.grade_many([(text, item.reference) for text, (item, _) in zip(before, kept, strict=True)])
        second = self._grader.grade_many([(text, one.reference) for text, (_, one) in zip(after, kept, strict=True)])
        return [
            Scored(one.score, other.score, skeleton(question_of(item)))
            for (item, _), one, other in zip(kept, first, second, strict=True)
        ]

    def _answers(self, prompts: Sequence[str], *, name: str) -> list[str]:
        requests = [
            self._request(f"{name}/{number}", self._encoder.encode(prompt), self._max_new_tokens)
            for number, prompt in enumerate(prompts)
        ]
        texts = self._sample(requests)
        return [texts[f"{name}/{number}"][0] for number in range(len(prompts))]

    def _request(self, prompt_id: str, ids: Sequence[int], max_new_tokens: int) -> SamplingRequest:
        seed = sampling_seed(self._seed, step=0, prompt_id=prompt_id, sample_index=0, phase="memorization")
        return SamplingRequest(
            prompt_id=prompt_id,
            prompt_ids=tuple(ids),
            seeds=(seed,),
            temperature=self._temperature,
            max_new_tokens=max_new_tokens,
        )

    def _sample(self, requests: Sequence[SamplingRequest]) -> dict[str, tuple[str, tuple[int, ...]]]:
        groups = self._sampler.sample(requests) if requests else []
        self.num_tokens += sum(group.num_tokens for group in groups)
        return {group.prompt_id: (group.rollouts[0].text, group.rollouts[0].response_ids) for group in groups}

    def _plain_ids(self, text: str) -> list[int]:
        """The question as running text: no chat template, which no page of a training corpus has."""
        ids = [int(token) for token in self._tokenizer(text)["input_ids"]]
        return ids[:-1] if ids and ids[-1] == self._tokenizer.eos_token_id else ids

    def _compared(
        self, text: str, response_ids: Sequence[int], first: Sequence[int], rest: Sequence[int]
    ) -> _Continuation:
        prefix, truth = (
            " ".join(str(self._tokenizer.decode(list(ids), skip_special_tokens=True)).split()) for ids in (first, rest)
        )
        said = " ".join(text.split())
        longest = SequenceMatcher(None, truth, said, autojunk=False).find_longest_match().size
        both = tokenise([truth, said])
        one, other = (both.hash_K[both.first[i] : both.first[i + 1]] for i in (0, 1))
        return _Continuation(
            overlap=longest / len(truth) if truth else 0.0,
            values=recalled_values(prefix, truth, said),
            is_exact=tuple(response_ids[: len(rest)]) == tuple(rest),
            is_normalised=bool(len(one)) and np.array_equal(one, other),
        )
