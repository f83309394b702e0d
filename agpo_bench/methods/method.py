"""A method: one part in each slot, and the steps as the training loop calls them.

Shapes: P prompts, G rollouts a prompt, B = P*G sequences (row p*G + g), T response tokens.

One step of the loop::

    state, temperature = method.choose_temperature(state, probe)          # probe: method.measure_probe(...) or None
    keep_P = method.filter_groups(scores_PG, is_valid_PG)
    rewards_PG = method.shape_rewards(scores_PG, ...)
    state, advantages = method.advantages(state, AdvantageInputs(...))
    state, bounds = method.clip_bounds(state, ClipObserved(...), probe)
    for minibatch:  extras = method.prepare_minibatch(...);  for micro-batch:  method.loss(...)
    state = method.observe_update(state, UpdateObserved(...))
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator
from torch import Generator, Tensor

from agpo_bench.methods import advantage as advantage_parts
from agpo_bench.methods import clip as clip_parts
from agpo_bench.methods import critic as critic_parts
from agpo_bench.methods import groups as groups_parts
from agpo_bench.methods import kl as kl_parts
from agpo_bench.methods import objective
from agpo_bench.methods import preference as preference_parts
from agpo_bench.methods import probe as probe_parts
from agpo_bench.methods import ratio as ratio_parts
from agpo_bench.methods import reward as reward_parts
from agpo_bench.methods import shaping as shaping_parts
from agpo_bench.methods import temperature as temperature_parts
from agpo_bench.methods.batch import (
    AdvantageInputs,
    Advantages,
    ClipBounds,
    ClipObserved,
    LossBatch,
    LossDenominators,
    LossOutput,
    MinibatchExtras,
    TemperatureChoice,
    UpdateObserved,
)
from agpo_bench.methods.metrics import LossCounts, loss_metrics
from agpo_bench.methods.part import Part
from agpo_bench.methods.preference import Pair, PreferenceBatch, PreferenceOutput
from agpo_bench.methods.probe import ProbeStatistics, is_constant
from agpo_bench.methods.ratio import token_log_ratio
from agpo_bench.methods.refusals import impossible
from agpo_bench.methods.slots import SLOTS, as_part
from agpo_bench.methods.state import MethodState


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a method asks of the training loop: the union of its parts' needs."""

    probe: bool
    critic: bool
    reference: bool
    entropy: bool
    """Mean token entropy of the old policy at temperature 1 (``ClipObserved.entropy``)."""
    token_entropy: bool
    """Each training token's entropy at temperature 1 (``AdvantageInputs.entropy_BT``)."""
    token_inputs: bool
    """Old log-probabilities and mask when advantages are computed."""
    step_kl: bool
    pairs: bool
    minibatch_statistics: bool
    prompt_weights: bool
    min_group_size: int
    min_updates_per_rollout: int
    extra_rollouts: int
    """Rollouts a prompt beyond the group size."""


