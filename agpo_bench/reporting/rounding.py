"""Printed numbers: half-up rounding from exact values, never a minus zero."""

from __future__ import annotations

from fractions import Fraction


def round_half_up(value: Fraction | float, decimals: int) -> str:
    """``value`` with ``decimals`` digits after the point, halves away from zero, computed on the exact value.

    A float is taken at its exact binary value, so 0.125 gives 0.13 and 2.675 (below the half in binary) gives 2.67.
    """
    exact = Fraction(value)
    scaled = abs(exact) * 10**decimals
    whole = (scaled.numerator * 2 + scaled.denominator) // (scaled.denominator * 2)
    digits = str(whole).rjust(decimals + 1, "0")
    text = f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits
    return f"-{text}" if exact < 0 and whole else text
