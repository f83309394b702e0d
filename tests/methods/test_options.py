"""No option without effect: each field of each part, changed, changes what the method computes on rich random data."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import Generator

from agpo_bench.methods.batch import (
    AdvantageInputs,
    ClipObserved,
    LossBatch,
    LossDenominators,
    MinibatchExtras,
    UpdateObserved,
)
from agpo_bench.methods.method import Method
from agpo_bench.methods.preference import PreferenceBatch
from agpo_bench.methods.recipe import load_method
from agpo_bench.methods.registry import method_names
from agpo_bench.methods.slots import SLOTS, parts_of

P, T = 8, 12
READ_ELSEWHERE = {("critic", "value_head", "trunk")}
"""The loop builds the critic's trunk from it: tests/training/test_policy.py."""
CONTEXTS = {
    ("clip", "adaptive", "entropy_rho"): "agpo_released",
    ("clip", "adaptive", "entropy_ratio_min"): "agpo_released",
    ("clip", "adaptive", "entropy_ratio_max"): "agpo_released",
    ("advantage", "group_zscore", "fallback"): "agpo_mad",
    ("temperature", "adaptive", "minimum"): "agpo_released",  # it also cools
}
"""Where a field acts only beside another one."""
NUMBERS = (0.3, 0.5, 0.6, 0.9, 0.999, 1.0, 1.5, 2.0, 3.0, 5.0, 1e-3, 0.05, 0.0)


