"""A toy policy for whole-loss checks: a bigram model over two tokens, sequences of one to three tokens.

The parameters are nine numbers in float64: 3 x 2 logits (row: start, after token 0, after token 1) and 3 values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor

from agpo_bench.methods.batch import (
    AdvantageInputs,
    ClipObserved,
    LossBatch,
    LossDenominators,
    MinibatchExtras,
)
from agpo_bench.methods.method import Method
from agpo_bench.methods.preference import PreferenceBatch
from agpo_bench.methods.recipe import load_method

MAX_NEW_TOKENS = 3


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A method with a rollout batch of the toy policy, ready to be trained on."""

    method: Method
    theta: Tensor
    """Current parameters, (9,) float64; away from the sampling policy, so that ratios differ from 1."""
    batch: LossBatch
    """Of all rows; its ``logprob_BT`` is a placeholder."""
    tokens_BT: Tensor
    denominators: LossDenominators
    extras: MinibatchExtras

    def logprobs(self, theta: Tensor, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of the given rows at ``theta``."""
        return toy_logprobs(theta, self.tokens_BT[rows]), toy_values(theta, self.tokens_BT[rows])

    def loss(self, theta: Tensor, rows: list[int] | None = None) -> Tensor:
        """Share of the rows in the minibatch loss at ``theta``; all rows by default. Trims like the loop does."""
        rows = list(range(len(self.tokens_BT))) if rows is None else rows
        width = int(self.batch.mask_BT[rows].sum(dim=1).max())
        logprob_BT, value_BT = self.logprobs(theta, rows)
        if self.method.loop == "preference":
            batch = PreferenceBatch(
                logprob_BT=logprob_BT, ref_logprob_BT=self.batch.ref_logprob_BT[rows], mask_BT=self.batch.mask_BT[rows]
            )
            return self.method.preference_loss(batch, num_pairs=len(self.tokens_BT) // 2).loss
        piece = replace(
            self.batch.take(rows, width),
            logprob_BT=logprob_BT[:, :width],
            value_BT=value_BT[:, :width] if self.method.needs.critic else None,
        )
        return self.method.loss(piece, self.denominators, self.extras.take(rows, width)).loss

    def gradient(self, rows: list[int] | None = None) -> Tensor:
        """d loss / d theta."""
        theta = self.theta.clone().requires_grad_()
        self.loss(theta, rows).backward()
        return theta.grad


def _previous(tokens_BT: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(tokens_BT[:, :1]), tokens_BT[:, :-1] + 1], dim=1)


def toy_logprobs(theta: Tensor, tokens_BT: Tensor) -> Tensor:
    logits_BTV = theta[:6].reshape(3, 2)[_previous(tokens_BT)]
    return logits_BTV.log_softmax(-1).gather(-1, tokens_BT[..., None])[..., 0]


def toy_entropies(theta: Tensor, tokens_BT: Tensor) -> Tensor:
    logp_BTV = theta[:6].reshape(3, 2)[_previous(tokens_BT)].log_softmax(-1)
    return -(logp_BTV.exp() * logp_BTV).sum(-1)


def toy_values(theta: Tensor, tokens_BT: Tensor) -> Tensor:
    return theta[6:][_previous(tokens_BT)]


def make_toy(method: Method, *, seed: int = 0, spread: float = 0.6, num_prompts: int = 3) -> Toy:
    generator = Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    old, ref = normal(9), normal(9)
    theta = old + spread * normal(9)
    G = method.rollouts_per_prompt(8)
    B = num_prompts * G
    tokens_BT = torch.randint(0, 2, (B, 3), generator=generator)
    lengths_B = torch.randint(1, 4, (B,), generator=generator)
    mask_BT = torch.arange(3)[None, :] < lengths_B[:, None]
    scores_PG = (torch.rand(num_prompts, G, generator=generator) < 0.3).double()
    if G > 1:
        scores_PG[:, 0], scores_PG[:, 1] = 0.0, 1.0
        scores_PG[0] = 0.0  # one group without any signal
    else:
        scores_PG[:, 0] = torch.tensor([1.0, 0.0, 1.0])[:num_prompts]
    valid_PG = torch.ones_like(scores_PG, dtype=torch.bool)
    ids = tuple(f"prompt-{p}" for p in range(num_prompts))
    old_logprob_BT = toy_logprobs(old, tokens_BT).masked_fill(~mask_BT, -77.0)  # padding must not matter
    ref_logprob_BT = toy_logprobs(ref, tokens_BT).masked_fill(~mask_BT, 55.0)
    if method.loop == "preference":
        assert B % 2 == 0
        return Toy(
            method=method,
            theta=theta,
            batch=LossBatch(
                logprob_BT=old_logprob_BT,
                old_logprob_BT=old_logprob_BT,
                ref_logprob_BT=ref_logprob_BT,
                mask_BT=mask_BT,
                advantage_BT=old_logprob_BT,
                clip_low_B1=old_logprob_BT,
                clip_high_B1=old_logprob_BT,
            ),
            tokens_BT=tokens_BT,
            denominators=LossDenominators(num_tokens=0, num_sequences=0, max_new_tokens=MAX_NEW_TOKENS),
            extras=MinibatchExtras(),
        )

    state = method.start()
    probe = None
    if method.needs.probe:
        probe = method.measure_probe(scores_PG, [[str(int(s)) for s in row] for row in scores_PG])
    state, _ = method.choose_temperature(state, probe)
    rewards_PG = method.shape_rewards(
        scores_PG, lengths_B.reshape(num_prompts, G), is_valid_PG=valid_PG, max_new_tokens=MAX_NEW_TOKENS
    )
    old_value_BT = toy_values(old, tokens_BT)
    state, advantages = method.advantages(
        state,
        AdvantageInputs(
            rewards_PG=rewards_PG,
            scores_PG=scores_PG,
            prompt_ids=ids,
            is_valid_PG=valid_PG,
            is_finished_PG=valid_PG,
            mask_BT=mask_BT,
            old_logprob_BT=old_logprob_BT,
            ref_logprob_BT=ref_logprob_BT if method.needs.reference else None,
            value_BT=old_value_BT if method.needs.critic else None,
            entropy_BT=toy_entropies(old, tokens_BT),
        ),
    )
    entropy_BT = toy_entropies(old, tokens_BT) * mask_BT
    entropy_P = entropy_BT.reshape(num_prompts, -1).sum(1) / lengths_B.reshape(num_prompts, G).sum(1)
    state, bounds = method.clip_bounds(
        state,
        ClipObserved(scores_PG=scores_PG, entropy=float(entropy_BT.sum() / mask_BT.sum()), entropy_P=entropy_P),
        probe,
    )
    low_B1, high_B1 = bounds.rows(torch.float64)
    trained = advantages.is_trained_PG.flatten().nonzero().flatten()
    batch = LossBatch(
        logprob_BT=old_logprob_BT,
        old_logprob_BT=old_logprob_BT,
        ref_logprob_BT=ref_logprob_BT if method.needs.reference else None,
        mask_BT=mask_BT,
        advantage_BT=advantages.rows(torch.float64),
        clip_low_B1=low_B1,
        clip_high_B1=high_B1,
        kl_coefficient=method.kl_coefficient(state),
        old_value_BT=old_value_BT if method.needs.critic else None,
        return_BT=advantages.return_BT,
    ).take(trained, 3)
    tokens_BT = tokens_BT[trained]
    extras = MinibatchExtras()
    if method.needs.minibatch_statistics:
        now = replace(batch, logprob_BT=toy_logprobs(theta, tokens_BT))
        extras = method.prepare_minibatch(now, Generator().manual_seed(1))
    return Toy(
        method=method,
        theta=theta,
        batch=batch,
        tokens_BT=tokens_BT,
        denominators=LossDenominators(
            num_tokens=int(batch.mask_BT.sum()), num_sequences=len(tokens_BT), max_new_tokens=MAX_NEW_TOKENS
        ),
        extras=extras,
    )


@pytest.fixture
def replayable(tmp_path: Path) -> Callable[..., Method]:
    """``load_method`` with a log in place for the methods that replay one."""
    log = tmp_path / "agpo" / "seed-42" / "metrics.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(json.dumps({"step": 0, "ctrl/tau": 1.1, "ctrl/eps": 0.12}) + "\n")

    def load(name: str, overrides: dict | None = None) -> Method:
        return load_method(name, overrides).with_logs(out=tmp_path, seed=42)

    return load


@pytest.fixture
def toy(replayable: Callable[..., Method]) -> Callable[..., Toy]:
    """A toy case of a method by name."""

    def build(name: str, overrides: dict | None = None, **settings) -> Toy:
        return make_toy(replayable(name, overrides), **settings)

    return build
