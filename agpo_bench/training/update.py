"""The optimiser updates on one rollout batch. Shapes: B sequences, T response tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from agpo_bench.methods.batch import LossBatch, LossDenominators, MinibatchExtras
from agpo_bench.training.policy import ScoredSequence
from agpo_bench.training.session import Session
from agpo_bench.training.shares import own_micro_batches, score, sums_of_all, without_weight
from agpo_bench.training.world import World

MAX_SAMPLER_ERROR = 0.02
"""|ratio - 1| between sampler and policy with equal weights in float32; rounding gives about 1e-5."""


@dataclass(kw_only=True)
class RunningCorrelation:
    """Pearson correlation of pairs that arrive in pieces, from float64 sums."""

    count: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(5, dtype=torch.float64))

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add pairs."""
        x, y = x.double().cpu(), y.double().cpu()
        self.count += x.numel()
        self.sums += torch.stack([x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum()])

    @property
    def value(self) -> float | None:
        """The correlation; None while either side is constant."""
        if self.count < 2:
            return None
        mean_x, mean_y, xx, yy, xy = (self.sums / self.count).tolist()
        variance_x, variance_y = xx - mean_x**2, yy - mean_y**2
        # Below this share of the raw moment the variance is rounding residue of a constant.
        if variance_x <= 1e-14 * xx or variance_y <= 1e-14 * yy:
            return None
        value: float = (xy - mean_x * mean_y) / math.sqrt(variance_x * variance_y)
        return max(-1.0, min(1.0, value))


@dataclass(kw_only=True)
class UpdateReport:
    """What the updates of one step did. Counts and sums are over all its optimiser updates."""

    num_updates: int = 0
    num_tokens: int = 0
    """Trained tokens, once an update they took part in."""
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """``LossOutput.sums``, added up."""
    extras: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gradient_norms: list[float] = field(default_factory=list)
    had_clipping: list[bool] = field(default_factory=list)
    """Whether the clip acted on any token, by update."""
    active_tokens_B: Tensor
    """Times that the clip acted, by sequence."""
    seen_tokens_B: Tensor
    """Tokens trained on, by sequence, each once an update."""
    ratio_max: float = 0.0
    """Largest token ratio."""
    first_pass_ratio_error: float = 0.0
    """max |token ratio - 1| before the step's first update: 0 up to rounding, else sampler and trainer differ."""
    correlation: RunningCorrelation = field(default_factory=RunningCorrelation)
    """Of token ratio and advantage."""

    @property
    def num_updates_with_clipping(self) -> int:
        """Updates in which the clip acted on any token."""
        return sum(self.had_clipping)

    def of_all(self, world: World) -> UpdateReport:
        """The report on the whole minibatches, from the reports of the processes on their shares."""
        if world.size == 1:
            return self
        parts = world.gather(self)
        return replace(
            self,
            sums=sums_of_all(world, self.sums),
            had_clipping=[any(flags) for flags in zip(*(part.had_clipping for part in parts), strict=True)],
            active_tokens_B=torch.stack([part.active_tokens_B for part in parts]).sum(dim=0),
            seen_tokens_B=torch.stack([part.seen_tokens_B for part in parts]).sum(dim=0),
            ratio_max=max(part.ratio_max for part in parts),
            first_pass_ratio_error=max(part.first_pass_ratio_error for part in parts),
            correlation=RunningCorrelation(
                count=sum(part.correlation.count for part in parts),
                sums=torch.stack([part.correlation.sums for part in parts]).sum(dim=0),
            ),
        )


def update_policy(
    session: Session, batch: LossBatch, sequences: Sequence[ScoredSequence], *, groups: Sequence[Sequence[int]]
) -> UpdateReport:
    """All epochs and minibatches over a rollout batch.

    ``batch`` holds every row of the step; ``groups`` the rows of each group that take part. A minibatch takes whole
    groups. Denominators are counts over the minibatch, so micro-batch losses add up to its loss however it is split.
    """
    report = UpdateReport(
        active_tokens_B=torch.zeros(len(sequences), dtype=torch.float64),
        seen_tokens_B=torch.zeros(len(sequences), dtype=torch.float64),
    )
    for rows in _minibatches(session, groups):
        accumulate(session, batch, sequences, rows=rows, report=report)
        if session.reuses_sampler_logprobs and report.first_pass_ratio_error > MAX_SAMPLER_ERROR:
            raise RuntimeError(
                f"the sampler's log-probabilities differ from the policy's by a ratio of up to "
                f"{1 + report.first_pass_ratio_error:.3f} before any update; every importance ratio would be wrong"
            )
        norm = session.engine.step()
        session.note_update(norm)
        report.gradient_norms.append(norm)
        report.num_updates += 1
    return report.of_all(session.world)


