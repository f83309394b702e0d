"""What an evaluation leaves on disk: one result a task, one sample line a draw. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from agpo_bench.files import write_whole

PROTOCOL_VERSION = 1
"""Raised whenever a prompt, an extraction rule or the counting changes: results of two versions do not compare."""


class Sample(BaseModel):
    """One graded draw of one item."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    doc_id: int
    """Position of the item in its split (lm-eval's)."""
    prompt_id: str
    doc_hash: str
    prompt_hash: str
    """SHA-256 of the rendered prompt, before any chat template (lm-eval's)."""
    draw: int
    """0 is the greedy response, 1…k the sampled ones of Maj@k."""
    draw_key: str
    """Hash of all that decides the response (weights, prompt, limits, seed): an equal key is an equal draw."""
    text: str
    answer: str | None
    """The extracted answer in canonical form; None when none was found."""
    score: float
    """In [0, 1]; 0 for an error, which no mean includes."""
    reason: str
    is_error: bool
    """The harness or the data failed, not the model."""
    is_truncated: bool
    """The length limit cut the response."""
    is_leaked: bool
    """The prompt holds this very question: a few-shot example of it was shown."""
    num_tokens: int
    """Generated tokens, the terminator included."""
    alternatives: Mapping[str, float] = Field(default_factory=dict)
    vote: int | None = None
    """The item's first sampled draw whose answer is equivalent: draws with one number are one vote of Maj@k.

    None for the greedy response, for a draw without a vote, and where nothing was voted on.
    """


class AskedItem(BaseModel):
    """One item as it was asked: what the samples of ``doc_id`` answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    doc_id: int
    prompt_id: str
    prompt: str
    """The rendered prompt, before any chat template."""
    gold: str
    """The reference answer as the data give it; empty for a program, which tests decide."""


class EvalResult(BaseModel):
    """One model on one task. Means are over items; an item whose grading failed is left out and counted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str
    title: str
    language: str
    data_source_kind: str
    """``embedded``, ``hub`` or ``folder``."""
    data_source: str
    """One line for a caption; says "embedded sample" when the data are generated."""
    data_checksum: str
    """SHA-256 of every item of the split (question and reference), before any limit: equal across sources."""
    data_files: Mapping[str, str] = Field(default_factory=dict)
    """SHA-256 of each file read; for a hub data set its fingerprint."""
    split: str
    num_items: int
    """Items asked, failed ones included."""
    num_draws: int
    """Sampled draws an item beside the greedy one."""
    accuracy: float | None
    """Mean greedy score over items without an error, in [0, 1]; None when no item could be graded."""
    score_sum: float
    """Sum of greedy scores over items without an error."""
    stderr: float | None
    """Standard error of ``accuracy`` over items (sample deviation / sqrt(n)); None below two items."""
    parse_rate: float | None
    """Share of those items whose greedy response stated an answer."""
    truncation_rate: float
    """Share of all items whose greedy response ran into the length limit."""
    error_count: int
    """Items whose greedy response could not be graded by no fault of the model, plus such sampled draws."""
    ks: tuple[int, ...] = ()
    """The k of Maj@k and pass@k that were asked for."""
    maj: Mapping[int, float] = Field(default_factory=dict)
    """Unbiased Maj@k over the sampled draws, the greedy one left out. Programs have no vote and so none of it."""
    avg_sampled: float | None = None
    """Mean score over the sampled draws."""
    pass_at: Mapping[int, float] = Field(default_factory=dict)
    """Unbiased pass@k over the sampled draws; right means a score of 1."""
    alternatives: Mapping[str, float] = Field(default_factory=dict)
    """Mean greedy score by other named rules, or on a named part of the items."""
    alternative_counts: Mapping[str, int] = Field(default_factory=dict)
    """Items behind each of ``alternatives``."""
    num_leaked: int = 0
    """Items that a few-shot example gave away; ``alternatives["without_leaked"]`` leaves them out."""
    tokens_eval: int
    """Tokens generated for this result. Never part of a training budget."""
    grading_mode: str
    grader_details: Mapping[str, str | float | int | None] = Field(default_factory=dict)
    """What else decides a score: for programs the isolation and the limits they ran under; empty for other kinds."""
    protocol_version: int
    task_version: int
    num_few_shot: int
    few_shot_source: str
    """``none``, ``train``, ``dev``, ``lm_eval`` or ``deepseek``."""
    max_new_tokens: int
    temperature: float | None
    """Of the sampled draws; None without any."""
    top_p: float | None
    sampling_seed: int
    limit: int | None
    is_complete: bool
    """Every item asked has a score: False when grading failed for some by no fault of the model."""
    method: str
    """Recipe name, or ``initial`` for the model before training."""
    title_method: str
    seed: int | None
    """Training seed; None for the initial model."""
    tokens_used: int
    """Generated tokens the training run had used at the checkpoint; 0 for the initial model."""
    budget: int | None
    updates_per_rollout: int | None
    model: str
    model_fingerprint: str
    """SHA-256 of the weights."""
    generation_key: str
    """Hash of all that decides the responses: equal key, equal draws."""
    versions: Mapping[str, str]
    git_commit: str | None

    def with_origin(self, origin: Mapping[str, Any]) -> EvalResult:
        """Fill in where the items come from (``task_functions.dataset``)."""
        return self.model_copy(
            update={
                "data_source_kind": origin["kind"],
                "data_source": origin["description"],
                "data_checksum": origin["checksum"],
                "data_files": origin["files"],
                "few_shot_source": origin["few_shot_source"],
            }
        )

    @property
    def stands_for(self) -> tuple[str, ...]:
        """What must agree for the result to answer a request: another run with equal values would repeat it."""
        return (
            self.generation_key,
            self.grading_mode,
            str(self.protocol_version),
            str(self.task_version),
            self.data_checksum,
            str(self.limit),
            str(self.num_draws),
            ",".join(map(str, self.ks)),
        )


def write_result(path: Path, result: EvalResult) -> None:
    """Write ``results.json`` whole or not at all."""
    write_whole(path, result.model_dump_json(indent=2) + "\n")


def read_result(path: Path) -> EvalResult | None:
    """The result in ``path``; None when there is none or it is of another version."""
    try:
        return EvalResult.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_samples(path: Path, samples: list[Sample]) -> None:
    """Write all sample lines of a finished task, whole or not at all."""
    write_whole(path, "".join(sample.model_dump_json() + "\n" for sample in samples))


def write_items(path: Path, items: Iterable[AskedItem]) -> None:
    """Write the items of a task, whole or not at all."""
    write_whole(path, "".join(item.model_dump_json() + "\n" for item in items))


def read_items(path: Path) -> Iterator[AskedItem]:
    """Yield the items of a task in the order they were asked."""
    with path.open("rb") as file:
        for line in file:
            yield AskedItem.model_validate_json(line)


def read_samples(path: Path) -> Iterator[Sample]:
    """Yield the sample lines of a task in the order of items, then draws."""
    with path.open("rb") as file:
        for line in file:
            yield Sample.model_validate_json(line)
