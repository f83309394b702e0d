"""The lines of a memory plan: something that takes memory, as a product of numbers that a reader can check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["rollout", "score", "update", "step"]
"""Sampling; log-probabilities and values without gradients; a forward-backward pass; the optimiser's step."""
PHASES: tuple[Phase, ...] = ("rollout", "score", "update", "step")
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that a process holds on its device (or the node in host memory) during some phases."""

    name: str
    factors: tuple[tuple[float, str], ...]
    """Numbers and their units; their product, over ``ranks``, is the item in bytes."""
    phases: frozenset[Phase] = frozenset(PHASES)
    ranks: int = 1
    """Processes that share it."""
    note: str = ""

    @property
    def num_bytes(self) -> float:
        """Bytes on one device."""
        product = 1.0
        for number, _ in self.factors:
            product *= number
        return product / self.ranks

    @property
    def arithmetic(self) -> str:
        """``14,770,033,664 parameters × 12 B / 2 ranks = 82.53 GiB``."""
        product = " × ".join(f"{_spelt(number)} {unit}" for number, unit in self.factors)
        shared = f" / {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{product}{shared} = {gib(self.num_bytes)}"


def _spelt(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) else f"{number:,.1f}"


def gib(num_bytes: float) -> str:
    """With a unit that leaves digits to read."""
    if num_bytes >= 0.1 * GIB:
        return f"{num_bytes / GIB:,.2f} GiB"
    return f"{num_bytes / 2**20:,.2f} MiB"


def item(
    name: str, *factors: tuple[float, str], phases: tuple[Phase, ...] = PHASES, ranks: int = 1, note: str = ""
) -> Item:
    """Short for ``Item``."""
    return Item(name=name, factors=factors, phases=frozenset(phases), ranks=ranks, note=note)


def total(items: list[Item], phase: Phase) -> float:
    """Bytes of a phase."""
    return sum(one.num_bytes for one in items if phase in one.phases)
