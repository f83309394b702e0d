"""Text as every grader reads it: one Unicode form, one minus sign, nothing invisible.

NFKC alone is not enough and in three places wrong for numbers: it leaves U+2212 MINUS SIGN alone, it turns a
superscript into a plain digit (``m²`` into ``m2``, ``10⁻⁷`` into ``10-7``) and glues a vulgar fraction to the digit
before it (``2½`` into ``21/2``). These are rewritten before NFKC runs.
"""

from __future__ import annotations

import re
import unicodedata

MAX_RESPONSE_CHARS = 400_000
"""Longer responses are not read (reason ``too_long``): about ten times what 32k tokens spell."""

_MINUS = dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\u2013\u2796\ufe63\uff0d"), "-")
_INVISIBLE = dict.fromkeys(
    [*map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u180e"), 0], None
)
_SLASH = {0x2044: "/", 0x2215: "/", 0x2236: ":"}
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻"
_TO_PLAIN = str.maketrans(_SUPERSCRIPTS, "0123456789+-")
_SUPERSCRIPT_RUN = re.compile(f"[{_SUPERSCRIPTS}]+")
_VULGAR = re.compile("([0-9\uff10-\uff19]?)([\u00bc-\u00be\u2150-\u215e])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TRANSLATION = {**_MINUS, **_INVISIBLE, **_SLASH}


def normalise_text(text: str) -> str:
    """NFKC with superscripts as ``^{…}``, fractions kept apart, every minus as ``-``, invisible characters gone.

    Lone surrogates become U+FFFD, so that an answer can be written to a UTF-8 file. Idempotent.
    """
    if text.isascii():
        return text.replace("\x00", "")
    text = _SURROGATE.sub("\ufffd", text)
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^{" + run.group().translate(_TO_PLAIN) + "}", text)
    text = _VULGAR.sub(_spell_vulgar, text)
    return unicodedata.normalize("NFKC", text.translate(_TRANSLATION)).translate(_TRANSLATION)


def _spell_vulgar(match: re.Match[str]) -> str:
    whole, fraction = match.groups()
    spelled = unicodedata.normalize("NFKC", fraction).replace("\u2044", "/")
    return f"{whole} {spelled}" if whole else spelled
