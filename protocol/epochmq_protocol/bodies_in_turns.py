"""Encodes and decodes large bodies in steps, so that the work can be split over turns of an event loop."""

from __future__ import annotations

import types
from collections.abc import Generator
from functools import cache, partial
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from epochmq_protocol.bodies_base import (
    LENIENT_REQUEST_BYTES_MAX,
    convert,
    from_json,
    from_request,
    plain_values,
    to_json,
)
from epochmq_protocol.errors import BodyError

T = TypeVar("T")

STEP_BYTES: Final = 16_384
"""A body of so many bytes is decoded in one step."""
LENIENT_STEP_BYTES: Final = 1024
"""The same for items whose names and types need not be exactly those that are declared: some 0.1 ms."""
STEP_ITEMS: Final = 20
"""Items of a list that are converted in one step."""
LISTS_BYTES_MAX: Final = 2 << 20
"""The largest body of a request with lists. A heartbeat with 5,000 subscriptions has 1 MB, and so has a list
of 5,000 topics."""


def decode_steps(cls: type[T], data: bytes, bytes_max: int = LISTS_BYTES_MAX) -> Generator[None, None, T]:
    """Decodes the body of a request as `from_json` does, in steps. Returns it. BodyError: malformed or larger
    than `bytes_max`."""
    if len(data) <= STEP_BYTES:
        return from_request(cls, data)
    if len(data) > bytes_max:
        raise BodyError(f"{cls.__name__}: {len(data)} bytes, expected at most {bytes_max}")
    if b"$ref" not in data:
        try:
            return (yield from _decode(cls, data, is_strict=bool(getattr(cls, "STRICT_FIRST", False))))
        except (ValueError, RecursionError):
            pass  # lenient JSON, or other types than declared
    return (yield from _convert(cls, data))


def _convert(cls: type[T], data: bytes) -> Generator[None, None, T]:
    """Decodes standard JSON with any names and types that fastjson accepts."""
    value = plain_values(cls, data, LENIENT_REQUEST_BYTES_MAX)
    yield
    if not isinstance(value, dict):
        return convert(cls, value)
    long = {name: item for name, item in value.items() if isinstance(item, list) and len(item) > STEP_ITEMS}
    body = convert(cls, {name: item for name, item in value.items() if name not in long})
    for name, items in long.items():
        for start in range(0, len(items), STEP_ITEMS):
            part = convert(cls, {name: items[start : start + STEP_ITEMS]})
            for attribute, (kind, _) in _outline(cast(Any, cls)).lists.items():
                add = list.extend if kind is list else set.update
                add(getattr(body, attribute), getattr(part, attribute))
            yield
    return body


def _decode(cls: type[T], data: bytes | msgspec.Raw, *, is_strict: bool) -> Generator[None, None, T]:
    """ValueError: the body is to be decoded in one step. `is_strict`: the items, too, have exactly the
    declared names and types."""
    outline = _outline(cast(Any, cls))
    known = outline.decode(data)
    values: dict[str, Any] = {name: getattr(known, name) for name in outline.others}
    yield
    for name, (kind, item) in outline.lists.items():
        if getattr(known, name) is None:
            values[name] = None
            continue
        items = values[name] = kind()
        add = items.append if kind is list else items.add
        decode, size = _decoder(item) if is_strict else partial(_lenient, item), 0
        for raw in getattr(known, name):
            length = memoryview(raw).nbytes
            if is_strict and length > STEP_BYTES:
                add((yield from _decode(item, raw, is_strict=True)))
            else:
                add(decode(raw))
            size += length
            if size > (STEP_BYTES if is_strict else LENIENT_STEP_BYTES):
                size = 0
                yield
    return cls(**values)


def _lenient(cls: type[T], data: msgspec.Raw) -> T:
    return from_json(cls, bytes(data))


class _Outline(msgspec.Struct, frozen=True):
    """How to decode the frame of a body. `lists`: attribute → (list or set, type of the items), of those
    that stay encoded at first."""

    decode: Any
    lists: dict[str, tuple[type, type]]
    others: tuple[str, ...]


@cache
def _outline(cls: type) -> _Outline:
    hints = get_type_hints(cls, include_extras=True)
    lists: dict[str, tuple[type, type]] = {}
    fields: list[Any] = []
    others = []
    for field in msgspec.structs.fields(cls):
        hint = hints[field.name]
        kind, parts = get_origin(hint), get_args(hint)
        is_optional = kind in (Union, types.UnionType) and parts[1:] == (type(None),)
        if is_optional:
            kind, parts = get_origin(parts[0]), get_args(parts[0])
        raw = kind in (list, set) and isinstance(parts[0], type) and issubclass(parts[0], msgspec.Struct)
        if raw:
            lists[field.name] = (cast(type, kind), parts[0])
        else:
            others.append(field.name)
        default: dict[str, Any] = {"default_factory": list if raw else field.default_factory}
        if (not raw or is_optional) and field.default is not msgspec.NODEFAULT:
            default = {"default": field.default}
        wire = msgspec.field(name=field.encode_name, **default)
        if raw:
            hint = list[msgspec.Raw] | None if is_optional else list[msgspec.Raw]
        fields.append((field.name, hint, wire))
    frame = msgspec.defstruct(cls.__name__, fields, forbid_unknown_fields=True)
    return _Outline(msgspec.json.Decoder(frame).decode, lists, tuple(others))


@cache
def _decoder(cls: type) -> Any:
    return msgspec.json.Decoder(cls).decode


def map_entry(key: Any, value: Any) -> bytes:
    """An entry of a map as `to_json` writes it; the caller writes the entries in the order of their keys."""
    return to_json(key) + b":" + to_json(value)


def with_items(body: bytes, name: str, items: bytes) -> bytes:
    """An encoded body with `items` as the value of the field `name`, which is empty in `body`. No text of the
    body can look like that field, because the quotes of texts are escaped."""
    for empty in (b"{}", b"[]"):
        field = b'"%b":%b' % (name.encode(), empty)
        at = body.find(field)
        if at >= 0:
            end = at + len(field)
            return b"".join((body[: end - 2], items, body[end:]))
    raise ValueError(f"the body has no empty field {name}")
