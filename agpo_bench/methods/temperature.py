"""Sampling temperature of the training rollouts."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator

from agpo_bench.methods.batch import TemperatureChoice
from agpo_bench.methods.part import Part, PartState
from agpo_bench.methods.probe import ProbeStatistics
from agpo_bench.methods.replay import read_schedule


class TemperaturePart(Part):
    """A rule for the temperature; ``base`` is the temperature of probes and of everything before the first choice."""

    slot: ClassVar[str] = "temperature"

    @property
    def base_temperature(self) -> float:
        """Temperature of the probe group."""
        return 1.0

    def __call__(
        self, state: PartState, probe: ProbeStatistics | None, *, is_per_prompt: bool
    ) -> tuple[PartState, TemperatureChoice]:
        """Choose this step's temperature."""
        raise NotImplementedError


class FixedTemperature(TemperaturePart):
    """tau_t = value."""

    use: Literal["fixed"] = "fixed"
    value: float = Field(default=1.0, gt=0)

    @property
    def base_temperature(self) -> float:
        """The fixed value."""
        return self.value

    def __call__(
        self, state: PartState, probe: ProbeStatistics | None, *, is_per_prompt: bool
    ) -> tuple[PartState, TemperatureChoice]:
        """Return the fixed value."""
        return state, TemperatureChoice(value=self.value, value_P=None, log={"ctrl/tau": self.value})


class AdaptiveTemperature(TemperaturePart):
    """Adaptive temperature scaling (AGPO Eqs. 9-12).

    U_t = w_r sigma + w_e E + w_k |kappa|; Ubar_t = rho Ubar_{t-1} + (1 - rho) U_{t-1};
    tau_t = clip(base (1 + gain (U_t - Ubar_t)), minimum, maximum).
    Departure: there is no U_0; the paper's Ubar starts at 0, which heats roughly the first 1/(1 - rho) updates.
    ``ema_init`` offers ``first`` (Ubar_1 = U_1) and ``debias`` (divide by 1 - rho^(t-1)). ``centring: relative``
    divides U_t - Ubar_t by Ubar_t + 1e-8, as the released code does.
    """

    use: Literal["adaptive"] = "adaptive"
    base: float = Field(default=1.0, gt=0)
    gain: float = Field(default=0.15, ge=0)
    minimum: float = Field(default=0.5, gt=0)
    maximum: float = 1.5
    weight_sigma: float = 1.0
    weight_vote_entropy: float = 1.0
    weight_kappa: float = 0.1
    rho: float = Field(default=0.95, ge=0, lt=1)
    ema_init: Literal["zero", "first", "debias"] = "zero"
    centring: Literal["absolute", "relative"] = "absolute"

    needs_probe: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check(self) -> AdaptiveTemperature:
        if not self.minimum <= self.base <= self.maximum:
            raise ValueError(f"temperature base {self.base} lies outside [{self.minimum}, {self.maximum}]")
        return self

    @property
    def base_temperature(self) -> float:
        """Temperature of the probe, and of training when the uncertainty is at its mean."""
        return self.base

    def start(self) -> PartState:
        """No uncertainty has been seen."""
        return {"mean": 0.0, "last": None, "num_seen": 0}

    def _baseline(self, state: PartState, uncertainty: float) -> tuple[PartState, float]:
        """Step the mean with the PREVIOUS uncertainty (Eq. 11); return the centring value."""
        mean, last, num_seen = float(state["mean"]), state["last"], int(state["num_seen"])
        if last is not None:
            mean = self.rho * mean + (1.0 - self.rho) * float(last)
        if self.ema_init == "first" and (last is None or (self.centring == "relative" and mean <= 1e-8)):
            mean = uncertainty
        centre = mean
        if self.ema_init == "debias":
            # With nothing seen there is no estimate to correct: no deviation.
            centre = mean / (1.0 - self.rho**num_seen) if num_seen else uncertainty
        return {"mean": mean, "last": uncertainty, "num_seen": num_seen + 1}, centre

    def _choose(self, state: PartState, probe: ProbeStatistics) -> tuple[PartState, float, dict[str, float]]:
        uncertainty = (  # Eq. 9
            self.weight_sigma * probe.sigma
            + self.weight_vote_entropy * probe.vote_entropy
            + self.weight_kappa * probe.kappa_abs
        )
        state, centre = self._baseline(state, uncertainty)
        deviation = uncertainty - centre  # Eq. 10
        if self.centring == "relative":
            deviation /= centre + 1e-8
        raw = self.base * (1.0 + self.gain * deviation)  # Eq. 12
        value = min(self.maximum, max(self.minimum, raw))
        log = {
            "ctrl/U": uncertainty,
            "ctrl/U_bar": centre,
            "ctrl/U_tilde": deviation,
            "ctrl/tau_raw": raw,
            "ctrl/tau": value,
            "ctrl/tau_at_min": float(value <= self.minimum),
            "ctrl/tau_at_max": float(value >= self.maximum),
        }
        return state, value, log

    def __call__(
        self, state: PartState, probe: ProbeStatistics | None, *, is_per_prompt: bool
    ) -> tuple[PartState, TemperatureChoice]:
        """Choose from the probe; with scope ``prompt`` the prompts pass one after the other through the same mean."""
        assert probe is not None
        if not is_per_prompt:
            state, value, log = self._choose(state, probe)
            return state, TemperatureChoice(value=value, value_P=None, log=log)
        values, logs = [], []
        for index in range(len(probe.sigma_P)):
            state, value, log = self._choose(state, probe.prompt(index))
            values.append(value)
            logs.append(log)
        mean_log = {key: sum(log[key] for log in logs) / len(logs) for key in logs[0]}
        value_P = torch.tensor(values, dtype=torch.float64)
        return state, TemperatureChoice(value=float(value_P.mean()), value_P=value_P, log=mean_log)


class ReplayedTemperature(TemperaturePart):
    """The temperatures of a logged run, step by step and without feedback; past its end the last one holds.

    ``statistic: mean`` holds the log's mean instead. ``{out}`` and ``{seed}`` in the path are filled in by
    ``Method.with_logs``.
    """

    use: Literal["replay"] = "replay"
    path: str | None = None
    key: str = "ctrl/tau"
    statistic: Literal["schedule", "mean"] = "schedule"
    base: float = Field(default=1.0, gt=0)

    @property
    def base_temperature(self) -> float:
        """Temperature of the probe, if the method still pays for one."""
        return self.base

    def start(self) -> PartState:
        """At the log's first line; ValueError when there is no log."""
        read_schedule(self.path, self.key)
        return {"step": 0}

    def __call__(
        self, state: PartState, probe: ProbeStatistics | None, *, is_per_prompt: bool
    ) -> tuple[PartState, TemperatureChoice]:
        """Return the logged value of this step."""
        schedule = read_schedule(self.path, self.key)
        step = int(state["step"])
        value = schedule[min(step, len(schedule) - 1)]
        if self.statistic == "mean":
            value = sum(schedule) / len(schedule)
        log = {"ctrl/tau": value, "ctrl/replay_exhausted": float(step >= len(schedule))}
        return {"step": step + 1}, TemperatureChoice(value=value, value_P=None, log=log)


PARTS: tuple[type[TemperaturePart], ...] = (FixedTemperature, AdaptiveTemperature, ReplayedTemperature)
