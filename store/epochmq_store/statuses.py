"""Defines the results of puts, gets and queries, and the store's running flags, with RocketMQ's names
(PutMessageStatus, GetMessageStatus, RunningFlags)."""
# pure: values

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntFlag

from msgspec import Struct

from epochmq_protocol.errors import EpochMQError


class PutStatus(Enum):
    """Result of an append (PutMessageStatus). The first four mean that the message is stored."""

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
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL"
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL"
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE"
    PUT_TO_REMOTE_BROKER_FAIL = "PUT_TO_REMOTE_BROKER_FAIL"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"

    # Members are singletons, so identity is equality. The hot path needs the faster object hash.
    __hash__ = object.__hash__


class StoreReadError(EpochMQError):
    """Bytes of the store cannot be read from the disk. The request that needs them fails; other requests are
    not affected."""


class GetStatus(Enum):
    """Result of a get (GetMessageStatus)."""

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
    """The reasons why a store may not be read or written, with the values of RocketMQ's RunningFlags.

    `FLUSH_FAILED` (RocketMQ logs a failed fsync and continues), `REPLICA` (the log is written by
    replication only) and `LOG_DAMAGED` (a confirmed record cannot be read; comes with `FLUSH_FAILED`) do not
    exist in RocketMQ; they lie above its bits.
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
    LOG_DAMAGED = 1 << 18


class GetResult(Struct):
    """The records that a get found, and the offsets that a pull response needs.

    `pieces` hold `count` whole records in order, `size` bytes in all. Some pieces may be views of the mapped
    log, so results must not be kept. `physical_end` is the physical offset of the last unit examined (-1:
    none); it shows how far a reader lags.
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
    """The records found by key, oldest first, and the end of the index (QueryMessageResult)."""

    body: bytes
    count: int
    index_last_update_timestamp: int
    index_last_update_phyoffset: int
