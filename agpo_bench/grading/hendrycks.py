r"""The string rule of the MATH authors: two answers are equal when their normal forms are the same string.

Hendrycks et al. 2021 (``is_equiv``): line breaks, ``\!``, ``\left``/``\right``, degrees, ``\$``, ``\%`` and text
units at the right end go; ``\dfrac`` and ``\tfrac`` are ``\frac``; ``.5`` is ``0.5``; ``x=5`` is ``5``; ``\sqrt3``,
``\frac12`` and ``1/2`` get their braces; blanks go. Order, brackets and symbolic form matter.

Departure: command names are matched whole, so ``\leftarrow`` keeps its ``\left``.
"""

from __future__ import annotations

import re
from functools import lru_cache

_REMOVED = re.compile(r"\\!|\\(?:left|right)(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])|\\\$")
_DISPLAY_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_BARE_POINT = re.compile(r"(^|[ {])\.")
_SHORT_ROOT = re.compile(r"\\sqrt([^{\[])")
_INTEGER_RATIO = re.compile(r"(-?(?:0|[1-9][0-9]*))/(-?(?:0|[1-9][0-9]*))")


def _with_fraction_braces(text: str) -> str:
    r"""``\frac12`` -> ``\frac{1}{2}``, ``\frac1{72}`` -> ``\frac{1}{72}``; the text itself if an argument is
    missing.
    """
    head, *tails = text.split("\\frac")
    parts = [head]
    for tail in tails:
        parts.append("\\frac")
        if tail.startswith("{"):
            parts.append(tail)
        elif len(tail) < 2:
            return text
        elif tail[1] == "{":
            parts.append("{" + tail[0] + "}" + tail[1:])
        else:
            parts.append("{" + tail[0] + "}{" + tail[1] + "}" + tail[2:])
    return "".join(parts)


@lru_cache(maxsize=65536)
def normalize(text: str) -> str | None:
    r"""The normal form, or None where the rule does not apply (two unit groups, a ``\sqrt`` with nothing after it)."""
    text = text.replace("\n", "").replace("\\\\", "\\")
    text = _REMOVED.sub("", _DISPLAY_FRACTION.sub(r"\\frac", text))
    units = text.split("\\text{ ")
    if len(units) > 2:
        return None
    text = units[0].replace("\\%", "").replace("%", "")
    text = _BARE_POINT.sub(r"\g<1>0.", text)
    if not text:
        return text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0].strip()) <= 2:
        text = sides[1].lstrip()
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    text = _with_fraction_braces(text.replace(" ", ""))
    if text.endswith("\\sqrt"):
        return None
    if text == "0.5":
        return "\\frac{1}{2}"
    ratio = _INTEGER_RATIO.fullmatch(text)
    return f"\\frac{{{ratio.group(1)}}}{{{ratio.group(2)}}}" if ratio else text


def is_equal(first: str, second: str) -> bool:
    """Whether both strings have one normal form; where the rule does not apply, whether they are the same string."""
    first_form, second_form = normalize(first), normalize(second)
    if first_form is None or second_form is None:
        return first == second
    return first_form == second_form
