"""Read samples.jsonl as a stream and keep one small row an item: what every number of a table is recomputed from.

Shapes: I items of one task, in file order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, isclose
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from agpo_bench.evaluation.counting import vote_clusters
from agpo_bench.evaluation.estimators import majority_of_clusters
from agpo_bench.evaluation.results import EvalResult

_BLOCK_BYTES = 1 << 26
"""Most bytes of a file in memory at a time; a line may not be longer."""
_FIELDS = pa.schema(
    [
        ("doc_id", pa.int64()),
        ("draw", pa.int64()),
        ("answer", pa.string()),
        ("score", pa.float64()),
        ("is_error", pa.bool_()),
        ("is_truncated", pa.bool_()),
        ("is_leaked", pa.bool_()),
        ("vote", pa.int64()),
    ]
)
Key = TypeVar("Key")
Clusters = tuple[tuple[int, float], ...]
"""Size and mean score of each cluster."""


@dataclass(frozen=True, kw_only=True)
class ItemScores:
    """One model on one task, item by item."""

    doc_id_I: np.ndarray
    greedy_I: np.ndarray
    """Score of draw 0; NaN where grading failed."""
    parsed_I: np.ndarray
    truncated_I: np.ndarray
    leaked_I: np.ndarray
    sampled_sum_I: np.ndarray
    """Sum of scores of the sampled draws that could be graded."""
    sampled_right_I: np.ndarray
    """Sampled draws with a score of 1."""
    sampled_count_I: np.ndarray
    """Sampled draws that could be graded."""
    failed_I: np.ndarray
    """Sampled draws that could not."""
    clusters_I: tuple[Clusters, ...] | None = None
    """Each item's clusters of equivalent answers among the sampled draws; None where the file holds no vote."""

    @property
    def graded(self) -> np.ndarray:
        """Items whose greedy response has a score."""
        graded: np.ndarray = ~np.isnan(self.greedy_I)
        return graded

    def solve_rates(self) -> np.ndarray:
        """Mean over the sampled draws where there are any, else the greedy score."""
        with np.errstate(invalid="ignore", divide="ignore"):
            rate: np.ndarray = np.where(
                self.sampled_count_I > 0, self.sampled_sum_I / self.sampled_count_I, self.greedy_I
            )
        return rate

    def mean_of_draws(self) -> float | None:
        """avg@n: mean over items of the mean score of their sampled draws."""
        has = self.sampled_count_I > 0
        return float(fsum(self.sampled_sum_I[has] / self.sampled_count_I[has]) / has.sum()) if has.any() else None

    def pass_at(self, k: int) -> float | None:
        """Unbiased pass@k, 1 - C(n-c, k) / C(n, k), over items none of whose draws failed; None where n < k."""
        whole = (self.failed_I == 0) & (self.sampled_count_I > 0)
        count, right = self.sampled_count_I[whole], self.sampled_right_I[whole]
        if not count.size or int(count.min()) < k:
            return None
        step = np.arange(k, dtype=np.float64)[:, None]
        miss = np.clip((count - right - step) / (count - step), 0.0, 1.0).prod(axis=0)
        return float(fsum(1 - miss) / count.size)

    def majority_at(self, k: int) -> float | None:
        """Unbiased Maj@k over items none of whose draws failed; None where n < k or nothing was voted on."""
        if self.clusters_I is None:
            return None
        whole = np.flatnonzero((self.failed_I == 0) & (self.sampled_count_I >= k))
        values = [_majority(self.clusters_I[i], int(self.sampled_count_I[i]), k) for i in whole]
        return fsum(values) / len(values) if values else None


@lru_cache(maxsize=1 << 16)
def _majority(clusters: Clusters, num_draws: int, k: int) -> float:
    return majority_of_clusters(clusters, num_draws=num_draws, k=k)


