"""Writes values and structs as JSON in the form of fastjson 1.2.83.

Fields of structs are written in the order of their names, without nulls; enums by name, bytes as base64,
integer map keys unquoted. Map keys that are objects (structs, or the item tuples that `fastjson.loads`
returns) are nested. Maps are written in key order, so equal values give equal bytes.
"""

from __future__ import annotations

import math
import re
import types
from binascii import b2a_base64
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum, StrEnum
from functools import cache
from json.encoder import encode_basestring
from typing import Any, Final, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

_Text = Callable[[str], str]


def dumps(value: Any, *, pretty: bool = False, quotes_keys: bool = False) -> bytes:
    """JSON.toJSONString(value); with `pretty` the tab-indented form of the configuration files, with
    `quotes_keys` with quotes around integer map keys. TypeError: JSON cannot hold the value."""
    out: list[str] = []
    _Writer(out, _quoted, is_standard=False, quotes_keys=quotes_keys).write(value, 0 if pretty else None)
    return "".join(out).encode("utf-8", "replace")


def dumps_standard(value: Any) -> bytes:
    """Standard JSON: every key quoted, everything outside ASCII escaped. Clients from 4.9.4 on get routes
    in this form (BrowserCompatible, QuoteFieldNames, SkipTransientField, MapSortField)."""
    out: list[str] = []
    _Writer(out, _quoted_for_browsers, is_standard=True, quotes_keys=True).write(value, None)
    return "".join(out).encode("ascii")


_SPECIAL: Final = re.compile(r"[\x00-\x1f\"\\\x7f-\x9f\u2028\u2029]")
_SPECIAL_FOR_BROWSERS: Final = re.compile(r"[^ -.0-~]|[\"\\]")
_SHORT: Final = {
    '"': '\\"',
    "\\": "\\\\",
    "/": "\\/",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def _escaped(found: re.Match[str]) -> str:
    char = found.group()
    short = _SHORT.get(char)
    if short:
        return short
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))


def _quoted(text: str) -> str:
    if text.isprintable():
        return encode_basestring(text)
    return f'"{_SPECIAL.sub(_escaped, text)}"'


def _quoted_for_browsers(text: str) -> str:
    return f'"{_SPECIAL_FOR_BROWSERS.sub(_escaped, text)}"'


def java_double(value: float) -> str:
    """Double.toString of a finite number: scientific below 1e-3 and from 1e7 on."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, _ = Decimal(repr(value)).as_tuple()
    exponent = Decimal(repr(value)).adjusted()
    text = "".join(map(str, digits)).rstrip("0")
    return f"{'-' if sign else ''}{text[0]}.{text[1:] or '0'}E{exponent}"


@cache
def _fields_of(cls: type) -> tuple[tuple[str, str], ...]:
    """(attribute, `"wireName":`) of a struct, sorted by wire name."""
    fields = sorted((field.encode_name, field.name) for field in msgspec.structs.fields(cls))
    return tuple((attribute, f'"{name}":') for name, attribute in fields)


_encode_plain: Final = msgspec.json.Encoder(order="sorted").encode


class _Plan(NamedTuple):
    """How to get fastjson's form of a struct from msgspec's encoder. `nulls`: each `"name":null` to remove
    from its output. `must_be_empty`: attributes whose values it would write in another form."""

    nulls: tuple[bytes, ...]
    must_be_empty: tuple[str, ...]


@cache
def _plan(cls: type) -> _Plan | None:
    """The plan of a class. None: msgspec's encoder cannot write it in fastjson's form, because the class
    has integer map keys, floats, bytes, or enums whose value is not their name."""
    hints = get_type_hints(cls)
    nulls: set[bytes] = set()
    must_be_empty = []
    for field in msgspec.structs.fields(cls):
        hint = hints[field.name]
        found: set[bytes] = set()
        if _is_plain(hint, field.encode_name, found, {cls}):
            nulls |= found
        elif get_origin(hint) in (dict, list):
            must_be_empty.append(field.name)
        else:
            return None
    return _Plan(tuple(sorted(nulls)), tuple(must_be_empty))


def _is_plain(hint: Any, name: str, nulls: set[bytes], inside: set[type]) -> bool:
    """Whether both encoders write a field of this type in the same form, except for nulls. Adds those to
    `nulls`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        nulls.add(f'"{name}":null'.encode())
        given = [part for part in parts if part is not type(None)]
        return len(given) == 1 and _is_plain(given[0], name, nulls, inside)
    if origin is dict:
        return parts[0] is str and get_origin(parts[1]) is None and _is_plain(parts[1], name, nulls, inside)
    if origin is list:
        return get_origin(parts[0]) is None and _is_plain(parts[0], name, nulls, inside)
    if hint in (str, int, bool):
        return True
    if not isinstance(hint, type) or hint in inside:
        return False
    if issubclass(hint, StrEnum):
        return all(item == item.name for item in hint)
    if not issubclass(hint, msgspec.Struct):
        return False
    hints = get_type_hints(hint)
    return all(
        _is_plain(hints[field.name], field.encode_name, nulls, inside | {hint})
        for field in msgspec.structs.fields(hint)
    )


