"""From the sample lines of one task to its result. Pure: no model, no file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum, sqrt
from statistics import fmean, variance

from agpo_bench.evaluation.results import EvalResult, Sample

WITHOUT_LEAKED = "without_leaked"
SINGLE_ANSWER = "single_answer"


def summarise(samples: Sequence[Sample], *, blank: EvalResult) -> EvalResult:
    """Fill in what the samples say. Means are over items; an item whose response could not be graded is left out."""
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
            "stderr": sqrt(variance(scores) / len(scores)) if len(scores) > 1 else None,
            "parse_rate": fmean(sample.answer is not None for sample in graded) if graded else None,
            "truncation_rate": fmean(sample.is_truncated for sample in greedy) if greedy else 0.0,
            "error_count": errors,
            "avg_sampled": fmean(fmean(draw.score for draw in draws) for draws in sampled) if sampled else None,
            "alternatives": {name: fmean(values) for name, values in alternatives.items()},
            "alternative_counts": {name: len(values) for name, values in alternatives.items()},
            "num_leaked": sum(sample.is_leaked for sample in greedy),
            "tokens_eval": sum(sample.num_tokens for sample in samples),
            "is_complete": errors == 0,
            **_votes(sampled, blank),
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


def _votes(sampled: Sequence[Sequence[Sample]], blank: EvalResult) -> dict[str, Mapping[int, float]]:
    return {}
