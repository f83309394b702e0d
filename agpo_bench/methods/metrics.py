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
``ctrl/kl_coefficient``     coefficient of the reference KL in use
``dispersion/fallback_frac``  groups whose rewards differ but whose dispersion is 0, over all groups
``adv/zero_variance_frac``  groups whose rewards are all equal, over all groups
``adv/abs_mean``            mean |A| over trained rollouts
==========================  =========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

Denominator = Literal["tokens", "max", "sum"]

LOSS_SUMS: dict[str, Denominator] = {
    "clip/active_tokens": "tokens",  # meaning 3 of clip saturation: r > 1 + high and A > 0, or r < 1 - low and A < 0
    "clip/high_tokens": "tokens",  # the part of them above the band
    "ratio/mean": "tokens",
    "ratio/max": "max",
    "ratio/error_max": "max",  # max |r - 1|; on the first pass over a rollout batch it must be rounding only
    "kl/policy_k1": "tokens",  # log pi_old - log pi at this micro-batch, before its optimiser step
    "kl/policy_k3": "tokens",
    "kl/ref_k1": "tokens",  # log pi - log pi_ref; only with a reference in the batch
    "kl/ref_k3": "tokens",
    "loss/policy": "sum",  # shares of the minibatch loss, already normalised
    "loss/kl": "sum",
    "loss/value": "sum",
    "value/error": "tokens",  # (V - return)^2
    "corr/ratio_sum": "tokens",
    "corr/advantage_sum": "tokens",
    "corr/product_sum": "tokens",
    "corr/ratio_squares": "tokens",
    "corr/advantage_squares": "tokens",
}
"""``LossOutput.sums`` by key: divide by the minibatch's tokens, take the maximum, or just add."""


def combine(sums: Iterable[Mapping[str, float]], *, num_tokens: int) -> dict[str, float]:
    """Micro-batches' sums as one minibatch's metrics; adds ``corr/ratio_advantage`` (Pearson, over tokens)."""
    totals: dict[str, float] = {}
    for part in sums:
        for key, value in part.items():
            if LOSS_SUMS[key] == "max":
                totals[key] = max(totals.get(key, value), value)
            else:
                totals[key] = totals.get(key, 0.0) + value
    result = {k: v / max(1, num_tokens) if LOSS_SUMS[k] == "tokens" else v for k, v in totals.items()}
    moments = {key: result.pop(key) for key in tuple(result) if key.startswith("corr/")}
    if moments:
        ratio, advantage = moments["corr/ratio_sum"], moments["corr/advantage_sum"]
        variances = (moments["corr/ratio_squares"] - ratio**2) * (moments["corr/advantage_squares"] - advantage**2)
        covariance = moments["corr/product_sum"] - ratio * advantage
        result["corr/ratio_advantage"] = covariance / variances**0.5 if variances > 1e-24 else 0.0
    return result
