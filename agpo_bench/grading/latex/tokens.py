r"""LaTeX into tokens. One regular expression, one pass, no backtracking over more than a numeral.

Spacing, sizes, ``\left``/``\right`` and dollar signs go here; thousands separators become part of the numeral.
``10,000`` is one number only outside brackets (``(1,234)`` may be a point); ``10,\!000`` and ``10{,}000`` are one
number everywhere.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from agpo_bench.grading.latex.limits import (
    MAX_CHARS,
    MAX_DECIMAL_EXPONENT,
    MAX_DIGITS,
    MAX_TOKENS,
    LimitError,
    UnparsedError,
)


class Token(NamedTuple):
    r"""``kind``: ``number``, ``letter``, ``command`` (without the backslash), ``text`` (a word group) or ``mark``."""

    kind: str
    text: str
    value: Fraction | None = None
    follows_blank: bool = False


def table(text: str) -> tuple[str, ...]:
    """A table of names from one string: fifty quoted words are harder to read."""
    return tuple(text.split())


_TOKEN = re.compile(
    r"""
    (?P<repeating>\d*\.(?P<fixed>\d*)\\(?:overline|bar)\s*\{\s*(?P<period>\d+)\s*\})
  | (?P<thousands>\d{1,3}(?:(?:,\s*\\!\s*|\{,\}\s*|\\,\s*)\d{3})+(?!\d)(?:\.\d+)?)
  | (?P<comma_thousands>\d{1,3}(?:,\d{3})+(?![\d,]\d|\d)(?:\.\d+)?)
  | (?P<blank_thousands>\d{1,3}(?:[ ]\d{3})+(?![\d/])(?:\.\d+)?)
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\d.^_]))?)
  | \\(?P<text>text|textbf|textit|textrm|texttt|textsf|textnormal|mbox|mathrm|operatorname|rm|hbox)
      \s*\*?\s*\{(?P<words>[^{}]*)\}
  | \\(?P<environment>begin|end)\s*\{\s*(?P<environment_name>[A-Za-z]+\*?)\s*\}(?:\s*\{[lcr|\s]*\})?
  | \\(?P<hidden>phantom|hphantom|vphantom|hspace|vspace|color|label|tag)\*?\s*\{[^{}]*\}
  | \\(?P<command>[A-Za-z]+)
  | \\(?P<escaped>.)
  | (?P<word>[A-Za-z]+)
  | (?P<power>\*\*)
  | (?P<blank>\s+)
  | (?P<mark>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_DROPPED_COMMANDS = frozenset(
    table(
        "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm middle displaystyle textstyle "
        "scriptstyle limits nolimits quad qquad thinspace enspace hfill mathstrut strut rm bf it sf tt phantom hline "
        "mathbf mathit mathsf mathtt boldsymbol bm mathcal mathbb mathfrak mathnormal boxed fbox"
    )
)
r"""Commands without meaning for the value. Font commands go and leave their group, so ``\mathbf{v}`` is v."""

_SYNONYMS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom", "choose": "choose",
    "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=",
    "lt": "<", "gt": ">", "ne": "!=", "neq": "!=", "in": "in", "notin": "notin", "approx": "~", "simeq": "~",
    "equiv": "equiv", "sim": "~", "to": "to", "rightarrow": "to", "Rightarrow": "to", "implies": "to", "mapsto": "to",
    "cong": "equiv", "cup": "cup", "bigcup": "cup", "cap": "cap", "bigcap": "cap", "setminus": "setminus",
    "backslash": "setminus", "cdot": "*", "times": "*", "ast": "*", "bullet": "*", "div": "/", "pm": "pm", "mp": "mp",
    "lbrace": "{set", "rbrace": "set}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "vert": "|",
    "mid": "|", "lvert": "|", "rvert": "|", "colon": ":", "infinity": "infty", "prime": "'", "varnothing": "emptyset",
    "varepsilon": "epsilon", "varphi": "phi", "vartheta": "theta", "dots": "ldots", "cdots": "ldots",
    "arccos": "arccos", "degree": "circ",
}  # fmt: skip
_MARK_COMMANDS = frozenset(table("<= >= < > != in notin ~ equiv to cup cap setminus * / pm mp {set set} [ ] ( ) | : '"))
_UNICODE = {
    "√": "sqrt", "π": "pi", "∞": "infty", "×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "⁄": "/", "∕": "/",
    "≤": "<=", "⩽": "<=", "≥": ">=", "⩾": ">=", "≠": "!=", "≈": "~", "∪": "cup", "∩": "cap", "∈": "in", "∉": "notin",
    "°": "circ", "º": "circ", "±": "pm", "∓": "mp", "∖": "setminus", "′": "'", "’": "'", "∅": "emptyset",
    "≡": "equiv", "→": "to", "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "θ": "theta",
    "λ": "lambda", "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ϕ": "phi", "ω": "omega",
    "Δ": "Delta", "Ω": "Omega", "∠": "angle", "，": ",", "、": ",", "；": ";", "：": ":", "（": "(", "）": ")",
}  # fmt: skip
_WORD_COMMANDS = table(
    "arcsin arccos arctan sinh cosh tanh sin cos tan cot sec csc ln log exp sqrt infinity infty binom alpha beta "
    "gamma theta omega pi"
)
"""Words that stand for a command when written without a backslash, as in ``sqrt(3)`` and ``2pi``; longer ones first."""
UNIT_WORDS = frozenset(
    table(
        "cm mm km kg mg ml ft mph hr hrs min mins sec secs inch inches foot feet yard yards mile miles meter meters "
        "metre metres centimeter centimeters centimetre centimetres millimeter millimeters kilometer kilometers "
        "kilometre kilometres gram grams kilogram kilograms pound pounds ounce ounces liter liters litre litres "
        "gallon gallons degree degrees radian radians dollar dollars cent cents hour hours minute minutes second "
        "seconds day days week weeks month months year years unit units square cubic people students ways"
    )
)
r"""Words that are a unit when they follow a number without a ``\text``. No single letter: ``5t`` is a product."""
NOT_A_UNIT = re.compile(
    r"[0-9]|^\s*(?:or|and|to|through|if|when|where|for|with|not|more|less|modulo?|base|either|over|but|except)\b",
    re.IGNORECASE,
)
"""What a word group behind a value says when it is no unit: it changes or adds to the value."""
_PERCENT_WORDS = ("percent", "percentage", "pct", "%", "\\%")
_WORD_PREFIX = re.compile(r"(?:np|math|numpy)$")


