"""The on-policy loop: one step a rollout batch, in the order of the AGPO paper's Algorithm.

probe -> temperature -> rollouts -> grades -> advantages -> clip bounds -> updates -> step KL -> record.
What differs between methods is in their parts; this file asks only what they need.
Shapes: P prompts, G rollouts a prompt, B = P*G sequences (row p*G + g), T response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agpo_bench.methods.batch import (
    AdvantageInputs,
    Advantages,
    ClipBounds,
    ClipObserved,
    LossBatch,
    TemperatureChoice,
    UpdateObserved,
)
from agpo_bench.methods.probe import ProbeStatistics
from agpo_bench.records import Prompt
from agpo_bench.training.collect import Collected, RolloutBatch, collect_probe, collect_training, pad
from agpo_bench.training.kl_monitor import KlSample, reference_kl
from agpo_bench.training.metrics import (
    StepRecord,
    StepResult,
    Values,
    collection_metrics,
    gap_metrics,
    merged,
    position_metrics,
    rollout_metrics,
    update_metrics,
)
from agpo_bench.training.policy import ScoredSequence
from agpo_bench.training.rewards import vote_keys
from agpo_bench.training.rollout_log import rollout_lines
from agpo_bench.training.sampler_gap import SamplerGap, sampler_gap
from agpo_bench.training.session import Session
from agpo_bench.training.shares import score
from agpo_bench.training.update import UpdateReport, update_policy


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The step's sequences under the policy that sampled them, the reference and the critic; all (B, T)."""

    sequences: list[ScoredSequence]
    mask_BT: Tensor
    old_logprob_BT: Tensor
    entropy_BT: Tensor
    """Full vocabulary, temperature 1 (nats), on the CPU."""
    ref_logprob_BT: Tensor | None
    value_BT: Tensor | None
    gap: SamplerGap | None
    """Of a separate sampling engine to the policy."""


