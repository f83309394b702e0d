"""What an answer says, as a small immutable tree. Scalars first, then the things that contain scalars."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Num:
    """An exact rational; ``0.5`` is 1/2 and ``1.5e3`` is 1500."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Sym:
    """A variable, subscript and accent included in its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """``pi``, ``e``, ``i`` or ``infinity``."""

    name: str


@dataclass(frozen=True, slots=True)
class Add:
    """A sum."""

    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mul:
    """A product; a quotient has a power of -1 in it."""

    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Pow:
    """``base^exponent``."""

    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Root:
    """The ``degree``-th root; of a negative number with odd degree the real one."""

    radicand: Node
    degree: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A known function (``sin``, ``ln``, ``floor``, ``factorial`` …) or an unknown one applied to its arguments."""

    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """``first ± second``; stands for two values. ``sign`` -1 is ``∓``."""

    first: Node
    second: Node
    sign: int = 1


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with its unit in words; ``degree`` is an angle."""

    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class Based:
    """Digits in a stated base, ``52_8``."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Text:
    """Words: a name, a day, ``even``."""

    text: str


@dataclass(frozen=True, slots=True)
class Bracketed:
    """``(a,b)``, ``[a,b)`` …: ordered, the kind of both brackets kept. Tuple, vector, point or interval."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Braced:
    """``{a,b}``: a set."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """``a, b`` with no brackets, or ``a or b``: all the values asked for, in any order."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Ratio:
    """``a:b``, also a time of day."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetOperation:
    r"""Operands joined by ``\cup``, ``\cap`` or ``\setminus``."""

    operator: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    """``sides[0] operators[0] sides[1] …``, operators among ``= != < <= > >= in notin ~ equiv to``."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of cells; ``is_determinant`` for vertical bars."""

    rows: tuple[tuple[Node, ...], ...]
    is_determinant: bool = False


Scalar = Num | Sym | Const | Add | Mul | Pow | Root | Call | PlusMinus | Quantity | Based
Node = Scalar | Text | Bracketed | Braced | Listed | Ratio | SetOperation | Relation | Matrix