def _numeral(text: str) -> Fraction:
    mantissa, _, exponent = text.replace("E", "e").partition("e")
    if (
        sum(map(str.isdigit, mantissa)) > MAX_DIGITS
        or len(exponent) > 8
        or abs(int(exponent or 0)) > MAX_DECIMAL_EXPONENT
    ):
        raise LimitError("too_complex")
    whole, _, decimals = mantissa.partition(".")
    value = Fraction(int((whole + decimals) or "0"), 10 ** len(decimals))
    return value * Fraction(10) ** int(exponent or 0)


def _repeating(match: re.Match[str]) -> Fraction:
    whole = match.group("repeating").partition(".")[0]
    fixed, period = match.group("fixed"), match.group("period")
    if len(whole) + len(fixed) + len(period) > MAX_DIGITS:
        raise LimitError("too_complex")
    base = Fraction(int((whole + fixed) or "0"), 10 ** len(fixed))
    return base + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def tokenize(text: str) -> list[Token]:
    """The tokens of an answer. Raises LimitError when it is too long, UnparsedError on a stray backslash."""
    if len(text) > MAX_CHARS:
        raise LimitError("too_long")
    tokens: list[Token] = []
    depth, position, follows_blank = 0, 0, False

    def put(kind: str, token_text: str, value: Fraction | None = None) -> None:
        nonlocal depth, follows_blank
        if kind == "mark":
            depth += (token_text in ("(", "[", "{set")) - (token_text in (")", "]", "set}"))
        tokens.append(Token(kind, token_text, value, follows_blank))
        follows_blank = False
        if len(tokens) > MAX_TOKENS:
            raise LimitError("too_complex")

    def put_command(name: str) -> None:
        name = _SYNONYMS.get(name, name)
        if name not in _DROPPED_COMMANDS:
            put("mark" if name in _MARK_COMMANDS else "command", name)

    def put_word(word: str) -> None:
        follows_operand = bool(tokens) and (tokens[-1].kind in ("number", "text") or tokens[-1].text in (")", "}"))
        if word in _PERCENT_WORDS and follows_operand:
            put("mark", "%")
            return
        if word in ("and", "or") or (follows_operand and word.lower() in UNIT_WORDS):
            put("text", word)
            return
        index = 0
        while index < len(word):
            command = next((name for name in _WORD_COMMANDS if word.startswith(name, index)), None)
            # "2pi", "xpi", "sinx": a command, or a command and one letter, ends the word.
            if command is not None and len(word) - index - len(command) <= 1:
                put_command(command)
                index += len(command)
            else:
                put("letter", word[index])
                index += 1

    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:  # a lone backslash at the end
            raise UnparsedError("stray backslash")
        kind = match.lastgroup or ""
        if match.group("comma_thousands") is not None and depth > 0:
            match = re.compile(r"\d+").match(text, position)
            assert match is not None
            put("number", match.group(), _numeral(match.group()))
        elif match.group("repeating") is not None:
            put("number", match.group(), _repeating(match))
        elif kind in ("thousands", "comma_thousands", "blank_thousands", "number"):
            digits = re.sub(r"[^\d.eE+-]" if kind == "number" else r"[^\d.]", "", match.group())
            put("number", digits, _numeral(digits))
        elif match.group("text") is not None:
            words = " ".join(match.group("words").split())
            put("mark", "%") if words.strip("~ ") in _PERCENT_WORDS else put("text", words)
        elif match.group("environment") is not None:
            put("command", f"{match.group('environment')}:{match.group('environment_name')}")
        elif match.group("hidden") is not None or kind == "blank":
            follows_blank = True
        elif match.group("command") is not None:
            name = match.group("command")
            if name in ("left", "right") and text.startswith(".", match.end()):
                position = match.end() + 1
                continue
            put_command(name)
        elif match.group("escaped") is not None:
            escaped = match.group("escaped")
            if escaped in "{}":
                put("mark", "{set" if escaped == "{" else "set}")
            elif escaped == "\\":
                put("mark", "\\\\")
            elif escaped == "|":
                put("mark", "|")
            elif escaped == "%":
                put("mark", "%")
            else:
                follows_blank = True
        elif match.group("power") is not None:
            put("mark", "^")
        elif match.group("word") is not None:
            word = match.group("word")
            if _WORD_PREFIX.match(word) and text.startswith(".", match.end()):
                position = match.end() + 1
                continue
            put_word(word)
        else:
            mark = match.group()
            if mark in _UNICODE:
                put_command(_UNICODE[mark]) if _UNICODE[mark] not in ",;:()" else put("mark", _UNICODE[mark])
            elif mark not in "$~":
                put("mark", mark)
            else:
                follows_blank = True
        position = match.end()
    return tokens
