r"""Estimators over repeated samples of a question: Maj@k, pass@k, avg@k, and their standard errors.

Counting is exact (integers and fractions) and becomes a float64 at the end. A question with fewer than k draws has no
Maj@k and no pass@k: None, never a number from fewer draws.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import comb

from agpo_bench.grading.vote import Equivalence, cluster_answers
from agpo_bench.records import Verdict


def pass_at_k(num_samples: int, num_right: int, k: int) -> float | None:
    r"""Unbiased pass@k: :math:`1 - \binom{n-c}{k} / \binom{n}{k}` (Chen et al. 2021, Eq. 1). None when n < k."""
    if not 0 <= num_right <= num_samples or k < 1:
        raise ValueError(f"pass@{k} of {num_right} right in {num_samples} samples: need 0 <= right <= samples, k >= 1")
    if num_samples < k:
        return None
    return float(1 - Fraction(comb(num_samples - num_right, k), comb(num_samples, k)))


def average_at_k(scores: Sequence[float], k: int) -> float | None:
    """avg@k: the mean score of the first k draws, an estimate of accuracy at the sampling temperature.

    None when n < k.
    """
    if k < 1:
        raise ValueError(f"avg@{k} has no meaning; use k >= 1")
    return math.fsum(scores[:k]) / k if len(scores) >= k else None


def majority_at_k(verdicts: Sequence[Verdict], are_equivalent: Equivalence, *, k: int) -> float | None:
    r"""Unbiased Maj@k: the mean of Maj@k over all :math:`\binom{n}{k}` subsets of the n draws, exactly.

    Ties within a subset are worth the mean of the tied clusters' scores. (The earliest-sample rule has the same mean:
    draws are exchangeable, so each tied cluster is the earliest equally often.) None when n < k or when a draw was lost
    to an infrastructure failure.

    Of n draws let cluster j hold :math:`n_j` and :math:`n_0` abstain. Cluster c wins with v votes, tied with t others,
    in :math:`\binom{n_c}{v} [x^{k-v} y^t] (1+x)^{n_0} \prod_{j \ne c} (\sum_{u<v} \binom{n_j}{u} x^u + \binom{n_j}{v}
    x^v y)` subsets, and is then worth :math:`score_c / (t+1)`.
    """
    if k < 1:
        raise ValueError(f"Maj@{k} has no meaning; use k >= 1")
    if len(verdicts) < k or any(verdict.is_error for verdict in verdicts):
        return None
    clusters = [(len(cluster.members), cluster.score) for cluster in cluster_answers(verdicts, are_equivalent)]
    return majority_of_clusters(clusters, num_draws=len(verdicts), k=k)


def majority_of_clusters(clusters: Sequence[tuple[int, float]], *, num_draws: int, k: int) -> float:
    """``majority_at_k`` of ``num_draws`` draws, at least k, from the size and score of every cluster of answers."""
    sizes = [size for size, _ in clusters]
    abstentions = num_draws - sum(sizes)
    total = Fraction(0)
    shares: dict[int, Fraction] = {}
    for size, score in clusters:
        if score:
            if size not in shares:
                shares[size] = _winning_share(size, sizes, abstentions, k)
            total += Fraction(score) * shares[size]
    return float(total / comb(num_draws, k))


def _winning_share(size: int, sizes: Sequence[int], abstentions: int, k: int) -> Fraction:
    """Number of k-subsets a cluster of ``size`` wins, a win tied with t others counting 1/(t+1)."""
    others = Counter(sizes)
    others[size] -= 1
    # A polynomial in x is one integer, its coefficients side by side: no coefficient exceeds 2^n, so none spills over.
    width = sum(sizes) + abstentions + 1
    mask = (1 << width * (k + 1)) - 1
    share = Fraction(0)
    for votes in range(1, min(size, k) + 1):
        # ways[t]: subsets of the other draws with t clusters at exactly `votes` and none above it
        ways = [_pack([comb(abstentions, u) for u in range(min(abstentions, k) + 1)], width)]
        for other, count in others.items():
            if count:
                ways = _multiply_by_power(ways, other, count, votes, width=width, mask=mask, max_ties=k // votes - 1)
        coefficient_mask = (1 << width) - 1
        for tied, polynomial in enumerate(ways):
            number = polynomial >> width * (k - votes) & coefficient_mask
            share += Fraction(comb(size, votes) * number, tied + 1)
    return share


def _multiply_by_power(
    ways: list[int], size: int, count: int, votes: int, *, width: int, mask: int, max_ties: int
) -> list[int]:
    """Multiply by (below + tied y)^count, where ``count`` clusters have ``size`` draws each."""
    below = _pack([comb(size, u) for u in range(min(size, votes - 1) + 1)], width)
    if size < votes:
        factor = _power(below, count, mask)
        return [polynomial * factor & mask for polynomial in ways]
    most = min(count, max_ties)
    powers = [_power(below, count - most, mask)]
    for _ in range(most):
        powers.append(powers[-1] * below & mask)
    at_votes = comb(size, votes)
    factors = [
        ((comb(count, ties) * at_votes**ties * powers[most - ties]) << width * votes * ties) & mask
        for ties in range(most + 1)
    ]
    result = [0] * min(len(ways) + most, max_ties + 1)
    for tied, polynomial in enumerate(ways):
        for more, factor in enumerate(factors):
            if tied + more < len(result):
                result[tied + more] += polynomial * factor & mask
    return result


def _pack(coefficients: Sequence[int], width: int) -> int:
    return sum(coefficient << width * degree for degree, coefficient in enumerate(coefficients))


def _power(polynomial: int, exponent: int, mask: int) -> int:
    result = 1
    while exponent:
        if exponent & 1:
            result = result * polynomial & mask
        polynomial = polynomial * polynomial & mask
        exponent >>= 1
    return result


def clustered_standard_error(scores_by_question: Sequence[Sequence[float]]) -> float | None:
    r"""Standard error of a mean over questions, draws of one question taken as one cluster.

    :math:`\sqrt{\frac{1}{Q(Q-1)} \sum_q (\bar s_q - \bar s)^2}` with :math:`\bar s_q` a question's mean score:
    copies of a draw that always agree add nothing (Miller 2024, "Adding error bars to evals"). None below two
    questions.
    """
    means = [math.fsum(scores) / len(scores) for scores in scores_by_question if len(scores)]
    if len(means) < 2:
        return None
    mean = math.fsum(means) / len(means)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in means) / (len(means) * (len(means) - 1)))
