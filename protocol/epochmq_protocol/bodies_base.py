"""Encodes and decodes bodies by their declaration as structs, as fastjson does.

A body is a struct with the fields of RocketMQ's class: snake_case attributes, camelCase on the wire unless
`field(name=…)` gives another name, and a default for every field (fastjson requires none).

`from_json` reads as fastjson does:

- Unknown names are ignored. Without an exact match, names match regardless of case, `_` and `-`.
- null and a missing field mean the default.
- Texts are accepted for numbers and numbers for texts.
- Enums are read by name or ordinal; an unknown one means the default.

A value of another shape raises BodyError.
"""

from __future__ import annotations

import binascii
import types
from base64 import b64decode
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from epochmq_protocol import fastjson
from epochmq_protocol.errors import BodyError
from epochmq_protocol.integers import LONG_MAX, Int

T = TypeVar("T")
_Parse = Callable[[Any], Any]


class Body(msgspec.Struct, rename="camel"):
    """Base of all bodies. `STRICT_FIRST`: peers write the body as standard JSON with exact names, so
    `from_json` tries the fast parser first."""

    STRICT_FIRST: ClassVar[bool] = False


class MessageQueue(msgspec.Struct, frozen=True, order=True, rename="camel", forbid_unknown_fields=True):
    """One queue of a topic on one broker; a map key in many bodies. (`from_json` reads other names, too.)"""

    topic: str = ""
    broker_name: str = ""
    queue_id: Int = 0


def to_json(body: Any, *, quotes_keys: bool = False) -> bytes:
    """The body as fastjson writes it. `quotes_keys`: with quotes around integer map keys, for maps that tools
    of RocketMQ 5.5 skip: their JSON library fails at a key without quotes in what it skips."""
    return fastjson.dumps(body, quotes_keys=quotes_keys)


LENIENT_REQUEST_BYTES_MAX: Final = 2_048
"""A larger body of a request must be standard JSON without references, as RocketMQ's clients write it: the
lenient reader takes some 3 ms for so many bytes."""
REQUEST_BYTES_MAX: Final = 65_536
"""The largest body of a request that is decoded at once."""


def from_request(cls: type[T], data: bytes, bytes_max: int = REQUEST_BYTES_MAX) -> T:
    """Decodes the body of a client's request, whose costs have bounds. BodyError: malformed or too large."""
    if len(data) > bytes_max:
        raise BodyError(f"{cls.__name__}: {len(data)} bytes, expected at most {bytes_max}")
    return from_json(cls, data, lenient_bytes_max=LENIENT_REQUEST_BYTES_MAX)


def from_json(cls: type[T], data: bytes | str, *, lenient_bytes_max: int | None = None) -> T:
    """Decodes a body. `lenient_bytes_max`: that of `fastjson.loads`. BodyError: malformed."""
    if getattr(cls, "STRICT_FIRST", False) and (b"$ref" if isinstance(data, bytes) else "$ref") not in data:  # type: ignore[operator]
        try:
            return cast(T, _strict(cast(Any, cls))(data))
        except (ValueError, RecursionError):
            pass  # lenient JSON, or other types than declared
    return convert(cls, plain_values(cls, data, lenient_bytes_max))


def plain_values(cls: type, data: bytes | str, lenient_bytes_max: int | None) -> Any:
    """What `fastjson.loads` reads of a body of this class. BodyError: malformed."""
    try:
        return fastjson.loads(data, lenient_bytes_max=lenient_bytes_max)
    except BodyError:
        raise
    except Exception as error:
        raise BodyError(f"{cls.__name__}: {error}") from None


def convert(cls: type[T], value: Any) -> T:
    """A body from the plain values that `fastjson.loads` returns."""
    return cast(T, _parser(cast(Any, cls), cls.__name__)(value))


@cache
def _strict(cls: type) -> Callable[[bytes | str], Any]:
    return msgspec.json.Decoder(cls).decode


def _wrong(name: str, value: Any, expected: str) -> BodyError:
    return BodyError(f"{name}={value!r:.100}: expected {expected}")