def _minibatches(session: Session, groups: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    config = session.config
    for _ in range(config.epochs_per_batch):
        order = torch.randperm(len(groups), generator=session.generator).tolist()
        count = min(config.minibatches_per_epoch, len(groups))
        for number in range(count):  # near-equal parts, in order
            part = order[number * len(groups) // count : (number + 1) * len(groups) // count]
            if rows := [row for group in part for row in groups[group]]:
                yield rows


def accumulate(
    session: Session, batch: LossBatch, sequences: Sequence[ScoredSequence], *, rows: list[int], report: UpdateReport
) -> None:
    """Add up the gradient of one minibatch, micro-batch by micro-batch; each process takes its share."""
    method, policy, config = session.method, session.policy, session.config
    denominators = LossDenominators(
        num_tokens=int(batch.mask_BT[rows].sum()), num_sequences=len(rows), max_new_tokens=config.max_new_tokens
    )
    extras = MinibatchExtras()
    if method.needs.minibatch_statistics:
        extras = _prepare(session, batch, sequences, rows)
    was_active = False
    chosen = [sequences[row] for row in rows]

    def cut(positions: list[int]) -> list[list[int]]:
        return policy.micro_batches([chosen[i] for i in positions], max_tokens=config.micro_batch_tokens)

    for part, is_counted in own_micro_batches(session, [one.num_tokens for one in chosen], cut):
        taken = [chosen[i] for i in part]
        scored = session.engine.forward(partial(policy.logprobs, taken, with_values=method.needs.critic))
        if not is_counted:
            session.engine.backward(without_weight(scored))
            continue
        index = [rows[i] for i in part]
        piece = replace(
            batch.take(index, scored.logprob_BT.shape[1]), logprob_BT=scored.logprob_BT, value_BT=scored.value_BT
        )
        output = method.loss(piece, denominators, extras.take(part, scored.logprob_BT.shape[1]))
        session.engine.backward(output.loss)
        was_active |= bool((output.active_tokens_B > 0).any())
        for name, value in output.sums.items():
            report.sums[name] += value
        _observe(report, piece, index, output.active_tokens_B)
    for name, value in extras.log.items():
        report.extras[name].append(value)
    report.had_clipping.append(was_active)
    report.num_tokens += denominators.num_tokens


def _prepare(
    session: Session, batch: LossBatch, sequences: Sequence[ScoredSequence], rows: list[int]
) -> MinibatchExtras:
    """Statistics that need the current log-probabilities of the whole minibatch at once."""
    chosen = [sequences[row] for row in rows]
    scored = score(session, session.policy, chosen)
    whole = replace(batch.take(rows, scored.logprob_BT.shape[1]), logprob_BT=scored.logprob_BT)
    return session.method.prepare_minibatch(whole, session.generator)


@torch.no_grad()
def _observe(report: UpdateReport, piece: LossBatch, index: list[int], active_tokens_B: Tensor) -> None:
    mask_BT = piece.mask_BT.bool()
    ratio_BT = (piece.logprob_BT - piece.old_logprob_BT).exp()
    ratios = ratio_BT[mask_BT]
    if ratios.numel():
        report.ratio_max = max(report.ratio_max, float(ratios.max()))
        if report.num_updates == 0:
            report.first_pass_ratio_error = max(report.first_pass_ratio_error, float((ratios - 1).abs().max()))
        report.correlation.add(ratios, piece.advantage_BT.expand_as(ratio_BT)[mask_BT])
    report.active_tokens_B[index] += active_tokens_B.double().cpu()
    report.seen_tokens_B[index] += mask_BT.sum(dim=1).double().cpu()
