"""One line of ``metrics.jsonl``: what it holds, and how it is computed from a step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from agpo_bench.methods.probe import is_constant
from agpo_bench.training.collect import Collected, RolloutBatch
from agpo_bench.training.sampler_gap import SamplerGap
from agpo_bench.training.session import Session
from agpo_bench.training.update import UpdateReport

Values = dict[str, float | int | None]


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Metrics of one step (one rollout batch and its updates), each with its formula and denominator.

    A metric that a step cannot have (no update, no probe) is absent. Wall-clock times are in ``timing.jsonl``, so that
    this file is the same to the bit for the same seed.

    Where the run stands:
        ``step`` number of the step from 0; ``updates`` optimiser updates so far; ``epoch`` of the training problems;
        ``learning_rate`` of this step's updates (a function of tokens used before the step);
        ``tokens/probe|train|discarded|pairs`` sampled so far by phase; ``tokens/used`` their sum; ``tokens/budget``.
    Rewards, over all rollouts sampled for training in the step, discarded groups included:
        ``reward/mean`` over rollouts the grader could judge; ``reward/std`` mean over groups of the Bessel deviation;
        ``reward/frac_zero_std|frac_all0|frac_all1`` share of groups with equal, only 0, only 1 rewards (the first
        includes the other two); ``reward/parse_rate`` share of judged rollouts that state an answer;
        ``reward/error_rate`` share of all rollouts the grader could not judge; ``reward/shaped_mean`` over trained
        rollouts after the method's reward shaping; ``probe/reward_mean`` over judged probe rollouts;
        ``reward/task/<task>`` the mean within a benchmark.
    Responses, over the same rollouts:
        ``len/mean|max`` tokens, terminator included; ``len/trunc_frac`` share cut by the length limit;
        ``gen/unique_frac`` mean over groups of distinct responses / G; ``gen/rounds`` sampling rounds of the step;
        ``groups/trained`` groups that were trained on; ``groups/discarded`` groups sampled and not trained on.
    Controllers (``ctrl/…``), as the method's parts log them:
        ``ctrl/H`` mean over training tokens of the full-vocabulary entropy at temperature 1 (nats);
        ``ctrl/eps`` clip radius (its mean where it differs by rollout), ``ctrl/eps_raw`` before its limits,
        ``ctrl/eps_at_min|eps_at_max`` 1 when at a limit, ``ctrl/eps_factor_{H,E,sigma,kappa,D}`` what each term
        multiplies the radius by; ``ctrl/tau`` sampling temperature, ``ctrl/tau_raw`` before its limits;
        ``ctrl/U|U_bar|U_tilde`` Eqs. 9-11; ``ctrl/E|sigma|kappa_abs|D_step`` the signals; ``kl_ctl/beta`` the KL
        coefficient; ``disp/fallback_frac`` share of groups normalised by a fallback;
        ``adv/zero_variance_frac`` share of trained groups with equal rewards; ``adv/abs_mean`` over trained rollouts;
        ``shaping/…`` as the shaping part reports it.
    Clip and ratio, over the step's updates (a token counts once an update):
        ``clip/active_tokens`` share of trained tokens on which the clip took the gradient away (the method's ratio
        above the band with A > 0, below it with A < 0, above a dual cap with A < 0) or changed its weight (CISPO, P3O),
        ``clip/high_tokens`` those above; ``clip/active_steps`` share of updates with any such token;
        ``clip/active_frac_c<c>`` ``active_tokens`` within groups with c right rollouts; ``clip/ratio_max`` the largest
        token ratio; ``clip/first_pass_ratio_err`` max |token ratio - 1| before the first update; ``ratio/mean`` mean
        over tokens of the method's ratio; ``is/ratio_adv_corr`` Pearson correlation of
        token ratio and advantage over trained tokens; ``kl/policy_k1|policy_k3`` mean over trained tokens of
        log pi_old - log pi and its k3, each before its own update; ``cov/…`` and ``ess/…`` as the surrogate reports
        them, mean over updates.
    KL, on the first ``monitor_rollouts`` trained rollouts (all when not set), in nats, sampled tokens:
        ``kl/ref_k1|ref_k3`` mean over tokens of log pi - log pi_ref and of e^x - 1 - x, x = log pi_ref - log pi, at
        temperature 1, before the step's updates; ``kl/ref_per_seq`` mean over sequences of the k1 sum,
        ``kl/ref_per_seq_k3`` of the k3 sum; ``kl/step_k1|step_k3`` mean over tokens of log pi_before - log pi_after
        the step's updates (Eq. 6) and of its k3, at the sampling temperature; ``kl/num_tokens`` tokens behind them.
    Gradient:
        ``grad/norm`` mean over the step's updates of the L2 norm before clipping; ``grad/norm_max`` the largest;
        ``grad/norm_var_1k`` population variance over the newest 1,000 updates; ``grad/skipped`` updates so far whose
        gradient was not finite.
    Loss, mean over the step's updates:
        ``loss/policy|kl|value`` shares of the loss; ``value/error`` mean over tokens of (V - return)^2.
    Sampler:
        ``sync/version`` number of the weights that sampled the rollouts; with a separate engine
        ``sync/logp_gap_mean|logp_gap_max`` |log p of the engine - log p of the policy| at temperature 1 (nats) over the
        ``sync/logp_gap_tokens`` response tokens compared: all, or those of 32 rollouts when temperatures are not 1.
    Preference training:
        ``pairs/count`` pairs of the step; ``pairs/prompts_without`` prompts without a better and a worse rollout;
        ``pairs/margin|accuracy`` mean over pairs and updates of the implicit reward margin and of whether it is
        positive, and ``loss/policy`` of the loss, each before its own update;
        ``kl/initial_k1|initial_k3|initial_per_seq`` KL(pi_ref || pi) after the step's updates, on rollouts of pi_ref:
        the other direction than ``kl/ref_k1``.
    """

    step: int
    values: Values

    def to_json(self) -> dict[str, Any]:
        """A flat object; a value that is not finite becomes null, for JSON has no word for it."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in self.values.items()
        }
        return {"step": self.step, **finite}


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one step of a loop hands back to be written down."""

    record: StepRecord
    rollouts: list[dict[str, Any]]
    """One line a rollout for ``rollouts/<step>.jsonl``."""
    seconds: Mapping[str, float]
    """Wall-clock seconds for ``timing.jsonl``: ``time/step`` of the whole step; of its parts ``time/probe`` and
    ``time/gen`` (sampling), ``time/reward`` (grading), ``time/wait`` (for the rollouts of other processes; times are
    the main process's), ``time/logp`` (old, reference and critic passes),
    ``time/update``, ``time/sync`` (weights to the sampler), ``time/monitor`` (KL diagnostics)."""


