"""Writes an SQL92 expression as one Python function over the values of the properties that it names.

The function has the value that the nodes of `sql_expression.py` compute; they say what an expression means.
It contains only names that are made here: the literals and words of the expression stand in its namespace.
A large or deep expression has no such function, because compiling it would hold up the event loop.
"""
# pure: functions over values

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

from epochmq_broker.tables.filters.java_values import (
    LONG_MAX,
    LONG_MIN,
    Long,
    Value,
    compare,
    parse_double,
    parse_integer,
)
from epochmq_broker.tables.filters.sql_expression import Form, Node

NODES_MAX: Final = 200
DEPTH_MAX: Final = 20
"""The nodes and levels of an expression that is written as a function."""

Decide = Callable[..., Value]
"""The value of an expression from the values of its properties: a string, or None for one that the message
does not have. May raise EvaluationError."""

_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_INVERSE: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_ACCEPTED: Final[dict[str, tuple[int, ...]]] = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
_PARSERS: Final = {int: "parse_integer", Long: "parse_long", float: "parse_double"}


def parse_long(text: str) -> int:
    """Long.valueOf. Raises EvaluationError."""
    return parse_integer(text, LONG_MIN, LONG_MAX)


def equal_values(left: Value, right: Value) -> Value:
    """`left = right`, as `sql_expression` has it."""
    if left is None:
        return True if right is None else None
    return False if right is None else compare(left, right) == 0


def ordered_values(accepted: tuple[int, ...], left: Value, right: Value) -> Value:
    """`left < right` and the like; `accepted`: which results of a comparison make it true."""
    if left is None or right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        left, right = parse_double(left), parse_double(right)
    return compare(left, right) in accepted


def negated(value: Value) -> Value:
    """Minus a value."""
    if value is None or isinstance(value, bool | str):
        return None
    return Long(-value) if type(value) is Long else -value


_NAMESPACE: Final = {
    "__builtins__": {},
    "parse_integer": parse_integer,
    "parse_long": parse_long,
    "parse_double": parse_double,
    "equal_values": equal_values,
    "ordered_values": ordered_values,
    "negated": negated,
    "isinstance": isinstance,
    "str": str,
}


class _TooLargeError(Exception):
    """The expression is not written as a function."""


