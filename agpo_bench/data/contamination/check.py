"""The stages of a check, what they found, and the report that says so.

verbatim
    equal up to white space, options in any order;
respelt
    equal tokens: typesetting, case, Unicode forms and punctuation differ;
near
    the training text has at least ``min_coverage`` of the item, in order, with the same numbers, signs, single letters
    and words that name what is asked: renamed people, another sentence around it, a page that contains it;
variant
    the same text with other numbers, or another thing asked of the same set-up. Reported apart, never removed: such
    problems are what a training set is for, but a reader may want to know how many there are.

The first three are removals. An item too short or too common to be told from its template (``min_information``) is
compared in the first two stages and by masked numbers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict

from agpo_bench.data.contamination.batch import Batch, Text, TrainingTexts
from agpo_bench.data.contamination.compare import BatchBounds, Bounds, Span, compare
from agpo_bench.data.contamination.index import EvaluationIndex, Settings
from agpo_bench.data.sources import question_key

Stage = Literal["verbatim", "respelt", "near", "variant"]
STAGES: tuple[Stage, ...] = get_args(Stage)
REMOVALS: tuple[Stage, ...] = ("verbatim", "respelt", "near")
_MAX_WORDS = 160


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AlignedSpan(_Closed):
    """A run of equal tokens. Positions count tokens: in the item's part, and in the training text."""

    part: int
    """0 is the question, 1 the first option."""
    eval_start: int
    train_start: int
    length: int
    words: str
    """The run as the evaluation item has it, in lower case, cut after a line's length."""


class Finding(_Closed):
    """One training text that holds one evaluation item."""

    train_id: str
    eval_id: str
    stage: Stage
    score: float
    """Weighted share of the item found in the training text, in [0, 1]; for variants without numbers and signs."""
    spans: tuple[AlignedSpan, ...] = ()
    """Longest first. Empty where every token is equal."""


class StageCount(_Closed):
    """How often a stage was the strongest finding."""

    training_texts: int
    evaluation_items: int
    pairs: int


class Report(_Closed):
    """What a check compared, by which rules, and what it found."""

    training: str
    evaluation: str
    num_training: int
    num_evaluation: int
    num_exact_only: int
    """Evaluation items too short or too common for anything but exact comparison."""
    settings: dict[str, float]
    counts: dict[Stage, StageCount]
    by_task: dict[str, dict[Stage, int]]
    """Evaluation items by benchmark and strongest stage."""
    findings: tuple[Finding, ...]
    """Every removal, then variants, perhaps not all."""

    @property
    def removed_ids(self) -> frozenset[str]:
        """Training texts that hold an evaluation item."""
        return frozenset(found.train_id for found in self.findings if found.stage in REMOVALS)

    @property
    def num_removed(self) -> int:
        """Training texts that hold an evaluation item."""
        return sum(self.counts[stage].training_texts for stage in REMOVALS)

    @property
    def summary(self) -> str:
        """One sentence for captions."""
        copies = self.counts["verbatim"].training_texts + self.counts["respelt"].training_texts
        return (
            f"{self.num_training:,} training problems compared with {self.num_evaluation:,} test items: {copies:,} "
            f"equal, {self.counts['near'].training_texts:,} near copies, {self.counts['variant'].training_texts:,} "
            "variants"
        )


def check_texts(
    training: Sequence[Text],
    evaluation: Sequence[Text],
    *,
    training_name: str = "training texts",
    evaluation_name: str = "evaluation items",
    settings: Settings | None = None,
    max_variants: int = 1000,
    align_variants: bool = True,
) -> Report:
    """Compare every training text with every evaluation item. Ids must be distinct within each side.

    All variants are counted, ``max_variants`` of them are listed. Without ``align_variants`` only those are counted
    that differ in nothing but numbers, which takes no alignment.
    """
    settings = settings or Settings()
    for texts, name in ((training, training_name), (evaluation, evaluation_name)):
        if not texts:
            raise ValueError(f"nothing to compare: {name} is empty")
    reading = TrainingTexts(training, max_sample=settings.background)
    index = EvaluationIndex(evaluation, training=reading, settings=settings)
    bounds = Bounds(index)
    found: dict[tuple[int, int], Finding] = {}
    for numbers, batch in reading.read():
        for (text, item), one in _check_batch(index, batch, bounds.of(batch), align_variants=align_variants).items():
            found[int(numbers[text]), item] = one
    findings = [found[pair] for pair in sorted(found)]
    report = _report(index, findings, len(training), training_name=training_name, evaluation_name=evaluation_name)
    removals = [one for one in findings if one.stage in REMOVALS]
    variants = [one for one in findings if one.stage not in REMOVALS]
    return report.model_copy(update={"findings": (*removals, *variants[:max_variants])})


