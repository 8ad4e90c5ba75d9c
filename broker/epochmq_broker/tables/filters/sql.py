"""Compiles and evaluates SQL92 filter expressions as RocketMQ does (SqlFilter, SelectorParser)."""
# pure: functions over text and values

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

from epochmq_broker.tables.filters import sql_expression as expressions
from epochmq_broker.tables.filters.java_values import EvaluationError, Value
from epochmq_broker.tables.filters.sql_code import Decide, function_of
from epochmq_broker.tables.filters.sql_expression import DEPTH_MAX, Node, Properties
from epochmq_broker.tables.filters.sql_lexer import (
    DECIMAL,
    END,
    FLOAT,
    NAME,
    STRING,
    Lexer,
    SqlSyntaxError,
    Token,
)

EXPRESSION_MAX: Final = 32_768
"""Characters of an expression."""
CACHED_MAX: Final = 1000
"""Compiled expressions that are kept."""
_ORDERED: Final = frozenset(("<", "<=", ">", ">="))
_WORD_TESTS: Final = frozenset(("CONTAINS", "STARTSWITH", "ENDSWITH"))


class SqlExpression:
    """A compiled expression. `names`: the properties on which its value depends."""

    __slots__ = ("_decide", "_node", "names", "text")

    def __init__(self, text: str, node: Node, names: Iterable[str]) -> None:
        self.text = text
        self.names = tuple(names)
        self._node = node
        self._decide: Decide | None = None

    def value(self, properties: Properties) -> Value:
        """True, False, or None for NULL. Raises EvaluationError where RocketMQ's evaluation throws."""
        return self._node.evaluate(properties)

    def matches(self, properties: Properties) -> bool:
        """Whether a message with these properties matches. It does not if the evaluation fails."""
        try:
            return self._node.evaluate(properties) is True
        except EvaluationError:
            return False

    def decides(self, values: Sequence[str | None]) -> bool:
        """Whether a message matches of which the properties `names` have these values; None for one that it
        does not have. It computes what `matches` does, by the function that is made of the expression when
        it is first needed."""
        decide = self._decide
        if decide is None:
            decide = self._decide = self.function or self._by_nodes
        try:
            return decide(*values) is True
        except EvaluationError:
            return False

    def prepare(self) -> None:
        """Makes the function of the expression now."""
        self._decide = self.function or self._by_nodes

    @property
    def function(self) -> Decide | None:
        """The function that is made of the expression; None if it is too large."""
        return function_of(self._node, self.names)

    def _by_nodes(self, *values: str | None) -> Value:
        """The value of an expression that is too large to be made a function."""
        known = {name: value for name, value in zip(self.names, values, strict=True) if value is not None}
        return self._node.evaluate(known)


_compiled: OrderedDict[str, SqlExpression | str] = OrderedDict()
"""The latest expressions, compiled, or why they do not compile."""


def compile_sql(text: str) -> SqlExpression:
    """Compiles an expression; equal texts give the same object while it is among the latest. Raises
    SqlSyntaxError."""
    if len(text) > EXPRESSION_MAX:
        raise SqlSyntaxError(f"the expression has {len(text)} characters, more than {EXPRESSION_MAX}")
    known = _compiled.get(text)
    if known is None:
        known = _parsed(text)
        keep(text, known)
    else:
        _compiled.move_to_end(text)
    if isinstance(known, str):
        raise SqlSyntaxError(known)
    return known


def _parsed(text: str) -> SqlExpression | str:
    try:
        parser = _Parser(text)
        return SqlExpression(text, parser.parse(), parser.names)
    except SqlSyntaxError as error:
        return str(error)


def parse_sql(text: str) -> SqlExpression | str:
    """Compiles an expression together with its function. Returns why, if it does not compile. It uses nothing
    that others use, and may run on any thread."""
    found = _parsed(text)
    if not isinstance(found, str):
        found.prepare()
    return found


def is_known(text: str) -> bool:
    """Whether an expression is among the latest."""
    return text in _compiled


def keep(text: str, found: SqlExpression | str) -> None:
    """Keeps what `parse_sql` has returned as one of the latest."""
    _compiled[text] = found
    if len(_compiled) > CACHED_MAX:
        _compiled.popitem(last=False)