class _Writer:
    """Writes the nodes of one expression. Each method returns a Python expression in parentheses."""

    def __init__(self, names: Sequence[str]) -> None:
        self.namespace: dict[str, object] = dict(_NAMESPACE)
        self._parameters = {name: f"p{number}" for number, name in enumerate(names)}
        self.numbers: dict[str, None] = {}  # the variables with a property's value as a number
        self._temporaries = 0
        self._nodes = 0

    def write(self, node: Node, depth: int) -> str:
        """The value of a node."""
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            raise _TooLargeError
        form, below = node.form, depth + 1
        match form.kind:
            case "constant":
                return self._constant(form.value)
            case "property":
                return self._parameters[str(form.value)]
            case "truth of property":
                return f"(None if {self._parameters[str(form.value)]} is None else False)"
            case "in" | "not in":
                name = self._parameters[str(form.value)]
                words = self._constant(frozenset(form.words))
                return f"(None if {name} is None else {name} {form.kind} {words})"
            case "equals string":
                name = self._parameters[str(form.value)]
                return f"(None if {name} is None else {name} == {self._constant(form.words[0])})"
            case "-":
                return f"negated({self.write(form.nodes[0], below)})"
            case "NOT":
                kept = self._temporary()
                return f"(None if ({kept} := {self.write(form.nodes[0], below)}) is None else not {kept})"
            case "AND" | "OR":
                return self._chain(form, below)
            case "=":
                return self._equal(form.nodes[0], form.nodes[1], below)
            case "<" | "<=" | ">" | ">=":
                return self._ordered(form.kind, form.nodes[0], form.nodes[1], below)
            case _:
                return self._word_test(form, below)

    def _constant(self, value: object) -> str:
        if value is None or isinstance(value, bool):
            return repr(value)
        name = f"c{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def _temporary(self) -> str:
        self._temporaries += 1
        return f"t{self._temporaries}"

    def _chain(self, form: Form, depth: int) -> str:
        """AND or OR: the first operand that decides ends the evaluation, NULL decides nothing."""
        decisive = repr(form.kind == "OR")
        kept = [self._temporary() for _ in form.nodes]
        tests = [
            f"({name} := {self.write(node, depth)}) is {decisive}"
            for name, node in zip(kept, form.nodes, strict=True)
        ]
        unknown = " or ".join(f"{name} is None" for name in kept)
        return f"({decisive} if {' or '.join(tests)} else None if {unknown} else {form.kind == 'AND'})"

    def _equal(self, left: Node, right: Node, depth: int) -> str:
        if right.form.kind == "constant" and right.form.value is None:  # IS NULL
            return f"({self.write(left, depth)} is None)"
        number = _number_of(right)
        if left.form.kind == "property" and number is not None:
            name = self._parameters[str(left.form.value)]
            return (
                f"(None if {name} is None else {self._as_number(name, number)} == {self._constant(number)})"
            )
        return f"equal_values({self.write(left, depth)}, {self.write(right, depth)})"

    def _ordered(self, sign: str, left: Node, right: Node, depth: int) -> str:
        number = _number_of(right)
        if left.form.kind != "property" or number is None:
            number = _number_of(left)
            if right.form.kind != "property" or number is None:
                return self._ordered_values(sign, left, right, depth)
            left, sign = right, _FLIPPED[sign]
        name = self._parameters[str(left.form.value)]
        test = f"{self._as_number(name, number)} {sign} {self._constant(number)}"
        if sign[0] == ">" and isinstance(number, float):  # NaN is greater than every other number
            test = f"not {self._as_number(name, number)} {_INVERSE[sign]} {self._constant(number)}"
        return f"(None if {name} is None else {test})"

    def _ordered_values(self, sign: str, left: Node, right: Node, depth: int) -> str:
        """Of any two nodes. NULL on the left ends the evaluation."""
        kept, accepted = self._temporary(), self._constant(_ACCEPTED[sign])
        first, second = self.write(left, depth), self.write(right, depth)
        return f"(None if ({kept} := {first}) is None else ordered_values({accepted}, {kept}, {second}))"

    def _as_number(self, name: str, number: float) -> str:
        """The value of a property, parsed once, as the type of number beside which it stands."""
        parser = _PARSERS[type(number)]
        kept = f"{parser}_{name}"
        self.numbers[kept] = None
        return f"({kept} if {kept} is not None else ({kept} := {parser}({name})))"

    def _word_test(self, form: Form, depth: int) -> str:
        """CONTAINS, STARTSWITH, ENDSWITH, with a word that is not empty."""
        word = self._constant(form.words[0])
        value = self.write(form.nodes[0], depth)
        kept = self._temporary()
        test = {
            "CONTAINS": f"{word} in {kept}",
            "STARTSWITH": f"{kept}.startswith({word})",
            "ENDSWITH": f"{kept}.endswith({word})",
        }[form.kind]
        return f"(isinstance({kept} := {value}, str) and {'not ' if form.value else ''}{test})"


def _number_of(node: Node) -> float | None:
    """The number of a literal, also of one with a sign; None for any other node."""
    form = node.form
    if form.kind == "constant" and isinstance(form.value, int | float) and not isinstance(form.value, bool):
        return form.value
    if form.kind == "-":
        number = _number_of(form.nodes[0])
        if number is not None:
            return Long(-number) if type(number) is Long else operator.neg(number)
    return None


def function_of(node: Node, names: Sequence[str]) -> Decide | None:
    """The expression as a function of the values of these properties, in this order. None if it is too
    large."""
    writer = _Writer(names)
    try:
        text = writer.write(node, 1)
    except _TooLargeError:
        return None
    parameters = [f"p{number}" for number in range(len(names))]
    parameters += [f"{number}=None" for number in writer.numbers]
    exec(f"def decide({', '.join(parameters)}):\n return {text}\n", writer.namespace)
    decide: Decide = writer.namespace["decide"]  # type: ignore[assignment]  # `exec` has put it there
    return decide
