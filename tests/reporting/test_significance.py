from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from agpo_bench.reporting import significance


def test_the_interval_of_three_seeds_has_the_known_factor() -> None:
    # t(0.975, 2) / sqrt(3) = 4.302653 / 1.732051 = 2.48414
    low, high = significance.student_interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(2.48414, abs=1e-5)
    assert significance.student_interval([1.0]) is None


def test_welch_from_published_intervals_gives_the_known_values() -> None:
    # GAPO paper, Table 6: 17.96 ± .48 against 16.24 ± .61 (95 % half-widths over 3 seeds): t 9.53, df 3.79, p .0009.
    factor = 2.48414
    found = significance.welch_from_summary(mean=(17.96, 16.24), std=(0.48 / factor, 0.61 / factor), size=(3, 3))
    assert found.statistic == pytest.approx(9.53, abs=0.01)
    assert found.degrees_of_freedom == pytest.approx(3.79, abs=0.01)
    assert found.p_value == pytest.approx(0.0009, abs=0.0001)


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True),
    st.lists(st.integers(0, 1000), min_size=2, max_size=6, unique=True),
)
def test_welch_equals_scipy(first: list[int], second: list[int]) -> None:
    expected = stats.ttest_ind(first, second, equal_var=False)
    found = significance.welch(first, second)
    if found is not None and np.isfinite(expected.statistic):
        assert found.p_value == pytest.approx(float(expected.pvalue), rel=1e-6, abs=1e-12)


def test_mcnemar_counts_only_disagreements() -> None:
    # 8 gained, 1 lost: exact two-sided p = 2 * (C(9,0) + C(9,1)) / 2^9 = 20 / 512
    first = [1] * 8 + [0] + [1] * 50
    second = [0] * 8 + [1] + [1] * 50
    assert significance.mcnemar(first, second) == pytest.approx(20 / 512)
    assert significance.mcnemar([1, 0], [1, 0]) == 1.0
    with pytest.raises(ValueError, match="same items"):
        significance.mcnemar([1], [1, 0])


def test_paired_bootstrap_is_seeded_and_agrees_with_the_normal_test_on_many_items() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(0.15, 1, 400), rng.normal(0, 1, 400)
    runs = [
        significance.paired_bootstrap([(first, second)], generator=np.random.default_rng(7), resamples=4000).p_value
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0] == pytest.approx(float(stats.ttest_rel(first, second).pvalue), abs=0.03)


def test_holm_multiplies_and_stays_monotone() -> None:
    # Sorted .01, .02, .03 with 3, 2, 1 hypotheses left: .03, .04, max(.04, .03).
    assert significance.holm([0.02, 0.01, 0.03]) == pytest.approx([0.04, 0.03, 0.04])
    assert significance.holm([0.9, 0.8]) == [1.0, 1.0]
    assert significance.holm([]) == []


def test_clustering_widens_the_interval_of_repeated_draws() -> None:
    scores = [1.0, 0.0, 1.0, 1.0]
    alone = significance.clustered_interval(scores * 4, [str(i) for i in range(16)])
    repeated = significance.clustered_interval(scores * 4, [str(i % 4) for i in range(16)])
    assert repeated.high - repeated.low > alone.high - alone.low
    # One draw a question is the usual standard error with ddof 1.
    error = np.std(scores, ddof=1) / 2
    found = significance.clustered_interval(scores, list("abcd"))
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * error, rel=1e-6)


def test_grim_finds_the_papers_unattainable_cells() -> None:
    # PROTOCOLS: SAT 84.3 and 89.3 and the cloze values cannot be means of three seeds over the public item sets.
    assert not significance.grim("84.3", num_items=220, num_seeds=3)
    assert not significance.grim("89.3", num_items=220, num_seeds=3)
    assert significance.grim("76.1", num_items=220, num_seeds=3)
    for value in ("18.8", "19.6", "20.5", "25.9"):
        assert not significance.grim(value, num_items=118, num_seeds=3)
    for value in ("76.1", "77.7", "84.3"):
        assert not significance.grim(value, num_items=32, num_seeds=3)
    assert significance.grim("67.3", num_items=1319, num_seeds=3)
    assert not significance.grim("58.1", num_items=321, num_seeds=3)
    assert significance.grim("58.1", num_items=3018, num_seeds=3)


@given(st.integers(1, 400), st.integers(1, 5), st.data())
def test_grim_never_rejects_a_mean_that_happened(num_items: int, num_seeds: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, num_items * num_seeds))
    printed = f"{100 * correct / (num_items * num_seeds):.1f}"
    assert significance.grim(printed, num_items=num_items, num_seeds=num_seeds)
