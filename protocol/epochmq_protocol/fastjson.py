"""Reads JSON as fastjson 1.2.83 does; `fastjson_writer` writes it.

Differences from standard JSON:

- Integer map keys may be unquoted: `{0:"a"}`.
- A map keyed by objects has the object itself as key: `{{"brokerName":"b","queueId":0,"topic":"t"}:1}`.
- An object that occurs twice in a document is written once and then referred to: `{"$ref":"$.path"}`.
- The reader is lenient: it accepts unquoted keys, single quotes, comments and extra commas.

`loads` returns plain values. Keys are always hashable: text and number keys become `str`, quoted or not; an
object key becomes the tuple of its (name, value) items sorted by name, such as
`(("brokerName", "b"), ("queueId", 0), ("topic", "t"))`.

Whoever sends a document decides what it costs, so the costs have bounds. DEPTH_MAX bounds the nesting of all
that the lenient reader or the resolution of references returns. By its references a document of n bytes may
expand to n + EXPANDED_MIN values, but not to more than NODES_MAX; their paths may have STEPS_MAX steps.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from epochmq_protocol.errors import OversizedError, RemoteProtocolError
from epochmq_protocol.fastjson_writer import dumps, dumps_standard

DEPTH_MAX: Final = 100
NODES_MAX: Final = 2_000_000  # values that a document may expand to by its references
EXPANDED_MIN: Final = 20_000  # values that even the shortest document may expand to
STEPS_MAX: Final = 300_000  # steps of the paths of all references of a document
PATH_CHARS_MAX: Final = 16_384  # of a reference that can have a target

_SPACE: Final = re.compile(r"(?:[\s\ufeff\x08]+|//[^\n]*|/\*.*?\*/)*", re.S)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?", re.A)
_SUFFIX: Final = re.compile(r"[LBSFD](?![\w$])")
_WORD: Final = re.compile(r"[A-Za-z_$\u0080-\uffff][\w$\-.@%]*")
_DOUBLE_QUOTED: Final = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)"', re.S)
_SINGLE_QUOTED: Final = re.compile(r"'([^'\\]*(?:\\.[^'\\]*)*)'", re.S)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.S)
_ESCAPED: Final = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "F": "\f", "r": "\r", "v": "\v"} | {
    str(digit): chr(digit) for digit in range(8)
}
_WORDS: Final[dict[str, Any]] = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": None,
    "NaN": None,
}
_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,40}\s*", re.A)
_DIGITS_MAX: Final = 40


def loads(data: bytes | str, *, lenient_bytes_max: int | None = None) -> Any:
    """Reads any JSON that fastjson reads, as plain values. RemoteProtocolError for anything else.
    OversizedError: it is no standard JSON, and has more than `lenient_bytes_max` bytes. References in so long
    a document are not resolved."""
    try:
        value = orjson.loads(data)
    except ValueError as error:
        if lenient_bytes_max is not None and len(data) > lenient_bytes_max:
            raise OversizedError(
                f"JSON of {len(data)} bytes that is not standard ({error}): expected at most "
                f"{lenient_bytes_max}"
            ) from None
        text = data.decode("utf-8", "replace") if isinstance(data, bytes | bytearray | memoryview) else data
        value = _LenientParser(text).document()
        has_reference = "$ref" in text
    else:
        has_reference = (b"$ref" if isinstance(data, bytes) else "$ref") in data  # type: ignore[operator]
        has_reference &= lenient_bytes_max is None or len(data) <= lenient_bytes_max
    return resolve_references(value, min(NODES_MAX, EXPANDED_MIN + len(data))) if has_reference else value


def parse_int(text: str) -> int | None:
    """The value of a decimal integer with optional blanks around it; None for any other text."""
    return int(text) if _INTEGER.fullmatch(text) else None


def as_text(value: Any) -> str:
    """A value as the text that fastjson assigns to a String field: scalars as Java prints them, objects
    and lists as JSON."""
    if isinstance(value, str):
        return value
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int | float):
        return str(value)
    try:
        return dumps(value).decode()
    except (ValueError, TypeError, RecursionError):
        raise RemoteProtocolError(
            f"a JSON {type(value).__name__} is nested too deeply to become a text"
        ) from None


def well_formed(text: str) -> str:
    """The text with lone surrogates replaced by `?`, as Java's encoder does. The result can always be
    encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace").replace("\ufffd", "?")
    return text


