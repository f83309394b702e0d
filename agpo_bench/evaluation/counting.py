"""From the sample lines of one task to its result. Pure: no model, no file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from statistics import fmean

from agpo_bench.data.benchmarks import grader_for, load_task
from agpo_bench.evaluation.estimators import clustered_standard_error, majority_of_clusters, pass_at_k
from agpo_bench.evaluation.results import EvalResult, Sample
from agpo_bench.grading.vote import cluster_answers
from agpo_bench.records import Verdict

WITHOUT_LEAKED = "without_leaked"
"""Alternative score over the items that no few-shot example gave away."""


def with_votes(samples: Iterable[Sample], task: str) -> list[Sample]:
    """The samples, in their order, with the votes of the sampled draws filled in."""
    spec = load_task(task)
    by_item: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_item[sample.prompt_id].append(sample)
    # Two programs are never known to be one answer: they have no vote.
    if spec.grader.kind == "program":
        return [sample for draws in by_item.values() for sample in draws]
    are_equivalent = grader_for(task).are_equivalent
    voted = []
    for greedy, *draws in by_item.values():
        votes: list[int | None] = [None] * len(draws)
        for cluster in cluster_answers([_verdict(draw) for draw in draws], are_equivalent):
            for member in cluster.members:
                votes[member] = draws[cluster.members[0]].draw
        voted += [greedy, *(draw.model_copy(update={"vote": vote}) for draw, vote in zip(draws, votes, strict=True))]
    return voted


def vote_clusters(votes: Iterable[int | None], scores: Iterable[float]) -> tuple[tuple[int, float], ...]:
    """Size and mean score of each cluster of an item's draws, in the order of their votes."""
    members: dict[int, list[float]] = defaultdict(list)
    for vote, score in zip(votes, scores, strict=True):
        if vote is not None:
            members[vote].append(score)
    return tuple((len(found), fmean(found)) for _, found in sorted(members.items()))


def summarise(samples: Sequence[Sample], *, blank: EvalResult, ks: Sequence[int] = ()) -> EvalResult:
    """Fill in what the samples (``with_votes``) say.

    Means are over items; an item whose response could not be graded is left out.
    """
    by_item: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_item[sample.prompt_id].append(sample)
    greedy = [draws[0] for draws in by_item.values()]
    assert all(sample.draw == 0 for sample in greedy)
    graded = [sample for sample in greedy if not sample.is_error]
    alternatives = _alternatives(graded)
    scores = [sample.score for sample in graded]
    errors = sum(sample.is_error for sample in samples)
    sampled = [[sample for sample in draws[1:] if not sample.is_error] for draws in by_item.values()]
    sampled = [draws for draws in sampled if draws]
    return blank.model_copy(
        update={
            "num_items": len(greedy),
            "accuracy": fmean(scores) if scores else None,
            "score_sum": fsum(scores),
            "stderr": clustered_standard_error([[score] for score in scores]),
            "parse_rate": fmean(sample.answer is not None for sample in graded) if graded else None,
            "truncation_rate": fmean(sample.is_truncated for sample in greedy) if greedy else 0.0,
            "error_count": errors,
            "avg_sampled": fmean(fmean(draw.score for draw in draws) for draws in sampled) if sampled else None,
            "alternatives": {name: fmean(values) for name, values in alternatives.items()},
            "alternative_counts": {name: len(values) for name, values in alternatives.items()},
            "num_leaked": sum(sample.is_leaked for sample in greedy),
            "tokens_eval": sum(sample.num_tokens for sample in samples),
            "is_complete": errors == 0,
            **_votes([draws[1:] for draws in by_item.values()], blank.task, ks),
        }
    )


def _alternatives(graded: Iterable[Sample]) -> Mapping[str, list[float]]:
    """Greedy scores by other rules, each over the items that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    samples = list(graded)
    for sample in samples:
        for name, score in sample.alternatives.items():
            values[name].append(score)
    if any(sample.is_leaked for sample in samples):
        values[WITHOUT_LEAKED] = [sample.score for sample in samples if not sample.is_leaked]
    return {name: scores for name, scores in sorted(values.items()) if scores}


def _votes(sampled: Sequence[Sequence[Sample]], task: str, ks: Iterable[int]) -> dict[str, Mapping[int, float]]:
    """Maj@k and pass@k over the sampled draws of each item; an item with a failed draw has neither."""
    whole = [draws for draws in sampled if not any(draw.is_error for draw in draws)]
    clusters = [vote_clusters([draw.vote for draw in draws], [draw.score for draw in draws]) for draws in whole]
    maj: dict[int, float] = {}
    pass_at: dict[int, float] = {}
    for k in sorted(ks):
        known_votes = [
            majority_of_clusters(found, num_draws=len(draws), k=k)
            for found, draws in zip(clusters, whole, strict=True)
            if len(draws) >= k
        ]
        right = [pass_at_k(len(draws), sum(draw.score >= 1 for draw in draws), k) for draws in whole]
        known_right = [share for share in right if share is not None]
        if known_votes and load_task(task).grader.kind != "program":
            maj[k] = fmean(known_votes)
        if known_right:
            pass_at[k] = fmean(known_right)
    return {"maj": maj, "pass_at": pass_at}


def _verdict(sample: Sample) -> Verdict:
    return Verdict(score=sample.score, answer=sample.answer, reason=sample.reason, is_error=sample.is_error)
