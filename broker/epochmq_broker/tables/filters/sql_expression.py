"""Builds and evaluates the nodes of SQL92 expressions (RocketMQ's ConstantExpression, PropertyExpression,
UnaryExpression, ComparisonExpression and LogicExpression, with their checks).

A node carries what RocketMQ's checks ask for, and a function that computes its value from the properties of a
message. Boolean nodes follow three-valued logic: True, False, or None for NULL.
"""
# pure: functions over values

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from epochmq_broker.tables.filters.java_values import (
    INTEGER_MAX,
    LONG_MAX,
    EvaluationError,
    Long,
    Value,
    compare,
    parse_double,
)
from epochmq_broker.tables.filters.sql_lexer import SqlSyntaxError


class Properties(Protocol):
    """The properties of a message, such as a dictionary."""

    def get(self, name: str, /) -> str | None: ...


Evaluate: TypeAlias = Callable[[Properties], Value]

DEPTH_MAX: Final = 100
"""Levels of nested nodes. RocketMQ's bound is the stack of the thread, some thousands of levels."""
DOUBLE_MAX: Final = sys.float_info.max


class Form(NamedTuple):
    """What a node consists of. `kind`: "constant" (of `value`), "property" or "truth of property" (whose name
    is `value`), "in", "not in" or "equals string" (of the property `value`, with `words`), "NOT", "-", "AND",
    "OR", "=", "<", "<=", ">", ">=" (of `nodes`), or "CONTAINS", "STARTSWITH", "ENDSWITH" (of one node and one
    word; `value` says whether it is negated)."""

    kind: str
    nodes: Sequence[Node] = ()
    value: Value = None
    words: tuple[str, ...] = ()


class Node:
    """One node of an expression. `evaluate` computes its value and may raise EvaluationError. `form` says the
    same as data."""

    __slots__ = ("chain", "depth", "evaluate", "form", "is_boolean", "is_constant", "name", "value")

    def __init__(
        self,
        evaluate: Evaluate,
        form: Form,
        *,
        children: Sequence[Node] | None = None,
        is_boolean: bool = False,
        name: str | None = None,
    ) -> None:
        self.evaluate = evaluate
        self.form = form
        self.depth: int = 1 + max((child.depth for child in children or form.nodes), default=0)
        if self.depth > DEPTH_MAX:
            raise SqlSyntaxError(f"the expression has more than {DEPTH_MAX} nested levels")
        self.is_boolean = is_boolean
        self.name = name  # of a property
        self.is_constant = False
        self.value: Value = None  # of a constant
        self.chain: tuple[str, list[Evaluate], list[Node]] | None = None
        """Of AND and OR: the sign, and the operands."""


def constant(value: Value) -> Node:
    """A literal; TRUE, FALSE and NULL are boolean."""
    is_boolean = value is None or isinstance(value, bool)
    node = Node(lambda _properties: value, Form("constant", value=value), is_boolean=is_boolean)
    node.is_constant = True
    node.value = value
    return node


def decimal(text: str) -> Node:
    """An integer literal: an Integer if it fits, else a Long. Raises SqlSyntaxError beyond a Long."""
    digits = text.rstrip("lL")
    if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
        raise SqlSyntaxError(f"the number {text[:40]} is greater than {LONG_MAX}")
    number = int(digits)
    return constant(number if number <= INTEGER_MAX else Long(number))


def floating(text: str) -> Node:
    """A floating-point literal. RocketMQ accepts neither zero nor a number without a finite value."""
    number = float(text)
    if number > DOUBLE_MAX:
        raise SqlSyntaxError(f"{text[:40]} is greater than {DOUBLE_MAX}")
    if not number:
        raise SqlSyntaxError(f"{text[:40]} is less than 4.9E-324, the least number of this kind")
    return constant(number)


def property_of(name: str) -> Node:
    """The value of a message's property, a string, or NULL if the message does not have it."""
    return Node(lambda properties: properties.get(name), Form("property", value=name), name=name)


def as_boolean(node: Node) -> Node:
    """The node where a truth value is needed. A property is False there: its value is a string. Raises
    SqlSyntaxError for a number or a string."""
    if node.is_boolean:
        return node
    name = node.name
    if name is None:
        raise SqlSyntaxError("the expression does not result in a truth value")
    return Node(
        lambda properties: None if properties.get(name) is None else False,
        Form("truth of property", value=name),
        is_boolean=True,
    )


def negate(node: Node) -> Node:
    """Minus; NULL for everything that is no number, also for a string of digits."""
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        if value is None or isinstance(value, bool | str):
            return None
        return Long(-value) if type(value) is Long else -value

    return Node(evaluate, Form("-", (node,)))


def logical_not(node: Node) -> Node:
    """NOT of a boolean node."""
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return Node(evaluate, Form("NOT", (node,)), is_boolean=True)


