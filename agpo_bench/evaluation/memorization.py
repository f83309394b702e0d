r"""Does a model know the test items by heart? Three probes at low temperature, each against a control.

prefix
    The model is given the first half of a question as plain text and continues it. The score of an item is the longest
    run of characters that its continuation has in common with the true rest, as a share of the rest; exact and
    normalised matches are counted beside it. Two controls: the same item with other numbers and names (paired), and
    fresh items of the same kind that nobody can have trained on (where the caller has some). A model that has learnt
    the style of a benchmark continues both alike; one that has learnt the items continues only those.
answer
    The model is asked with the second half of the question cut off and must answer all the same; the score is its own,
    less what the same response scores against another item's reference.
order
    Multiple choice: the score with the options in the published order, less the score with the options rotated.

Half a question can be worth something, and a list of numbers out of order can confuse, without any memory; so these two
are evidence only against fresh items put the same way (``answer_fresh``, ``order_fresh``). Where there are none they
are reported and left out of the verdict.

Every difference comes with a 99 % interval (percentile bootstrap over items, seeded): several are looked at together.
Sampled tokens are counted in the result and never against a training budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from agpo_bench.data.benchmarks import grader_for
from agpo_bench.data.contamination.batch import Text
from agpo_bench.data.contamination.planted import paraphrase
from agpo_bench.data.contamination.spelling import tokenise
from agpo_bench.data.rows import Item
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
_RESAMPLES = 10_000
_MAX_CONTINUATION = 64
_MIN_TOKENS = 8
"""Shorter questions have no half that tells one from another."""


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Difference(_Closed):
    """Items against their control."""

    items: float
    """Mean score of the items; for ``answer_fresh`` and ``order_fresh`` the mean of their own differences."""
    control: float
    difference: float
    low: float
    """Lower end of the 99 % interval of the difference."""
    high: float
    num_items: int
    num_control: int


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
    probes: dict[Probe, Difference] = {}
    asks: tuple[tuple[Probe, Callable[[Sequence[Item]], list[tuple[float, float]]]], ...] = (
        ("answer", run.answer_without_question),
        ("order", run.answer_in_two_orders),
    )
    of_items = run.continue_prefixes([_question(item) for item in items], name="items")
    rephrased = [paraphrase(_as_text(item), seed=seed + number) for number, item in enumerate(items)]
    of_paraphrases = run.continue_prefixes([text.question if text else "" for text in rephrased], name="paraphrases")
    pairs = [(a.overlap, b.overlap) for a, b in zip(of_items, of_paraphrases, strict=True) if a and b]
    if len(pairs) > 1:
        probes["prefix_paraphrase"] = _paired(pairs, rng)
    continued = [one for one in of_items if one]
    if fresh and len(continued) > 1:
        controls = [one for one in run.continue_prefixes([_question(item) for item in fresh], name="fresh") if one]
        if len(controls) > 1:
            probes["prefix_fresh"] = _unpaired(
                [one.overlap for one in continued], [one.overlap for one in controls], rng
            )
    for name, ask in asks:
        pairs = ask(items)
        if len(pairs) > 1:
            probes[name] = _paired(pairs, rng)
            controls_of = ask(fresh)
            if len(controls_of) > 1:
                probes[_FRESH[name]] = _unpaired([a - b for a, b in pairs], [a - b for a, b in controls_of], rng)
    return Memorization(
        task=split.task.name,
        split=split.split,
        data_source=split.source.description,
        model=loaded.source,
        model_fingerprint=loaded.fingerprint,
        temperature=temperature,
        seed=seed,
        probes=probes,
        exact_rate=float(np.mean([one.is_exact for one in continued])) if continued else 0.0,
        normalised_rate=float(np.mean([one.is_normalised for one in continued])) if continued else 0.0,
        num_tokens=run.num_tokens,
    )


class _Continuation(_Closed):
    overlap: float
    is_exact: bool
    is_normalised: bool


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
        requests, rests = [], []
        for number, question in enumerate(questions):
            ids = self._plain_ids(question)
            half = len(ids) - (len(ids) // 2)
            rest = ids[half : half + _MAX_CONTINUATION]
            rests.append(rest)
            if len(ids) >= _MIN_TOKENS:
                requests.append(self._request(f"{name}/{number}", ids[:half], len(rest)))
        texts = self._sample(requests)
        found: list[_Continuation | None] = []
        for number, rest in enumerate(rests):
            response = texts.get(f"{name}/{number}")
            found.append(None if response is None else self._compared(response[0], response[1], rest))
        return found

    def answer_without_question(self, items: Sequence[Item]) -> list[tuple[float, float]]:
        """(score, score against the next item's reference) of answers to questions cut in half."""
        kept = [item for item in items if not item.reference.tests and len(_question(item)) >= _MIN_TOKENS]
        prompts = [self._split.render(_cut_in_half(item)) for item in kept]
        scores = []
        answers = self._answers(prompts, name="answer")
        for number, (item, answer) in enumerate(zip(kept, answers, strict=True)):
            other = _another(kept, number)
            if other is not None:
                right, by_chance = self._grader.grade_many([(answer, item.reference), (answer, other.reference)])
                scores.append((right.score, by_chance.score))
        return scores

    def answer_in_two_orders(self, items: Sequence[Item]) -> list[tuple[float, float]]:
        """(score as published, score with the options rotated by one)."""
        pairs = [(item, _rotated(item)) for item in items]
        kept = [(item, rotated) for item, rotated in pairs if rotated is not None]
        before = self._answers([self._split.render(item) for item, _ in kept], name="order")
        after = self._answers([self._split.render(rotated) for _, rotated in kept], name="rotated")
        first = self._grader.grade_many([(text, item.reference) for text, (item, _) in zip(before, kept, strict=True)])
        second = self._grader.grade_many([(text, one.reference) for text, (_, one) in zip(after, kept, strict=True)])
        return [(one.score, other.score) for one, other in zip(first, second, strict=True)]

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

    def _compared(self, text: str, response_ids: Sequence[int], rest: Sequence[int]) -> _Continuation:
        truth = " ".join(str(self._tokenizer.decode(list(rest), skip_special_tokens=True)).split())
        said = " ".join(text.split())
        longest = SequenceMatcher(None, truth, said, autojunk=False).find_longest_match().size
        both = tokenise([truth, said])
        first, second = (both.hash_K[both.first[i] : both.first[i + 1]] for i in (0, 1))
        return _Continuation(
            overlap=longest / len(truth) if truth else 0.0,
            is_exact=tuple(response_ids[: len(rest)]) == tuple(rest),
            is_normalised=bool(len(first)) and np.array_equal(first, second),
        )


def _question(item: Item) -> str:
    return item.question or item.prompt or ""


def _as_text(item: Item) -> Text:
    return Text(text_id=item.prompt_id, question=_question(item))


def _cut_in_half(item: Item) -> Item:
    """The item with the second half of its question gone; what a prompt puts after the question stays."""
    question = item.question or _question(item)
    half = question[: question.rfind(" ", 0, len(question) // 2 + 1)] if " " in question[: len(question) // 2] else ""
    half = half or question[: len(question) // 2]
    prompt = None if item.prompt is None else item.prompt.replace(question, half, 1)
    return replace(item, prompt=prompt, reference=replace(item.reference, question=half))


def _another(items: Sequence[Item], number: int) -> Item | None:
    """The next item whose reference differs, so that a response right for one is wrong for the other."""
    for offset in range(1, len(items)):
        other = items[(number + offset) % len(items)]
        if other.reference.gold != items[number].reference.gold or other.reference.options:
            return other
    return None


def _rotated(item: Item) -> Item | None:
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


def _paired(pairs: Sequence[tuple[float, float]], rng: np.random.Generator) -> Difference:
    values = np.asarray(pairs, dtype=np.float64)
    differences = values[:, 0] - values[:, 1]
    return _difference(values[:, 0], values[:, 1], _resampled_means(differences, rng))


def _unpaired(items: Sequence[float], controls: Sequence[float], rng: np.random.Generator) -> Difference:
    first, second = np.asarray(items, dtype=np.float64), np.asarray(controls, dtype=np.float64)
    return _difference(first, second, _resampled_means(first, rng) - _resampled_means(second, rng))


def _resampled_means(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(_RESAMPLES)]
    return np.array(means, dtype=np.float64)


def _difference(items: NDArray[np.float64], control: NDArray[np.float64], resampled: NDArray[np.float64]) -> Difference:
    low, high = np.quantile(resampled, [0.005, 0.995])
    return Difference(
        items=float(items.mean()),
        control=float(control.mean()),
        difference=float(items.mean() - control.mean()),
        low=float(low),
        high=float(high),
        num_items=len(items),
        num_control=len(control),
    )