def position_metrics(session: Session, *, learning_rate: float) -> Values:
    """Where the run stands after the step."""
    phases = {f"tokens/{phase}": tokens for phase, tokens in session.ledger.by_phase().items()}
    return {
        "updates": session.num_updates,
        "epoch": session.stream.epoch,
        "learning_rate": learning_rate,
        **phases,
        "tokens/used": session.ledger.used,
        "tokens/budget": session.ledger.budget,
    }


def rollout_metrics(sampled: RolloutBatch) -> Values:
    """Rewards and responses of everything sampled for training."""
    reward_PG, is_valid_PG = sampled.graded.reward_PG, sampled.graded.is_valid_PG
    verdicts = [verdict for row in sampled.graded.verdicts for verdict in row]
    judged = [verdict for verdict in verdicts if not verdict.is_error]
    constant_P = is_constant(reward_PG, is_valid_PG)
    valid_sum_P = torch.where(is_valid_PG, reward_PG, 0.0).sum(dim=1)
    count_P = is_valid_PG.sum(dim=1)
    values: Values = {
        "reward/mean": _mean([verdict.score for verdict in judged]),
        "reward/std": _mean(
            [float(row[valid].std()) for row, valid in zip(reward_PG, is_valid_PG, strict=True) if int(valid.sum()) > 1]
        ),
        "reward/frac_zero_std": float(constant_P.double().mean()),
        "reward/frac_all0": float((constant_P & (valid_sum_P == 0)).double().mean()),
        "reward/frac_all1": float((constant_P & (valid_sum_P == count_P) & (count_P > 0)).double().mean()),
        "reward/parse_rate": _mean([float(verdict.answer is not None) for verdict in judged]),
        "reward/error_rate": 1 - len(judged) / len(verdicts),
        "len/mean": float(sampled.lengths.mean()),
        "len/max": int(sampled.lengths.max()),
        "len/trunc_frac": float((~sampled.finished).double().mean()),
        "gen/unique_frac": _mean(
            [len({r.response_ids for r in group.rollouts}) / len(group.rollouts) for group in sampled.groups]
        ),
        "sync/version": sampled.rollouts[0].weights_version,
    }
    for task in sorted({prompt.task for prompt in sampled.prompts}):
        rows = [row for row, prompt in enumerate(sampled.prompts) if prompt.task == task]
        scores = [v.score for row in rows for v in sampled.graded.verdicts[row] if not v.is_error]
        values[f"reward/task/{task}"] = _mean(scores)
    return {key: value for key, value in values.items() if value is not None}


