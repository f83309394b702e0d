"""Names of what methods report, each with its denominator.

Controllers (one value a step; with controller scope ``prompt`` the mean over prompts):

==========================  =========================================================================================
``ctrl/eps``                clip radius in use; for a per-rollout rule the mean upper radius
``ctrl/eps_raw``            Eq. 4 before its clip to [minimum, maximum]
``ctrl/eps_at_min/max``     1 when eps sits on that bound (clip saturation, meaning 1: share of steps)
``ctrl/eps_factor_X``       eps_raw divided by eps_raw with the term X in {H, E, sigma, kappa, D} removed
``ctrl/H``                  entropy of the old policy, nats a token, temperature 1, mean over training tokens
``ctrl/E``                  vote entropy of the probe, nats, mean over prompts
``ctrl/sigma``              dispersion of the probe's rewards, mean over prompts
``ctrl/kappa_abs``          absolute skewness of the probe's rewards, gated and capped, mean over prompts
``ctrl/D_step``             step KL carried from the previous update, nats a token
``ctrl/U, U_bar, U_tilde``  uncertainty (Eq. 9), its lagged mean (Eq. 11) and their difference (Eq. 10)
``ctrl/tau_raw, tau``       temperature before and after its clip (Eq. 12); ``ctrl/tau_at_min/max`` as for eps
``kl_ctl/beta``             coefficient of the reference KL in use
``disp/fallback_frac``  groups whose rewards differ but whose dispersion is 0, over all groups
``adv/zero_variance_frac``  groups whose rewards are all equal, over all groups
``adv/abs_mean``            mean |A| over trained rollouts
``ctrl/replay_exhausted``   1 when a replayed log had fewer steps and its last value holds
``cov/selected_tokens``     tokens a covariance rule chose, mean over the step's minibatches
``ess/fraction``            effective sample size over the number of tokens, mean over the step's minibatches
``shaping/entropy_mean|std``  running moments of the pooled token entropy (nats) behind the four-quadrant bonus
==========================  =========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

LOSS_SUMS: dict[str, Literal["tokens", "updates"]] = {
    "clip/high_tokens": "tokens",  # share of tokens on which the clip acted above the band
    "ratio/mean": "tokens",  # of the method's own ratio: a sequence-level one counts once a token
    "kl/policy_k1": "tokens",  # log pi_old - log pi before the optimiser step this micro-batch belongs to
    "kl/policy_k3": "tokens",
    "loss/policy": "updates",  # shares of the minibatch loss, already normalised
    "loss/kl": "updates",
    "loss/value": "updates",
    "value/error": "tokens",  # (V - return)^2
}
"""Denominator of each of ``LossOutput.sums``. All of them add up over micro-batches and updates."""


class LossCounts(Protocol):
    """Over the updates of a step."""

    num_updates: int
    num_tokens: int
    """Trained tokens, once an update they took part in."""


def loss_metrics(sums: Mapping[str, float], counts: LossCounts) -> dict[str, float]:
    """The sums over their denominators."""
    divisors = {"tokens": max(1, counts.num_tokens), "updates": max(1, counts.num_updates)}
    return {key: value / divisors[LOSS_SUMS[key]] for key, value in sums.items()}
