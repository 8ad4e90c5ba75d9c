"""Splits an SQL92 expression into tokens (the TOKEN and SKIP productions of RocketMQ's SelectorParser.jj).

Tokens are read on demand: the grammar ends where an expression is complete, and RocketMQ ignores the rest of
the text except the token that follows.
"""
# pure: functions over text

from __future__ import annotations

import re
from typing import Final, NamedTuple

KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)
END, FLOAT, DECIMAL, STRING, NAME = "<end>", "<float>", "<decimal>", "<string>", "<name>"

_SKIPPED: Final = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*")
_TOKEN: Final = re.compile(
    r"(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<decimal>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'[^']*(?:''[^']*)*')"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<sign><>|<=|>=|[=<>(),+-])"
)


class SqlSyntaxError(ValueError):
    """The text is not an expression of RocketMQ's SQL92. The message says where and why."""


class Token(NamedTuple):
    """A token: its kind (a keyword in capitals, a sign, or one of the kinds above), text and position."""

    kind: str
    text: str
    at: int


class Lexer:
    """Reads the tokens of a text one after the other."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> Token:
        """The next token; END at the end of the text. Raises SqlSyntaxError if no token starts here."""
        text = self._text
        skipped = _SKIPPED.match(text, self._at)
        at = skipped.end() if skipped is not None else self._at
        if at == len(text):
            return Token(END, "", at)
        found = _TOKEN.match(text, at)
        if found is None:
            raise SqlSyntaxError(f"unexpected character {text[at]!r} at position {at}")
        self._at = found.end()
        word = found[0]
        group = found.lastgroup
        if group == "name":
            keyword = word.upper()
            return Token(keyword if keyword in KEYWORDS else NAME, word, at)
        return Token(word if group == "sign" else f"<{group}>", word, at)
