"""What an answer may cost, decided from the input alone and before any clock."""

from __future__ import annotations

MAX_CHARS = 2_000
"""The longest gold of MATH and OCW has under 250 characters; a longer answer is a derivation or an attack."""
MAX_TOKENS = 800
MAX_DEPTH = 40
"""Nested groups. Each level of the grammar takes about eight Python frames, far below the recursion limit."""
MAX_DIGITS = 1_000
"""Digits of one numeral; also below CPython's own int-to-str limit of 4,300."""
MAX_DECIMAL_EXPONENT = 400
MAX_BITS = 20_000
"""Size of an integer that exact arithmetic may produce (about 6,000 decimal digits)."""
MAX_TERMS = 300
"""Terms of a polynomial in normal form."""
MAX_POWER = 64
"""Integer power to which a sum of several terms is expanded."""
MAX_FACTORIAL = 500


class LimitError(Exception):
    """An input beyond a limit; ``reason`` is ``too_long``, ``too_deep`` or ``too_complex``."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnparsedError(Exception):
    """The text is not mathematics that the grammar knows."""
