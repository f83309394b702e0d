from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from agpo_bench.reporting.rounding import round_half_up


def test_halves_go_away_from_zero_where_bankers_rounding_would_not() -> None:
    assert round_half_up(Fraction(1, 2), 0) == "1"
    assert round_half_up(Fraction(5, 2), 0) == "3"
    assert round_half_up(Fraction(25, 1000), 2) == "0.03"
    assert round_half_up(Fraction(-25, 1000), 2) == "-0.03"


def test_an_exact_fraction_is_not_rounded_twice() -> None:
    # 2449/100 -> 24.49 -> one decimal 24.5; 24.449 must give 24.4, which rounding through 24.45 would miss.
    assert round_half_up(Fraction(24449, 1000), 1) == "24.4"
    assert round_half_up(Fraction(2045, 20), 1) == "102.3"


def test_there_is_no_minus_zero() -> None:
    assert round_half_up(Fraction(-1, 1000), 1) == "0.0"
    assert round_half_up(-0.0, 2) == "0.00"


@given(st.fractions(min_value=-1000, max_value=1000), st.integers(min_value=0, max_value=4))
def test_the_printed_value_is_within_half_a_unit(value: Fraction, decimals: int) -> None:
    printed = Fraction(round_half_up(value, decimals))
    assert abs(printed - value) <= Fraction(1, 2 * 10**decimals)