def logical(sign: str, left: Node, right: Node) -> Node:
    """AND or OR of boolean nodes. The first operand that decides ends the evaluation. NULL decides nothing.
    A chain of one sign is one node, so its length is not bounded: `left` gets the new operand."""
    if left.chain is not None and left.chain[0] == sign:
        left.chain[1].append(right.evaluate)
        left.chain[2].append(right)
        left.depth = max(left.depth, right.depth + 1)
        return left
    evaluators = [left.evaluate, right.evaluate]
    decisive = sign == "OR"

    def evaluate(properties: Properties) -> Value:
        unknown = False
        for inner in evaluators:
            value = inner(properties)
            if value is decisive:
                return decisive
            if value is None:
                unknown = True
        return None if unknown else not decisive

    operands = [left, right]
    node = Node(evaluate, Form(sign, operands), is_boolean=True)
    node.chain = (sign, evaluators, operands)
    return node


# Comparisons


def equal(left: Node, right: Node) -> Node:
    """`left = right`. Raises SqlSyntaxError for the literal NULL, and for a truth value beside a literal of
    another type."""
    for node in (left, right):
        if node.is_constant and node.value is None:
            raise SqlSyntaxError("'NULL' cannot be compared; use IS NULL")
    if left.is_constant and right.is_constant and left.is_boolean and not right.is_boolean:
        raise SqlSyntaxError(f"'{left.value}' cannot be compared with '{right.value}'")
    name, wanted = left.name, right.value
    if name is not None and right.is_constant and isinstance(wanted, str):
        return _equals_string(name, wanted, left)
    return _equal(left, right)


def _equals_string(name: str, wanted: str, left: Node) -> Node:
    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else value == wanted

    form = Form("equals string", value=name, words=(wanted,))
    return Node(evaluate, form, is_boolean=True, children=(left,))


def _equal(left: Node, right: Node) -> Node:
    """Equality without checks. Two NULLs are equal. Only a NULL on the left makes the result NULL."""
    of_left, of_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        one, other = of_left(properties), of_right(properties)
        if one is None:
            return True if other is None else None
        return False if other is None else compare(one, other) == 0

    return Node(evaluate, Form("=", (left, right)), is_boolean=True)


def is_null(node: Node) -> Node:
    """`node IS NULL`."""
    return _equal(node, constant(None))


def ordered(sign: str, left: Node, right: Node) -> Node:
    """`<`, `<=`, `>` or `>=`. Strings are compared as numbers. Raises SqlSyntaxError for literals that are no
    numbers, and for truth values."""
    for node in (left, right):
        if node.is_boolean or isinstance(node.value, str):
            raise SqlSyntaxError(f"a value beside '{sign}' cannot be compared: only numbers have an order")
    accepted = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[sign]
    of_left, of_right = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        one = of_left(properties)
        if one is None:
            return None
        other = of_right(properties)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = parse_double(one), parse_double(other)
        return compare(one, other) in accepted

    return Node(evaluate, Form(sign, (left, right)), is_boolean=True)


def between(value: Node, low: Node, high: Node) -> Node:
    """`value BETWEEN low AND high`. Raises SqlSyntaxError for two literals in the wrong order."""
    if low.is_constant and high.is_constant:
        if low.value is None or high.value is None:
            raise SqlSyntaxError("the values of BETWEEN cannot be NULL")
        try:
            wrong = compare(high.value, low.value) < 0
        except EvaluationError as error:
            raise SqlSyntaxError(f"the values of BETWEEN cannot be compared: {error}") from error
        if wrong:
            raise SqlSyntaxError(
                f"the first value of BETWEEN ({low.value}) is greater than the second ({high.value})"
            )
    return logical("AND", ordered(">=", value, low), ordered("<=", value, high))


def not_between(value: Node, low: Node, high: Node) -> Node:
    """`value NOT BETWEEN low AND high`."""
    return logical("OR", ordered("<", value, low), ordered(">", value, high))


def in_list(node: Node, words: Sequence[str], *, negated: bool) -> Node:
    """`property IN (…)`. Raises SqlSyntaxError if the left side is no property."""
    name = node.name
    if name is None:
        raise SqlSyntaxError("the left side of IN must be a property")
    wanted = frozenset(words)

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in wanted) is not negated

    form = Form("not in" if negated else "in", value=name, words=tuple(wanted))
    return Node(evaluate, form, is_boolean=True, children=(node,))


def contains(kind: str, node: Node, word: str, *, negated: bool) -> Node:
    """CONTAINS, STARTSWITH and ENDSWITH. They are never NULL: without a string, or with an empty word, both
    the test and its negation are False. With an empty word the left side is not evaluated."""
    if not word:
        form = Form("constant", value=False)
        return Node(lambda _properties: False, form, is_boolean=True, children=(node,))
    inner = node.evaluate
    test: Callable[[str, str], bool] = {
        "CONTAINS": str.__contains__,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }[kind]

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return isinstance(value, str) and test(value, word) is not negated

    return Node(evaluate, Form(kind, (node,), negated, (word,)), is_boolean=True)
