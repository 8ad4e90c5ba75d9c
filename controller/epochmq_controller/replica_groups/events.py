# pure: entries of the Raft log
"""Encodes and decodes the events in the controller's Raft log, byte for byte as Java's DLedger mode
(`EventSerializer`): a type of two bytes, then the event as JSON. An entry with an empty body is no event:
with it a new leader commits the entries of earlier terms.
"""

from __future__ import annotations

import struct
from typing import ClassVar

import msgspec

from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.integers import Int, Long

_TYPE = struct.Struct(">h")


class _Event(msgspec.Struct, frozen=True, rename="camel"):
    event_type: ClassVar[int]
    event_name: ClassVar[str]

    broker_name: str


class AlterSyncStateSetEvent(_Event, frozen=True, rename="camel"):
    """Sets the SyncStateSet, and increments its epoch.

    `min_in_sync_replicas`: while fewer members are in the set, nothing is acknowledged. None: unknown, or 1.
    Java's controllers and earlier releases neither write nor read it."""

    event_type = 1
    event_name = "ALTER_SYNC_STATE_SET_EVENT"

    new_sync_state_set: frozenset[Long]
    min_in_sync_replicas: Int | None = None


class ApplyBrokerIdEvent(_Event, frozen=True, rename="camel"):
    """Gives an id to a replica. The first one creates the group."""

    event_type = 2
    event_name = "APPLY_BROKER_ID_EVENT"

    cluster_name: str | None = None
    broker_address: str | None = None
    new_broker_id: Long = 1
    register_check_code: str | None = None


class ElectMasterEvent(_Event, frozen=True, rename="camel"):
    """Elects a master or, with `new_master_elected` false, leaves the group without one. Both increment the
    master epoch. `confirmed_offset`: without a master, the offset that every member had, if it is known.
    `min_in_sync_replicas`: as in `AlterSyncStateSetEvent`. Java's controllers and earlier releases neither
    write nor read the two."""

    event_type = 3
    event_name = "ELECT_MASTER_EVENT"

    new_master_elected: bool = False
    new_master_broker_id: Long | None = None
    confirmed_offset: Long | None = None
    min_in_sync_replicas: Int | None = None


class CleanBrokerDataEvent(_Event, frozen=True, rename="camel"):
    """Removes these replicas or, without ids, the whole group."""

    event_type = 5
    event_name = "CLEAN_BROKER_DATA_EVENT"

    broker_id_set_to_clean: frozenset[Long] | None = None


class UpdateBrokerAddressEvent(_Event, frozen=True, rename="camel"):
    """Changes the address of a replica, and records the incarnation that registered. Java's controllers
    ignore the incarnation."""

    event_type = 6
    event_name = "UPDATE_BROKER_ADDRESS"

    cluster_name: str | None = None
    broker_address: str | None = None
    broker_id: Long | None = None
    incarnation: str | None = None


ControllerEvent = (
    AlterSyncStateSetEvent
    | ApplyBrokerIdEvent
    | ElectMasterEvent
    | CleanBrokerDataEvent
    | UpdateBrokerAddressEvent
)
EVENT_TYPES: tuple[type[ControllerEvent], ...] = (
    AlterSyncStateSetEvent,
    ApplyBrokerIdEvent,
    ElectMasterEvent,
    CleanBrokerDataEvent,
    UpdateBrokerAddressEvent,
)
_DECODERS = {event.event_type: msgspec.json.Decoder(event, strict=False) for event in EVENT_TYPES}


def encode(event: ControllerEvent) -> bytes:
    """Encodes an event as the body of an entry. Keys are sorted and nulls omitted, as fastjson does; sets are
    in ascending order."""
    fields: dict[str, object] = {}
    for key, name in zip(event.__struct_encode_fields__, event.__struct_fields__, strict=True):
        value = getattr(event, name)
        if value is not None:
            fields[key] = sorted(value) if isinstance(value, frozenset) else value
    fields["eventType"] = event.event_name
    return _TYPE.pack(event.event_type) + msgspec.json.encode(dict(sorted(fields.items())))


def decode(body: bytes) -> ControllerEvent | None:
    """Decodes the body of an entry. None for an empty body and for types that change nothing here (Read, 4).
    RemoteProtocolError for any other body that holds no event."""
    if not body:
        return None
    if len(body) < _TYPE.size:
        raise RemoteProtocolError(f"event of {len(body)} bytes, expected a type of two and a JSON object")
    decoder = _DECODERS.get(_TYPE.unpack_from(body)[0])
    if decoder is None:
        return None
    try:
        return decoder.decode(body[_TYPE.size :])
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{decoder.type.event_name}: {error}") from error
