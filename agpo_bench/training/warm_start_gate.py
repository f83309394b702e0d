"""Whether a warm-started model leaves reinforcement learning room: neither hopeless nor finished, and undecided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np

from agpo_bench.data.benchmarks import load_task
from agpo_bench.data.embedded.items import FAMILIES, EmbeddedItem, embedded_items
from agpo_bench.grading.graders import get_grader
from agpo_bench.records import Rollout
from agpo_bench.rollout.encoding import PromptEncoder
from agpo_bench.rollout.sampler import SamplingRequest, sampling_seed
from agpo_bench.rollout.torch_sampler import TorchSampler
from agpo_bench.training.model import LoadedModel

GROUP_SIZE = 8
MAX_NEW_TOKENS = 40


class Bound(NamedTuple):
    """Values a measured mean should lie between."""

    low: float
    high: float


BOUNDS = {
    "greedy": Bound(0.40, 0.60),
    "mixed_groups": Bound(0.60, 1.0),
    "pass_at_8": Bound(0.80, 1.0),
    "worked_minus_direct": Bound(0.20, 1.0),
    "entropy": Bound(0.35, 0.80),
}


@dataclass(frozen=True, kw_only=True)
class FamilyMeasure:
    """One family (or the mean over families) of the dev split. Scores are fractions of 1."""

    greedy: float
    greedy_direct_share: float
    """Greedy responses in the direct style: no more lines than the demonstrated direct response."""
    sampled: float
    """Mean score of ``GROUP_SIZE`` samples a prompt at temperature 1, top-p 1."""
    direct: float | None
    """Mean score of the sampled responses in the direct style; None when there are none."""
    worked: float | None
    direct_share: float
    mixed_groups: float
    """Groups whose scores are not all equal: only these have an advantage."""
    pass_at_8: float
    """Groups with at least one full score."""
    entropy: float
    """Nats a sampled token, full vocabulary, temperature 1."""
    tokens: float
    """Mean length of a sampled response, the terminator included."""
    truncated: float

    @property
    def worked_minus_direct(self) -> float:
        """How much better the worked style is; NaN when either is never sampled."""
        missing = float("nan")
        return (missing if self.worked is None else self.worked) - (missing if self.direct is None else self.direct)


def measure(loaded: LoadedModel, *, items_per_task: int, seed: int) -> dict[str, FamilyMeasure]:
    """Measure every family on the dev split by the official graders; the key ``mean`` holds the unweighted means."""
    sampler = TorchSampler(loaded)
    encoder = PromptEncoder(loaded.tokenizer)
    measures = {
        task: _measure_family(sampler, encoder, embedded_items(task, "dev", count=items_per_task), seed=seed)
        for task in FAMILIES
    }
    rows = [asdict(row) for row in measures.values()]
    means = {name: _mean([row[name] for row in rows if row[name] is not None]) for name in rows[0]}
    return {**measures, "mean": FamilyMeasure(**means)}


def failures(mean: FamilyMeasure) -> list[str]:
    """One sentence for every bound that is missed."""
    found = []
    for name, bound in BOUNDS.items():
        value = getattr(mean, name)
        if not bound.low <= value <= bound.high:
            found.append(f"{name} is {value:.3f}, outside {bound.low}–{bound.high}")
    return found


def _measure_family(
    sampler: TorchSampler, encoder: PromptEncoder, items: list[EmbeddedItem], *, seed: int
) -> FamilyMeasure:
    spec = load_task(items[0].task).grader
    grader = get_grader(spec.kind, **spec.options)

    def sample(num: int, temperature: float) -> list[list[Rollout]]:
        requests = [
            SamplingRequest(
                prompt_id=item.item_id,
                prompt_ids=encoder.encode(item.prompt),
                seeds=tuple(
                    sampling_seed(seed, step=0, prompt_id=item.item_id, sample_index=index, phase="warm-start gate")
                    for index in range(num)
                ),
                temperature=temperature,
                max_new_tokens=MAX_NEW_TOKENS,
            )
            for item in items
        ]
        return [list(group.rollouts) for group in sampler.sample(requests, with_entropy=True)]

    greedy, sampled = sample(1, 0.0), sample(GROUP_SIZE, 1.0)
    texts = [
        (item, rollout.text)
        for groups in (greedy, sampled)
        for item, group in zip(items, groups, strict=True)
        for rollout in group
    ]
    verdicts = grader.grade_many([(text, item.reference) for item, text in texts])
    scores = np.array([verdict.score for verdict in verdicts], dtype=np.float64)
    is_direct = np.array([_is_direct(item, text) for item, text in texts], dtype=np.bool_)
    scores_PG = scores[len(items) :].reshape(len(items), GROUP_SIZE)
    is_direct_PG = is_direct[len(items) :].reshape(len(items), GROUP_SIZE)
    rollouts = [rollout for group in sampled for rollout in group]
    num_tokens = sum(rollout.num_tokens for rollout in rollouts)
    return FamilyMeasure(
        greedy=float(scores[: len(items)].mean()),
        greedy_direct_share=float(is_direct[: len(items)].mean()),
        sampled=float(scores_PG.mean()),
        direct=float(scores_PG[is_direct_PG].mean()) if is_direct_PG.any() else None,
        worked=float(scores_PG[~is_direct_PG].mean()) if not is_direct_PG.all() else None,
        direct_share=float(is_direct_PG.mean()),
        mixed_groups=float((scores_PG.min(axis=1) < scores_PG.max(axis=1)).mean()),
        pass_at_8=float((scores_PG.max(axis=1) == 1.0).mean()),
        entropy=sum(sum(rollout.entropies or ()) for rollout in rollouts) / num_tokens,
        tokens=num_tokens / len(rollouts),
        truncated=_mean([not rollout.is_finished for rollout in rollouts]),
    )


def _is_direct(item: EmbeddedItem, text: str) -> bool:
    return text.count("\n") <= item.direct.count("\n")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values, dtype=np.float64))
