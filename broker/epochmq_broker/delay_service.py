"""Delivers messages with a delay level when their time has come (RocketMQ's ScheduleMessageService).

Level n waits in queue n-1 of SCHEDULE_TOPIC_XXXX, in order of delivery time, which is the tags code of its
consume-queue unit. One timer serves all levels: every 100 ms they deliver what is due, taking turns, and a
round ends after `ROUND_BUDGET_S`, so that a long backlog does not hold up the senders; after a failure a
level pauses.

A delivered record keeps the properties it was sent with, DELAY, REAL_TOPIC, REAL_QID and WAIT included:
RocketMQ renders them before it clears them. Delivery is at least once: offsets are written every 10 s, and a
kill in between delivers again what was delivered since.

The offset of a level, which is kept on disk and copied by replicas, moves behind a message only when the
delivered copy is as safe as an acknowledged message: on disk with SYNC_FLUSH, and on the replicas. Deliveries
do not wait for that. (RocketMQ moves the offset at once: a replica that becomes master may have the offset
and not the copy.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

from epochmq_broker.config import LiveConfig
from epochmq_broker.message_writer import SCHEDULE_TOPIC, InnerMessage, MessageWriter, PutResult
from epochmq_broker.stats import GROUP_GET_NUMS, GROUP_GET_SIZE, BrokerStats
from epochmq_broker.store.config_files import read_config, write_config
from epochmq_broker.store.message_store import MessageStore
from epochmq_broker.store.statuses import PutStatus
from epochmq_protocol import fastjson
from epochmq_protocol import message as records
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.message import MessageExt
from epochmq_protocol.topics import DataVersion

log = logging.getLogger(__name__)

FIRST_ROUND_S = 1.0
ROUND_S = 0.1
PAUSE_AFTER_FAILURE_S = 10.0
ROUND_MAX = 32
"""Messages of one level delivered before it is the next level's turn."""
UNSAFE_MAX = 4096
"""Turns of a level, of up to `ROUND_MAX` messages each, that may be delivered and not yet safe. The level
pauses when there are more."""
ROUND_BUDGET_S = 0.004
"""How long one round may keep the event loop from everybody else; what is left goes on in the next."""
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
FILE_NAME = "delayOffset.json"


