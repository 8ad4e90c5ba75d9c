"""Sets aside the records that a service cannot handle, so that the service continues with the next record.

A copy of the record goes to the topic rmq_sys_quarantine. Its properties name the service, the place of the
record and the reason. Only the broker that decides for its group stores copies. An acting master leaves the
record where it is, and logs its place."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_protocol import message as records
from epochmq_protocol import message_const as const
from epochmq_protocol.errors import InvariantError, RetryableError
from epochmq_protocol.message import MessageExt
from epochmq_protocol.topics import QUARANTINE_TOPIC
from epochmq_store.files.mapped_file import DiskFullError, StoreDamagedError
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.statuses import PutStatus, StoreReadError

log = logging.getLogger(__name__)

QUARANTINE_QUEUES: Final = 1
REASON_CHARS_MAX: Final = 500
LOG_INTERVAL_S: Final = 5.0
"""At most one log line in so many seconds for each service."""

NEVER_STORED: Final = frozenset(
    [
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
        PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
        PutStatus.WHEEL_TIMER_NOT_ENABLE,
    ]
)
"""Statuses of messages that no later attempt would store."""

_NOT_COPIED: Final = frozenset(
    [
        const.PROPERTY_CRC32,
        const.PROPERTY_DELAY_TIME_LEVEL,
        const.PROPERTY_INNER_BASE,
        const.PROPERTY_INNER_MULTI_DISPATCH,
        const.PROPERTY_INNER_MULTI_QUEUE_OFFSET,
        const.PROPERTY_INNER_NUM,
        const.PROPERTY_TIMER_DELAY_MS,
        const.PROPERTY_TIMER_DELAY_SEC,
        const.PROPERTY_TIMER_DELIVER_MS,
    ]
)
"""Properties by which the writer would move the copy to another queue, or reject it."""

_OF_THE_BROKER: Final = (
    OSError,
    MemoryError,
    InvariantError,
    RetryableError,
    DiskFullError,
    StoreDamagedError,
    StoreReadError,
    NotResidentError,
)


def concerns_record(error: Exception) -> bool:
    """Whether an error that a service met at a record is the record's fault. Otherwise the disk, the memory
    or the network failed, and the service must try the record again."""
    return not isinstance(error, _OF_THE_BROKER)


class QuarantiningService(enum.Enum):
    """The services that set records aside."""

    DELAY = "delay"
    TIMER = "timer"
    POP = "pop"
    TRANSACTION = "transaction"
    COMPACTION = "compaction"
    ESCAPE = "escape"


class Origin(Struct, frozen=True):
    """Where a service has read a record. An offset of -1 is not known."""

    topic: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.queue_id}-{self.offset}"


class Quarantine:
    """The records of one broker that were set aside."""

    def __init__(
        self,
        live: LiveConfig,
        *,
        writer: MessageWriter,
        create_topic: Callable[[str, int], object],
        store_host: bytes,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`create_topic(name, queues)` creates a topic unless it exists."""
        self.counts = dict.fromkeys(QuarantiningService, 0)
        """Records since the start, by the service that set them aside."""
        self._live = live
        self._writer = writer
        self._create_topic = create_topic
        self._store_host = store_host
        self._clock_s = clock_s
        self._logged_s: dict[QuarantiningService, float] = {}
        self._unlogged = dict.fromkeys(QuarantiningService, 0)

    def set_aside(
        self,
        service: QuarantiningService,
        origin: Origin,
        record: MessageExt | bytes | None,
        reason: object,
    ) -> int:
        """Stores a copy of a record, and counts it. `record` may be undecoded; None: the record cannot be
        read. Returns the end of the copy in the log, 0 if no copy is stored. Never raises, because the
        service must continue."""
        self.counts[service] += 1
        text = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
        end = 0
        try:
            if record is not None and self._live.standing.capabilities.delivers_here:
                end = self._store(service, origin, record, text)
        except Exception:  # a copy that cannot be stored must not stop the service either
            log.exception("the copy of %s for %s could not be stored", origin, QUARANTINE_TOPIC)
        self._log(service, origin, text, is_stored=end > 0)
        return end

    def metric_values(self) -> dict[str, float]:
        """Metric name and kind, separated by a colon → value."""
        return {
            f"broker_quarantined_total:{service.value}": float(count)
            for service, count in self.counts.items()
        }

    def _store(
        self, service: QuarantiningService, origin: Origin, record: MessageExt | bytes, reason: str
    ) -> int:
        self._create_topic(QUARANTINE_TOPIC, QUARANTINE_QUEUES)
        message = quarantined_message(service, origin, record, reason, self._store_host)
        stored = self._writer.put(message)
        if stored.status in NEVER_STORED:  # its own properties are the obstacle
            message = quarantined_message(service, origin, b"", reason, self._store_host)
            stored = self._writer.put(message)
        return stored.end if stored.status is PutStatus.PUT_OK else 0

    def _log(self, service: QuarantiningService, origin: Origin, reason: str, *, is_stored: bool) -> None:
        now_s = self._clock_s()
        if now_s - self._logged_s.get(service, float("-inf")) < LOG_INTERVAL_S:
            self._unlogged[service] += 1
            return
        self._logged_s[service] = now_s
        unlogged, self._unlogged[service] = self._unlogged[service], 0
        log.error(
            "the %s service cannot handle the record %s and continues behind it (%s). %s. %d further records "
            "were set aside since the last such line",
            service.value,
            origin,
            reason,
            f"A copy is in {QUARANTINE_TOPIC}" if is_stored else "No copy is stored",
            unlogged,
        )


def quarantined_message(
    service: QuarantiningService, origin: Origin, record: MessageExt | bytes, reason: str, host: bytes
) -> InnerMessage:
    """The copy of a record that is set aside. Of an undecoded record, its bytes are the body."""
    reason = reason.replace("\x01", " ").replace("\x02", " ")[:REASON_CHARS_MAX]
    own = {
        const.PROPERTY_QUARANTINE_SERVICE: service.value,
        const.PROPERTY_QUARANTINE_ORIGIN: str(origin).replace("\x01", " ").replace("\x02", " "),
        const.PROPERTY_QUARANTINE_REASON: reason,
        const.PROPERTY_WAIT_STORE_MSG_OK: "false",
    }
    if isinstance(record, bytes):
        return InnerMessage(
            topic=QUARANTINE_TOPIC,
            queue_id=0,
            body=record,
            properties=own,
            born_timestamp=now_ms(),
            born_host=host,
        )
    copied = {
        name: value
        for name, value in records.parse_properties(record.properties).items()
        if name not in _NOT_COPIED and "\x01" not in name
    }
    return InnerMessage(
        topic=QUARANTINE_TOPIC,
        queue_id=0,
        body=record.body,
        properties=copied | own,
        flag=record.flag,
        sys_flag=record.sys_flag & (const.COMPRESSED_FLAG | const.COMPRESSION_TYPE_COMPARATOR),
        born_timestamp=record.born_timestamp,
        born_host=host,
    )
