"""Rollouts of one step: sampled, charged to the ledger, graded, and filtered by whole groups.

Shapes: P prompts, G rollouts a prompt, B = P*G sequences (row p*G + g is rollout g of prompt p), T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agpo_bench.records import Group, Phase, Prompt, Rollout
from agpo_bench.rollout.sampler import Sampler, SamplingRequest, sampling_seed
from agpo_bench.training.policy import ScoredSequence
from agpo_bench.training.rewards import Graded, grade_groups
from agpo_bench.training.session import Session


@dataclass(frozen=True, kw_only=True)
class RolloutBatch:
    """Graded groups of equal size."""

    prompts: list[Prompt]
    groups: list[Group]
    graded: Graded

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts, row by row."""
        return [rollout for group in self.groups for rollout in group.rollouts]

    @property
    def num_tokens(self) -> int:
        """Sampled tokens."""
        return sum(group.num_tokens for group in self.groups)

    @property
    def prompt_ids(self) -> tuple[str, ...]:
        """The prompts' names, in order."""
        return tuple(prompt.prompt_id for prompt in self.prompts)

    def take(self, rows_P: Sequence[int]) -> RolloutBatch:
        """The given groups."""
        return RolloutBatch(
            prompts=[self.prompts[row] for row in rows_P],
            groups=[self.groups[row] for row in rows_P],
            graded=self.graded.take(rows_P),
        )

    def join(self, other: RolloutBatch) -> RolloutBatch:
        """These groups and then the other's."""
        return RolloutBatch(
            prompts=self.prompts + other.prompts,
            groups=self.groups + other.groups,
            graded=Graded.of(self.graded.verdicts + other.graded.verdicts),
        )

    def sequences(self, *, temperature: float | None = None) -> list[ScoredSequence]:
        """What the policy scores: each rollout at the temperature it was sampled at, or all at one."""
        return [
            ScoredSequence(
                prompt_ids=group.prompt_ids,
                response_ids=rollout.response_ids,
                temperature=rollout.temperature if temperature is None else temperature,
            )
            for group in self.groups
            for rollout in group.rollouts
        ]

    def per_group(self, values_B: Sequence[float] | Tensor) -> Tensor:
        """One value a sequence as (P, G), float64."""
        return torch.as_tensor(values_B, dtype=torch.float64).reshape(len(self.groups), -1)

    @property
    def lengths(self) -> Tensor:
        """Response tokens, (P, G) float64."""
        return self.per_group([rollout.num_tokens for rollout in self.rollouts])

    @property
    def finished(self) -> Tensor:
        """False where the length limit cut the response; (P, G)."""
        return self.per_group([rollout.is_finished for rollout in self.rollouts]).bool()


EMPTY = RolloutBatch(prompts=[], groups=[], graded=Graded.of([]))


@dataclass(frozen=True, kw_only=True)
class Collected:
    """The training rollouts of a step."""

    kept: RolloutBatch
    """What is trained on: whole groups, at most the prompts asked for; possibly none."""
    discarded: RolloutBatch
    """Groups that the filter refused or that came too many."""
    num_rounds: int
    reused: RolloutBatch
    """Probe groups that are trained on as well, where the recipe says so."""

    @property
    def trained(self) -> RolloutBatch:
        """All that is trained on."""
        return self.kept.join(self.reused)

    @property
    def sampled(self) -> RolloutBatch:
        """Everything sampled for training in the step."""
        return self.kept.join(self.discarded)


