"""What ``rollouts/<step>.jsonl`` keeps of a step: one line a sampled rollout, of every phase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agpo_bench.methods.batch import Advantages, ClipBounds
from agpo_bench.records import Phase
from agpo_bench.training.collect import Collected, RolloutBatch


def rollout_lines(
    probe: RolloutBatch | None, collected: Collected, advantages: Advantages | None, bounds: ClipBounds | None
) -> list[dict[str, Any]]:
    """Probe, trained and discarded rollouts, in this order."""
    lines: list[dict[str, Any]] = []
    if probe is not None:
        reused = {id(group) for group in collected.reused.groups}
        rest = [row for row, group in enumerate(probe.groups) if id(group) not in reused]
        lines += batch_lines(probe.take(rest), phase="probe")
        first = len(collected.kept.groups)
        lines += batch_lines(collected.reused, phase="probe", advantages=advantages, bounds=bounds, first_row=first)
    if advantages is not None and bounds is not None:
        lines += batch_lines(collected.kept, phase="train", advantages=advantages, bounds=bounds)
    return lines + list(batch_lines(collected.discarded, phase="discarded"))


def batch_lines(
    batch: RolloutBatch,
    *,
    phase: Phase,
    advantages: Advantages | None = None,
    bounds: ClipBounds | None = None,
    first_row: int = 0,
) -> Iterator[dict[str, Any]]:
    """One line a rollout. ``advantage`` and ``eps`` are null where the rollout was not trained on.

    Group p of the batch has row ``first_row`` + p in ``advantages`` and ``bounds``.
    """
    for index, (prompt, group) in enumerate(zip(batch.prompts, batch.groups, strict=True)):
        p = first_row + index
        for g, rollout in enumerate(group.rollouts):
            verdict = batch.graded.verdicts[index][g]
            is_trained = advantages is not None and bool(advantages.is_trained_PG[p, g])
            high = float(bounds.high_PG[p, g]) if is_trained and bounds is not None else None
            yield {
                "prompt_id": prompt.prompt_id,
                "phase": phase,
                "sample_index": rollout.sample_index,
                "seed": rollout.seed,
                "tau": rollout.temperature,
                "eps": high if high != float("inf") else None,
                "token_ids": list(rollout.response_ids),
                "text": rollout.text,
                "answer": verdict.answer,
                "verdict": verdict.score,
                "reason": verdict.reason,
                "is_error": verdict.is_error,
                "reward": None if verdict.is_error else verdict.score,
                "advantage": float(advantages.advantage_PG[p, g]) if is_trained and advantages is not None else None,
                "truncated": not rollout.is_finished,
                "alternatives": dict(verdict.alternatives),
            }