class OnlineLoop:
    """Takes steps on a session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def step(self) -> StepResult:
        """One rollout batch and its updates."""
        session, method = self.session, self.session.method
        session.clock.restart()
        with self.session.clock.timed("time/step"):
            learning_rate = session.config.learning_rate * session.set_learning_rate()
            prompts = self._next_prompts()

            probe_batch, probe = self._measure(prompts)
            session.method_state, temperature = method.choose_temperature(session.method_state, probe)
            collected = self._collect(prompts, temperature, probe_batch)
            batch = collected.trained
            values: Values = {}
            advantages: Advantages | None = None
            bounds: ClipBounds | None = None
            if batch.groups:
                scored = self._score(batch)
                rewards_PG = method.shape_rewards(
                    batch.graded.reward_PG,
                    lengths_PG=batch.lengths,
                    is_valid_PG=batch.graded.is_valid_PG,
                    max_new_tokens=session.config.max_new_tokens,
                )
                advantages = self._advantages(batch, scored, rewards_PG)
                bounds = self._clip_bounds(batch, scored, probe)
                anchor = self._reference_kl(batch, scored)
                report = self._update(batch, scored, advantages, bounds)
                moved = self._step_kl(batch, scored)
                self._observe(batch, scored, moved)
                values = merged(
                    {"reward/shaped_mean": float(rewards_PG[batch.graded.is_valid_PG].mean())},
                    advantages.log,
                    bounds.log,
                    update_metrics(session, report, batch),
                    _kl_metrics(anchor, moved),
                    gap_metrics(scored.gap),
                )
                values.setdefault("ctrl/H", _masked_mean(scored.entropy_BT, scored.mask_BT))
            step, session.step = session.step, session.step + 1
        record = StepRecord(
            step=step,
            values=merged(
                position_metrics(session, learning_rate=learning_rate),
                rollout_metrics(collected.sampled),
                collection_metrics(collected),
                _probe_metrics(probe_batch),
                temperature.log,
                values,
            ),
        )
        return StepResult(
            record=record,
            rollouts=rollout_lines(probe_batch, collected, advantages, bounds),
            seconds=dict(session.clock.seconds),
        )

    def _next_prompts(self) -> list[Prompt]:
        session = self.session
        if session.method.needs.prompt_weights:
            ids = tuple(prompt.prompt_id for prompt in session.stream.prompts)
            weights = session.method.prompt_weights(session.method_state, ids)
            return session.stream.draw(session.num_prompts, weights=weights)
        return session.stream.take(session.num_prompts)

    def _measure(self, prompts: Sequence[Prompt]) -> tuple[RolloutBatch | None, ProbeStatistics | None]:
        """Probe groups at the base temperature and their statistics; nothing where no part needs them."""
        method = self.session.method
        if not method.needs.probe:
            return None, None
        size = method.probe_size(self.session.config.group_size)
        batch = collect_probe(self.session, prompts, size=size, temperature=method.base_temperature)
        with self.session.clock.timed("time/reward"):
            share = self.session.world.share(len(prompts))
            own = vote_keys([prompts[i] for i in share], batch.graded.take(share))
            votes = self.session.world.join(own)
        statistics = method.measure_probe(batch.graded.reward_PG, votes, is_valid_PG=batch.graded.is_valid_PG)
        return batch, statistics

    def _collect(
        self, prompts: Sequence[Prompt], temperature: TemperatureChoice, probe: RolloutBatch | None
    ) -> Collected:
        each = [temperature.value] * len(prompts)
        if temperature.value_P is not None:
            each = temperature.value_P.tolist()
        return collect_training(self.session, prompts, temperatures=each, temperature=temperature.value, probe=probe)

    def _score(self, batch: RolloutBatch) -> Scored:
        """Old log-probabilities and entropies (the sampler's, where they are exact), reference and values."""
        session, device = self.session, self.session.device
        session.sampler.release()
        assert all(rollout.weights_version == session.sampler.weights_version for rollout in batch.rollouts), (
            "rollouts of stale weights"
        )
        with self.session.clock.timed("time/logp"):
            unit = 1.0 if session.method.logprob_temperature == "unit" else None
            sequences = batch.sequences(temperature=unit)
            rollouts = batch.rollouts
            mask_BT = pad([[1.0] * rollout.num_tokens for rollout in rollouts])
            entropy_BT = pad([rollout.entropies or () for rollout in rollouts])
            is_reusable = session.reuses_sampler_logprobs and (
                unit is None or all(rollout.temperature == 1.0 for rollout in rollouts)
            )
            needs = session.method.needs
            old_logprob_BT = pad([rollout.logprobs for rollout in rollouts]).to(device)
            ref_logprob_BT = value_BT = gap = None
            if needs.critic or not is_reusable:
                is_separate = session.sampler.is_separate
                own = score(session, session.policy, sequences, with_values=needs.critic, with_entropy=is_separate)
                if own.entropy_BT is not None:
                    entropy_BT = own.entropy_BT.cpu()
                    is_unit = all(sequence.temperature == 1.0 for sequence in sequences)
                    gap = sampler_gap(session, session.policy, batch, scored=own if is_unit else None)
                value_BT = own.value_BT
                old_logprob_BT = old_logprob_BT if is_reusable else own.logprob_BT
            if needs.reference:
                assert session.reference is not None
                ref_logprob_BT = score(session, session.reference, sequences).logprob_BT
        return Scored(
            sequences=sequences,
            mask_BT=mask_BT.to(device),
            old_logprob_BT=old_logprob_BT,
            entropy_BT=entropy_BT,
            ref_logprob_BT=ref_logprob_BT,
            value_BT=value_BT,
            gap=gap,
        )

    def _advantages(self, batch: RolloutBatch, scored: Scored, rewards_PG: Tensor) -> Advantages:
        session = self.session
        inputs = AdvantageInputs(
            rewards_PG=rewards_PG,
            scores_PG=batch.graded.reward_PG,
            prompt_ids=batch.prompt_ids,
            is_valid_PG=batch.graded.is_valid_PG,
            is_finished_PG=batch.finished,
            mask_BT=scored.mask_BT.cpu(),
            old_logprob_BT=scored.old_logprob_BT.cpu(),
            ref_logprob_BT=None if scored.ref_logprob_BT is None else scored.ref_logprob_BT.cpu(),
            value_BT=None if scored.value_BT is None else scored.value_BT.cpu(),
            entropy_BT=scored.entropy_BT,
        )
        session.method_state, advantages = session.method.advantages(session.method_state, inputs)
        return advantages

    def _clip_bounds(self, batch: RolloutBatch, scored: Scored, probe: ProbeStatistics | None) -> ClipBounds:
        session = self.session
        mask_BT = scored.mask_BT.cpu().double()
        token_sum_P = batch.per_group((scored.entropy_BT.double() * mask_BT).sum(dim=1)).sum(dim=1)
        token_count_P = batch.per_group(mask_BT.sum(dim=1)).sum(dim=1)
        observed = ClipObserved(
            scores_PG=batch.graded.reward_PG,
            is_valid_PG=batch.graded.is_valid_PG,
            entropy=float(token_sum_P.sum() / token_count_P.sum()),
            entropy_P=token_sum_P / token_count_P,
        )
        session.method_state, bounds = session.method.clip_bounds(session.method_state, observed, probe)
        return bounds

    def _update(self, batch: RolloutBatch, scored: Scored, advantages: Advantages, bounds: ClipBounds) -> UpdateReport:
        session, device = self.session, self.session.device
        low_B1, high_B1 = bounds.rows()
        return_BT = advantages.return_BT
        loss_batch = LossBatch(
            logprob_BT=scored.old_logprob_BT,
            old_logprob_BT=scored.old_logprob_BT,
            mask_BT=scored.mask_BT,
            advantage_BT=advantages.rows().to(device),
            clip_low_B1=low_B1.to(device),
            clip_high_B1=high_B1.to(device),
            ref_logprob_BT=scored.ref_logprob_BT,
            kl_coefficient=session.method.kl_coefficient(session.method_state),
            value_BT=scored.value_BT,
            old_value_BT=scored.value_BT,
            return_BT=None if return_BT is None else return_BT.to(device, torch.float32),
        )
        size = advantages.is_trained_PG.shape[1]
        groups = [
            [p * size + g for g in range(size) if is_trained_G[g]]
            for p, is_trained_G in enumerate(advantages.is_trained_PG.tolist())
        ]
        with self.session.clock.timed("time/update"):
            report = update_policy(session, loss_batch, scored.sequences, groups=groups)
        with self.session.clock.timed("time/sync"):
            session.sync_sampler(session.sampler.weights_version + 1)
        return report

    def _num_monitored(self, batch: RolloutBatch) -> int:
        """Rollouts of whole groups on which the KL diagnostics run."""
        size = len(batch.groups[0].rollouts)
        most = self.session.config.monitor_rollouts
        return len(batch.groups) * size if most is None else min(len(batch.groups), -(-most // size)) * size

    def _reference_kl(self, batch: RolloutBatch, scored: Scored) -> KlSample | None:
        """KL to the reference at temperature 1, before the updates."""
        session, count = self.session, self._num_monitored(batch)
        if session.reference is None:
            return None
        if scored.ref_logprob_BT is not None and all(one.temperature == 1.0 for one in scored.sequences[:count]):
            return KlSample.between(
                scored.old_logprob_BT[:count], scored.ref_logprob_BT[:count], scored.mask_BT[:count]
            )
        with session.clock.timed("time/monitor"):
            return reference_kl(session, batch.sequences(temperature=1.0)[:count])

    def _step_kl(self, batch: RolloutBatch, scored: Scored) -> KlSample:
        """KL of the policy before the step's updates to the one after them (Eq. 6)."""
        count = self._num_monitored(batch)
        with self.session.clock.timed("time/monitor"):
            now = score(self.session, self.session.policy, scored.sequences[:count])
        width = now.logprob_BT.shape[1]
        return KlSample.between(scored.old_logprob_BT[:count, :width], now.logprob_BT, now.mask_BT)

    def _observe(self, batch: RolloutBatch, scored: Scored, moved: KlSample) -> None:
        """Let the method's controllers see what the step did."""
        session = self.session
        per_sequence = None
        if scored.ref_logprob_BT is not None:
            per_sequence = KlSample.between(scored.old_logprob_BT, scored.ref_logprob_BT, scored.mask_BT).per_sequence
        observed = UpdateObserved(
            num_episodes=len(scored.sequences),
            step_kl_k1=moved.k1,
            step_kl_k1_P=moved.k1_by_group(len(batch.groups[0].rollouts)),
            ref_kl_per_sequence=per_sequence,
            prompt_ids=batch.prompt_ids,
            scores_PG=batch.graded.reward_PG,
            is_valid_PG=batch.graded.is_valid_PG,
        )
        session.method_state = session.method.observe_update(session.method_state, observed)


def _masked_mean(values_BT: Tensor, mask_BT: Tensor) -> float:
    mask_BT = mask_BT.cpu().double()
    return float((values_BT.double() * mask_BT).sum() / mask_BT.sum().clamp(min=1))


def _probe_metrics(batch: RolloutBatch | None) -> Values:
    if batch is None or not bool(batch.graded.is_valid_PG.any()):
        return {}
    return {"probe/reward_mean": float(batch.graded.reward_PG[batch.graded.is_valid_PG].mean())}


def _kl_metrics(anchor: KlSample | None, moved: KlSample) -> Values:
    values: Values = {"kl/step_k1": moved.k1, "kl/step_k3": moved.k3, "kl/num_tokens": moved.num_tokens}
    if anchor is not None:
        values |= {
            "kl/ref_k1": anchor.k1,
            "kl/ref_k3": anchor.k3,
            "kl/ref_per_seq": anchor.per_sequence,
            "kl/ref_per_seq_k3": anchor.per_sequence_k3,
        }
    return values