def pad(rows: Sequence[Sequence[float]], *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows of numbers as one (B, T) tensor, padded with 0 on the right."""
    num_tokens = max((len(row) for row in rows), default=0)
    padded = [[*row, *([0.0] * (num_tokens - len(row)))] for row in rows]
    return torch.tensor(padded, dtype=dtype).reshape(len(rows), num_tokens)


def sample_groups(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    phase: Phase,
    size: int,
    temperatures: Sequence[float],
    first_index: int = 0,
    sampler: Sampler | None = None,
    with_entropy: bool = False,
) -> list[Group]:
    """Sample one group a prompt.

    Run seed, stream, step, prompt, sample and phase make each seed: no two rollouts share one.
    """
    config = session.config
    requests = []
    for prompt, temperature in zip(prompts, temperatures, strict=True):
        ids = session.prompt_ids[prompt.prompt_id]
        seeds = tuple(
            sampling_seed(
                config.seed,
                step=session.step,
                prompt_id=prompt.prompt_id,
                sample_index=first_index + i,
                phase=phase,
                stream=session.method.sampling_stream,
            )
            for i in range(size)
        )
        requests.append(
            SamplingRequest(
                prompt_id=prompt.prompt_id,
                prompt_ids=ids,
                seeds=seeds,
                temperature=temperature,
                top_p=config.top_p,
                max_new_tokens=min(config.max_new_tokens, config.max_length - len(ids)),
                stop=session.stop[prompt.task],
            )
        )
    return (sampler or session.sampler).sample(requests, with_entropy=with_entropy)


def collect_probe(session: Session, prompts: Sequence[Prompt], *, size: int, temperature: float) -> RolloutBatch:
    """One probe group a prompt: graded for its statistics, charged to ``probe``."""
    batch = sample_batch(
        session,
        prompts,
        timed="time/probe",
        phase="probe",
        size=size,
        temperatures=[temperature] * len(prompts),
        with_entropy=session.method.reuses_probe,
    )
    session.ledger.charge("probe", batch.num_tokens)
    return batch


def sample_batch(
    session: Session, prompts: Sequence[Prompt], *, timed: str, temperatures: Sequence[float], **options: Any
) -> RolloutBatch:
    """``sample_groups`` with verdicts, its seconds under the name ``timed``.

    Each process of the run samples and grades its share of the prompts; all of them get the whole batch, in the order
    of the prompts.
    """
    world = session.world
    share = world.share(len(prompts))
    own, own_temperatures = [prompts[i] for i in share], [temperatures[i] for i in share]
    # A separate engine has its own copy.
    is_separate = (options.get("sampler") or session.sampler).is_separate
    with session.clock.timed(timed), nullcontext() if is_separate else session.engine.whole_weights():
        groups = sample_groups(session, own, temperatures=own_temperatures, **options)
    with session.clock.timed("time/reward"):
        graded = grade_groups(own, groups)
    if world.size > 1:
        with session.clock.timed("time/wait"):
            groups, graded = world.join(groups), Graded.of(world.join(graded.verdicts))
    return RolloutBatch(prompts=list(prompts), groups=groups, graded=graded)


def collect_training(
    session: Session,
    prompts: Sequence[Prompt],
    *,
    temperatures: Sequence[float],
    temperature: float,
    probe: RolloutBatch | None = None,
) -> Collected:
    """The training groups, sampled again for other prompts while the method's filter leaves too few.

    Kept groups are charged to ``train``, all others to ``discarded``. Where the rounds or the budget run out first, the
    step goes on with the groups it has, even none (DAPO's released loop ends the run there).
    """
    method, target = session.method, len(prompts)
    size = method.rollouts_per_prompt(session.config.group_size)
    kept, discarded = EMPTY, EMPTY
    num_rounds = 0
    while True:
        batch = sample_batch(
            session,
            prompts,
            timed="time/gen",
            phase="train",
            size=size,
            temperatures=temperatures,
            first_index=num_rounds * size,  # a small data set may show a prompt again within the step
            with_entropy=True,
        )
        num_rounds += 1
        is_kept_P = _is_kept(session, batch)
        rows = [row for row, is_kept in enumerate(is_kept_P) if is_kept][: target - len(kept.groups)]
        passing, failing = (
            batch.take(rows),
            batch.take([row for row in range(len(batch.groups)) if row not in set(rows)]),
        )
        session.ledger.charge("train", passing.num_tokens)
        session.ledger.charge("discarded", failing.num_tokens)
        kept, discarded = kept.join(passing), discarded.join(failing)
        is_full = len(kept.groups) >= target
        if is_full or num_rounds >= method.max_sampling_rounds or not session.ledger.may_start():
            reused = probe if probe is not None and method.reuses_probe else EMPTY
            return Collected(kept=kept, discarded=discarded, num_rounds=num_rounds, reused=_passing(session, reused))
        prompts = session.stream.take(target)
        temperatures = [temperature] * target


def _is_kept(session: Session, batch: RolloutBatch) -> list[bool]:
    is_kept_P: list[bool] = session.method.filter_groups(batch.graded.reward_PG, batch.graded.is_valid_PG).tolist()
    return is_kept_P


def _passing(session: Session, batch: RolloutBatch) -> RolloutBatch:
    if not batch.groups:
        return batch
    return batch.take([row for row, is_kept in enumerate(_is_kept(session, batch)) if is_kept])
