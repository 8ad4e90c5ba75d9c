"""Delivers messages with a delay level when their time has come (RocketMQ's ScheduleMessageService).

Messages of level n wait in queue n-1 of SCHEDULE_TOPIC_XXXX, in order of delivery time, which is the tags
code of their consume-queue unit. One timer serves all levels: every 100 ms the levels in turn deliver the
messages that are due. A round ends after `ROUND_BUDGET_S`, so that a long backlog does not block senders.
After a failure a level pauses.

A delivered record keeps the properties with which it was sent, DELAY, REAL_TOPIC, REAL_QID and WAIT included:
RocketMQ encodes the properties before it removes these. Delivery is at least once: offsets are written every
10 s, and after a kill the messages delivered since then are delivered again.

The offset of a level is kept on disk and copied by replicas. It advances past a message only when the
delivered copy is as safe as an acknowledged message: on disk with SYNC_FLUSH, and on the replicas. Deliveries
do not wait for that. (RocketMQ advances the offset at once: a replica that becomes master may then have the
offset and lack the copy.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.safe_progress import SafeProgress
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.tables.stats import GROUP_GET_NUMS, GROUP_GET_SIZE
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.inner_message import InnerMessage, PutResult, copy_of_record
from epochmq_broker.writing.message_writer import SCHEDULE_TOPIC
from epochmq_broker.writing.quarantine import (
    NEVER_STORED,
    Origin,
    QuarantiningService,
    concerns_record,
)
from epochmq_formats.extension_unit import is_address
from epochmq_protocol import fastjson
from epochmq_protocol import message as records
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import (
    PROPERTY_DELAY_TIME_LEVEL,
    PROPERTY_REAL_QUEUE_ID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_WAIT_STORE_MSG_OK,
)
from epochmq_protocol.topics import NOT_DELIVERED_TOPICS, SCHEDULE_CONSUMER_GROUP, DataVersion
from epochmq_store.state_files.state_file_io import read_state_file
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

FIRST_ROUND_S = 1.0
"""From the start to the first round on a master, as in RocketMQ. An acting master begins with `ROUND_S`:
consumers are waiting since the master failed."""
ROUND_S = 0.1
PAUSE_AFTER_FAILURE_S = 10.0
ROUND_MAX = 32
"""Messages that one level delivers per turn."""
UNSAFE_MAX = 4096
"""Turns of a level, of up to `ROUND_MAX` messages each, whose deliveries may be unsafe at a time. With more,
the level pauses."""
ROUND_BUDGET_S = 0.004
"""How long one round may block the event loop; the rest continues in the next round."""
SCHEDULE_GROUP = SCHEDULE_CONSUMER_GROUP
FILE_NAME = "delayOffset.json"


class DelayService:
    """The delay levels of one broker. `offsets` maps a level (from 1) to the consume-queue offset of the
    first message that is not delivered, or whose delivered copy is not safe yet."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        sink_of_level: Callable[[int], MessageSink],
    ) -> None:
        """`sink_of_level`: level → where its messages are delivered to."""
        live = context.live
        self.delays_ms = live.current.delays_ms
        self.offsets: dict[int, int] = {}
        self.data_version = DataVersion(timestamp=now_ms())
        self._live = live
        self._store = context.store
        self._sinks = {level: sink_of_level(level) for level in range(1, len(self.delays_ms) + 1)}
        self._stats = context.tables.stats
        self._path: Path = live.current.config_dir / FILE_NAME
        self._write_file = context.write_file
        self._quarantine = context.quarantine
        self._paused_until: dict[int, float] = {}
        self._progress: dict[int, SafeProgress[int]] = {}
        """Level -> the next message to deliver, and the next one whose delivered copy is not safe; while they
        differ."""
        self._delivered_ends: dict[int, int] = {}
        """Level → the end of the last delivered message."""
        self._next_level = 0  # the level, from 0, that the next round begins with
        self._updates = 0
        self._versioned = 0
        self._written: bytes = b""
        self._timer: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """Reads the offsets, and moves offsets outside their queue to its nearer end."""
        loaded = read_state_file(self._path, fastjson.loads)
        if isinstance(loaded, dict):
            table = loaded.get("offsetTable") or {}
            self.offsets = {int(level): int(offset) for level, offset in table.items()}
            version = loaded.get("dataVersion")
            if isinstance(version, dict):
                self.data_version = DataVersion(
                    state_version=int(version.get("stateVersion", 0)),
                    timestamp=int(version.get("timestamp", 0)),
                    counter=int(version.get("counter", 0)),
                )
        self._correct(queues_may_come=True)

    def replace_all(self, offsets: Mapping[int, int], data_version: DataVersion) -> None:
        """Makes the offsets and the data version a copy of a master's, and writes them. Raises OSError."""
        if (offsets, data_version) != (self.offsets, self.data_version):
            self.offsets = dict(offsets)
            self.data_version = data_version
            self.persist()

    def _correct(self, *, queues_may_come: bool = False) -> None:
        """Moves offsets outside their queue to its nearer end. A missing queue counts as empty and will begin
        at 0; RocketMQ keeps its offset, and may skip messages once the queue exists."""
        for level in range(1, len(self.delays_ms) + 1):
            offset = self.offsets.get(level)
            if offset is None:
                continue
            queue = self._store.lookup.existing_queue(SCHEDULE_TOPIC, level - 1)
            if queue is None and queues_may_come:
                continue
            first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
            corrected = min(max(offset, first), end)
            if corrected != offset:
                log.error(
                    "delay level %d: offset %d lies outside its queue; it continues at %d",
                    level,
                    offset,
                    corrected,
                )
                self.offsets[level] = corrected

    def start(self) -> None:
        """Starts delivering; needs a running loop. First corrects the offsets: those of a former master may
        be ahead of this broker's log."""
        self._forget_unsafe()
        self._correct()
        first_s = ROUND_S if self._sinks[1].is_remote else FIRST_ROUND_S
        self._timer = asyncio.get_running_loop().call_later(first_s, self._round)

    def stop(self) -> None:
        """Stops delivering, and writes the offsets."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.persist()
        self._forget_unsafe()

    @property
    def is_running(self) -> bool:
        """Whether messages are delivered here."""
        return self._timer is not None

    def persist(self) -> None:
        """Writes delayOffset.json if anything has changed. Raises OSError."""
        self._advance_offsets()
        data = self.encode(pretty=True)
        if data != self._written:
            self._write_file(self._path, data)
            self._written = data

    def encode(self, *, pretty: bool = False) -> bytes:
        """Encodes the offsets as in the file and in the response to GET_ALL_DELAY_OFFSET."""
        version = self.data_version
        return fastjson.dumps(
            {
                "dataVersion": {
                    "counter": version.counter,
                    "stateVersion": version.state_version,
                    "timestamp": version.timestamp,
                },
                "offsetTable": dict(sorted(self.offsets.items())),
            },
            pretty=pretty,
        )

    def running_stats(self) -> dict[str, str]:
        """`scheduleMessageOffset_<level>` -> `offset,max`, as in runtime info."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._max_offset(level)}"
            for level, offset in sorted(self.offsets.items())
        }

    def _max_offset(self, level: int) -> int:
        queue = self._store.lookup.existing_queue(SCHEDULE_TOPIC, level - 1)
        return 0 if queue is None else queue.max_offset

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROUND_BUDGET_S
        levels = len(self.delays_ms)
        more = False
        try:
            self._advance_offsets()
            for turn in range(levels):
                level = (self._next_level + turn) % levels + 1
                more |= self._take_turn(level, loop.time())
                if loop.time() > deadline:
                    self._next_level = level % levels
                    more = True
                    break
        finally:
            self._timer = loop.call_later(0 if more else ROUND_S, self._round)

    def _take_turn(self, level: int, now: float) -> bool:
        if self._paused_until.get(level, 0.0) > now:
            return False
        try:
            return self._deliver_due(level)
        except Exception:  # the other levels must continue, and this one is tried again later
            log.exception("delay level %d failed; it continues in %g s", level, PAUSE_AFTER_FAILURE_S)
            self._paused_until[level] = now + PAUSE_AFTER_FAILURE_S
            return False

    def _deliver_due(self, level: int) -> bool:
        """Delivers the due messages of a level. Returns whether more may be due."""
        progress = self._progress.get(level)
        offset = self.offsets.get(level, 0) if progress is None else progress.reached
        queue = self._store.lookup.existing_queue(SCHEDULE_TOPIC, level - 1)
        if queue is None or offset == queue.max_offset:
            return False
        if not queue.min_offset <= offset < queue.max_offset:
            corrected = queue.min_offset if offset < queue.min_offset else queue.max_offset
            log.error(
                "delay level %d: offset %d lies outside its queue; it continues at %d",
                level,
                offset,
                corrected,
            )
            self._progress.pop(level, None)
            self.offsets[level] = corrected
            return True
        if progress is not None and progress.is_full and not self._advance_level(level, acknowledged=True):
            return False
        start = offset
        delivered = 0
        failed = False
        for physical_offset, size, tags_code in queue.units(offset, ROUND_MAX):
            present_ms = now_ms()
            if is_address(tags_code):
                extended = queue.extension_unit(tags_code)
                if extended is not None:
                    tags_code = extended.tags_code
                else:
                    tags_code = self._store.reader.store_timestamp(queue, offset) + self.delays_ms[level - 1]
            # A delivery time further away than the level's delay is wrong (the clock was set): deliver now.
            if present_ms < tags_code <= present_ms + self.delays_ms[level - 1]:
                break
            if not self._deliver_one(level, offset, physical_offset, size):
                self._paused_until[level] = asyncio.get_running_loop().time() + ROUND_S
                failed = True
                break
            offset += 1
            delivered += 1
        if delivered:
            self._updates += delivered
            self._progress.setdefault(level, SafeProgress(start, UNSAFE_MAX)).advance(
                offset, self._delivered_ends.get(level, 0)
            )
            self._advance_level(level)
        return delivered == ROUND_MAX and not failed

    def _deliver_one(self, level: int, offset: int, physical_offset: int, size: int) -> bool:
        """Delivers one message. Sets it aside if it can never be delivered: it would block the messages
        behind it. Returns False if it must be delivered later."""
        record = self._store.read(physical_offset, size)
        if record is None:  # it has expired
            return True
        found: MessageExt | bytes = record
        try:
            found = decoded = records.decode_record(record)
            message = restore_message(decoded)
            if message.topic in NOT_DELIVERED_TOPICS:
                raise ValueError(f"messages are not delivered to topic {message.topic}")
            stored = self._sinks[level].put(message)
        except Exception as error:
            if not concerns_record(error):
                raise
            self._set_aside(level, offset, found, error)
            return True
        if stored.status in NEVER_STORED:
            self._set_aside(level, offset, found, stored.status.value)
            return True
        if stored.status is not PutStatus.PUT_OK:
            if stored.status is not PutStatus.PUT_TO_REMOTE_BROKER_FAIL:  # the bridge has logged why
                log.warning("delay level %d could not deliver a message: %s", level, stored.status.value)
            return False
        self._delivered_ends[level] = stored.end
        if not stored.is_remote:
            self._count(stored)
        return True

    def _set_aside(self, level: int, offset: int, record: MessageExt | bytes, reason: object) -> None:
        origin = Origin(SCHEDULE_TOPIC, level - 1, offset)
        end = self._quarantine.set_aside(QuarantiningService.DELAY, origin, record, reason)
        if end:
            self._delivered_ends[level] = end

    def _count(self, stored: PutResult) -> None:
        self._stats.put_traffic(stored.topic, stored.queue_id).receive(1, stored.size)
        self._stats.count_type(stored.topic, "delay", 1, stored.size)
        if self._live.current.enable_schedule_message_stats:
            key = f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}"
            self._stats.add(GROUP_GET_NUMS, key)
            self._stats.add(GROUP_GET_SIZE, key, stored.size)

    # safe deliveries

    def _advance_offsets(self) -> None:
        """Advances the offsets past deliveries that have become safe."""
        for level in list(self._progress):
            self._advance_level(level)

    def _advance_level(self, level: int, *, acknowledged: bool = False) -> bool:
        """Advances the offset of a level. Returns whether it advanced. With `acknowledged`, past deliveries
        that would be acknowledged: masters may acknowledge messages that some replicas lack, and then a
        lagging replica does not stop deliveries."""
        progress = self._progress[level]
        moved = progress.settle(self._sinks[level].safe_end(acknowledged=acknowledged))
        if not progress.unsafe:
            del self._progress[level]
        if not moved:
            return False
        self.offsets[level] = progress.safe
        step = self._live.current.delay_offset_update_version_step
        if self._updates // step != self._versioned // step:
            self.data_version = self.data_version.next(now_ms())
        self._versioned = self._updates
        return True

    def _forget_unsafe(self) -> None:
        """Discards the unsafe deliveries, so that their messages are delivered again."""
        self._progress.clear()
        self._delivered_ends.clear()


def restore_message(delayed: MessageExt) -> InnerMessage:
    """Builds the message to deliver to its own topic from a delayed record
    (ScheduleMessageService.messageTimeUp)."""
    properties = records.parse_properties(delayed.properties)
    rendered = records.format_properties(properties)
    topic, queue_id = properties[PROPERTY_REAL_TOPIC], int(properties[PROPERTY_REAL_QUEUE_ID])
    for name in (PROPERTY_DELAY_TIME_LEVEL, PROPERTY_TIMER_DELIVER_MS, PROPERTY_TIMER_DELAY_SEC):
        properties.pop(name, None)
    properties[PROPERTY_WAIT_STORE_MSG_OK] = "false"
    return copy_of_record(delayed, topic, queue_id, properties, rendered)
