"""Reads settings in RocketMQ's keys from the text of a `.conf` file (or a mapping) into a frozen struct.

A settings class is a frozen msgspec struct whose encoded names are the keys:

    class NamesrvConfig(msgspec.Struct, frozen=True, rename="camel"):
        listen_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 9876
        flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH

Types: `int`, `float`, `bool`, `str`, enums (by name), `Literal` texts, and any of these `| None`. `Meta`
bounds and patterns are checked; `Meta(description="…")` describes the expected value. Blanks around keys and
values are ignored. An invalid value is rejected; Java silently keeps the default.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from epochmq_protocol import properties
from epochmq_protocol.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)

SUGGESTIONS_MAX = 3
"""With more unknown keys, no similar ones are looked up, which takes half a millisecond each."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}", re.A)


def load(
    cls: type[S], source: str | Mapping[str, Any], aliases: Mapping[str, str] | None = None
) -> tuple[S, list[str]]:
    """(settings, warnings) from properties text or a mapping of keys to texts or plain values. `aliases`
    maps other spellings to keys. Each unknown key gives a warning. ConfigError: an invalid value, or a
    required key is missing."""
    keys = _keys(cls)
    wanted, warnings = _read(keys, source, aliases or {})
    for key, field in keys.items():
        if field.is_required and field.attribute not in wanted:
            raise ConfigError(key, "", f"{field.expected} (the key is required)")
    return cls(**wanted), warnings


def update(
    instance: S, changes: str | Mapping[str, Any], aliases: Mapping[str, str] | None = None
) -> tuple[S, list[str]]:
    """(settings with the changes, warnings about unknown keys). ConfigError: a value is invalid; nothing
    is changed."""
    wanted, warnings = _read(_keys(type(instance)), changes, aliases or {})
    return msgspec.structs.replace(instance, **wanted), warnings


def to_properties(instance: msgspec.Struct) -> dict[str, str]:
    """Every key with its value as text, like Java's MixAll.object2Properties: without None, booleans as
    `true` and `false`."""
    found: dict[str, str] = {}
    for key, field in _keys(type(instance)).items():
        value = getattr(instance, field.attribute)
        if value is not None:
            found[key] = _text_of(value)
    return found


def keys(cls: type[msgspec.Struct]) -> frozenset[str]:
    """The keys of a settings class."""
    return frozenset(_keys(cls))


def _text_of(value: Any) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return value.name if isinstance(value, Enum) else str(value)


class _Field:
    __slots__ = ("attribute", "expected", "is_required", "parse")

    def __init__(
        self, attribute: str, parse: Callable[[Any], Any], expected: str, *, is_required: bool
    ) -> None:
        self.attribute = attribute
        self.parse = parse
        self.expected = expected
        self.is_required = is_required


def _read(
    keys: Mapping[str, _Field], source: str | Mapping[str, Any], aliases: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    values = properties.parse(source) if isinstance(source, str) else source
    wanted: dict[str, Any] = {}
    unknown: list[str] = []
    for given, value in values.items():
        key = aliases.get(given.strip(), given.strip())
        field = keys.get(key)
        if field is None:
            unknown.append(key)
            continue
        try:
            wanted[field.attribute] = field.parse(value)
        except (ValueError, TypeError, OverflowError):
            raise ConfigError(given.strip(), _text_of(value).strip(), field.expected) from None
    return wanted, [_warning(key, keys if len(unknown) <= SUGGESTIONS_MAX else ()) for key in unknown]


def _warning(key: str, keys: Collection[str]) -> str:
    near = get_close_matches(key, keys, n=1, cutoff=0.8) if keys else []
    return f"{key}: unknown key, ignored" + (f" (did you mean {near[0]}?)" if near else "")


@cache
def _keys(cls: type[msgspec.Struct]) -> dict[str, _Field]:
    hints = get_type_hints(cls, include_extras=True)
    return {
        field.encode_name: _field(field.name, hints[field.name], is_required=field.required)
        for field in msgspec.structs.fields(cls)
    }


def _field(attribute: str, hint: Any, *, is_required: bool) -> _Field:
    metas: list[msgspec.Meta] = []
    is_optional = False
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            metas += [extra for extra in get_args(hint)[1:] if isinstance(extra, msgspec.Meta)]
            hint = get_args(hint)[0]
        elif origin in (Union, types.UnionType):
            choices = [choice for choice in get_args(hint) if choice is not type(None)]
            is_optional, hint = True, choices[0]
        else:
            break
    parse, expected = _parser(hint, metas)
    for meta in metas:
        expected = meta.description or expected
    return _Field(attribute, _optional(parse) if is_optional else parse, expected, is_required=is_required)


def _optional(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def parsed(value: Any) -> Any:
        return None if value is None or (isinstance(value, str) and not value.strip()) else parse(value)

    return parsed


def _parser(hint: Any, metas: list[msgspec.Meta]) -> tuple[Callable[[Any], Any], str]:
    if hint is bool:
        return _bool, "true or false"
    if hint is int:
        return _bounded(_int, metas), f"a whole number{_range(metas)}"
    if hint is float:
        return _bounded(_float, metas), f"a number{_range(metas)}"
    if hint is str:
        patterns = [meta.pattern for meta in metas if meta.pattern]
        lengths = [meta.min_length for meta in metas if meta.min_length]
        expected = f"a text like {patterns[0]}" if patterns else "a text"
        return _str(patterns, max(lengths, default=0)), expected if not lengths else f"{expected}, not empty"
    if get_origin(hint) is Literal:
        choices = {str(choice): choice for choice in get_args(hint)}
        return _choice(choices), f"one of {', '.join(choices)}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        members = dict(hint.__members__)
        return _choice(members), f"one of {', '.join(members)}"
    raise TypeError(f"{hint}: not a type for a setting")


def _range(metas: list[msgspec.Meta]) -> str:
    low = max((meta.ge for meta in metas if meta.ge is not None), default=None)
    high = min((meta.le for meta in metas if meta.le is not None), default=None)
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


def _bounded(parse: Callable[[Any], Any], metas: list[msgspec.Meta]) -> Callable[[Any], Any]:
    def parsed(value: Any) -> Any:
        number = parse(value)
        for meta in metas:
            if (meta.ge is not None and number < meta.ge) or (meta.le is not None and number > meta.le):
                raise ValueError(value)
            if (meta.gt is not None and number <= meta.gt) or (meta.lt is not None and number >= meta.lt):
                raise ValueError(value)
        return number

    return parsed


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in ("true", "false"):
        raise ValueError(value)
    return text == "true"


def _int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if not _INTEGER.fullmatch(text):
        raise ValueError(value)
    return int(text)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(value)
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError(value)
    return number


def _str(patterns: list[str], length_min: int) -> Callable[[Any], str]:
    compiled = [re.compile(pattern) for pattern in patterns]

    def parsed(value: Any) -> str:
        if isinstance(value, bool | int | float | Enum):
            value = _text_of(value)
        text: str = value.strip()
        if len(text) < length_min or not all(pattern.search(text) for pattern in compiled):
            raise ValueError(value)
        return text

    return parsed


def _choice(choices: Mapping[str, Any]) -> Callable[[Any], Any]:
    by_upper = {name.upper(): choice for name, choice in choices.items()}

    def parsed(value: Any) -> Any:
        if isinstance(value, Enum) and value in choices.values():
            return value
        found = by_upper.get(_text_of(value).strip().upper())
        if found is None:
            raise ValueError(value)
        return found

    return parsed
