"""What a put and a get answer, in RocketMQ's words (PutMessageStatus, GetMessageStatus, RunningFlags)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntFlag

from msgspec import Struct

from epochmq_protocol.errors import EpochMQError


class PutStatus(Enum):
    """Outcome of an append (PutMessageStatus). The first four mean that the message is stored."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"

    # Members are singletons: identity is equality, and a plain object hash is what the hot path wants.
    __hash__ = object.__hash__


class StoreReadError(EpochMQError):
    """Bytes of the store cannot be read from the disk. The reader who asked for them gets an error; nobody
    else is concerned."""


class GetStatus(Enum):
    """Outcome of a get (GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_RESET = "OFFSET_RESET"

    __hash__ = object.__hash__


class RunningFlags(IntFlag):
    """Why a store may not be read or written; the values of RocketMQ's RunningFlags.

    `FLUSH_FAILED` (RocketMQ logs a failed fsync and goes on) and `REPLICA` (the log belongs to another
    broker) are ours: they lie above RocketMQ's bits.
    """

    NOT_READABLE = 1
    NOT_WRITEABLE = 2
    WRITE_LOGICS_QUEUE_ERROR = 4
    WRITE_INDEX_FILE_ERROR = 8
    DISK_FULL = 16
    FENCED = 32
    LOGIC_DISK_FULL = 64
    FLUSH_FAILED = 1 << 16
    REPLICA = 1 << 17


class GetResult(Struct):
    """Records found by a get, and what a pull answer needs besides.

    `pieces` hold `count` whole records one after the other, `size` bytes in all; some may be views of the
    mapped log, so a result is not kept. `physical_end` is where the last unit looked at lies (-1: none), for
    the decision whether a reader lags too far behind.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: Sequence[bytes | memoryview] = ()
    size: int = 0
    count: int = 0
    physical_end: int = -1

    @property
    def body(self) -> bytes:
        """A copy of all pieces."""
        return b"".join(self.pieces)


class QueryResult(Struct):
    """Records found by key (QueryMessageResult): whole records, oldest first, and how far the index
    reaches."""

    body: bytes
    count: int
    index_last_update_timestamp: int
    index_last_update_phyoffset: int
