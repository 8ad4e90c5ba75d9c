"""Encodes and decodes command headers by their declaration as structs.

A header is a struct with the fields of RocketMQ's class. Attributes are snake_case; the name on the wire is
the attribute in camelCase unless `field(name=…)` gives another. Types: `str`, `Int` (Java int), `Long` (Java
long), `bool`, `float`, an enum with a `parse` method; `| None` for optional fields. A field without a default
is required.

    @request_of(RequestCode.GET_MAX_OFFSET)
    class GetMaxOffsetRequestHeader(TopicQueueRequestHeader):
        topic: str
        queue_id: Int
        committed: bool = True

All values travel as text. `decode` raises a RequestError(SYSTEM_ERROR) that names the field, its value and
what was expected. It rejects a missing required field; Java only logs it, continues with null and fails later
with a NullPointerException. An empty text for an optional number counts as missing.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import LocalProtocolError, RequestError
from epochmq_protocol.fastjson import parse_int
from epochmq_protocol.integers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN, Int, Long

_SHOWN_CHARS = 100  # of an invalid value in a remark
INT_DIGITS: Final = len(str(INT_MAX))
LONG_DIGITS: Final = len(str(LONG_MAX))


class Header(msgspec.Struct, kw_only=True, rename="camel", gc=False):
    """Base of all headers."""

    LABEL: ClassVar[str] = ""

    @classmethod
    def decode(cls, ext: dict[str, str] | None) -> Self:
        """Decodes the header from a command's extFields. Unknown fields are ignored. RequestError."""
        if ext is None:
            ext = {}
        values: dict[str, Any] = {}
        for attribute, wire, parse, is_required, is_text in _plan(cls):
            text = ext.get(wire)
            if text is None:
                if is_required:
                    raise RequestError(
                        ResponseCode.SYSTEM_ERROR,
                        f"{cls.__name__}.{wire}: missing, expected {_expected(parse)}",
                    )
            elif is_text:
                values[attribute] = text
            elif text or is_required:
                try:
                    values[attribute] = parse(text)
                except ValueError:
                    raise RequestError(
                        ResponseCode.SYSTEM_ERROR,
                        f"{cls.__name__}.{wire}={text[:_SHOWN_CHARS]!r}: expected {_expected(parse)}",
                    ) from None
        return cls(**values)

    @classmethod
    def decode_as_java(cls, ext: dict[str, str] | None) -> tuple[Self, list[str]]:
        """(header, faults) decoded as Java does: an optional field that cannot be parsed counts as
        missing, and `faults` describes it."""
        try:
            return cls.decode(ext), []
        except RequestError:
            pass
        readable, faults = dict(ext or {}), []
        for _, wire, parse, is_required, is_text in _plan(cls):
            text = readable.get(wire)
            if text and not is_required and not is_text:
                try:
                    parse(text)
                except ValueError:
                    del readable[wire]
                    faults.append(f"{wire}={text[:_SHOWN_CHARS]!r}: expected {_expected(parse)}")
        return cls.decode(readable), faults

    def encode(self) -> dict[str, str]:
        """The extFields of this header, without None. LocalProtocolError: a number is out of range."""
        fields: dict[str, str] = {}
        for attribute, wire, parse, _, is_text in _plan(type(self)):
            value = getattr(self, attribute)
            if value is None:
                continue
            if is_text:
                fields[wire] = value
            elif value is True:
                fields[wire] = "true"
            elif value is False:
                fields[wire] = "false"
            else:
                text = str(value)
                try:
                    parse(text)
                except ValueError:
                    raise LocalProtocolError(
                        f"{type(self).__name__}.{wire}={text[:_SHOWN_CHARS]}: expected {_expected(parse)}"
                    ) from None
                fields[wire] = text
        return fields


_H = TypeVar("_H", bound=type[Header])

REQUEST_HEADERS: Final[dict[int, type[Header]]] = {}
"""The header of each request whose module is imported (`headers_client`, `headers_admin`, `headers_namesrv`,
`headers_controller`). A request that is not here has no fields."""
RESPONSE_HEADERS: Final[dict[int, type[Header]]] = {}
"""The header of the successful response to each request."""


def request_of(*codes: RequestCode) -> Callable[[_H], _H]:
    """Declares a class as the header of these requests. TypeError: one of them has another header."""
    return lambda header: _declared(REQUEST_HEADERS, codes, header)


def response_to(*codes: RequestCode) -> Callable[[_H], _H]:
    """Declares a class as the header of the successful responses to these requests. TypeError: one of them
    has another header."""
    return lambda header: _declared(RESPONSE_HEADERS, codes, header)


def _declared(headers: dict[int, type[Header]], codes: tuple[RequestCode, ...], header: _H) -> _H:
    for code in codes:
        if headers.setdefault(code, header) is not header:
            raise TypeError(f"{header.__name__}: {code.name} already has {headers[code].__name__}")
    return header


_Parse = Callable[[str], Any]
_Field = tuple[str, str, _Parse, bool, bool]


@cache
def _plan(cls: type[Header]) -> tuple[_Field, ...]:
    """(attribute, wire name, text -> value, is required, is plain text) of every field."""
    hints = get_type_hints(cls, include_extras=True)
    plan: list[_Field] = []
    for field in msgspec.structs.fields(cls):
        parse = _parser(hints[field.name])
        plan.append((field.name, field.encode_name, parse, field.required, parse is _text))
    return tuple(plan)


def _parser(hint: Any) -> _Parse:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(choice for choice in get_args(hint) if choice is not type(None))
    if hint == Int:
        return _int
    if hint == Long:
        return _long
    if hint is str:
        return _text
    if hint is bool:
        return _bool
    if hint is float:
        return _float
    parse = getattr(hint, "parse", None)
    if parse is None:
        raise TypeError(f"{hint}: not a type of a header field")
    return parse  # type: ignore[no-any-return]


def _text(text: str) -> str:
    return text


def _bool(text: str) -> bool:
    """Boolean.parseBoolean: `true` in any case is true, everything else is false."""
    return text.lower() == "true"


def _int(text: str) -> int:
    if len(text) < INT_DIGITS and text.isdecimal() and text.isascii():  # most are
        return int(text)
    value = parse_int(text)
    if value is None or not INT_MIN <= value <= INT_MAX:
        raise ValueError(text)
    return value


def _long(text: str) -> int:
    if len(text) < LONG_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    value = parse_int(text)
    if value is None or not LONG_MIN <= value <= LONG_MAX:
        raise ValueError(text)
    return value


def _float(text: str) -> float:
    return float(text)


def _expected(parse: _Parse) -> str:
    if parse is _int:
        return "a 32-bit integer"
    if parse is _long:
        return "a 64-bit integer"
    if parse is _bool:
        return "true or false"
    if parse is _float:
        return "a number"
    return "a text"


class RpcRequestHeader(Header):
    """Fields that 5.x clients add to many requests: namespace, whether names include it already, broker
    name, one-way."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None


class TopicRequestHeader(RpcRequestHeader):
    """A request about a topic. `lo`: it is a logical (static) topic."""

    lo: bool | None = None


class TopicQueueRequestHeader(TopicRequestHeader):
    """A request about a queue of a topic."""
