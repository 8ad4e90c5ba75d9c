"""Frames of the HA connection between a master and its replicas.

Controller mode (`AutoSwitchHAConnection`, `AutoSwitchHAClient`): the replica introduces itself, the master
answers with its epochs, then the master streams blocks of the log and the replica reports how far its own
reaches. Without a controller (`DefaultHAConnection`, `DefaultHAClient`) there is no introduction and frames
carry no state.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from epochmq_protocol.errors import RemoteProtocolError


class HAConnectionState(IntEnum):
    """`HAConnectionState`; the first field of every frame in controller mode."""

    READY = 0
    HANDSHAKE = 1
    TRANSFER = 2
    SUSPEND = 3
    SHUTDOWN = 4


BODY_SIZE_MAX = 4 * 1024 * 1024 - 64
"""A Java replica reads into a buffer of 4 MiB, which a whole frame must fit."""

HANDSHAKE_SIZE = 16
ACK_SIZE = 12
MASTER_HANDSHAKE_SIZE = 20
TRANSFER_SIZE = 36
DEFAULT_TRANSFER_SIZE = 12
DEFAULT_REPORT_SIZE = 8

_HANDSHAKE = struct.Struct(">ihhq")
_ACK = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_TRANSFER = struct.Struct(">iiqiqq")
_DEFAULT_TRANSFER = struct.Struct(">qi")
_DEFAULT_REPORT = struct.Struct(">q")


class Handshake(msgspec.Struct, frozen=True):
    """Replica to master, first of all, in one segment: a Java master does not wait for the rest."""

    broker_id: int
    sync_from_last_file: bool = False
    async_learner: bool = False


class Ack(msgspec.Struct, frozen=True):
    """Replica to master: my log reaches up to `max_offset`."""

    max_offset: int


class MasterHandshake(msgspec.Struct, frozen=True):
    """Master to replica: where its log ends and under which epoch; `body_size` bytes of epoch entries
    follow."""

    body_size: int
    max_offset: int
    epoch: int


class Transfer(msgspec.Struct, frozen=True):
    """Master to replica: `body_size` bytes of the log from `offset` follow, all of one epoch; none in a
    heartbeat."""

    body_size: int
    offset: int
    epoch: int
    epoch_start_offset: int
    confirm_offset: int


def encode_handshake(frame: Handshake) -> bytes:
    """16 bytes."""
    return _HANDSHAKE.pack(
        HAConnectionState.HANDSHAKE, frame.sync_from_last_file, frame.async_learner, frame.broker_id
    )


def encode_ack(max_offset: int) -> bytes:
    """12 bytes."""
    return _ACK.pack(HAConnectionState.TRANSFER, max_offset)


def encode_master_handshake(max_offset: int, epoch: int, entries: bytes) -> bytes:
    """20 bytes and the encoded entries."""
    return _MASTER_HANDSHAKE.pack(HAConnectionState.HANDSHAKE, len(entries), max_offset, epoch) + entries


def encode_transfer(
    body_size: int, offset: int, epoch: int, epoch_start_offset: int, confirm_offset: int
) -> bytes:
    """36 bytes, before the body."""
    return _TRANSFER.pack(
        HAConnectionState.TRANSFER, body_size, offset, epoch, epoch_start_offset, confirm_offset
    )


def decode_from_replica(data: bytes | memoryview) -> tuple[Handshake | Ack, int] | None:
    """The first frame of what a replica sent, and its size; None while it is not whole. RemoteProtocolError
    for a state that no replica sends, or a frame that cannot be."""
    if len(data) < 4:
        return None
    state = int.from_bytes(data[:4], "big", signed=True)
    if state == HAConnectionState.HANDSHAKE:
        if len(data) < HANDSHAKE_SIZE:
            return None
        _, last_file, learner, broker_id = _HANDSHAKE.unpack_from(data)
        if last_file not in (0, 1) or learner not in (0, 1) or broker_id < 0:
            raise RemoteProtocolError(
                f"HA handshake: flags {last_file} and {learner}, broker id {broker_id}; "
                "expected 0 or 1, and an id"
            )
        return Handshake(broker_id, bool(last_file), bool(learner)), HANDSHAKE_SIZE
    if state == HAConnectionState.TRANSFER:
        if len(data) < ACK_SIZE:
            return None
        _, max_offset = _ACK.unpack_from(data)
        if max_offset < 0:
            raise RemoteProtocolError(f"HA report: offset {max_offset}, expected none below 0")
        return Ack(max_offset), ACK_SIZE
    raise RemoteProtocolError(f"HA frame of state {state}, expected {HAConnectionState.HANDSHAKE:d} or 2")


def decode_from_master(data: bytes | memoryview) -> tuple[MasterHandshake | Transfer, int] | None:
    """The first header of what a master sent, and its size without the body; None while it is not whole."""
    if len(data) < MASTER_HANDSHAKE_SIZE:
        return None
    state, body_size = struct.unpack_from(">ii", data)
    if not 0 <= body_size <= BODY_SIZE_MAX:
        raise RemoteProtocolError(f"HA frame with a body of {body_size} bytes, expected 0 to {BODY_SIZE_MAX}")
    if state == HAConnectionState.HANDSHAKE:
        _, _, max_offset, epoch = _MASTER_HANDSHAKE.unpack_from(data)
        return MasterHandshake(body_size, max_offset, epoch), MASTER_HANDSHAKE_SIZE
    if state == HAConnectionState.TRANSFER:
        if len(data) < TRANSFER_SIZE:
            return None
        _, _, offset, epoch, start_offset, confirm_offset = _TRANSFER.unpack_from(data)
        return Transfer(body_size, offset, epoch, start_offset, confirm_offset), TRANSFER_SIZE
    raise RemoteProtocolError(f"HA frame of state {state}, expected {HAConnectionState.HANDSHAKE:d} or 2")


def encode_default_transfer(offset: int, body_size: int) -> bytes:
    """Without a controller: 12 bytes, before the body."""
    return _DEFAULT_TRANSFER.pack(offset, body_size)


def decode_default_transfer(data: bytes | memoryview) -> tuple[int, int] | None:
    """(offset, body size) of the first header, None while it is not whole."""
    if len(data) < DEFAULT_TRANSFER_SIZE:
        return None
    offset, body_size = _DEFAULT_TRANSFER.unpack_from(data)
    if not 0 <= body_size <= BODY_SIZE_MAX:
        raise RemoteProtocolError(f"HA frame with a body of {body_size} bytes, expected 0 to {BODY_SIZE_MAX}")
    return offset, body_size


def encode_default_report(max_offset: int) -> bytes:
    """Without a controller: where the replica's log ends, 8 bytes."""
    return _DEFAULT_REPORT.pack(max_offset)


def decode_default_report(data: bytes | memoryview) -> tuple[int, int] | None:
    """(the newest offset, bytes used) of what a replica sent: only the last whole report counts."""
    whole = len(data) - len(data) % DEFAULT_REPORT_SIZE
    if whole == 0:
        return None
    (offset,) = _DEFAULT_REPORT.unpack_from(data, whole - DEFAULT_REPORT_SIZE)
    if offset < 0:
        raise RemoteProtocolError(f"HA report: offset {offset}, expected none below 0")
    return offset, whole