def collection_metrics(collected: Collected) -> Values:
    """Groups kept and discarded."""
    return {
        "gen/rounds": collected.num_rounds,
        "groups/trained": len(collected.trained.groups),
        "groups/discarded": len(collected.sampled.groups) - len(collected.kept.groups),
    }


def update_metrics(session: Session, report: UpdateReport, batch: RolloutBatch) -> Values:
    """Clip, gradient and loss of the step's updates."""
    values = gradient_metrics(session, report.gradient_norms)
    if not report.num_updates:
        return values
    values |= session.method.loss_metrics(report.sums, report) | {
        "clip/active_tokens": _share(report.active_tokens_B.sum(), report.seen_tokens_B.sum()),
        "clip/active_steps": report.num_updates_with_clipping / report.num_updates,
        "clip/ratio_max": report.ratio_max,
        "clip/first_pass_ratio_err": report.first_pass_ratio_error,
        "is/ratio_adv_corr": report.correlation.value,
    }
    correct_P = (batch.graded.reward_PG >= 1).sum(dim=1)
    active_PG, seen_PG = batch.per_group(report.active_tokens_B), batch.per_group(report.seen_tokens_B)
    for c in sorted(set(correct_P.tolist())):
        rows = correct_P == c
        values[f"clip/active_frac_c{c}"] = _share(active_PG[rows].sum(), seen_PG[rows].sum())
    for name, numbers in report.extras.items():
        values[name] = _mean(numbers)
    return {key: value for key, value in values.items() if value is not None}


def gradient_metrics(session: Session, norms: list[float]) -> Values:
    """Gradient norms of the step's updates."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    values: Values = {"grad/skipped": session.engine.num_skipped_updates}
    if finite:
        values |= {
            "grad/norm": _mean(finite),
            "grad/norm_max": max(finite),
            "grad/norm_var_1k": gradient_norm_variance(session.gradient_norms),
        }
    return {key: value for key, value in values.items() if value is not None}


def gap_metrics(gap: SamplerGap | None) -> Values:
    """A separate sampling engine against the policy; nothing where there is none."""
    if gap is None:
        return {}
    return {"sync/logp_gap_mean": gap.mean, "sync/logp_gap_max": gap.largest, "sync/logp_gap_tokens": gap.num_tokens}


def gradient_norm_variance(norms: list[float]) -> float | None:
    """Population variance (float64) of the newest updates' gradient norms; None before the second."""
    if len(norms) < 2:
        return None
    return float(torch.tensor(norms, dtype=torch.float64).var(correction=0))


def merged(*parts: Mapping[str, float | int | None]) -> Values:
    """Several metric groups as one; a name that two of them claim is our mistake."""
    values: Values = {}
    for part in parts:
        twice = values.keys() & part.keys()
        assert not twice, f"two sources of {sorted(twice)}"
        values.update(part)
    return values


def _mean(numbers: list[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None


def _share(part: torch.Tensor, whole: torch.Tensor) -> float:
    return float(part / whole) if float(whole) else 0.0
