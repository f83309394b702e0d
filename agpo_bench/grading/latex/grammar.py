r"""A recursive-descent grammar over the tokens of one answer.

answer   = element { ("," | ";" | "and" | "or") element }
element  = side { relation side }            side = sum { (\cup | \cap | \setminus) sum }
sum      = [sign] term { sign term }         term = power { ["*" | "/"] power }
power    = operand { "^" operand | "_" operand | "!" | "%" | "'" }

Departures from plain TeX, as answers are written: ``x^10`` is x^{10}; ``2\frac{1}{2}`` and ``1 1/2`` are mixed numbers;
``f(x)``, ``u(t)``, ``I(0)`` are applications and not products; ``a/bc`` is read from the left, (a/b)c.

One class and so one long file: every rule may contain every other, and they share the position and the depth.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from agpo_bench.grading.latex.limits import MAX_DEPTH, LimitError, UnparsedError
from agpo_bench.grading.latex.tokens import NOT_A_UNIT, Token, table, tokenize
from agpo_bench.grading.latex.tree import (
    Add,
    Based,
    Braced,
    Bracketed,
    Call,
    Const,
    Listed,
    Matrix,
    Mul,
    Node,
    Num,
    PlusMinus,
    Pow,
    Quantity,
    Ratio,
    Relation,
    Root,
    SetOperation,
    Sym,
    Text,
)

_RELATIONS = frozenset(["=", "!=", "<", "<=", ">", ">=", "in", "notin", "~", "equiv", "to"])
_SET_OPERATORS = frozenset(["cup", "cap", "setminus"])
FUNCTIONS = frozenset(
    table(
        "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth ln log lg exp max min gcd lcm det "
        "dim ker arg Re Im deg"
    )
)
_SYMBOL_COMMANDS = frozenset(
    table(
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi "
        "chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega hbar ell partial nabla emptyset "
        "angle triangle odot oplus star circledast square perp parallel ldots"
    )
)
_ACCENTS = frozenset(
    table(
        "overline bar vec hat dot ddot tilde underline widehat widetilde overrightarrow overleftrightarrow acute check"
    )
)
_CLOSING = {"(": (")", "]"), "[": ("]", ")"), "{": ("}",), "{set": ("set}",)}
_MATRICES = frozenset(["pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix", "array", "smallmatrix", "Vmatrix"])
_SEPARATOR_WORDS = frozenset(["and", "or", ", and", ", or"])
_WORD = re.compile(r"[^\W\d_]{2,}|[ap]\.\s*m", re.IGNORECASE)
_BASE_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11,
    "twelve": 12, "sixteen": 16,
}  # fmt: skip
_MINUS_ONE = Num(Fraction(-1))
_FUNCTION_LETTERS = frozenset("fghFGH")


def divide(numerator: Node, denominator: Node) -> Node:
    """``numerator / denominator``, folded when both are rational numbers."""
    if isinstance(numerator, Num) and isinstance(denominator, Num) and denominator.value:
        return Num(numerator.value / denominator.value)
    return Mul((numerator, Pow(denominator, _MINUS_ONE)))


def negate(node: Node) -> Node:
    """``-node``."""
    return Num(-node.value) if isinstance(node, Num) else Mul((_MINUS_ONE, node))


@lru_cache(maxsize=16384)
def parse(text: str) -> Node:
    """The tree of an answer. Raises UnparsedError or LimitError."""
    if "\\begin" not in text:
        text = text.replace("\\\\", "\\")  # a doubled backslash outside a matrix is an escape too many, not a new line
    return _Parser(_with_inline_text(tokenize(text)), 0).answer()


def _with_inline_text(tokens: list[Token]) -> list[Token]:
    r"""Word groups that hold a bare number or letter, as in ``\text{19}`` and ``\text{(A)}``, opened where no unit
    can stand.
    """
    opened: list[Token] = []
    for given in tokens:
        token = given
        if token.kind == "text" and not _WORD.search(token.text):
            content = token.text.strip("~ ")
            follows_value = bool(opened) and (opened[-1].kind == "number" or opened[-1].text in ("}", ")", "pi"))
            if not follows_value or content in ("e", "i"):
                opened.extend(tokenize(content))
                continue
        if token.kind == "text" and opened and opened[-1].kind == "text":
            token = Token("text", f"{opened.pop().text} {token.text}")
        opened.append(token)
    return opened


class _Parser:
    def __init__(self, tokens: list[Token], depth: int) -> None:
        self.tokens = tokens
        self.position = 0
        self.depth = depth
        self.bars = 0
        """Open ``|`` of absolute values: inside, the next ``|`` closes."""

    # Reading tokens

    def peek(self, ahead: int = 0) -> Token | None:
        index = self.position + ahead
        return self.tokens[index] if index < len(self.tokens) else None

    def at(self, *marks: str) -> bool:
        token = self.peek()
        return token is not None and token.kind == "mark" and token.text in marks

    def at_command(self, *names: str) -> bool:
        token = self.peek()
        return token is not None and token.kind == "command" and token.text in names

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise UnparsedError("ends too early")
        self.position += 1
        return token

    def expect(self, *marks: str) -> str:
        token = self.take()
        if token.kind != "mark" or token.text not in marks:
            raise UnparsedError(f"{token.text!r} where {marks} should be")
        return token.text

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise LimitError("too_deep")

    # The whole

    def answer(self) -> Node:
        items = self.items()
        if self.peek() is not None:
            raise UnparsedError("text after the answer")
        return items[0] if len(items) == 1 else Listed(tuple(items))

    def items(self) -> list[Node]:
        items = [self.element()]
        while True:
            token = self.peek()
            if token is None:
                return items
            if token.kind == "mark" and token.text in (",", ";"):
                self.take()
                following = self.peek()
                if following is not None and following.kind == "text" and following.text.lower() in _SEPARATOR_WORDS:
                    self.take()
            elif token.kind == "text" and token.text.strip("~ ").lower() in _SEPARATOR_WORDS:
                self.take()
            else:
                return items
            if self.peek() is None or self.at(")", "]", "}", "set}"):
                raise UnparsedError("empty item")
            items.append(self.element())

    def element(self) -> Node:
        token = self.peek()
        if token is not None and token.kind == "text" and token.text.lower() not in _SEPARATOR_WORDS:
            return self.words()
        sides, operators = [self.side()], []
        while (token := self.peek()) is not None and token.kind == "mark" and token.text in _RELATIONS:
            operators.append(self.take().text)
            sides.append(self.side())
        if operators:
            return Relation(tuple(sides), tuple(operators))
        if self.at(":"):
            while self.at(":"):
                self.take()
                sides.append(self.sum())
            ratio: Node = Ratio(tuple(sides))
            return Quantity(ratio, unit) if (unit := self.unit()) else ratio
        return sides[0]

    def words(self) -> Node:
        parts = []
        while (token := self.peek()) is not None and token.kind in ("text", "letter", "number"):
            if token.text.strip("~ ").lower() in _SEPARATOR_WORDS:
                break
            parts.append(self.take().text.strip("~ "))
        return Text(" ".join(parts).lower())

    def side(self) -> Node:
        operands = [self.sum()]
        operator = ""
        while (token := self.peek()) is not None and token.text in _SET_OPERATORS and token.kind == "mark":
            if operator and token.text != operator:
                operands = [SetOperation(operator, tuple(operands))]
            operator = self.take().text
            operands.append(self.sum())
        return SetOperation(operator, tuple(operands)) if operator else operands[0]

    # Arithmetic

    def sum(self) -> Node:
        terms: list[Node] = []
        if self.at("+", "-"):
            sign = self.take().text
            terms.append(negate(self.term()) if sign == "-" else self.term())
        elif self.at("pm", "mp"):
            sign = self.take().text
            terms.append(PlusMinus(Num(Fraction(0)), self.term(), 1 if sign == "pm" else -1))
        else:
            terms.append(self.term())
        while self.at("+", "-", "pm", "mp"):
            sign = self.take().text
            following = self.term()
            if sign in ("pm", "mp"):
                first = terms[0] if len(terms) == 1 else Add(tuple(terms))
                terms = [PlusMinus(first, following, 1 if sign == "pm" else -1)]
            else:
                terms.append(negate(following) if sign == "-" else following)
        value = terms[0] if len(terms) == 1 else Add(tuple(terms))
        if (unit := self.unit()) is not None:
            return Quantity(value, unit)
        return value

    def unit(self) -> str | None:
        r"""A word group after a value, with its power: ``\text{ cm}^2``. "and" and "or" are separators, not units."""
        token = self.peek()
        if token is None or token.kind != "text" or NOT_A_UNIT.search(token.text.strip("~ ,")):
            return None
        words = [self.take().text]
        while (token := self.peek()) is not None:
            if token.kind == "text" and token.text.strip("~ ").lower() not in _SEPARATOR_WORDS:
                words.append(self.take().text)
            elif self.at("^"):
                self.take()
                words.append("^" + self.name_of_argument())
            elif self.at("/", "*") and (ahead := self.peek(1)) is not None and ahead.kind == "text":
                words.append(self.take().text)
            else:
                break
        return canonical_unit("".join(words))

    def term(self) -> Node:
        factors = [self.power()]
        while True:
            token = self.peek()
            if token is None:
                break
            if self.at("*"):
                self.take()
                factors.append(self.signed_power())
            elif self.at("/"):
                self.take()
                factors[-1] = divide(factors[-1], self.signed_power())
            elif self.starts_operand(token):
                previous = self.tokens[self.position - 1]
                if token.kind == "number" and previous.kind in ("number", "letter"):
                    raise UnparsedError("a number right after a number or a letter")
                factors.append(self.power())
            else:
                break
        return factors[0] if len(factors) == 1 else Mul(tuple(factors))

    def signed_power(self) -> Node:
        if self.at("-"):
            self.take()
            return negate(self.power())
        if self.at("+"):
            self.take()
        return self.power()

    def starts_operand(self, token: Token) -> bool:
        if token.kind in ("number", "letter"):
            return True
        if token.kind == "command":
            return token.text not in (
                "end:matrix",
                "rfloor",
                "rceil",
                "rangle",
                "choose",
            ) and not token.text.startswith("end:")
        if token.kind == "mark":
            return token.text in ("(", "[", "{", "{set") or (token.text == "|" and self.bars == 0)
        return False

    def power(self) -> Node:
        start = self.peek()
        base = self.operand()
        if start is not None and start.kind == "number":
            base = self.mixed_number(start, base)
        while True:
            if self.at("^"):
                self.take()
                base = self.raised(base)
            elif self.at_command("circ"):
                self.take()
                base = Quantity(base, "degree")
            elif self.at("!"):
                self.take()
                base = Call("factorial", (base,))
            elif self.at("%"):
                self.take()
                base = Mul((base, Num(Fraction(1, 100)))) if not isinstance(base, Num) else Num(base.value / 100)
            elif self.at("'") and isinstance(base, Sym):
                self.take()
                base = Sym(base.name + "'")
            else:
                return base

    def mixed_number(self, start: Token, base: Node) -> Node:
        r"""``2\frac{1}{2}`` and ``1 1/4``: the integer part and a proper fraction of integer numerals are added."""
        if not isinstance(base, Num) or not start.text.isdigit():
            return base
        mark = self.position
        token = self.peek()
        if token is not None and token.kind == "command" and token.text == "frac":
            self.take()
            saved = list(self.tokens)
            try:
                numerator, denominator = self.argument(), self.argument()
            except UnparsedError:
                numerator = denominator = Sym("")
            is_proper = (
                isinstance(numerator, Num)
                and isinstance(denominator, Num)
                and numerator.value.denominator == denominator.value.denominator == 1
                and 0 < numerator.value < denominator.value
            )
            if is_proper and not self.at("^", "!"):
                assert isinstance(numerator, Num) and isinstance(denominator, Num)
                return Num(base.value + numerator.value / denominator.value)
            self.position, self.tokens = mark, saved
            return base
        if token is not None and token.kind == "number" and token.follows_blank and token.text.isdigit():
            slash, below = self.peek(1), self.peek(2)
            if (
                slash is not None
                and slash.text == "/"
                and below is not None
                and below.kind == "number"
                and below.text.isdigit()
                and token.value is not None
                and below.value
            ):
                self.position += 3
                return Num(base.value + token.value / below.value)
        return base

    def raised(self, base: Node) -> Node:
        token = self.peek()
        if self.at("'") or self.at_command("circ"):
            self.take()
            return self.accented(base, "degree" if token is not None and token.text == "circ" else "'")
        if self.at("{"):
            inner = [self.peek(ahead) for ahead in range(1, 5)]
            if inner[0] is not None and inner[0].text == "circ" and inner[1] is not None and inner[1].text == "}":
                self.position += 3
                return Quantity(base, "degree")
            primes = 0
            while (prime := self.peek(1 + primes)) is not None and prime.text == "'" and primes < 4:
                primes += 1
            closing = self.peek(1 + primes)
            if primes and closing is not None and closing.text == "}":
                self.position += primes + 2
                return self.accented(base, "'" * primes)
        if self.at("-", "+"):
            return Pow(base, self.signed_power())
        exponent = self.argument(whole_numeral=True)
        return Pow(base, exponent)

    @staticmethod
    def accented(base: Node, accent: str) -> Node:
        if accent == "degree":
            return Quantity(base, "degree")
        if isinstance(base, Sym):
            return Sym(base.name + accent)
        if isinstance(base, Call):
            return Call(base.name + accent, base.arguments)
        raise UnparsedError("a prime on something that is no symbol")

    def argument(self, *, whole_numeral: bool = False) -> Node:
        r"""What a command acts on: a group, or one token. Of ``\frac12`` the first argument is the single digit 1."""
        if self.at("{"):
            return self.group()
        token = self.peek()
        if token is None:
            raise UnparsedError("a command without its argument")
        if token.kind == "number" and not whole_numeral and len(token.text) > 1 and token.text.isdigit():
            first, rest = token.text[0], token.text[1:]
            self.tokens = list(self.tokens)
            self.tokens[self.position] = Token("number", rest, Fraction(int(rest)))
            return Num(Fraction(int(first)))
        if not self.starts_operand(token):
            raise UnparsedError("a command without its argument")
        self.deeper()
        value = self.operand()
        self.depth -= 1
        return value

    def group(self) -> Node:
        """``{ … }`` as one value."""
        self.expect("{")
        self.deeper()
        bars, self.bars = self.bars, 0
        items = self.items()
        self.bars = bars
        self.depth -= 1
        self.expect("}")
        return items[0] if len(items) == 1 else Listed(tuple(items))

    # Operands

    def operand(self) -> Node:
        token = self.take()
        if token.kind == "number":
            assert token.value is not None
            return self.based(token) if self.at("_") else Num(token.value)
        if token.kind == "letter":
            return self.symbol(token.text)
        if token.kind == "mark":
            if token.text in ("(", "["):
                return self.bracketed(token.text)
            if token.text == "{":
                self.position -= 1
                return self.group()
            if token.text == "{set":
                return self.braced()
            if token.text == "|":
                return self.absolute()
        if token.kind == "command":
            return self.command(token.text)
        raise UnparsedError(f"{token.text!r} is no operand")

    def based(self, digits: Token) -> Node:
        self.expect("_")
        base = self.name_of_argument()
        number = _BASE_WORDS.get(base.lower(), int(base) if base.isascii() and base.isdigit() and len(base) < 4 else 0)
        if not 2 <= number <= 36:
            raise UnparsedError(f"no base {base!r}")
        return Based(digits.text, number)

    def name_of_argument(self) -> str:
        """The text of a subscript, a unit's power or an accent's argument, as one name."""
        if not self.at("{"):
            token = self.take()
            return token.text
        self.take()
        parts, level = [], 1
        while level:
            token = self.take()
            level += (token.text == "{") - (token.text == "}") if token.kind == "mark" else 0
            if level:
                parts.append(token.text.strip("~ "))
        return "".join(part for part in parts if part not in ("{", "}"))

    def symbol(self, name: str) -> Node:
        while self.at("_"):
            self.take()
            name = f"{name}_{{{self.name_of_argument()}}}"
        if name in ("e", "i"):
            return Const(name)
        primes = ""
        while self.at("'"):
            self.take()
            primes += "'"
        return self.applied(Sym(name + primes))

    def applied(self, symbol: Sym) -> Node:
        """``u(t)``, ``I(0)``: an application if one plain argument stands in parentheses; ``f``, ``g``, ``h`` always
        apply.
        """
        if not self.at("("):
            return symbol
        end, level = self.position, 0
        while end < len(self.tokens):
            mark = self.tokens[end]
            level += (mark.text == "(") - (mark.text == ")") if mark.kind == "mark" else 0
            end += 1
            if level == 0:
                break
        inner = self.tokens[self.position + 1 : end - 1]
        if inner and inner[0].text == "-" and inner[0].kind == "mark":
            inner = inner[1:]
        is_plain = len(inner) == 1 and (
            inner[0].kind in ("number", "letter") or (inner[0].kind == "command" and inner[0].text in _SYMBOL_COMMANDS)
        )
        if not is_plain and symbol.name[0] not in _FUNCTION_LETTERS:
            return symbol
        return Call(f"apply {symbol.name}", tuple(self.call_arguments()))

    def call_arguments(self) -> list[Node]:
        self.expect("(")
        self.deeper()
        bars, self.bars = self.bars, 0
        items = self.items()
        self.bars = bars
        self.depth -= 1
        self.expect(")")
        return items

    def bracketed(self, opening: str) -> Node:
        self.deeper()
        bars, self.bars = self.bars, 0
        items = self.items()
        self.bars = bars
        self.depth -= 1
        closing = self.expect(*_CLOSING[opening])
        if len(items) == 1 and (opening, closing) in (("(", ")"), ("[", "]")):
            return items[0]
        return Bracketed(opening, closing, tuple(items))

    def braced(self) -> Node:
        if self.at("set}"):
            self.take()
            return Braced(())
        self.deeper()
        items = self.items()
        self.depth -= 1
        self.expect("set}")
        return Braced(tuple(items))

    def absolute(self) -> Node:
        self.deeper()
        self.bars += 1
        inside = self.sum()
        self.bars -= 1
        self.depth -= 1
        self.expect("|")
        return Call("abs", (inside,))

    def command(self, name: str) -> Node:
        if name == "frac":
            return self.fraction()
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.function(name)
        if name == "pi":
            return Const("pi") if not self.at("_") else self.symbol("pi")
        if name == "infty":
            return Const("infinity")
        if name == "emptyset":
            return Braced(())
        if name == "binom":
            return Call("binom", (self.argument(), self.argument()))
        if name in _ACCENTS:
            return self.symbol(f"{name}({self.name_of_argument()})")
        if name in _SYMBOL_COMMANDS:
            return self.symbol("\\" + name)
        if name.startswith("begin:"):
            return self.matrix(name.removeprefix("begin:"))
        if name in ("lfloor", "lceil", "langle"):
            return self.fenced(name)
        raise UnparsedError(f"command {name!r}")

    def fenced(self, name: str) -> Node:
        self.deeper()
        items = self.items()
        self.depth -= 1
        closing = self.take()
        if closing.text != {"lfloor": "rfloor", "lceil": "rceil", "langle": "rangle"}[name]:
            raise UnparsedError("a bracket without its end")
        if name == "langle":
            return Bracketed("<", ">", tuple(items))
        if len(items) != 1:
            raise UnparsedError("a list inside a rounding bracket")
        return Call({"lfloor": "floor", "lceil": "ceiling"}[name], (items[0],))

    def fraction(self) -> Node:
        if (derivative := self.derivative()) is not None:
            return derivative
        numerator = self.argument()
        return divide(numerator, self.argument())

    def derivative(self) -> Node | None:
        r"""``\frac{d^2 y}{d t^2}`` is a name and not a fraction in which d cancels."""
        pattern = [token.text for token in self.tokens[self.position : self.position + 60]]
        match = re.match(r"\{ (d|partial) (?:\^ (?:\{ )?(\d) (?:\} )?)?", " ".join(pattern))
        if match is None:
            return None
        start = self.position
        self.expect("{")
        kind = self.take().text
        order = "1"
        if self.at("^"):
            self.take()
            order = self.name_of_argument()
        if self.at("}"):
            self.position = start
            return None
        self.deeper()
        try:
            what = self.sum()
            self.expect("}")
            self.expect("{")
            below = self.take().text
            variable = self.operand()
            below_order = "1"
            if self.at("^"):
                self.take()
                below_order = self.name_of_argument()
            self.expect("}")
        except UnparsedError:
            self.position = start
            return None
        finally:
            self.depth -= 1
        if below != kind or order != below_order or not isinstance(variable, Sym):
            self.position = start
            return None
        return Call(f"derivative {kind} {order}", (what, variable))

    def root(self) -> Node:
        degree: Node = Num(Fraction(2))
        if self.at("["):
            self.take()
            self.deeper()
            degree = self.sum()
            self.depth -= 1
            self.expect("]")
        return Root(self.argument(), degree)

    def function(self, name: str) -> Node:
        subscript: Node | None = None
        exponent: Node | None = None
        while self.at("_", "^"):
            if self.take().text == "_":
                subscript = self.argument(whole_numeral=True)
            elif self.at("-"):
                exponent = self.signed_power()
            else:
                exponent = self.argument(whole_numeral=True)
        self.deeper()
        if self.at("("):
            arguments = self.call_arguments()
        elif self.at("{"):
            arguments = [self.group()]
        else:
            arguments = [self.bare_argument()]
        self.depth -= 1
        if exponent == _MINUS_ONE and name in ("sin", "cos", "tan", "cot", "sinh", "cosh", "tanh"):
            name, exponent = "arc" + name, None
        if subscript is not None:
            if name not in ("log", "lg"):
                raise UnparsedError("a subscript on a function")
            arguments.append(subscript)
        value: Node = Call(name, tuple(arguments))
        return value if exponent is None else Pow(value, exponent)

    def bare_argument(self) -> Node:
        r"""``\sin 2t``: the product that follows, up to a sign, a slash or the next function."""
        sign = self.at("-") and bool(self.take())
        factors = [self.power()]
        while (token := self.peek()) is not None and self.starts_operand(token):
            if (token.kind == "command" and token.text in FUNCTIONS) or self.at("("):
                break
            factors.append(self.power())
        value = factors[0] if len(factors) == 1 else Mul(tuple(factors))
        return negate(value) if sign else value

    def matrix(self, environment: str) -> Node:
        if environment.rstrip("*") not in _MATRICES:
            raise UnparsedError(f"environment {environment!r}")
        self.deeper()
        rows: list[tuple[Node, ...]] = []
        cells = [self.element()]
        while True:
            if self.at("&"):
                self.take()
                cells.append(self.element())
                continue
            is_row_end = self.at("\\\\")
            if is_row_end:
                self.take()
            rows.append(tuple(cells))
            if self.at_command(f"end:{environment}"):
                self.take()
                break
            if not is_row_end:
                raise UnparsedError("a matrix without its end")
            cells = [self.element()]
        self.depth -= 1
        if len({len(row) for row in rows}) != 1:
            raise UnparsedError("rows of unequal length")
        return Matrix(tuple(rows), environment == "vmatrix")


def canonical_unit(words: str) -> str:
    """A unit's words in lower case without blanks, dots and plural s."""
    unit = re.sub(r"[\s~.,()\\]", "", words.lower())
    return re.sub(r"(?<=[a-z]{3})s(?![a-z])", "", unit).replace("°", "degree")
