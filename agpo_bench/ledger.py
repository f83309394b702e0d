"""The generated-token budget: what a run has sampled, by phase, and when that ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from agpo_bench.records import Phase

PHASES: tuple[Phase, ...] = get_args(Phase)


class TokenLedger:
    """Counts sampled continuation tokens against one budget shared by every method.

    A token counts when the sampler has drawn it: the terminator included; prompt, padding and evaluation excluded; no
    matter whether it is later discarded. A rollout batch may start while ``used < budget`` and always runs to its end,
    so a run ends on whole groups and ``0 <= overshoot < tokens of its last rollout batch``.
    """

    def __init__(self, budget: int, *, used_by_phase: Mapping[str, int] | None = None) -> None:
        if budget <= 0:
            raise ValueError(f"a budget of {budget} tokens trains nothing; give a positive number such as 150k")
        self.budget = budget
        self._used: dict[Phase, int] = dict.fromkeys(PHASES, 0)
        for phase, tokens in (used_by_phase or {}).items():
            self.charge(phase, tokens)  # type: ignore[arg-type]

    def charge(self, phase: Phase, tokens: int) -> None:
        """Add sampled tokens of one phase."""
        if phase not in self._used:
            raise ValueError(f"no ledger phase {phase!r}; the phases are {', '.join(PHASES)}")
        assert tokens >= 0, f"{tokens} tokens charged to {phase}"
        self._used[phase] += tokens

    @property
    def used(self) -> int:
        """Tokens of all phases."""
        return sum(self._used.values())

    @property
    def remaining(self) -> int:
        """Tokens left, never negative."""
        return max(0, self.budget - self.used)

    @property
    def overshoot(self) -> int:
        """Tokens sampled beyond the budget by the batch that crossed it."""
        return max(0, self.used - self.budget)

    @property
    def fraction(self) -> float:
        """Share of the budget used, at most 1: what the learning-rate schedule runs on."""
        return min(1.0, self.used / self.budget)

    def may_start(self) -> bool:
        """Whether another rollout batch may start."""
        return self.used < self.budget

    def by_phase(self) -> dict[Phase, int]:
        """Tokens of each phase; every phase is present."""
        return dict(self._used)

    def to_json(self) -> dict[str, Any]:
        """``ledger.json``: the tokens of each phase, and the totals."""
        return {"budget": self.budget, "used": self.used, "overshoot": self.overshoot, "phases": self.by_phase()}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TokenLedger:
        """The ledger that ``to_json`` described."""
        return cls(content["budget"], used_by_phase=content["phases"])
