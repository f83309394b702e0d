"""The slots of a method, and the parts that fit each."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from agpo_bench.methods import advantage as advantage_parts
from agpo_bench.methods import clip as clip_parts
from agpo_bench.methods import critic as critic_parts
from agpo_bench.methods import groups as groups_parts
from agpo_bench.methods import kl as kl_parts
from agpo_bench.methods import objective, token_advantage
from agpo_bench.methods import preference as preference_parts
from agpo_bench.methods import probe as probe_parts
from agpo_bench.methods import ratio as ratio_parts
from agpo_bench.methods import reward as reward_parts
from agpo_bench.methods import shaping as shaping_parts
from agpo_bench.methods import temperature as temperature_parts
from agpo_bench.methods.part import Part

SLOTS = (
    "probe",
    "temperature",
    "reward",
    "groups",
    "advantage",
    "shaping",
    "ratio",
    "clip",
    "surrogate",
    "kl",
    "aggregation",
    "critic",
    "preference",
)

_OWN_PARTS: dict[str, tuple[type[Part], ...]] = {
    "probe": probe_parts.PARTS,
    "temperature": temperature_parts.PARTS,
    "reward": reward_parts.PARTS,
    "groups": groups_parts.PARTS,
    "advantage": (*advantage_parts.PARTS, *token_advantage.PARTS),
    "shaping": shaping_parts.PARTS,
    "ratio": ratio_parts.PARTS,
    "clip": clip_parts.PARTS,
    "surrogate": objective.SURROGATES,
    "kl": kl_parts.PARTS,
    "aggregation": objective.AGGREGATIONS,
    "critic": critic_parts.PARTS,
    "preference": preference_parts.PARTS,
}


@cache
def installed_parts() -> tuple[type[Part], ...]:
    """Parts that other packages offer. Read once: the scan of all installed packages takes milliseconds."""
    return tuple(entry.load() for entry in entry_points(group="agpo_bench.parts"))


def parts_of(slot: str) -> dict[str, type[Part]]:
    """Every part of a slot by its ``use``: ours, and those of the entry-point group ``agpo_bench.parts``."""
    parts = {str(part.model_fields["use"].default): part for part in _OWN_PARTS[slot]}
    for part in installed_parts():
        if part.slot == slot:
            parts.setdefault(str(part.model_fields["use"].default), part)
    return parts


def as_part(slot: str, value: Any) -> Part:
    """A part from ``{use: …, field: …}``, or from the name alone."""
    if isinstance(value, Part):
        return value
    fields = {"use": value} if isinstance(value, str) else {"use": "none"} if value is None else dict(value)
    parts = parts_of(slot)
    use = fields.get("use")
    if use not in parts:
        raise ValueError(f"{slot} has no part {use!r}; use one of {', '.join(parts)}")
    unknown = [name for name in fields if name not in parts[use].model_fields]
    if unknown:
        valid = ", ".join(name for name in parts[use].model_fields if name != "use") or "no fields"
        raise ValueError(f"{slot} {use!r} has no field {unknown[0]!r}; it has {valid}")
    return parts[use](**fields)