class DelayService:
    """The levels of one broker. `offsets` maps a level (from 1) to the consume-queue offset of the first
    message that is not delivered, or whose delivered copy is not safe yet."""

    def __init__(
        self, live: LiveConfig, store: MessageStore, writer: MessageWriter, stats: BrokerStats
    ) -> None:
        self.delays_ms = live.current.delays_ms
        self.offsets: dict[int, int] = {}
        self.data_version = DataVersion(timestamp=_now_ms())
        self._live = live
        self._store = store
        self._writer = writer
        self._stats = stats
        self._path: Path = live.current.config_dir / FILE_NAME
        self.write: Callable[[Path, bytes], None] = write_config
        """How the file is written; where an event loop runs, on another thread."""
        self._paused_until: dict[int, float] = {}
        self._next: dict[int, int] = {}
        """Level → the next message to deliver, while that is ahead of `offsets`."""
        self._unsafe: dict[int, deque[tuple[int, int]]] = {}
        """Level → (its offset behind some messages, where the log ended behind their copies)."""
        self._delivered_end = 0
        self._next_level = 0  # whose turn is first in the next round, counted from 0
        self._updates = 0
        self._versioned = 0
        self._written: bytes = b""
        self._timer: asyncio.TimerHandle | None = None

    def load(self) -> None:
        """Reads the offsets and moves those that lie outside their queue to its nearer end."""
        loaded = read_config(self._path, fastjson.loads)
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

    def follow(self, offsets: Mapping[int, int], data_version: DataVersion) -> None:
        """Takes over how far a master has delivered, for the day this broker becomes one, and writes it.
        Raises OSError."""
        if (offsets, data_version) != (self.offsets, self.data_version):
            self.offsets = dict(offsets)
            self.data_version = data_version
            self.persist()

    def _correct(self, *, queues_may_come: bool = False) -> None:
        """Moves the offsets that lie outside their queue to its nearer end. A queue that does not exist is
        empty, and begins at 0 when it comes; RocketMQ leaves its offset, and may skip what comes."""
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
                log.error("delay level %d: offset %d corrected to %d", level, offset, corrected)
                self.offsets[level] = corrected

    def start(self) -> None:
        """Begins to deliver; needs a running loop. What a master said of its deliveries may be ahead of what
        this broker has of the log."""
        self._forget_unsafe()
        self._correct()
        self._timer = asyncio.get_running_loop().call_later(FIRST_ROUND_S, self._round)

    def stop(self) -> None:
        """Delivers nothing any more and writes the offsets."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.persist()
        self._forget_unsafe()

    def persist(self) -> None:
        """Writes delayOffset.json if anything changed. Raises OSError."""
        self._settle()
        data = self.encode(pretty=True)
        if data != self._written:
            self.write(self._path, data)
            self._written = data

    def encode(self, *, pretty: bool = False) -> bytes:
        """The offsets as the file and GET_ALL_DELAY_OFFSET have them."""
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
        """`scheduleMessageOffset_<level>` → `offset,max`, as runtime info has it."""
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
        self._settle()
        levels = len(self.delays_ms)
        more = False
        for turn in range(levels):
            level = (self._next_level + turn) % levels + 1
            more |= self._take_turn(level, loop.time())
            if loop.time() > deadline:
                self._next_level = level % levels
                more = True
                break
        self._timer = loop.call_later(0 if more else ROUND_S, self._round)

    def _take_turn(self, level: int, now: float) -> bool:
        if self._paused_until.get(level, 0.0) > now:
            return False
        try:
            return self._deliver_due(level)
        except Exception:  # one level's fault must not stop the others, nor this one for ever
            log.exception("delay level %d failed; it goes on in %g s", level, PAUSE_AFTER_FAILURE_S)
            self._paused_until[level] = now + PAUSE_AFTER_FAILURE_S
            return False

    def _deliver_due(self, level: int) -> bool:
        """Delivers what is due of a level; True when there may be more that is."""
        offset = self._next.get(level, self.offsets.get(level, 0))
        queue = self._store.lookup.existing_queue(SCHEDULE_TOPIC, level - 1)
        if queue is None or offset == queue.max_offset:
            return False
        if not queue.min_offset <= offset < queue.max_offset:
            corrected = queue.min_offset if offset < queue.min_offset else queue.max_offset
            log.error("delay level %d: offset %d corrected to %d", level, offset, corrected)
            self._next.pop(level, None)
            self._unsafe.pop(level, None)
            self.offsets[level] = corrected
            return True
        if len(self._unsafe.get(level, ())) >= UNSAFE_MAX and not self._settle_what_is_acknowledged(level):
            return False
        delivered = 0
        failed = False
        for physical_offset, size, tags_code in queue.units(offset, ROUND_MAX):
            now_ms = _now_ms()
            # A delivery time further away than the level's delay is a mistake (a clock that was set): deliver
            # now.
            if now_ms < tags_code <= now_ms + self.delays_ms[level - 1]:
                break
            message = self._message_at(level, offset, physical_offset, size)
            if message is not None and not self._deliver(level, message):
                self._paused_until[level] = asyncio.get_running_loop().time() + ROUND_S
                failed = True
                break
            offset += 1
            delivered += 1
        if delivered:
            self._updates += delivered
            self._next[level] = offset
            self._unsafe.setdefault(level, deque()).append((offset, self._delivered_end))
            self._settle_level(level, self._writer.safe_end())
        return delivered == ROUND_MAX and not failed

    def _message_at(self, level: int, offset: int, physical_offset: int, size: int) -> InnerMessage | None:
        """The delayed message, as it is to be delivered. None for one that is not delivered: its record has
        expired or is damaged (a retry would find it damaged again, and the messages behind it would wait), or
        it is a half message."""
        record = self._store.read(physical_offset, size)
        if record is None:
            return None
        try:
            message = restore_message(records.decode_record(record))
        except (RemoteProtocolError, KeyError, ValueError) as error:
            log.error(
                "delay level %d skips the damaged message %d: %d bytes at %d of the log (%s: %s). Audit the "
                "directory; other replicas may have the message",
                level,
                offset,
                size,
                physical_offset,
                type(error).__name__,
                error,
            )
            return None
        if message.topic == HALF_TOPIC:
            log.error("a delayed half message is discarded: offset %d", physical_offset)
            return None
        return message

    def _deliver(self, level: int, message: InnerMessage) -> bool:
        """Puts a message where it wanted to go; False when it could not be stored."""
        stored = self._writer.put(message)
        if stored.status is not PutStatus.PUT_OK:
            log.warning("delay level %d: not delivered, %s", level, stored.status.value)
            return False
        self._delivered_end = stored.end
        self._count(level, stored)
        return True

    def _count(self, level: int, stored: PutResult) -> None:
        traffic = self._stats.put_traffic(stored.topic, stored.queue_id)
        traffic.messages += 1
        traffic.bytes += stored.size
        traffic.requests += 1
        if self._live.current.enable_schedule_message_stats:
            key = f"{SCHEDULE_TOPIC}@{SCHEDULE_GROUP}"
            self._stats.add(GROUP_GET_NUMS, key)
            self._stats.add(GROUP_GET_SIZE, key, stored.size)

    # Which deliveries are safe

    def _settle(self) -> None:
        """Moves offsets behind what has become safe."""
        if self._unsafe:
            safe_end = self._writer.safe_end()
            for level in list(self._unsafe):
                self._settle_level(level, safe_end)

    def _settle_level(self, level: int, safe_end: int) -> bool:
        """Whether the offset of the level moved."""
        unsafe = self._unsafe[level]
        offset = None
        while unsafe and unsafe[0][1] <= safe_end:
            offset, _ = unsafe.popleft()
        if not unsafe:
            del self._unsafe[level]
            self._next.pop(level, None)
        if offset is None:
            return False
        self.offsets[level] = offset
        step = self._live.current.delay_offset_update_version_step
        if self._updates // step != self._versioned // step:
            self.data_version = self.data_version.next(_now_ms())
        self._versioned = self._updates
        return True

    def _settle_what_is_acknowledged(self, level: int) -> bool:
        """Where masters acknowledge what some replicas lack, a replica that lags does not stop deliveries."""
        return self._settle_level(level, self._writer.safe_end(acknowledged=True))

    def _forget_unsafe(self) -> None:
        """What was delivered and is not known to be safe is delivered again."""
        self._unsafe.clear()
        self._next.clear()
        self._delivered_end = 0


def restore_message(delayed: MessageExt) -> InnerMessage:
    """The message a delayed record holds, on its way to its own topic
    (ScheduleMessageService.messageTimeUp)."""
    properties = records.parse_properties(delayed.properties)
    rendered = records.format_properties(properties)
    topic, queue_id = properties["REAL_TOPIC"], int(properties["REAL_QID"])
    for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC"):
        properties.pop(name, None)
    properties["WAIT"] = "false"
    return InnerMessage(
        topic=topic,
        queue_id=queue_id,
        body=delayed.body,
        properties=properties,
        rendered=rendered,
        flag=delayed.flag,
        sys_flag=delayed.sys_flag,
        born_timestamp=delayed.born_timestamp,
        born_host=delayed.born_host,
        store_host=delayed.store_host,
        reconsume_times=delayed.reconsume_times,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