def outcome(method: Method) -> list[Any]:
    """Everything that a method tells the loop in four steps."""
    told: list[Any] = [method.probe_size(8), method.max_sampling_rounds, method.base_temperature, method.reuses_probe]
    generator, state = Generator().manual_seed(3), method.start()
    G = method.rollouts_per_prompt(8)
    for step in range(4):

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        chance = torch.linspace(0.05, 0.95, P).roll(step)[:, None]
        scores_PG = (torch.rand(P, G, generator=generator) < chance).double()
        scores_PG[0], scores_PG[1] = 0.0, 1.0
        scores_PG[2, 0] = 0.4
        valid_PG = torch.ones(P, G, dtype=torch.bool)
        valid_PG[3, -1] = G == 1
        lengths_B = torch.randint(1, T + 1, (P * G,), generator=generator)
        mask_BT = torch.arange(T)[None, :] < lengths_B[:, None]
        old_BT = -(2 * normal(P * G, T)).abs() * mask_BT
        new_BT, ref_BT = old_BT + 0.5 * normal(P * G, T) * mask_BT, old_BT + 0.3 * normal(P * G, T) * mask_BT
        if method.loop == "preference":
            told.append([repr(pair) for pair in method.pairs(scores_PG, valid_PG)])
            batch = PreferenceBatch(logprob_BT=new_BT, ref_logprob_BT=ref_BT, mask_BT=mask_BT)
            told.append(float(method.preference_loss(batch, num_pairs=P * G // 2).loss))
            continue
        ids = tuple(f"prompt-{(p + step) % (P + 2)}" for p in range(P))
        probe = None
        if method.needs.probe:
            probe_PG = (torch.rand(P, 8, generator=generator) < chance * (0.2 if step % 2 else 1.0)).double()
            answers = [[None if (p + g + step) % 5 == 0 else (p * g) % 3 for g in range(8)] for p in range(P)]
            probe = method.measure_probe(probe_PG, answers)
        state, temperature = method.choose_temperature(state, probe)
        told += [temperature.value, temperature.log, method.filter_groups(scores_PG, valid_PG).tolist()]
        rewards_PG = method.shape_rewards(
            scores_PG, lengths_B.reshape(P, G).double(), is_valid_PG=valid_PG, max_new_tokens=T
        )
        value_BT = normal(P * G, T) if method.needs.critic else None
        state, advantages = method.advantages(
            state,
            AdvantageInputs(
                rewards_PG=rewards_PG,
                scores_PG=scores_PG,
                prompt_ids=ids,
                is_valid_PG=valid_PG,
                is_finished_PG=(lengths_B < T).reshape(P, G),
                mask_BT=mask_BT,
                old_logprob_BT=old_BT,
                ref_logprob_BT=ref_BT,
                value_BT=value_BT,
                entropy_BT=normal(P * G, T).abs() * mask_BT,
            ),
        )
        entropy_P = 0.4 + 0.8 * torch.rand(P, generator=generator, dtype=torch.float64)
        entropy = float(entropy_P.mean()) * (1 + step)
        state, bounds = method.clip_bounds(
            state,
            ClipObserved(scores_PG=scores_PG, is_valid_PG=valid_PG, entropy=entropy, entropy_P=entropy_P * (1 + step)),
            probe,
        )
        low_B1, high_B1 = bounds.rows(torch.float64)
        batch = LossBatch(
            logprob_BT=new_BT,
            old_logprob_BT=old_BT,
            mask_BT=mask_BT,
            advantage_BT=advantages.rows(torch.float64),
            clip_low_B1=low_B1,
            clip_high_B1=high_B1,
            ref_logprob_BT=ref_BT,
            kl_coefficient=method.kl_coefficient(state),
            value_BT=None if value_BT is None else value_BT + normal(P * G, T),
            old_value_BT=value_BT,
            return_BT=advantages.return_BT,
        )
        extras = MinibatchExtras()
        if method.needs.minibatch_statistics:
            extras = method.prepare_minibatch(batch, Generator().manual_seed(0))
        counts = LossDenominators(num_tokens=int(mask_BT.sum()), num_sequences=P * G, max_new_tokens=T)
        moved = replace(batch, logprob_BT=new_BT.clone().requires_grad_())
        output = method.loss(moved, counts, extras)
        (gradient,) = torch.autograd.grad(output.loss, moved.logprob_BT)
        told += [float(output.loss.detach()), float(gradient.abs().sum()), output.sums, advantages.log, bounds.log]
        state = method.observe_update(
            state,
            UpdateObserved(
                num_episodes=P * G,
                step_kl_k1=(-1) ** step * 0.3,
                step_kl_k1_P=0.3 * normal(P),
                ref_kl_per_sequence=5.5 + step,
                prompt_ids=ids,
                scores_PG=scores_PG,
                is_valid_PG=valid_PG,
            ),
        )
        told += [state.to_json(), method.prompt_weights(state, ids)]
    return told


def fields() -> list[tuple[str, str, str]]:
    """Slot, part and field of every option of our own parts."""
    return [
        (slot, use, name)
        for slot in SLOTS
        for use, part in parts_of(slot).items()
        for name in part.model_fields
        if name != "use" and (slot, use, name) not in READ_ELSEWHERE
    ]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log to replay, and another one."""
    for name, factor in (("metrics.jsonl", 1.0), ("other.jsonl", 1.1)):
        lines = [
            {"step": i, "ctrl/tau": factor * (1 + 0.1 * i), "ctrl/eps": factor * (0.1 + 0.02 * i), "ctrl/H": 0.5}
            for i in range(3)
        ]
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "metrics.jsonl"


@cache
def recipes() -> dict[str, Method]:
    return {name: load_method(name) for name in method_names()}


def build(slot: str, use: str, name: str, log: Path, changes: dict[str, Any]) -> Method:
    """A method that uses the part, with its field changed."""
    chosen = CONTEXTS.get((slot, use, name)) or next(
        one for one, method in recipes().items() if method.parts[slot].use == use
    )
    replays = [where for where in ("temperature", "clip") if recipes()[chosen].parts[where].use == "replay"]
    return load_method(chosen, {f"{where}.path": str(log) for where in replays} | changes)


@pytest.mark.parametrize(("slot", "use", "name"), fields(), ids=[".".join(field) for field in fields()])
def test_every_field_of_every_part_changes_something(slot: str, use: str, name: str, log: Path) -> None:
    before = build(slot, use, name, log, {})
    plain, value = outcome(before), getattr(before.parts[slot], name)
    options = [*get_args(type(before.parts[slot]).model_fields[name].annotation), *NUMBERS, 2, 4, not value]
    options += ["0000", "ctrl/H", str(log.with_name("other.jsonl"))]
    tried = 0
    for option in options:
        if option == value or isinstance(option, type):
            continue
        try:
            changed = build(slot, use, name, log, {f"{slot}.{name}": json.dumps(option)})
            after = outcome(changed)
        except ValueError:
            continue
        tried += 1
        if after != plain:
            return
    pytest.fail(f"{slot}.{name} of {before.name}: {tried} other values change nothing")