def _encoded(value: msgspec.Struct) -> str | None:
    """The struct as msgspec's encoder writes it, without nulls; None if only `_Writer` writes it in
    fastjson's form. A text value cannot contain `"name":null`, because its quotes are escaped."""
    plan = _plan(type(value))
    if plan is None or any(getattr(value, name) for name in plan.must_be_empty):
        return None
    try:
        raw = _encode_plain(value)
    except (ValueError, TypeError):  # a text with a lone surrogate
        return None
    if not raw.isascii() or b"\\u" in raw or b"\x7f" in raw:  # the two encoders escape differently
        return None
    for null in plan.nulls:
        if null in raw:
            raw = raw.replace(null + b",", b"").replace(b"," + null, b"").replace(null, b"")
    return raw.decode("ascii")


def _sort_key(item: tuple[Any, Any]) -> Any:
    return item[0]


class _Writer:
    __slots__ = ("_add", "_is_standard", "_quotes_keys", "_text")

    def __init__(self, out: list[str], text: _Text, *, is_standard: bool, quotes_keys: bool) -> None:
        self._add = out.append
        self._text = text
        self._is_standard = is_standard
        self._quotes_keys = quotes_keys

    def write(self, value: Any, indent: int | None) -> None:
        """Appends one value. `indent`: its level in the pretty form, else None."""
        add = self._add
        kind = type(value)
        if kind is str:
            add(self._text(value))
        elif kind is int:
            add(str(value))
        elif value is None:
            add("null")
        elif kind is bool:
            add("true" if value else "false")
        elif isinstance(value, msgspec.Struct):
            self._struct(value, indent)
        elif isinstance(value, Mapping):
            self._mapping(value, indent)
        elif isinstance(value, tuple) and value and all(_is_item(item) for item in value):
            self._mapping(dict(value), indent)
        elif isinstance(value, list | tuple):
            self._sequence(value, indent)
        elif isinstance(value, set | frozenset):
            self._set(_ordered(value), indent)
        elif isinstance(value, Enum):
            add(self._text(value.name))
        elif isinstance(value, float):
            add(java_double(value) if math.isfinite(value) else "null")
        elif isinstance(value, bytes):
            add(self._text(b2a_base64(value, newline=False).decode("ascii")))
        elif isinstance(value, str | int):
            self.write(str(value) if isinstance(value, str) else int(value), indent)
        else:
            raise TypeError(f"JSON cannot hold a {kind.__name__}")

    def _struct(self, value: msgspec.Struct, indent: int | None) -> None:
        add = self._add
        if indent is None and not self._is_standard:
            text = _encoded(value)
            if text is not None:
                add(text)
                return
        inner = None if indent is None else indent + 1
        before = "" if inner is None else "\n" + "\t" * inner
        has_items = False
        for attribute, name in _fields_of(type(value)):
            item = getattr(value, attribute)
            if item is None:
                continue
            add(("," if has_items else "{") + before + name)
            has_items = True
            self.write(item, inner)
        self._close("}", has_items, indent)

    def _mapping(self, value: Mapping[Any, Any], indent: int | None) -> None:
        add = self._add
        inner = None if indent is None else indent + 1
        before = "" if inner is None else "\n" + "\t" * inner
        has_items = False
        for key, item in _ordered_items(value):
            if item is None:
                continue
            if isinstance(key, str):
                add(("," if has_items else "{") + before + self._text(key) + ":")
            elif isinstance(key, int) and not isinstance(key, bool | Enum):
                add(("," if has_items else "{") + (f'"{key}":' if self._quotes_keys else f"{key}:"))
            else:
                add("," if has_items else "{")
                self.write(key, inner)
                add(":")
            has_items = True
            self.write(item, inner)
        self._close("}", has_items, indent)

    def _set(self, values: list[Any], indent: int | None) -> None:
        """Unlike lists, sets stay on one line when pretty."""
        add = self._add
        separator = "["
        for item in values:
            add(separator)
            separator = ","
            self.write(item, indent)
        add("]" if values else "[]")

    def _close(self, bracket: str, has_items: bool, indent: int | None) -> None:
        if not has_items:
            self._add("{" + bracket)
        elif indent is None:
            self._add(bracket)
        else:
            self._add("\n" + "\t" * indent + bracket)

    def _sequence(self, values: Any, indent: int | None) -> None:
        add = self._add
        inner = None if indent is None else indent + 1
        before = "" if inner is None else "\n" + "\t" * inner
        add("[")
        has_items = False
        for item in values:
            if has_items:
                add(",")
            if before:
                add(before)
            has_items = True
            self.write(item, inner)
        if has_items and indent is not None:
            add("\n" + "\t" * indent)
        add("]")


def _is_item(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)


def _ordered_items(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    items = list(value.items())
    try:
        items.sort(key=_sort_key)
    except TypeError:  # keys of several kinds, or objects without an order
        items.sort(key=lambda item: repr(item[0]))
    return items


def _ordered(values: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)