def object_key(value: Any) -> Any:
    """A map key as a hashable value: objects become tuples of sorted items, lists become tuples."""
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return tuple((name, object_key(item)) for name, item in items)
    if isinstance(value, list):
        return tuple(object_key(item) for item in value)
    return value


class _LenientParser:
    """The lenient parser, a recursive descent with a depth bound."""

    __slots__ = ("_at", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Any:
        self._skip()
        value = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise self._wrong("the end of the document")
        return value

    def _skip(self) -> str:
        """Skips blanks and comments. Returns the next character, "" at the end."""
        text, at = self._text, self._at
        char = text[at : at + 1]
        if char in " \t\r\n/\f\b\ufeff" or char.isspace():
            found = _SPACE.match(text, at)
            self._at = at = found.end() if found else at
            char = text[at : at + 1]
        return char

    def _wrong(self, expected: str) -> RemoteProtocolError:
        seen = self._text[self._at : self._at + 20]
        return RemoteProtocolError(f"JSON at {self._at}: {seen!r}, expected {expected}")

    def _value(self, depth: int) -> Any:
        text, at = self._text, self._at
        char = text[at : at + 1]
        if char == "{":
            return self._object(depth + 1)
        if char == "[":
            return self._array(depth + 1)
        if char in ('"', "'") and char:
            return self._string(char)
        found = _NUMBER.match(text, at)
        if found:
            return self._number(found)
        word = _WORD.match(text, at)
        if word and word.group() in _WORDS:
            self._at = word.end()
            return _WORDS[word.group()]
        raise self._wrong("a value")

    def _string(self, quote: str) -> str:
        found = (_DOUBLE_QUOTED if quote == '"' else _SINGLE_QUOTED).match(self._text, self._at)
        if not found:
            raise self._wrong(f"a text closed by {quote}")
        self._at = found.end()
        text = found.group(1)
        if "\\" in text:
            text = _ESCAPE.sub(_unescape, text)
        return text if text.isascii() else well_formed(_join_surrogates(text))

    def _number(self, found: re.Match[str]) -> int | float:
        text, self._at = found.group(), found.end()
        suffix = _SUFFIX.match(self._text, self._at)
        if suffix:
            self._at = suffix.end()
        if found.group(1) or found.group(2) or found.group(3) or len(text) > _DIGITS_MAX:
            return float(text)
        return int(text)

    def _array(self, depth: int) -> list[Any]:
        self._descend(depth)
        items: list[Any] = []
        while True:
            char = self._skip()
            if char == "]":
                self._at += 1
                return items
            if char == ",":
                self._at += 1
                continue
            items.append(self._value(depth))
            if self._skip() not in (",", "]"):
                raise self._wrong("`,` or `]`")

    def _object(self, depth: int) -> dict[Any, Any]:
        self._descend(depth)
        fields: dict[Any, Any] = {}
        while True:
            char = self._skip()
            if char == "}":
                self._at += 1
                return fields
            if char == ",":
                self._at += 1
                continue
            key = self._key(char, depth)
            if self._skip() != ":":
                raise self._wrong("`:`")
            self._at += 1
            self._skip()
            fields[key] = self._value(depth)
            if self._skip() not in (",", "}"):
                raise self._wrong("`,` or `}`")

    def _key(self, char: str, depth: int) -> Any:
        if char in ('"', "'") and char:
            return self._string(char)
        if char in ("{", "[") and char:
            return object_key(self._value(depth))
        found = _NUMBER.match(self._text, self._at)
        if found:
            return as_text(self._number(found))
        word = _WORD.match(self._text, self._at)
        if word:
            self._at = word.end()
            return word.group()
        raise self._wrong("a key")

    def _descend(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise self._wrong(f"nesting of at most {DEPTH_MAX}")
        self._at += 1


def _unescape(found: re.Match[str]) -> str:
    code = found.group(1)
    if len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPED.get(code, code)


def _join_surrogates(text: str) -> str:
    """Replaces each pair of surrogates by its character."""
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


# ------------------------------------------------------------------------------------------------- references


class _ExpandedSize:
    """The number of values and the depth that a value has with its references resolved."""

    __slots__ = ("depth", "size")

    def __init__(self, size: int, depth: int) -> None:
        self.size = size
        self.depth = depth


def resolve_references(document: Any, nodes_max: int = NODES_MAX) -> Any:
    """The document with every `{"$ref": …}` replaced by its target. References point backwards: fastjson
    writes an object in full at its first occurrence. A reference to an enclosing object, to a later one or
    to none becomes None. RemoteProtocolError: it would have more than `nodes_max` values, or too many
    levels."""
    return _Resolver(document, nodes_max).run()


class _Resolver:
    """Resolves references in document order. Only a completed value can be a target, so no cycle can
    arise."""

    def __init__(self, document: Any, nodes_max: int) -> None:
        self._root = document
        self._nodes_max = nodes_max
        self._steps = 0
        self._finished: dict[int, _ExpandedSize] = {}

    def run(self) -> Any:
        value, _ = self._walk(self._root, 0)
        return value

    def _walk(self, value: Any, depth: int) -> tuple[Any, _ExpandedSize]:
        if not isinstance(value, dict | list):
            return value, _SCALAR
        if depth > DEPTH_MAX:
            raise RemoteProtocolError(f"JSON nested deeper than {DEPTH_MAX}")
        if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("$ref"), str):
            return self._target(value["$ref"])
        size, deepest = 1, 0
        entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, item in entries:
            if not isinstance(item, dict | list):
                size += 1
                continue
            resolved, node = self._walk(item, depth + 1)
            value[key] = resolved
            size += node.size
            deepest = max(deepest, node.depth)
            if size > self._nodes_max or depth + deepest > DEPTH_MAX:
                raise RemoteProtocolError(
                    f"JSON references expand to more than {self._nodes_max} values or {DEPTH_MAX} levels"
                )
        node = _ExpandedSize(size, deepest + 1)
        self._finished[id(value)] = node
        return value, node

    def _target(self, path: str) -> tuple[Any, _ExpandedSize]:
        value = self._root
        if path != "$" and not path.startswith(("$.", "$[")):
            return None, _SCALAR
        steps = _steps(path[1:])
        self._steps += len(steps)
        if self._steps > STEPS_MAX:
            raise RemoteProtocolError(f"JSON references have more than {STEPS_MAX} steps")
        for step in steps:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10:
                value = value[int(step)] if int(step) < len(value) else None
            else:
                return None, _SCALAR
        node = self._finished.get(id(value))
        return (value, node) if node else (None, _SCALAR)


_SCALAR: Final = _ExpandedSize(1, 0)
_STEP: Final = re.compile(
    r"""\.((?:[^.\[\\]|\\.)*)|\[\s*(?:(\d+)|'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\s*\]""", re.S | re.A
)


_NOWHERE: Final = ["\0"]
"""The path to a name that no value has."""


def _steps(path: str) -> list[str]:
    """The names and indexes of a JSON path after its `$`. A backslash escapes a character."""
    if len(path) > PATH_CHARS_MAX:
        return _NOWHERE
    steps: list[str] = []
    at = 0
    while at < len(path):
        if len(steps) > DEPTH_MAX:
            return _NOWHERE  # no value is nested so deeply
        found = _STEP.match(path, at)
        if not found or found.end() == at:
            return _NOWHERE
        step = found.group(found.lastindex or 0)
        steps.append(re.sub(r"\\(.)", r"\1", step, flags=re.S) if "\\" in step else step)
        at = found.end()
    return steps


__all__ = [
    "DEPTH_MAX",
    "NODES_MAX",
    "as_text",
    "dumps",
    "dumps_standard",
    "loads",
    "object_key",
    "parse_int",
    "resolve_references",
    "well_formed",
]
