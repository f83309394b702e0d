"""The budget counts every sampled token by phase and ends a run on whole batches."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agpo_bench.ledger import PHASES, TokenLedger


def test_every_phase_counts_against_the_one_budget() -> None:
    ledger = TokenLedger(100)
    for number, phase in enumerate(("probe", "train", "discarded", "pairs"), start=1):
        ledger.charge(phase, number)
    assert ledger.used == 10
    assert ledger.remaining == 90
    assert ledger.by_phase() == {"probe": 1, "train": 2, "discarded": 3, "pairs": 4}


def test_a_phase_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'eval'.*probe, train, discarded, pairs"):
        TokenLedger(10).charge("eval", 1)  # type: ignore[arg-type]


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="budget of 0 tokens"):
        TokenLedger(0)


@given(budget=st.integers(1, 10_000), batches=st.lists(st.integers(1, 500), min_size=1, max_size=200))
def test_a_run_overshoots_by_less_than_its_last_batch(budget: int, batches: list[int]) -> None:
    ledger = TokenLedger(budget)
    last = 0
    for tokens in batches:
        if not ledger.may_start():
            break
        ledger.charge("train", tokens)
        last = tokens
    assert ledger.overshoot < last
    assert ledger.used - ledger.overshoot <= budget
    assert ledger.fraction <= 1.0


def test_a_ledger_survives_json() -> None:
    ledger = TokenLedger(7)
    ledger.charge("discarded", 9)
    copy = TokenLedger.from_json(json.loads(json.dumps(ledger.to_json())))
    assert copy.by_phase() == ledger.by_phase()
    assert (copy.budget, copy.used, copy.overshoot) == (7, 9, 2)
    assert set(ledger.to_json()["phases"]) == set(PHASES)
