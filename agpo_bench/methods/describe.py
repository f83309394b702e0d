"""Recipes in words: the method by part table, one recipe with its equations, what two recipes differ in, and a page."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agpo_bench.methods.method import Method
from agpo_bench.methods.part import Part
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.registry import method_names
from agpo_bench.methods.slots import SLOTS


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One line of the method by part table."""

    name: str
    title: str
    about: str
    parts: Mapping[str, str]
    """The part in each slot, in the order of ``SLOTS``; ``-`` where the method's loop reads none."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A slot in which two methods hold different parts, or a field of the same part with different values."""

    where: str
    """``slot`` or ``slot.field``."""
    first: str
    second: str


def used_parts(method: Method) -> dict[str, Part]:
    """The parts that the method's loop reads: a preference loss has no ratio, advantage or clip."""
    slots = ("temperature", "preference") if method.loop == "preference" else SLOTS
    return {slot: part for slot, part in method.parts.items() if slot in slots}


def method_table(names: Sequence[str] | None = None) -> list[MethodRow]:
    """Every method (or those named) with the part in each slot."""
    rows = []
    for name in method_names() if names is None else names:
        method = load_method(name)
        used = used_parts(method)
        parts = {slot: used[slot].use if slot in used else "-" for slot in SLOTS}
        rows.append(MethodRow(name=method.name, title=method.title, about=method.about, parts=parts))
    return rows


def diff(first: Method, second: Method) -> list[Difference]:
    """What changes between two methods, in the order of the slots; titles and remarks are left out."""
    found = []
    for field in ("loop", "group_size", "learning_rate_factor", "logprob_temperature", "sampling_stream"):
        found.append(Difference(where=field, first=str(getattr(first, field)), second=str(getattr(second, field))))
    lefts, rights = used_parts(first), used_parts(second)
    for slot in SLOTS:
        left, right = lefts.get(slot), rights.get(slot)
        if left is None or right is None or left.use != right.use:
            found.append(
                Difference(where=slot, first=setting(left) if left else "-", second=setting(right) if right else "-")
            )
            continue
        fields = right.model_dump()
        found += [
            Difference(where=f"{slot}.{name}", first=str(value), second=str(fields[name]))
            for name, value in left.model_dump().items()
        ]
    return [item for item in found if item.first != item.second]


def explanation(part: Part) -> str:
    """The part's equation and source: its class docstring."""
    return inspect.cleandoc(type(part).__doc__ or "")


def setting(part: Part) -> str:
    """The part with its values: ``use(field value, …)``."""
    values = ", ".join(f"{name} {value}" for name, value in part.model_dump().items() if name != "use")
    return f"{part.use}({values})" if values else part.use


def describe(method: Method) -> str:
    """The whole resolved recipe in plain text, with the equation behind each part."""
    size = "the run's" if method.group_size is None else str(method.group_size)
    lines = [f"{method.name}: {method.title}", method.about, f"source: {method.source}"]
    if method.is_reconstruction:
        lines.append(f"a RECONSTRUCTION: {method.caption}")
    lines += [f"departure: {sentence}" for sentence in method.departures]
    lines += [
        f"loop: {method.loop}; group size: {size}; learning rate: {method.learning_rate_factor:g} x the run's; "
        f"log-probabilities at the {_temperature(method)} temperature",
        "",
    ]
    for slot, part in used_parts(method).items():
        if part.use in ("none", "score", "all"):
            continue
        lines.append(f"{slot}: {setting(part)}")
        lines += [f"    {line}".rstrip() for line in explanation(part).splitlines()]
    return "\n".join(lines) + "\n"


def _temperature(method: Method) -> str:
    return "sampling" if method.logprob_temperature == "sampling" else "unit"


def methods_page(behaviour: Mapping[str, str] | None = None) -> str:
    """The Markdown page of all methods: the table, then formula, defaults, source and departures of each.

    ``behaviour`` maps a method's name to a sentence about what its runs did.
    """
    rows = method_table()
    shown = [slot for slot in SLOTS if slot not in ("reward", "critic", "preference")]
    lines = [
        "# Methods",
        "",
        "Generated from the recipes in `trainers/` and the docstrings of their parts; do not edit.",
        "",
        "| method | " + " | ".join(shown) + " |",
        "|---" * (len(shown) + 1) + "|",
    ]
    lines += [f"| `{row.name}` | " + " | ".join(row.parts[slot] for slot in shown) + " |" for row in rows]
    used: dict[tuple[str, str], Part] = {}
    for row in rows:
        method = load_method(row.name)
        reconstruction = f" {method.caption}" if method.is_reconstruction else ""
        lines += ["", f"## {method.title} (`{method.name}`)", "", f"{method.about}{reconstruction}", ""]
        lines += [f"Source: {method.source}.", "", "| slot | part | settings |", "|---|---|---|"]
        for slot, part in used_parts(method).items():
            if part.use == "none":
                continue
            used[(slot, part.use)] = part
            settings = ", ".join(f"`{k}` {v}" for k, v in part.model_dump().items() if k != "use")
            lines.append(f"| {slot} | [{part.use}](#{slot}-{part.use}) | {settings} |")
        if method.departures:
            lines += ["", "Departures:", ""]
            lines += [f"- {sentence}" for sentence in method.departures]
        if behaviour and method.name in behaviour:
            lines += ["", f"Measured: {behaviour[method.name]}"]
    lines += ["", "# Parts"]
    for slot, use in sorted(used, key=lambda key: (SLOTS.index(key[0]), key[1])):
        lines += ["", f"## {slot} {use}", "", explanation(used[(slot, use)])]
    return "\n".join(lines) + "\n"