def duplicates(texts: Sequence[Text]) -> list[Finding]:
    """Items that an earlier item of the same list repeats, up to white space or spelling."""
    if not texts:
        return []
    keys = Batch(texts).keys()
    first: dict[int, int] = {}
    found = []
    for number, key in enumerate(keys.tolist()):
        earlier = first.setdefault(key, number)
        if earlier != number:
            stage = _exact_stage(texts[number], texts[earlier])
            found.append(
                Finding(train_id=texts[number].text_id, eval_id=texts[earlier].text_id, stage=stage, score=1.0)
            )
    return found


def _check_batch(
    index: EvaluationIndex, batch: Batch, bounds: BatchBounds, *, align_variants: bool
) -> dict[tuple[int, int], Finding]:
    found: dict[tuple[int, int], Finding] = {}
    for text, item in zip(*index.exact(batch), strict=True):
        stage = _exact_stage(batch.texts[text], index.items[item])
        found[int(text), int(item)] = _finding(index, batch, (int(text), int(item)), stage)
    settled = {text for text, _ in found}
    for text, item in zip(*index.same_but_numbers(batch), strict=True):
        if int(text) not in settled:
            found[int(text), int(item)] = _finding(index, batch, (int(text), int(item)), "variant")
            settled.add(int(text))
    for text, item in zip(*(side.tolist() for side in index.candidates(batch)), strict=True):
        pair = text, item
        # One variant tells enough about a text; copies are looked for among all its candidates.
        is_open = align_variants and text not in settled
        if pair in found or not (bounds.may_copy(item, text) or (is_open and bounds.may_vary(item, text))):
            continue
        seen = compare(index, item, batch, text)
        if seen.coverage >= index.settings.min_coverage and seen.same_facts:
            found[pair] = _finding(index, batch, pair, "near", score=seen.coverage, seen=seen.spans)
            settled.add(text)
        elif is_open and seen.text_coverage >= index.settings.min_coverage:
            found[pair] = _finding(index, batch, pair, "variant", score=seen.text_coverage, seen=seen.spans)
            settled.add(text)
    return found


def _exact_stage(first: Text, second: Text) -> Stage:
    if question_key(first.question) != question_key(second.question):
        return "respelt"
    options = [sorted(question_key(option) for option in text.options) for text in (first, second)]
    return "verbatim" if options[0] == options[1] or not all(options) else "respelt"


def _finding(
    index: EvaluationIndex,
    batch: Batch,
    pair: tuple[int, int],
    stage: Stage,
    *,
    score: float = 1.0,
    seen: Sequence[Span] = (),
) -> Finding:
    text, item = pair
    first_part = int(index.batch.first_part[item])
    spans = sorted(seen, key=lambda span: -span.length)[:5]
    return Finding(
        train_id=batch.texts[text].text_id,
        eval_id=index.items[item].text_id,
        stage=stage,
        score=round(min(score, 1.0), 4),
        spans=tuple(
            AlignedSpan(
                part=span.part,
                eval_start=span.eval_start,
                train_start=span.train_start,
                length=span.length,
                words=index.batch.tokens.words(first_part + span.part, span.eval_start, span.eval_start + span.length)[
                    :_MAX_WORDS
                ],
            )
            for span in spans
        ),
    )


def _report(
    index: EvaluationIndex, findings: Sequence[Finding], num_training: int, *, training_name: str, evaluation_name: str
) -> Report:
    by_train, by_item = _strongest(findings, "train_id"), _strongest(findings, "eval_id")
    pairs = Counter(found.stage for found in findings)
    train_counts, item_counts = Counter(by_train.values()), Counter(by_item.values())
    tasks = dict.fromkeys(item.text_id.split("/")[0] for item in index.items)
    by_task: dict[str, dict[Stage, int]] = {task: dict.fromkeys(STAGES, 0) for task in tasks}
    for item_id, stage in by_item.items():
        by_task[item_id.split("/")[0]][stage] += 1
    return Report(
        training=training_name,
        evaluation=evaluation_name,
        num_training=num_training,
        num_evaluation=len(index.items),
        num_exact_only=int(np.sum(index.information < index.settings.min_information)),
        settings=asdict(index.settings),
        counts={
            stage: StageCount(
                training_texts=train_counts[stage], evaluation_items=item_counts[stage], pairs=pairs[stage]
            )
            for stage in STAGES
        },
        by_task=by_task,
        findings=tuple(findings),
    )


def _strongest(findings: Iterable[Finding], side: Literal["train_id", "eval_id"]) -> dict[str, Stage]:
    """The strongest stage each text was found in."""
    best: dict[str, Stage] = {}
    for found in findings:
        key = getattr(found, side)
        if key not in best or STAGES.index(found.stage) < STAGES.index(best[key]):
            best[key] = found.stage
    return best
