r"""Equality of two answers: the things around scalars here, the scalars by exact algebra, then by proof in a worker.

Kinds and order of brackets count, the order of tuples counts, sets and bare lists are unordered, ``\pm`` stands for
both values, ``x = 5`` answers what ``5`` answers, ``x < 3`` is the interval it describes, equations are equal up to a
non-zero factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from agpo_bench.grading.latex import algebra
from agpo_bench.grading.latex.enclosure import agree, agree_in_proportion
from agpo_bench.grading.latex.grammar import negate
from agpo_bench.grading.latex.limits import LimitError, UnparsedError
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

MAX_ITEMS = 64
"""Members of an unordered list or set; matching them is quadratic."""
MAX_PROOFS = 6
"""Questions to the worker for one pair of answers."""
MAX_PROOF_NODES = 160
"""Size of a scalar that the computer algebra system is asked about."""
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!=", "~": "~", "equiv": "equiv"}
_SHAPES = frozenset(["\\angle", "\\triangle"])
_SCALARS = (Num, Sym, Const, Add, Mul, Pow, Root, Call)

Prover = Callable[[str, Node, Node], tuple[bool | None, str | None]]
"""(``equal`` or ``proportional``, first, second) -> (proved, or None) and why there is no answer."""


@dataclass
class Comparison:
    """One pair under comparison. ``problems`` collects why a part was left undecided."""

    prover: Prover
    problems: list[str] = field(default_factory=list)
    num_proofs: int = 0

    def are_equal(self, first: Node, second: Node) -> bool:
        """Whether two answers are equal as mathematics."""
        if first == second:
            return True
        first_values, second_values = _without_plus_minus(first), _without_plus_minus(second)
        if len(first_values) > 1 or len(second_values) > 1:
            return self._unordered(_flatten(first_values), _flatten(second_values))
        return self._same_kind(first_values[0], second_values[0])

    def _same_kind(self, first: Node, second: Node) -> bool:
        first, second = _settle_relation(first, second)
        if isinstance(first, Relation) != isinstance(second, Relation):
            chain, value = (first, second) if isinstance(first, Relation) else (second, first)
            if isinstance(chain, Relation) and len(chain.operators) > 1 and set(chain.operators) == {"="}:
                # "x = 2·3 = 6" states 6 if every step does.
                return is_name(chain.sides[0]) and all(self.are_equal(side, value) for side in chain.sides[1:])
            first, second = _as_interval(first), _as_interval(second)
        first, second = _as_angle(first), _as_angle(second)
        if isinstance(first, Quantity) or isinstance(second, Quantity):
            return self._quantities(first, second)
        match first, second:
            case Relation(), Relation():
                return self._relations(first, second)
            case Bracketed(), Bracketed():
                same_kind = (first.opening, first.closing) == (second.opening, second.closing)
                return same_kind and self._in_order(first.items, second.items)
            case Listed(), Listed():
                return self._lists(first.items, second.items)
            case ((Braced() | Listed()), (Braced() | Listed())):
                return self._sets(first.items, second.items)
            case Ratio(), Ratio():
                return self._in_order(first.parts, second.parts)
            case SetOperation(), SetOperation():
                return self._set_operations(first, second)
            case Matrix(), Matrix():
                return first.is_determinant == second.is_determinant and self._matrices(first, second)
            case Based(), Based():
                return first.base == second.base and _digits(first) == _digits(second)
            case Text(), Text():
                return first.text.strip(" .") == second.text.strip(" .")
        if isinstance(first, _SCALARS) and isinstance(second, _SCALARS):
            return self._scalars(first, second)
        return False

    # Scalars

    def _scalars(self, first: Node, second: Node) -> bool:
        if first == second:
            return True
        first_infinity, second_infinity = _infinity(first), _infinity(second)
        if first_infinity or second_infinity:
            return first_infinity == second_infinity
        try:
            first_form, second_form = algebra.cached_normal_form(first), algebra.cached_normal_form(second)
            if algebra.are_equal(first_form, second_form):
                return True
        except LimitError as error:
            self.problems.append(error.reason)
            return False
        except UnparsedError:
            self.problems.append("unparsed")
            return False
        if first_form.is_decisive and second_form.is_decisive:
            return False
        return agree(first, second) and self._proved("equal", first, second)

    def _proved(self, task: str, first: Node, second: Node) -> bool:
        if self.num_proofs >= MAX_PROOFS or _size(first) + _size(second) > MAX_PROOF_NODES:
            self.problems.append("too_complex")
            return False
        self.num_proofs += 1
        value, problem = self.prover(task, first, second)
        if problem is not None:
            self.problems.append(problem)
        return bool(value)

    def _quantities(self, first: Node, second: Node) -> bool:
        first_value, first_unit = (first.value, first.unit) if isinstance(first, Quantity) else (first, None)
        second_value, second_unit = (second.value, second.unit) if isinstance(second, Quantity) else (second, None)
        if first_unit and second_unit and first_unit != second_unit:
            return False
        return self.are_equal(first_value, second_value)

    # Collections

    def _in_order(self, first: Sequence[Node], second: Sequence[Node]) -> bool:
        return len(first) == len(second) and all(map(self.are_equal, first, second))

    def _matrices(self, first: Matrix, second: Matrix) -> bool:
        return len(first.rows) == len(second.rows) and all(map(self._in_order, first.rows, second.rows))

    def _lists(self, first: Sequence[Node], second: Sequence[Node]) -> bool:
        first_names, second_names = _assigned_names(first), _assigned_names(second)
        if (first_names is None) != (second_names is None) and len(set(first_names or second_names or ())) > 1:
            return self._in_order(first, second)  # "x=1, y=2" against "1, 2": which is which is in the order alone
        return self._unordered(first, second)

    def _sets(self, first: Sequence[Node], second: Sequence[Node]) -> bool:
        if max(len(first), len(second)) > MAX_ITEMS:
            self.problems.append("too_complex")
            return False
        return all(any(self.are_equal(a, b) for b in second) for a in first) and all(
            any(self.are_equal(a, b) for a in first) for b in second
        )

    def _unordered(self, first: Sequence[Node], second: Sequence[Node]) -> bool:
        """Whether the items can be paired off: a perfect matching by augmenting paths."""
        if len(first) != len(second):
            return False
        if len(first) > MAX_ITEMS:
            self.problems.append("too_complex")
            return False
        partners = [[j for j, other in enumerate(second) if self.are_equal(item, other)] for item in first]
        if not all(partners):
            return False
        owner: dict[int, int] = {}

        def assign(index: int, seen: set[int]) -> bool:
            for j in partners[index]:
                if j not in seen:
                    seen.add(j)
                    if j not in owner or assign(owner[j], seen):
                        owner[j] = index
                        return True
            return False

        return all(assign(index, set()) for index in range(len(first)))

    def _set_operations(self, first: SetOperation, second: SetOperation) -> bool:
        if first.operator != second.operator:
            return False
        if first.operator == "setminus":
            return self._in_order(first.operands, second.operands)
        return self._unordered(_operands(first), _operands(second))

    # Relations

    def _relations(self, first: Relation, second: Relation) -> bool:
        if len(first.operators) != len(second.operators):
            first_set, second_set = _as_interval(first), _as_interval(second)
            return not isinstance(first_set, Relation) and self.are_equal(first_set, second_set)
        for other in (second, _reversed(second)):
            if other is not None and first.operators == other.operators and self._in_order(first.sides, other.sides):
                return True
        if len(first.operators) > 1:
            return False
        if "in" in (first.operators[0], second.operators[0]) and first.operators != second.operators:
            member, other = (first, second) if first.operators[0] == "in" else (second, first)
            interval = _as_interval(other)
            return (
                member.sides[0] in other.sides and interval is not other and self.are_equal(member.sides[1], interval)
            )
        return self._single_relations(first, second)

    def _single_relations(self, first: Relation, second: Relation) -> bool:
        """``l = r`` up to a non-zero factor of ``l - r``; for an inequality a positive one, or a negative one and the
        flip.
        """
        operator, other = first.operators[0], second.operators[0]
        if not all(isinstance(side, _SCALARS) for side in (*first.sides, *second.sides)) or operator not in _FLIPPED:
            return False
        try:
            trees = [Add((relation.sides[0], negate(relation.sides[1]))) for relation in (first, second)]
            differences = [algebra.normal_form(tree) for tree in trees]
            factor = algebra.proportion(*differences)
        except LimitError as error:
            self.problems.append(error.reason)
            return False
        except UnparsedError:
            self.problems.append("unparsed")
            return False
        if operator in ("=", "!=", "equiv", "~"):
            if operator != other:
                return False
            if factor is not None:
                return True
            # A factor such as sqrt(2) or pi is not rational; the quotient then has no variables.
            if self._is_constant_quotient(*differences):
                return True
            is_decided = differences[0].is_decisive and differences[1].is_decisive
            return not is_decided and agree_in_proportion(*trees) and self._proved("proportional", *trees)
        if factor is None:
            return False
        return other == (operator if factor > 0 else _FLIPPED[operator])

    def _is_constant_quotient(self, first: algebra.Form, second: algebra.Form) -> bool:
        if not first.numerator or not second.numerator:
            return False
        leading_first, leading_second = _leading(first), _leading(second)
        if leading_first is None or leading_second is None or leading_first[0] != leading_second[0]:
            return False
        return algebra.are_equal(algebra.product(first, leading_second[1]), algebra.product(second, leading_first[1]))


def _leading(form: algebra.Form) -> tuple[algebra.Monomial, algebra.Form] | None:
    """A monomial of variables in the numerator and its constant coefficient, the same monomial for proportional
    forms.
    """
    if form.denominator != ((algebra.ONE, Fraction(1)),):
        return None
    grouped: dict[algebra.Monomial, list[tuple[algebra.Monomial, Fraction]]] = {}
    for mono, value in form.numerator:
        variables = tuple(item for item in mono if item[0][0] not in ("prime", "pi", "i"))
        constants = tuple(item for item in mono if item[0][0] in ("prime", "pi", "i"))
        grouped.setdefault(variables, []).append((constants, value))
    variables = max(grouped, key=repr)
    if not variables:
        return None
    coefficient = algebra.Form(tuple(sorted(grouped[variables], key=repr)), ((algebra.ONE, Fraction(1)),))
    return variables, coefficient


def _infinity(node: Node) -> int:
    """1 or -1 for plus or minus infinity, else 0."""
    if node == Const("infinity"):
        return 1
    if isinstance(node, Mul) and node.factors == (Num(Fraction(-1)), Const("infinity")):
        return -1
    return 0


def _as_angle(node: Node) -> Node:
    r"""``180^\circ - 2·30^\circ`` as a number of degrees; anything else unchanged. Zero is an angle too."""
    if not isinstance(node, Add | Mul) or not any(isinstance(part, Quantity) for part in _walk(node)):
        return node
    degrees = _degrees(node)
    return node if degrees is None else Quantity(degrees, "degree")


def _degrees(node: Node) -> Node | None:
    match node:
        case Quantity(value, "degree"):
            return value
        case Num(Fraction(numerator=0)):
            return node
        case Add(terms):
            parts = [part for part in map(_degrees, terms) if part is not None]
            return Add(tuple(parts)) if len(parts) == len(terms) else None
        case Mul(factors):
            angles = [(index, angle) for index, part in enumerate(factors) if (angle := _degrees(part)) is not None]
            if len(angles) == 1:
                index, angle = angles[0]
                return Mul((*factors[:index], angle, *factors[index + 1 :]))
    return None


def _size(node: Node) -> int:
    match node:
        case Add(parts) | Mul(parts):
            return 1 + sum(map(_size, parts))
        case Call(_, arguments):
            return 1 + sum(map(_size, arguments))
        case Pow(base, exponent):
            return 1 + _size(base) + _size(exponent)
        case Root(radicand, degree):
            return 1 + _size(radicand) + _size(degree)
        case Num(value):
            # A long numeral is work too.
            return 1 + max(value.numerator.bit_length(), value.denominator.bit_length()) // 256
        case Quantity(value, _):
            return 1 + _size(value)
    return 1


def _digits(number: Based) -> str:
    return number.digits.upper().lstrip("0") or "0"


def _flatten(nodes: Sequence[Node]) -> list[Node]:
    flat: list[Node] = []
    for node in nodes:
        flat.extend(node.items if isinstance(node, Listed | Braced) else (node,))
    return flat


def _operands(node: SetOperation) -> list[Node]:
    flat: list[Node] = []
    for operand in node.operands:
        if isinstance(operand, SetOperation) and operand.operator == node.operator:
            flat.extend(_operands(operand))
        else:
            flat.append(operand)
    return flat


# Plus-minus


def _without_plus_minus(node: Node) -> list[Node]:
    """The node itself, or its two readings with all upper and all lower signs; items of a list are read one by one."""
    if isinstance(node, Listed | Braced):
        items = [reading for item in node.items for reading in _without_plus_minus(item)]
        if len(items) == len(node.items):
            return [node]
        return [type(node)(tuple(items))]
    if not any(isinstance(part, PlusMinus) for part in _walk(node)):
        return [node]
    return [_signed(node, 1), _signed(node, -1)]


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _children(node: Node) -> tuple[Node, ...]:
    match node:
        case Add(parts) | Mul(parts) | Call(_, parts) | Listed(parts) | Braced(parts) | Ratio(parts):
            return parts
        case Bracketed(_, _, parts) | SetOperation(_, parts):
            return parts
        case Relation(sides, _):
            return sides
        case Pow(first, second) | Root(first, second) | PlusMinus(first, second, _):
            return (first, second)
        case Quantity(value, _):
            return (value,)
        case Matrix(rows, _):
            return tuple(cell for row in rows for cell in row)
    return ()


def _signed(node: Node, sign: int) -> Node:
    def again(part: Node) -> Node:
        return _signed(part, sign)

    match node:
        case PlusMinus(first, second, own_sign):
            term = again(second)
            return Add((again(first), term if own_sign == sign else negate(term)))
        case Add(parts) | Mul(parts) | Listed(parts) | Braced(parts) | Ratio(parts):
            return type(node)(tuple(map(again, parts)))
        case Call(name, parts):
            return Call(name, tuple(map(again, parts)))
        case Bracketed(opening, closing, parts):
            return Bracketed(opening, closing, tuple(map(again, parts)))
        case SetOperation(operator, parts):
            return SetOperation(operator, tuple(map(again, parts)))
        case Relation(sides, operators):
            return Relation(tuple(map(again, sides)), operators)
        case Pow(base, exponent):
            return Pow(again(base), again(exponent))
        case Root(radicand, degree):
            return Root(again(radicand), again(degree))
        case Quantity(value, unit):
            return Quantity(again(value), unit)
        case Matrix(rows, is_determinant):
            return Matrix(tuple(tuple(map(again, row)) for row in rows), is_determinant)
    return node


# Relations as values and as sets


def is_name(node: Node) -> bool:
    """Whether a value may be said to be this: a variable, ``f(x)``, a tuple of them, a segment ``AB``."""
    if isinstance(node, Bracketed):
        return all(map(is_name, node.items))
    if isinstance(node, Mul):  # AB, angle ABC: a segment or an angle, named by its points
        return all(
            isinstance(factor, Sym) and (factor.name[0].isupper() or factor.name in _SHAPES) for factor in node.factors
        )
    return isinstance(node, Sym) or (isinstance(node, Call) and node.name.startswith("apply "))


def _assigned(node: Node) -> tuple[Node, Node] | None:
    """(name, value) of ``name = value``, ``value = name``, ``name ∈ set``."""
    if not isinstance(node, Relation) or len(node.operators) != 1:
        return None
    left, right = node.sides
    if node.operators[0] in ("=", "~") and is_name(left):
        return left, right
    if node.operators[0] == "=" and is_name(right):
        return right, left
    if node.operators[0] == "in" and is_name(left):
        return left, right
    return None


def _assigned_names(items: Sequence[Node]) -> list[Node] | None:
    found = [_assigned(item) for item in items]
    names = [pair[0] for pair in found if pair is not None]
    return names if len(names) == len(items) else None


def _settle_relation(first: Node, second: Node) -> tuple[Node, Node]:
    """``x = 5`` against ``5``: drop the name when the other side is no relation. A list may hold ``x = 1, 2``."""
    first, second = _without_approximation(first), _without_approximation(second)
    for _ in range(2):
        if isinstance(first, Relation) and not isinstance(second, Relation) and (pair := _assigned(first)) is not None:
            first = pair[1]
        first, second = second, first
    return first, second


def _without_approximation(node: Node) -> Node:
    """``a = b ≈ c`` states the exact ``a = b``; ``x ≈ c`` states c and stays."""
    while isinstance(node, Relation) and node.operators[-1] == "~" and not is_name(node.sides[-2]):
        sides, operators = node.sides[:-1], node.operators[:-1]
        node = Relation(sides, operators) if operators else sides[0]
    return node


def _as_interval(node: Node) -> Node:
    """The interval of ``x < a``, ``a <= x < b``; anything else unchanged."""
    if not isinstance(node, Relation) or not all(operator in ("<", "<=", ">", ">=") for operator in node.operators):
        return node
    sides, operators = list(node.sides), list(node.operators)
    if operators[0] in (">", ">="):
        sides.reverse()
        operators = [_FLIPPED[operator] for operator in reversed(operators)]
    if any(operator in (">", ">=") for operator in operators):
        return node
    minus_infinity, infinity = Mul((Num(Fraction(-1)), Const("infinity"))), Const("infinity")
    if len(operators) == 1 and is_name(sides[0]):
        return Bracketed("(", ")" if operators[0] == "<" else "]", (minus_infinity, sides[1]))
    if len(operators) == 1 and is_name(sides[1]):
        return Bracketed("(" if operators[0] == "<" else "[", ")", (sides[0], infinity))
    if len(operators) == 2 and is_name(sides[1]):
        opening = "(" if operators[0] == "<" else "["
        closing = ")" if operators[1] == "<" else "]"
        return Bracketed(opening, closing, (sides[0], sides[2]))
    return node


def _reversed(node: Relation) -> Relation | None:
    if not all(operator in _FLIPPED for operator in node.operators):
        return None
    operators = tuple(_FLIPPED[operator] for operator in reversed(node.operators))
    return Relation(tuple(reversed(node.sides)), operators)