class Method(BaseModel):
    """A recipe: flat, closed and complete. Each slot holds one part, told apart by ``use``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    title: str
    source: str
    """Paper and equations."""
    about: str = ""
    departures: tuple[str, ...] = ()
    """Where the recipe differs from its source."""
    is_reconstruction: bool = False
    """True when the source leaves parts of the method open; ``caption`` then says what was assumed."""
    caption: str = ""
    """A sentence that every table with a run of this method carries; empty for none."""
    loop: Literal["online", "preference"] = "online"
    group_size: int | None = Field(default=None, ge=1)
    """Rollouts a prompt; None means the run's."""
    learning_rate_factor: float = Field(default=1.0, gt=0)
    """Times the run's peak learning rate; 1 for all methods whose loss has the scale of a policy gradient."""
    logprob_temperature: Literal["sampling", "unit"] = "sampling"
    """Temperature of the policy's, the old policy's and the reference's log-probabilities in the loss."""
    sampling_stream: int = Field(default=0, ge=0)
    """Rollouts of one seed and another stream are independent draws for the same prompts in the same order.

    Methods share stream 0, so that a comparison at one seed is paired. A control that replays the controllers of its
    own seed needs another: on the same stream it would repeat that run to the bit.
    """

    probe: SerializeAsAny[probe_parts.ProbePart] = probe_parts.NoProbe()
    temperature: SerializeAsAny[temperature_parts.TemperaturePart] = temperature_parts.FixedTemperature()
    reward: SerializeAsAny[reward_parts.RewardPart] = reward_parts.ScoreReward()
    groups: SerializeAsAny[groups_parts.GroupsPart] = groups_parts.AllGroups()
    advantage: SerializeAsAny[advantage_parts.AdvantagePart] = advantage_parts.Raw()
    shaping: SerializeAsAny[shaping_parts.ShapingPart] = shaping_parts.NoShaping()
    ratio: SerializeAsAny[ratio_parts.RatioPart] = ratio_parts.TokenRatio()
    clip: SerializeAsAny[clip_parts.ClipPart] = clip_parts.NoClip()
    surrogate: SerializeAsAny[objective.SurrogatePart] = objective.UnclippedSurrogate()
    kl: SerializeAsAny[kl_parts.KlPart] = kl_parts.NoKl()
    aggregation: SerializeAsAny[objective.AggregationPart] = objective.TokenMean()
    critic: SerializeAsAny[critic_parts.CriticPart] = critic_parts.NoCritic()
    preference: SerializeAsAny[preference_parts.PreferencePart] = preference_parts.NoPreference()

    @field_validator(*SLOTS, mode="before")
    @classmethod
    def _resolve(cls, value: Any, info: Any) -> Part:
        return as_part(info.field_name, value)

    @model_validator(mode="after")
    def _check(self) -> Method:
        for sentence in impossible(self):
            raise ValueError(sentence)
        return self

    @cached_property
    def parts(self) -> dict[str, Part]:
        """The part in each slot."""
        return {slot: getattr(self, slot) for slot in SLOTS}

    @cached_property
    def needs(self) -> Needs:
        """The union of the parts' needs."""
        parts = self.parts.values()

        def any_part(name: str) -> bool:
            return any(getattr(part, name) for part in parts)

        return Needs(
            probe=self.probe.needs_probe,
            critic=any_part("needs_critic"),
            reference=any_part("needs_reference"),
            entropy=any_part("needs_entropy"),
            token_entropy=any_part("needs_token_entropy"),
            token_inputs=any_part("needs_token_inputs"),
            step_kl=any_part("needs_step_kl"),
            pairs=any_part("needs_pairs"),
            minibatch_statistics=any_part("needs_minibatch_statistics"),
            prompt_weights=any_part("needs_prompt_weights"),
            min_group_size=max(part.min_group_size for part in parts),
            min_updates_per_rollout=max(part.min_updates_per_rollout for part in parts),
            extra_rollouts=max(part.extra_rollouts for part in parts),
        )

    def check_run(self, *, group_size: int, updates_per_rollout: int) -> None:
        """Raise ValueError, one sentence, if the run's settings make this method meaningless."""
        size = self.rollouts_per_prompt(group_size) - self.needs.extra_rollouts
        if size < self.needs.min_group_size:
            raise ValueError(f"{self.name}: group size {size} gives no spread; use {self.needs.min_group_size} or more")
        if updates_per_rollout < self.needs.min_updates_per_rollout:
            raise ValueError(
                f"{self.name}: with {updates_per_rollout} update a rollout batch the ratio is 1 and clip "
                f"{self.clip.use!r} cannot act; use {self.needs.min_updates_per_rollout} or more"
            )

        if self.reuses_probe and self.probe_size(group_size) != self.rollouts_per_prompt(group_size):
            raise ValueError(
                f"{self.name}: probe groups of {self.probe_size(group_size)} cannot be trained on beside groups of "
                f"{self.rollouts_per_prompt(group_size)}; leave probe.size out, or set reuse: false"
            )

    def with_logs(self, *, out: Path, seed: int) -> Method:
        """Fill ``{out}`` and ``{seed}`` into the paths of replay parts."""
        changes = {}
        for slot in ("temperature", "clip"):
            part = getattr(self, slot)
            path = getattr(part, "path", None)
            if path is not None:
                filled = path.replace("{out}", str(out)).replace("{seed}", str(seed))
                changes[slot] = part.model_copy(update={"path": filled})
        # Validated anew: a copy would keep the cached ``parts`` of the original.
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**fields | changes) if changes else self

    @property
    def logs(self) -> tuple[str, ...]:
        """Paths of the logs that its parts replay; empty for most methods."""
        found = [getattr(part, "path", None) for part in self.parts.values()]
        return tuple(dict.fromkeys(path for path in found if path is not None))

    def rollouts_per_prompt(self, group_size: int) -> int:
        """Training rollouts of a prompt, ``group_size`` being the run's."""
        return (self.group_size or group_size) + self.needs.extra_rollouts

    @property
    def max_sampling_rounds(self) -> int:
        """Rounds of sampling with which a filtered batch may be filled up; 1 means no refill."""
        return self.groups.max_sampling_rounds

    def restore(self, text: str) -> MethodState:
        """The state that ``MethodState.to_json`` wrote."""
        return MethodState.from_json(text)

    def probe_size(self, group_size: int) -> int:
        """Probe rollouts of a prompt; 0 without a probe."""
        if not isinstance(self.probe, probe_parts.GroupProbe):
            return 0
        return self.probe.size or self.group_size or group_size

    @property
    def reuses_probe(self) -> bool:
        """Whether probe groups are trained on."""
        return isinstance(self.probe, probe_parts.GroupProbe) and self.probe.reuse

    @property
    def base_temperature(self) -> float:
        """Temperature of probes and of preference pairs."""
        return self.temperature.base_temperature

    def start(self) -> MethodState:
        """State before the first step; ValueError when a replay has no log."""
        return MethodState(
            temperature=self.temperature.start(),
            clip=self.clip.start(),
            kl=self.kl.start(),
            advantage=self.advantage.start(),
            shaping=self.shaping.start(),
        )

    def measure_probe(
        self,
        scores_PG: Tensor,
        answers_PG: Sequence[Sequence[Hashable | None]],
        *,
        is_valid_PG: Tensor | None = None,
    ) -> ProbeStatistics:
        """Statistics of the probe groups; ``answers_PG`` are canonical vote keys, None where nothing was answered."""
        assert isinstance(self.probe, probe_parts.GroupProbe)
        return self.probe(scores_PG, answers_PG, is_valid_PG=is_valid_PG)

    def choose_temperature(
        self, state: MethodState, probe: ProbeStatistics | None
    ) -> tuple[MethodState, TemperatureChoice]:
        """Temperature of the training rollouts."""
        part_state, choice = self.temperature(state.temperature, probe, is_per_prompt=self.is_per_prompt)
        return state.model_copy(update={"temperature": part_state}), choice

    @property
    def is_per_prompt(self) -> bool:
        """Whether controllers give each prompt its own radius and temperature."""
        return isinstance(self.probe, probe_parts.GroupProbe) and self.probe.scope == "prompt"

    def shape_rewards(
        self, scores_PG: Tensor, lengths_PG: Tensor, *, is_valid_PG: Tensor, max_new_tokens: int
    ) -> Tensor:
        """Rewards (float64) from the grader's scores."""
        return self.reward(scores_PG.double(), lengths_PG, is_valid_PG, max_new_tokens)

    def filter_groups(self, scores_PG: Tensor, is_valid_PG: Tensor) -> Tensor:
        """Which groups stay, (P,) bool; from the grader's scores, before shaping."""
        return self.groups(scores_PG.double(), is_valid_PG)

    def prompt_weights(self, state: MethodState, prompt_ids: Sequence[str]) -> list[float]:
        """Relative weights with which the next prompts should be drawn; all 1 unless ``needs.prompt_weights``."""
        return self.advantage.prompt_weights(state.advantage, tuple(prompt_ids))

    def advantages(self, state: MethodState, inputs: AdvantageInputs) -> tuple[MethodState, Advantages]:
        """Advantages of the training rollouts."""
        penalty_BT = self.kl.reward_penalty(inputs, state.kl)
        result = self.advantage(inputs, penalty_BT, state.advantage)
        shaping, result = self.shaping(state.shaping, result, inputs)
        trained = result.advantage_PG[result.is_trained_PG]
        log = {
            **result.log,
            "adv/zero_variance_frac": float(is_constant(inputs.rewards_PG, inputs.is_valid_PG).double().mean()),
            "adv/abs_mean": float(trained.abs().mean()) if trained.numel() else 0.0,
            "kl_ctl/beta": self.kl_coefficient(state),
        }
        return state.model_copy(update={"shaping": shaping}), replace(result, log=log)

    def clip_bounds(
        self, state: MethodState, observed: ClipObserved, probe: ProbeStatistics | None
    ) -> tuple[MethodState, ClipBounds]:
        """Clip bounds of the training rollouts."""
        step_kl = float(state.clip.get("step_kl", 0.0)) if self.probe.keeps("step_kl") else 0.0
        if not self.is_per_prompt:
            observed = replace(observed, entropy_P=None)
        part_state, bounds = self.clip(state.clip, observed, probe=probe, step_kl=step_kl)
        return state.model_copy(update={"clip": part_state}), bounds

    def kl_coefficient(self, state: MethodState) -> float:
        """Coefficient of the reference KL at this step; 0 without one."""
        return self.kl.coefficient_now(state.kl)

    def prepare_minibatch(self, batch: LossBatch, generator: Generator) -> MinibatchExtras:
        """Statistics of a whole minibatch under the current policy (``needs.minibatch_statistics``); no gradient."""
        with torch.no_grad():
            return self.surrogate.prepare(batch, self.ratio(batch), self.clip.band(batch), generator)

    def loss(
        self, batch: LossBatch, denominators: LossDenominators, extras: MinibatchExtras | None = None
    ) -> LossOutput:
        """Share of this micro-batch in the minibatch loss."""
        mask_BT = batch.mask_BT.bool()
        log_ratio = self.ratio(batch)
        band = self.clip.band(batch)
        token_loss, active = self.surrogate(batch, log_ratio, band, extras or MinibatchExtras())
        weights_BT = self.aggregation(batch.mask_BT.to(batch.logprob_BT.dtype), denominators)
        policy_loss = (token_loss.expand_as(weights_BT).masked_fill(~mask_BT, 0.0) * weights_BT).sum()
        losses = {"loss/policy": policy_loss}
        kl_BT = self.kl.loss(batch) if batch.kl_coefficient > 0 else None
        if kl_BT is not None:
            losses["loss/kl"] = batch.kl_coefficient * (kl_BT.masked_fill(~mask_BT, 0.0) * weights_BT).sum()
        value_BT = self.critic(batch)
        if value_BT is not None:
            losses["loss/value"] = value_BT.sum() / max(1, denominators.num_tokens)
        active_BT = active.expand_as(mask_BT) & mask_BT
        with torch.no_grad():
            values = losses | _token_sums(batch, log_ratio.expand_as(weights_BT), active_BT, band)
            # One transfer from the device for all of them.
            numbers = torch.stack([value.detach().double() for value in values.values()]).tolist()
        return LossOutput(
            loss=torch.stack(list(losses.values())).sum(),
            sums=dict(zip(values, numbers, strict=True)),
            active_tokens_B=active_BT.sum(dim=1),
        )

    def loss_metrics(self, sums: Mapping[str, float], counts: LossCounts) -> dict[str, float]:
        """``LossOutput.sums``, added up over a step's updates, as metrics with the denominators of ``metrics``."""
        return loss_metrics(sums, counts)

    def pairs(self, scores_PG: Tensor, is_valid_PG: Tensor) -> list[Pair]:
        """Preference pairs of a batch of groups (``loop: preference``)."""
        return self.preference.pairs(scores_PG, is_valid_PG)

    def preference_loss(self, batch: PreferenceBatch, *, num_pairs: int) -> PreferenceOutput:
        """Share of this micro-batch in the preference loss (``loop: preference``)."""
        return self.preference(batch, num_pairs)

    def observe_update(self, state: MethodState, observed: UpdateObserved) -> MethodState:
        """Note what the step's updates did: carries D_step, steps the KL coefficient and any value tracker."""
        return state.model_copy(
            update={
                "clip": self.clip.observe(state.clip, observed),
                "kl": self.kl.observe(state.kl, observed),
                "advantage": self.advantage.observe(state.advantage, observed),
            }
        )


def _token_sums(batch: LossBatch, log_ratio_BT: Tensor, active_BT: Tensor, band: clip_parts.Band) -> dict[str, Tensor]:
    """Numerators for logging, each over the micro-batch's tokens."""
    mask_BT = batch.mask_BT.bool()
    policy = -token_log_ratio(batch)[mask_BT].double()
    sums = {
        "clip/high_tokens": (active_BT & (log_ratio_BT.exp() > band.upper)).sum(),
        "ratio/mean": log_ratio_BT[mask_BT].double().exp().sum(),
        "kl/policy_k1": policy.sum(),
        "kl/policy_k3": (torch.expm1(-policy) + policy).sum(),
    }
    if batch.value_BT is not None and batch.return_BT is not None:
        sums["value/error"] = (batch.value_BT - batch.return_BT).square()[mask_BT].sum()
    return sums
