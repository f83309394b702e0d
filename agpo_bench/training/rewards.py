"""From sampled groups to rewards. Shapes: P prompts, G rollouts a prompt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agpo_bench.data.benchmarks import grader_for
from agpo_bench.grading.answer import Grader
from agpo_bench.records import Group, Prompt, Reference, Verdict


@dataclass(frozen=True, kw_only=True)
class Graded:
    """The verdicts of a batch of groups."""

    verdicts: list[list[Verdict]]
    reward_PG: Tensor
    """Scores, float64; 0 where the grader failed."""
    is_valid_PG: Tensor
    """False where the harness or the data failed: such a rollout leaves its group's mean and gets no advantage."""

    @classmethod
    def of(cls, verdicts: list[list[Verdict]]) -> Graded:
        """From verdicts, one list a group."""
        return cls(
            verdicts=verdicts,
            reward_PG=torch.tensor([[v.score for v in row] for row in verdicts], dtype=torch.float64),
            is_valid_PG=torch.tensor([[not v.is_error for v in row] for row in verdicts], dtype=torch.bool),
        )

    def take(self, rows_P: Sequence[int]) -> Graded:
        """The verdicts of the given groups."""
        return Graded.of([self.verdicts[row] for row in rows_P])


def grade_groups(prompts: Sequence[Prompt], groups: Sequence[Group]) -> Graded:
    """Judge every rollout with the grader of its prompt's task: the same one that evaluation uses."""
    verdicts: list[list[Verdict]] = [[] for _ in groups]
    for task in dict.fromkeys(prompt.task for prompt in prompts):
        rows = [row for row, prompt in enumerate(prompts) if prompt.task == task]
        pairs = [(rollout.text, prompts[row].reference) for row in rows for rollout in groups[row].rollouts]
        found = iter(grade_many(grader_for(task), pairs))
        for row in rows:
            verdicts[row] = [next(found) for _ in groups[row].rollouts]
    return Graded.of(verdicts)


def grade_many(grader: Grader, pairs: Sequence[tuple[str, Reference]]) -> list[Verdict]:
    """Verdicts in order; a grader that raises costs only the response it raised on, as an error and not as a 0."""
    try:
        return grader.grade_many(pairs)
    except Exception:  # A grader facing model output: the crash is told below, response by response.
        return [_grade_one(grader, response, reference) for response, reference in pairs]


def _grade_one(grader: Grader, response: str, reference: Reference) -> Verdict:
    try:
        return grader.grade(response, reference)
    except Exception as error:
        return Verdict(score=0.0, answer=None, reason=f"grader_{type(error).__name__}", is_error=True)


def vote_keys(prompts: Sequence[Prompt], graded: Graded) -> list[list[Hashable | None]]:
    """One key an equivalence class of answers within each group, by the grader's own equivalence; None is no answer."""
    keys: list[list[Hashable | None]] = []
    for prompt, verdicts in zip(prompts, graded.verdicts, strict=True):
        grader = grader_for(prompt.task)
        representatives: list[str] = []
        row: list[Hashable | None] = []
        for verdict in verdicts:
            if verdict.answer is None:
                row.append(None)
                continue
            answer = verdict.answer
            match = next((r for r in representatives if r == answer or grader.are_equivalent(r, answer)), None)
            if match is None:
                representatives.append(match := answer)
            row.append(match)
        keys.append(row)
    return keys
