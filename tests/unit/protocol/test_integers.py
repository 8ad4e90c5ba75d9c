"""Every integer of a header or body has the range of RocketMQ's field, and decoders keep to it."""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

import epochmq_protocol
from epochmq_protocol.bodies_base import Body, MessageQueue, from_json
from epochmq_protocol.dledger import (
    REQUEST_TYPES,
    RESPONSE_TYPES,
    DLedgerEntry,
    PushEntryRequest,
    RequestOrResponse,
    VoteRequest,
    decode_body,
)
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.headers_base import Header
from epochmq_protocol.integers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN

_BASES = (Header, Body, MessageQueue, RequestOrResponse, DLedgerEntry)


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    for one in kind.__subclasses__():
        yield from _subclasses(one)


def _declared() -> list[type]:
    """The headers and bodies of the protocols, in every module of the package."""
    for module in pkgutil.walk_packages(epochmq_protocol.__path__, "epochmq_protocol."):
        if ".admin_api" not in module.name:
            importlib.import_module(module.name)
    found = {kind for base in _BASES for kind in _subclasses(base) if kind.__module__.startswith("epochmq_")}
    return sorted(found, key=lambda kind: (kind.__module__, kind.__qualname__))


def _unbounded(hint: Any) -> bool:
    """Whether a type contains an integer without a range."""
    if hint is int:
        return True
    if get_origin(hint) is Annotated:
        meta = next((extra for extra in get_args(hint)[1:] if isinstance(extra, msgspec.Meta)), None)
        ranges = ((INT_MIN, INT_MAX), (LONG_MIN, LONG_MAX))
        return get_args(hint)[0] is int and (meta is None or (meta.ge, meta.le) not in ranges)
    if get_origin(hint) in (Union, types.UnionType, list, dict, set, frozenset, tuple):
        return any(_unbounded(part) for part in get_args(hint))
    return False


@pytest.mark.parametrize("kind", _declared(), ids=lambda kind: kind.__name__)
def test_every_integer_is_declared_as_int_or_long(kind: type[msgspec.Struct]) -> None:
    hints = get_type_hints(kind, include_extras=True)
    assert [one.name for one in msgspec.structs.fields(kind) if _unbounded(hints[one.name])] == []


@pytest.mark.parametrize("number", [LONG_MAX + 1, LONG_MIN - 1, 10**40, -(10**40)])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_dledger_body_with_a_number_beyond_64_bits_is_rejected(number: int, quoted: bool) -> None:
    shown = f'"{number}"' if quoted else str(number)
    for kind in {*REQUEST_TYPES.values(), *RESPONSE_TYPES.values()}:
        with pytest.raises(RemoteProtocolError, match="term"):
            decode_body(kind, b'{"term":%b}' % shown.encode())


def test_a_dledger_body_may_have_every_number_of_its_type() -> None:
    for number in (LONG_MAX, LONG_MIN, 0):
        assert decode_body(VoteRequest, b'{"term":%d}' % number).term == number


@pytest.mark.parametrize("field", ["magic", "size", "channel", "bodyCrc", "chainCrc"])
def test_an_entry_with_a_number_beyond_32_bits_is_rejected(field: str) -> None:
    entry = {"index": 0, "term": 0, "pos": 0, "body": "", "size": 48, field: INT_MAX + 1}
    with pytest.raises(RemoteProtocolError, match=field):
        decode_body(PushEntryRequest, msgspec.json.encode({"entry": entry}))


def test_a_remoting_body_with_a_number_beyond_its_type_is_rejected() -> None:
    for kind in _declared():
        if issubclass(kind, Body):
            for field in msgspec.structs.fields(kind):
                hint = get_type_hints(kind, include_extras=True)[field.name]
                if get_origin(hint) is Annotated and get_args(hint)[0] is int:
                    with pytest.raises(RemoteProtocolError):
                        from_json(kind, b'{"%b":%d}' % (field.encode_name.encode(), LONG_MAX + 1))