@cache
def _parser(hint: Any, name: str) -> _Parse:
    """The function that converts a plain value to the type `hint`. `name` appears in errors. The function
    never gets None, except for Any."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _parser(next(choice for choice in get_args(hint) if choice is not type(None)), name)
    if origin is Annotated:
        return _integer(name, *_bounds(hint))
    if origin in (list, set, frozenset, tuple):
        return _sequence(_parser(get_args(hint)[0], f"{name}[]"), origin, name)
    if origin is dict:
        key_hint, item_hint = get_args(hint)
        return _mapping(_parser(key_hint, f"{name} key"), _parser(item_hint, f"{name}[…]"), name)
    if hint is str:
        return fastjson.as_text
    if hint is bool:
        return _boolean(name)
    if hint is float:
        return _floating(name)
    if hint is bytes:
        return _base64(name)
    if hint is Any:
        return lambda value: value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint)
    raise TypeError(f"{name}: {hint} is not a type of a body")


def _bounds(hint: Any) -> tuple[int, int]:
    meta = next(extra for extra in get_args(hint)[1:] if isinstance(extra, msgspec.Meta))
    return int(meta.ge or 0), int(meta.le or 0)


def _integer(name: str, low: int, high: int) -> _Parse:
    expected = "a 64-bit integer" if high == LONG_MAX else "a 32-bit integer"

    def parse(given: Any) -> int | None:
        value = given
        if type(value) is not int:
            if isinstance(value, str):
                if not value.strip() or value == "null":
                    return None
                value = fastjson.parse_int(value)
            elif isinstance(value, bool):
                return int(value)
            elif isinstance(value, float) and abs(value) < 1e19:
                value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise _wrong(name, given, expected)
        return value

    return parse


def _boolean(name: str) -> _Parse:
    def parse(value: Any) -> bool | None:
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return value == 1
        word = value.lower() if isinstance(value, str) else "?"
        if word in ("", "null"):
            return None
        if word in ("true", "1", "y", "t"):
            return True
        if word in ("false", "0", "n", "f"):
            return False
        raise _wrong(name, value, "true or false")

    return parse


def _floating(name: str) -> _Parse:
    def parse(value: Any) -> float | None:
        if isinstance(value, str) and value.strip() in ("", "null"):
            return None
        try:
            return float(value)
        except (ValueError, TypeError, OverflowError):
            raise _wrong(name, value, "a number") from None

    return parse


def _base64(name: str) -> _Parse:
    def parse(value: Any) -> bytes:
        try:
            return b64decode(value)
        except (binascii.Error, ValueError, TypeError):
            raise _wrong(name, value, "base64") from None

    return parse


def _enum(cls: type[Enum]) -> _Parse:
    by_name: dict[Any, Any] = {member.name.upper(): member for member in cls}
    by_ordinal = list(cls)

    def parse(value: Any) -> Enum | None:
        if isinstance(value, str):
            return by_name.get(value.upper())
        if type(value) is int and 0 <= value < len(by_ordinal):
            return by_ordinal[value]
        return None

    return parse


def _sequence(parse_item: _Parse, make: Callable[[Any], Any], name: str) -> _Parse:
    def parse(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong(name, value, "a list")
        items = [parse_item(item) for item in value if item is not None]
        return make(item for item in items if item is not None)

    return parse


def _mapping(parse_key: _Parse, parse_item: _Parse, name: str) -> _Parse:
    def parse(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _wrong(name, value, "an object")
        entries: dict[Any, Any] = {}
        for key, item in value.items():
            if item is not None:
                parsed, parsed_key = parse_item(item), parse_key(key)
                if parsed is not None and parsed_key is not None:
                    entries[parsed_key] = parsed
        return entries

    return parse


def _struct(cls: type[msgspec.Struct]) -> _Parse:
    """The function that converts an object to the struct `cls`. It builds its tables on first use, because
    structs may contain each other."""
    plan: dict[str, tuple[str, _Parse]] = {}
    loose: dict[str, tuple[str, _Parse]] = {}

    def prepare() -> None:
        hints = get_type_hints(cls, include_extras=True)
        for field in msgspec.structs.fields(cls):
            entry = (field.name, _parser(hints[field.name], f"{cls.__name__}.{field.encode_name}"))
            loose[_loosened(field.encode_name)] = entry
            plan[field.encode_name] = entry

    def parse(value: Any) -> Any:
        if not plan:
            prepare()
        if isinstance(value, tuple):  # an object as a map key (`fastjson.object_key`)
            try:
                value = dict(value)
            except (ValueError, TypeError):
                raise _wrong(cls.__name__, value, "an object") from None
        if not isinstance(value, dict):
            raise _wrong(cls.__name__, value, "an object")
        attributes: dict[str, Any] = {}
        for key, item in value.items():
            entry = plan.get(key)
            if entry is None:
                entry = loose.get(_loosened(key)) if isinstance(key, str) else None
                if entry is None or entry[0] in attributes:
                    continue
            if item is not None:
                parsed = entry[1](item)
                if parsed is not None:
                    attributes[entry[0]] = parsed
        return cls(**attributes)

    return parse


def _loosened(name: str) -> str:
    """The name for fastjson's smart match, which ignores case, `_`, `-` and a leading `is`."""
    name = name.replace("_", "").replace("-", "").lower()
    return name[2:] if name.startswith("is") else name


__all__ = ["Body", "MessageQueue", "convert", "from_json", "to_json"]
