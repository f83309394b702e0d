"""Numbers that are no numbers: when a run must stop by itself, and what it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from agpo_bench.training.checkpoint import loadable_model, newest_checkpoint
from agpo_bench.training.metrics import StepRecord
from agpo_bench.training.session import Session


def check_health(session: Session, record: StepRecord, *, directory: Path) -> None:
    """ValueError in one sentence when training went wrong in the step, with the last good checkpoint and the way out.

    Wrong are a loss or a weight that is not finite, and ``max_skipped_updates`` updates in a row without a finite
    gradient. Fewer of those change nothing and are counted (``grad/skipped``).
    """
    if (problem := _problem(session, record)) is not None:
        raise ValueError(f"{directory}: {problem} in step {record.step}; {way_out(directory)}")


def _problem(session: Session, record: StepRecord) -> str | None:
    limit = session.config.max_skipped_updates
    if session.num_skipped_in_a_row >= limit:
        return f"the gradients of {session.num_skipped_in_a_row} updates in a row were not finite (limit {limit})"
    for name, value in record.values.items():
        if name.startswith("loss/") and value is not None and not math.isfinite(value):
            return f"{name} was {value}"
    # A sum in float64 is finite exactly when all its float32 terms are.
    if not all(map(math.isfinite, session.policy.checksum())):
        return "weights became infinite or NaN"
    return None


def require_finite_weights(weights: Mapping[str, Tensor], *, directory: Path) -> None:
    """ValueError in one sentence where a weight is infinite or NaN: such a checkpoint would replace a good one."""
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            raise ValueError(f"{directory}: {name} is infinite or NaN and was not saved; {way_out(directory)}")


def way_out(directory: Path) -> str:
    """What can be done with what is on disk."""
    newest = newest_checkpoint(directory)
    if newest is None:
        return "no checkpoint was written before; start anew with a lower learning_rate or max_grad_norm"
    return (
        f"the last good checkpoint is {newest}: --resume takes it up with the same settings, and a new run with a "
        f"lower learning_rate or max_grad_norm starts from its weights with --model {loadable_model(newest)}"
    )