def read_item_scores(file: Path) -> ItemScores:
    """Aggregate one samples.jsonl without its texts; samples lie in the order of items, then draws."""
    size = file.stat().st_size
    if not size:
        raise ValueError(f"{file} is empty; delete the folder and evaluate again")
    read = pj.ReadOptions(block_size=min(size + 1, _BLOCK_BYTES), use_threads=False)
    parse = pj.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="ignore")
    try:
        with pj.open_json(pa.memory_map(str(file)), read_options=read, parse_options=parse) as batches:
            columns = [_columns(batch) for batch in batches]
    except pa.ArrowInvalid as error:
        raise ValueError(f"{file}: not sample lines ({error}); delete the folder and evaluate again") from None
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
    doc, draw, parsed, score, failed, truncated, leaked, vote = joined
    start = np.flatnonzero(np.r_[True, doc[1:] != doc[:-1]])
    if not (draw[start] == 0).all() or np.unique(doc[start]).size != start.size:
        raise ValueError(f"{file}: the draws of an item are not together, greedy first; evaluate again")
    sampled = draw > 0
    graded = sampled & ~failed

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, start)

    return ItemScores(
        doc_id_I=doc[start],
        greedy_I=np.where(failed[start], np.nan, score[start]),
        parsed_I=parsed[start],
        truncated_I=truncated[start],
        leaked_I=leaked[start],
        sampled_sum_I=total(np.where(graded, score, 0.0)),
        sampled_right_I=total((graded & (score >= 1)).astype(np.int64)),
        sampled_count_I=total(graded.astype(np.int64)),
        failed_I=total((sampled & failed).astype(np.int64)),
        clusters_I=_clusters(vote, score, start) if (vote >= 0).any() else None,
    )


def _clusters(vote: np.ndarray, score: np.ndarray, start: np.ndarray) -> tuple[Clusters, ...]:
    ends = [*start[1:].tolist(), vote.size]
    votes, scores = vote.tolist(), score.tolist()
    return tuple(
        vote_clusters([v if v >= 0 else None for v in votes[first:end]], scores[first:end])
        for first, end in zip(start.tolist(), ends, strict=True)
    )


def _columns(batch: pa.RecordBatch) -> tuple[np.ndarray, ...]:
    def array(name: str) -> np.ndarray:
        column = batch.column(name)
        if column.null_count:
            raise pa.ArrowInvalid(f"a line without {name}")
        return np.asarray(column.to_numpy(zero_copy_only=False))

    parsed = pc.is_valid(batch.column("answer")).to_numpy(zero_copy_only=False)
    names = ("score", "is_error", "is_truncated", "is_leaked")
    vote = pc.fill_null(batch.column("vote"), -1).to_numpy(zero_copy_only=False)
    return (array("doc_id"), array("draw"), parsed, *(array(name) for name in names), vote)


def read_all(files: Mapping[Key, Path]) -> dict[Key, ItemScores]:
    """Every file, as many at a time as there are cores (pyarrow parses outside the interpreter's lock)."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(files, pool.map(read_item_scores, files.values()), strict=True))


def disagreements(result: EvalResult, scores: ItemScores) -> Iterable[str]:
    """What results.json says otherwise than the samples beside it."""
    graded = scores.graded
    errors = int((~graded).sum() + scores.failed_I.sum())
    greedy = scores.greedy_I[graded]
    checks: list[tuple[str, float | None, float | None]] = [
        ("num_items", result.num_items, scores.greedy_I.size),
        ("error_count", result.error_count, errors),
        ("score_sum", result.score_sum, fsum(greedy)),
        ("accuracy", result.accuracy, fsum(greedy) / greedy.size if greedy.size else None),
        ("parse_rate", result.parse_rate, float(scores.parsed_I[graded].mean()) if greedy.size else None),
        ("truncation_rate", result.truncation_rate, float(scores.truncated_I.mean())),
        ("num_leaked", result.num_leaked, int(scores.leaked_I.sum())),
        ("avg_sampled", result.avg_sampled, scores.mean_of_draws()),
        *((f"pass_at {k}", value, scores.pass_at(k)) for k, value in result.pass_at.items()),
    ]
    if scores.clusters_I is not None:  # votes are not in the files of earlier versions
        checks += [(f"maj {k}", value, scores.majority_at(k)) for k, value in result.maj.items()]
    for name, stated, found in checks:
        if (stated is None) != (found is None) or (
            stated is not None and found is not None and not isclose(stated, found, rel_tol=1e-9, abs_tol=1e-9)
        ):
            yield f"{name} is {stated} in results.json and {found} in samples.jsonl"
