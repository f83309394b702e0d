"""What a recipe asks of the machine, read from its file without importing the mathematics (and with it torch).

The tables name the parts whose needs cost memory or passes; a test holds them to the parts' own declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import yaml

from agpo_bench.methods.registry import recipe_path
from agpo_bench.paths import definitions

Trunk = Literal["none", "shared", "separate"]

DEFAULT_PARTS = {
    "probe": "none",
    "temperature": "fixed",
    "reward": "score",
    "groups": "all",
    "advantage": "raw",
    "shaping": "none",
    "ratio": "token",
    "clip": "none",
    "surrogate": "unclipped",
    "kl": "none",
    "aggregation": "token_mean",
    "critic": "none",
    "preference": "none",
}
"""The part in a slot that a recipe leaves out."""
NEEDS_REFERENCE = {("kl", "loss"), ("kl", "reward"), ("kl", "reward_adaptive"), ("preference", "dpo")}
NEEDS_MINIBATCH_STATISTICS = {("surrogate", "clip_cov"), ("surrogate", "kl_cov"), ("surrogate", "p3o")}
EXTRA_ROLLOUTS = {("advantage", "median"): 1}


@dataclass(frozen=True, kw_only=True)
class MethodNeeds:
    """The part of ``Method`` that decides memory and compute."""

    name: str
    title: str
    is_preference: bool
    """DPO's loop: pairs of the initial policy, no old log-probabilities."""
    critic_trunk: Trunk
    reference: bool
    """Whether its loss or reward reads the frozen reference."""
    minibatch_statistics: bool
    """A forward pass over the minibatch before its gradient."""
    has_probe: bool
    own_probe_size: int | None
    own_group_size: int | None
    extra_rollouts: int
    reuses_probe: bool
    """Whether probe groups are trained on."""
    samples_at_one: bool
    """Whether every training rollout is drawn at temperature 1; else the reference KL takes passes of its own."""
    refills: bool
    """Whether groups without signal are dropped and sampled again."""

    def rollouts_per_prompt(self, group_size: int) -> int:
        """As ``Method.rollouts_per_prompt``."""
        return (self.own_group_size or group_size) + self.extra_rollouts

    def probe_size(self, group_size: int) -> int:
        """As ``Method.probe_size``."""
        return (self.own_probe_size or self.own_group_size or group_size) if self.has_probe else 0


def read_needs(name_or_path: str, changes: Mapping[str, Any] | None = None) -> MethodNeeds:
    """The needs of a recipe with ``slot.field`` changes applied.

    A recipe with parts from elsewhere goes through ``load_method``, which knows them.
    """
    path = recipe_path(name_or_path)
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if changes or path.parent.resolve() != definitions("trainers").resolve() or not isinstance(recipe, dict):
        # Somebody's own recipe or a changed one is checked in full before anything is said about it.
        return _needs_of_loaded(name_or_path, changes)
    return needs_of_recipe(recipe, name=path.stem)


def needs_of_recipe(recipe: Mapping[str, Any], *, name: str) -> MethodNeeds:
    """The needs of a recipe's content, taken as it is; ``name`` stands in where it has none."""
    parts = {slot: _part(recipe.get(slot), default) for slot, default in DEFAULT_PARTS.items()}
    chosen = {(slot, str(part["use"])) for slot, part in parts.items()}
    has_critic = parts["critic"]["use"] != "none"
    return MethodNeeds(
        name=str(recipe.get("name", name)),
        title=str(recipe.get("title", name)),
        is_preference=recipe.get("loop") == "preference",
        critic_trunk=parts["critic"].get("trunk", "shared") if has_critic else "none",
        reference=bool(chosen & NEEDS_REFERENCE),
        minibatch_statistics=bool(chosen & NEEDS_MINIBATCH_STATISTICS),
        has_probe=parts["probe"]["use"] == "group",
        own_probe_size=parts["probe"].get("size"),
        own_group_size=recipe.get("group_size"),
        extra_rollouts=max((EXTRA_ROLLOUTS.get(key, 0) for key in chosen), default=0),
        reuses_probe=parts["probe"]["use"] == "group" and bool(parts["probe"].get("reuse", False)),
        samples_at_one=parts["temperature"]["use"] == "fixed" and float(parts["temperature"].get("value", 1.0)) == 1.0,
        refills=parts["groups"]["use"] == "drop_degenerate" and parts["groups"].get("max_rounds", 10) > 1,
    )


def _part(value: Any, default: str) -> dict[str, Any]:
    if value is None:
        return {"use": default}
    return {"use": value} if isinstance(value, str) else dict(value)


def _needs_of_loaded(name_or_path: str, changes: Mapping[str, Any] | None) -> MethodNeeds:
    from agpo_bench.methods.recipe import load_method

    return needs_of(load_method(name_or_path, changes))


def needs_of(method: Any) -> MethodNeeds:
    """The needs of a loaded ``Method``."""
    trunk: Trunk = getattr(method.critic, "trunk", "none")
    return MethodNeeds(
        name=method.name,
        title=method.title,
        is_preference=method.loop == "preference",
        critic_trunk=trunk,
        reference=method.needs.reference,
        minibatch_statistics=method.needs.minibatch_statistics,
        has_probe=method.needs.probe or method.probe_size(2) > 0,
        own_probe_size=getattr(method.probe, "size", None),
        own_group_size=method.group_size,
        extra_rollouts=method.needs.extra_rollouts,
        reuses_probe=bool(getattr(method.probe, "reuse", False)),
        samples_at_one=method.temperature.use == "fixed" and method.base_temperature == 1.0,
        refills=method.max_sampling_rounds > 1,
    )
