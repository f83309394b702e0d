"""The preference loop: pairs of rollouts of the initial policy, and a loss on them.

Every step samples groups from the frozen initial policy, charges them to the ledger's ``pairs`` phase, takes a better
and a worse rollout of each group that has both, and trains on those pairs. Sampling in step with training gives the
same pairs as sampling them all first, and lets the learning rate follow the tokens used, as for every other method.
Shapes: N pairs, B = 2N sequences, T response tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from agpo_bench.methods.preference import Pair, PreferenceBatch
from agpo_bench.records import Rollout
from agpo_bench.training.collect import RolloutBatch, sample_batch
from agpo_bench.training.kl_monitor import KlSample
from agpo_bench.training.metrics import (
    StepRecord,
    StepResult,
    Values,
    gap_metrics,
    gradient_metrics,
    merged,
    position_metrics,
    rollout_metrics,
)
from agpo_bench.training.policy import Policy, ScoredSequence
from agpo_bench.training.rollout_log import batch_lines
from agpo_bench.training.sampler_gap import sampler_gap
from agpo_bench.training.session import Session
from agpo_bench.training.setup import load_initial, make_sampler
from agpo_bench.training.shares import own_micro_batches, score, sums_of_all, without_weight


@dataclass(kw_only=True)
class _Report:
    num_updates: int = 0
    num_pairs: int = 0
    """Pairs, each once an update."""
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gradient_norms: list[float] = field(default_factory=list)


class PreferenceLoop:
    """Takes steps on a session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        # The session's sampler follows the policy; pairs come from the policy before training.
        self._initial_sampler = make_sampler(session.config, load_initial(session.config))
        session.resources.callback(self._initial_sampler.close)

    def step(self) -> StepResult:
        """One batch of groups, and the updates on its pairs."""
        session = self.session
        session.clock.restart()
        with session.clock.timed("time/step"):
            record, batch = self._step()
        lines = list(batch_lines(batch, phase="pairs"))
        return StepResult(record=record, rollouts=lines, seconds=dict(session.clock.seconds))

    def _step(self) -> tuple[StepRecord, RolloutBatch]:
        session, method = self.session, self.session.method
        learning_rate = session.config.learning_rate * session.set_learning_rate()
        batch = self._sample()
        gap = None
        if self._initial_sampler.is_separate:
            assert session.reference is not None
            with session.clock.timed("time/monitor"):
                gap = sampler_gap(session, session.reference, batch)
        pairs = method.pairs(batch.graded.reward_PG, batch.graded.is_valid_PG)
        chosen, rejected = _sequences(batch, pairs)
        with session.clock.timed("time/update"):
            report = self._update(chosen, rejected)
        session.sync_sampler(session.sampler.weights_version + 1)
        step, session.step = session.step, session.step + 1
        record = StepRecord(
            step=step,
            values=merged(
                position_metrics(session, learning_rate=learning_rate),
                rollout_metrics(batch),
                {
                    "ctrl/tau": method.base_temperature,
                    "pairs/count": len(pairs),
                    "pairs/prompts_without": len(batch.groups) - len(pairs),
                },
                {name: total / report.num_pairs for name, total in report.sums.items()},
                gradient_metrics(session, report.gradient_norms),
                self._reference_kl(batch),
                gap_metrics(gap),
            ),
        )
        return record, batch

    def _sample(self) -> RolloutBatch:
        session, method = self.session, self.session.method
        prompts = session.stream.take(session.num_prompts)
        batch = sample_batch(
            session,
            prompts,
            timed="time/gen",
            phase="pairs",
            size=method.rollouts_per_prompt(session.config.group_size),
            temperatures=[method.base_temperature] * len(prompts),
            sampler=self._initial_sampler,
        )
        session.ledger.charge("pairs", batch.num_tokens)
        self._initial_sampler.release()
        return batch

    def _update(self, chosen: Sequence[ScoredSequence], rejected: Sequence[ScoredSequence]) -> _Report:
        """All epochs and minibatches over the step's pairs; none when no group had a pair."""
        session, config = self.session, self.session.config
        assert session.reference is not None
        report = _Report()
        with session.reference.at_hand():
            for _ in range(config.epochs_per_batch):
                order = torch.randperm(len(chosen), generator=session.generator).tolist()
                count = min(config.minibatches_per_epoch, len(order))
                for number in range(count):
                    rows = order[number * len(order) // count : (number + 1) * len(order) // count]
                    self._update_once([chosen[row] for row in rows], [rejected[row] for row in rows], report)
        report.sums = sums_of_all(session.world, report.sums)
        return report

    def _update_once(self, chosen: list[ScoredSequence], rejected: list[ScoredSequence], report: _Report) -> None:
        session, config = self.session, self.session.config

        def cut(positions: list[int]) -> list[list[int]]:
            parts = [chosen[i] for i in positions], [rejected[i] for i in positions]
            return _split_pairs(*parts, max_tokens=config.micro_batch_tokens)

        costs = [first.num_tokens + second.num_tokens for first, second in zip(chosen, rejected, strict=True)]
        for part in own_micro_batches(session, costs, cut):
            rows = [chosen[index] for index in part.positions] + [rejected[index] for index in part.positions]
            anchor_BT = self._anchor(rows)
            scored = session.engine.forward(partial(session.policy.logprobs, rows))
            if not part.is_counted:
                session.engine.backward(without_weight(scored))
                continue
            batch = PreferenceBatch(logprob_BT=scored.logprob_BT, ref_logprob_BT=anchor_BT, mask_BT=scored.mask_BT)
            output = session.method.preference_loss(batch, num_pairs=len(chosen))
            session.engine.backward(output.loss)
            for name, value in output.sums.items():
                report.sums[name] += value
        norm = session.engine.step()
        session.note_update(norm)
        report.gradient_norms.append(norm)
        report.num_updates += 1
        report.num_pairs += len(chosen)

    def _anchor(self, rows: list[ScoredSequence]) -> Tensor:
        """Log-probabilities of the initial policy; all processes ask for theirs together."""
        session = self.session
        assert session.reference is not None
        # Beside adapters it reads the policy's frozen weights, which may lie on other processes.
        with session.engine.whole_weights() if session.policy.is_adapted else nullcontext():
            return session.reference.logprobs(rows, with_grad=False).logprob_BT

    def _reference_kl(self, batch: RolloutBatch) -> Values:
        """How far the trained policy is from the initial one, on the initial one's own rollouts: KL(pi_ref || pi)."""
        session = self.session
        assert session.reference is not None
        sequences = batch.sequences(temperature=1.0)[: session.config.monitor_rollouts]
        now = score(session, session.policy, sequences)
        anchor = score(session, session.reference, sequences)
        forward = KlSample.between(anchor.logprob_BT, now.logprob_BT, now.mask_BT)
        return {
            "kl/initial_k1": forward.k1,
            "kl/initial_k3": forward.k3,
            "kl/initial_per_seq": forward.per_sequence,
            "kl/num_tokens": forward.num_tokens,
        }


def _sequences(batch: RolloutBatch, pairs: Sequence[Pair]) -> tuple[list[ScoredSequence], list[ScoredSequence]]:
    """Chosen and rejected responses; DPO compares log-probabilities at temperature 1 (its Eq. 7 has no other)."""

    def scored(prompt_index: int, rollout_index: int) -> ScoredSequence:
        group = batch.groups[prompt_index]
        rollout: Rollout = group.rollouts[rollout_index]
        return ScoredSequence(prompt_ids=group.prompt_ids, response_ids=rollout.response_ids, temperature=1.0)

    return (
        [scored(pair.prompt_index, pair.chosen_index) for pair in pairs],
        [scored(pair.prompt_index, pair.rejected_index) for pair in pairs],
    )


def _split_pairs(
    chosen: Sequence[ScoredSequence], rejected: Sequence[ScoredSequence], *, max_tokens: int
) -> list[list[int]]:
    """Micro-batches of whole pairs: a pair is as long as its longer response, and takes two rows."""
    longer = [
        first if len(first.response_ids) >= len(second.response_ids) else second
        for first, second in zip(chosen, rejected, strict=True)
    ]
    return Policy.split(longer, max_tokens=max(1, max_tokens // 2))