class _Parser:
    """A recursive-descent parser, with one method for each production of SelectorParser.jj."""

    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._token = self._lexer.next()
        self._depth = 0
        self.names: dict[str, None] = {}  # of the properties, in the order of the text

    def parse(self) -> Node:
        """The whole expression. As in RocketMQ, text after a complete expression is ignored."""
        return expressions.as_boolean(self._or())

    def _take(self) -> Token:
        token = self._token
        self._token = self._lexer.next()
        return token

    def _expect(self, kind: str) -> Token:
        if self._token.kind != kind:
            raise self._unexpected(kind)
        return self._take()

    def _unexpected(self, wanted: str) -> SqlSyntaxError:
        token = self._token
        found = "the end" if token.kind == END else repr(token.text)
        return SqlSyntaxError(f"found {found} at position {token.at}, expected {wanted}")

    def _or(self) -> Node:
        left = self._and()
        while self._token.kind == "OR":
            self._take()
            right = self._and()
            left = expressions.logical("OR", expressions.as_boolean(left), expressions.as_boolean(right))
        return left

    def _and(self) -> Node:
        left = self._equality()
        while self._token.kind == "AND":
            self._take()
            right = self._equality()
            left = expressions.logical("AND", expressions.as_boolean(left), expressions.as_boolean(right))
        return left

    def _equality(self) -> Node:
        left = self._comparison()
        while True:
            kind = self._token.kind
            if kind == "=":
                self._take()
                left = expressions.equal(left, self._comparison())
            elif kind == "<>":
                self._take()
                left = expressions.logical_not(expressions.equal(left, self._comparison()))
            elif kind == "IS":
                self._take()
                negated = self._token.kind == "NOT"
                if negated:
                    self._take()
                self._expect("NULL")
                left = expressions.is_null(left)
                if negated:
                    left = expressions.logical_not(left)
            else:
                return left

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            kind = self._token.kind
            if kind in _ORDERED:
                self._take()
                left = expressions.ordered(kind, left, self._unary())
                continue
            negated = kind == "NOT"
            if negated:
                self._take()
                kind = self._token.kind
            if kind in _WORD_TESTS:
                self._take()
                left = expressions.contains(kind, left, self._string(), negated=negated)
            elif kind == "BETWEEN":
                self._take()
                low = self._unary()
                self._expect("AND")
                high = self._unary()
                build = expressions.not_between if negated else expressions.between
                left = build(left, low, high)
            elif kind == "IN":
                self._take()
                left = expressions.in_list(left, self._strings(), negated=negated)
            elif negated:
                raise self._unexpected("IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH")
            else:
                return left

    def _strings(self) -> list[str]:
        self._expect("(")
        words = [self._string()]
        while self._token.kind == ",":
            self._take()
            words.append(self._string())
        self._expect(")")
        return words

    def _string(self) -> str:
        return self._expect(STRING).text[1:-1].replace("''", "'")

    def _unary(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SqlSyntaxError(f"the expression has more than {DEPTH_MAX} nested levels")
        kind = self._token.kind
        if kind == "+":
            self._take()
            node = self._unary()
        elif kind == "-":
            self._take()
            node = expressions.negate(self._unary())
        elif kind == "NOT":
            self._take()
            node = expressions.logical_not(expressions.as_boolean(self._unary()))
        else:
            node = self._primary()
        self._depth -= 1
        return node

    def _primary(self) -> Node:
        kind = self._token.kind
        if kind == "(":
            self._take()
            node = self._or()
            self._expect(")")
            return node
        if kind == STRING:
            return expressions.constant(self._string())
        if kind == NAME:
            name = self._take().text
            self.names[name] = None
            return expressions.property_of(name)
        if kind == DECIMAL:
            return expressions.decimal(self._take().text)
        if kind == FLOAT:
            return expressions.floating(self._take().text)
        if kind in ("TRUE", "FALSE", "NULL"):
            self._take()
            return expressions.constant({"TRUE": True, "FALSE": False}.get(kind))
        raise self._unexpected("a value")
