"""Encodes and decodes the frames of the HA connection between a master and its replicas.

In controller mode (`AutoSwitchHAConnection`, `AutoSwitchHAClient`) the replica sends a handshake and the
master responds with its epochs. Then the master sends blocks of the log, and the replica acknowledges its max
offset. Without a controller (`DefaultHAConnection`, `DefaultHAClient`) there is no handshake, and frames
carry no state."""

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
"""A whole frame must fit into the read buffer of a Java replica, 4 MiB."""

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


class ReplicaHandshake(msgspec.Struct, frozen=True):
    """Replica to master: the first frame. Send it in one TCP segment: a Java master does not wait for the
    rest."""

    broker_id: int
    sync_from_last_file: bool = False
    async_learner: bool = False


class ReplicaAck(msgspec.Struct, frozen=True):
    """Replica to master: its log ends at `max_offset`."""

    max_offset: int


class MasterHandshake(msgspec.Struct, frozen=True):
    """Master to replica: the end of its log and its epoch. `body_size` bytes of epoch entries follow."""

    body_size: int
    max_offset: int
    epoch: int


class TransferHeader(msgspec.Struct, frozen=True):
    """Master to replica: `body_size` bytes of the log from `offset` follow, all of one epoch. A heartbeat
    has none."""

    body_size: int
    offset: int
    epoch: int
    epoch_start_offset: int
    confirm_offset: int


def encode_replica_handshake(frame: ReplicaHandshake) -> bytes:
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


def decode_from_replica(data: bytes | memoryview) -> tuple[ReplicaHandshake | ReplicaAck, int] | None:
    """The first frame in `data` from a replica, and its size; None while it is incomplete.
    RemoteProtocolError: a state that no replica sends, or an invalid frame."""
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
                "expected flags of 0 or 1 and an id of at least 0"
            )
        return ReplicaHandshake(broker_id, bool(last_file), bool(learner)), HANDSHAKE_SIZE
    if state == HAConnectionState.TRANSFER:
        if len(data) < ACK_SIZE:
            return None
        _, max_offset = _ACK.unpack_from(data)
        if max_offset < 0:
            raise RemoteProtocolError(f"HA acknowledgement: offset {max_offset}, expected at least 0")
        return ReplicaAck(max_offset), ACK_SIZE
    raise RemoteProtocolError(f"HA frame of state {state}, expected {HAConnectionState.HANDSHAKE:d} or 2")


def decode_from_master(data: bytes | memoryview) -> tuple[MasterHandshake | TransferHeader, int] | None:
    """The first header in `data` from a master, and its size without the body; None while it is
    incomplete. RemoteProtocolError: an invalid header."""
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
        return TransferHeader(body_size, offset, epoch, start_offset, confirm_offset), TRANSFER_SIZE
    raise RemoteProtocolError(f"HA frame of state {state}, expected {HAConnectionState.HANDSHAKE:d} or 2")


def encode_default_transfer(offset: int, body_size: int) -> bytes:
    """The header without a controller: 12 bytes, before the body."""
    return _DEFAULT_TRANSFER.pack(offset, body_size)


def decode_default_transfer(data: bytes | memoryview) -> tuple[int, int] | None:
    """(offset, body size) of the first header without a controller; None while it is incomplete."""
    if len(data) < DEFAULT_TRANSFER_SIZE:
        return None
    offset, body_size = _DEFAULT_TRANSFER.unpack_from(data)
    if not 0 <= body_size <= BODY_SIZE_MAX:
        raise RemoteProtocolError(f"HA frame with a body of {body_size} bytes, expected 0 to {BODY_SIZE_MAX}")
    return offset, body_size


def encode_default_report(max_offset: int) -> bytes:
    """The acknowledgement without a controller: the end of the replica's log, 8 bytes."""
    return _DEFAULT_REPORT.pack(max_offset)


def decode_default_report(data: bytes | memoryview) -> tuple[int, int] | None:
    """(the newest offset, bytes used) of a replica's acknowledgements without a controller: only the last
    whole one counts."""
    whole = len(data) - len(data) % DEFAULT_REPORT_SIZE
    if whole == 0:
        return None
    (offset,) = _DEFAULT_REPORT.unpack_from(data, whole - DEFAULT_REPORT_SIZE)
    if offset < 0:
        raise RemoteProtocolError(f"HA acknowledgement: offset {offset}, expected at least 0")
    return offset, whole
