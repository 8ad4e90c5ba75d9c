"""Hands out messages again that were popped and not acknowledged in time (RocketMQ's PopReviveService).

The master reads the revive topic, queue by queue, and stores the unacknowledged messages in the retry topic
of their topic and group. `revive_rules` decides which. Every `reviveInterval` all queues take turns. A round
ends after `ROUND_BUDGET_S`, so that a long backlog does not block other clients; reads that need the disk go
to worker threads, and the queue continues when they are done.

The offset of a queue advances past a checkpoint only when the revived messages are as safe as an acknowledged
message. A message that cannot be stored is tried again in the next round. So after a failover or a kill,
messages are revived twice at worst.

A checkpoint of another group's acting master is revived here; its messages are read from that group."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.compaction.compacted_reads import CompactedReads
from epochmq_broker.services.pop.checkpoints import (
    RETRY_QUEUES,
    REVIVE_GROUP,
    PopCheckPoint,
    decode_ack,
    decode_checkpoint,
)
from epochmq_broker.services.pop.extra_info import topic_without_retry
from epochmq_broker.services.pop.in_flight import InFlightCounter
from epochmq_broker.services.pop.remote_originals import RemoteOriginals
from epochmq_broker.services.pop.revive_log import ACK, CHECKPOINT, ReviveLog
from epochmq_broker.services.pop.revive_rules import ReviveQueue, re_put, retry_message
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.tables.metric_tables import CounterTable
from epochmq_broker.tables.topics import topic_config
from epochmq_broker.writing.escape.message_sink import MessageSink
from epochmq_broker.writing.escape.remote_messages import RemoteMessageReader
from epochmq_broker.writing.inner_message import PutResult
from epochmq_broker.writing.message_writer import RETRY_TOPIC_BYTES_MAX
from epochmq_broker.writing.quarantine import (
    NEVER_STORED,
    Origin,
    QuarantiningService,
    concerns_record,
)
from epochmq_protocol import message as records
from epochmq_protocol import record_layout
from epochmq_protocol.errors import RemoteProtocolError, RequestError
from epochmq_protocol.message import MessageExt
from epochmq_protocol.message_const import PROPERTY_TAGS, PROPERTY_TIMER_DELIVER_MS
from epochmq_protocol.pop_records import ACK_TAG, BATCH_ACK_TAG, CK_TAG
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.statuses import GetStatus, PutStatus

log = logging.getLogger(__name__)

ROUND_BUDGET_S = 0.004
"""How long one round may block the event loop; the rest continues in the next iteration."""
READ_MAX = 32
"""Records of the revive topic that one read returns."""
COLD_READS_MAX = 3
"""After so many reads from the disk for one record, the event loop waits for the disk."""


class _BlockedError(Exception):
    """The queue cannot continue in this round."""


class _NotReadError(Exception):
    """The queue waits for messages of another group."""


class PopReviveService:
    """The revive queues of one broker."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        sink_of_queue: Callable[[int], MessageSink],
        revive_log: ReviveLog,
        in_flight: InFlightCounter,
        remote: RemoteMessageReader,
        compacted: CompactedReads,
        timer_is_behind: Callable[[], bool],
    ) -> None:
        """`sink_of_queue`: revive queue → where its messages go that are handed out again. `timer_is_behind`
        returns whether the timer still holds records back that are due."""
        self.revived = 0
        """Messages that were handed out again since the start."""
        self.records = CounterTable("consumer_group", "topic", "queue_id", "revive_message_type")
        """Records that were read (PopMetricsManager.incPopReviveGetCount)."""
        self.retries = CounterTable("consumer_group", "topic", "put_status")
        """Messages that were stored in a retry topic, or could not be."""
        self._timer_is_behind = timer_is_behind
        self._live = context.live
        self._store = context.store
        self._sink_of_queue = sink_of_queue
        self._sinks: list[MessageSink] = []
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._stats = context.tables.stats
        self._cold_reads = context.cold_reads
        self._revive_log = revive_log
        self._in_flight = in_flight
        self._quarantine = context.quarantine
        self._host = context.store_host
        self._remote = RemoteOriginals(remote)
        self._compacted = compacted
        self._queues: list[ReviveQueue] = []
        self._reading: set[int] = set()  # queues that wait for the disk
        self._cold_tries: dict[int, int] = {}
        self._next_queue = 0
        self._timer: asyncio.TimerHandle | None = None
        self._incarnation = 0  # a read that ends after a stop must not continue the queue

    @property
    def pending_checkpoints(self) -> int:
        """Checkpoints that are read and not settled."""
        return sum(queue.pending for queue in self._queues)

    def behind(self) -> list[tuple[int, int]]:
        """(records from the committed one on, time in ms since the messages of the first pending checkpoint
        should have been visible) of each revive queue, as getReviveBehindMessages and getReviveBehindMillis
        compute them."""
        lags, topic = [], self._revive_log.topic
        for queue_id, queue in enumerate(self._queues):
            stored = self._store.lookup.existing_queue(topic, queue_id)
            behind = (0 if stored is None else stored.max_offset) - queue.offset
            first = queue.first_pending
            age_ms = 0 if first is None or behind <= 1 else now_ms() - first.revive_time
            lags.append((max(0, behind), max(0, age_ms)))
        return lags

    def start(self) -> None:
        """Starts reviving; needs a running loop. Continues at the committed offsets."""
        config = self._live.current
        new = range(len(self._sinks), config.revive_queue_num)
        self._sinks += [self._sink_of_queue(queue_id) for queue_id in new]
        self._queues = [
            ReviveQueue(self._committed(queue_id), config.broker_name)
            for queue_id in range(config.revive_queue_num)
        ]
        self._timer = asyncio.get_running_loop().call_later(config.revive_interval / 1000, self._round)

    def _committed(self, queue_id: int) -> int:
        """The offset of the last settled checkpoint, -1 without one; at most that of the last record."""
        topic = self._revive_log.topic
        offset = self._offsets.query(REVIVE_GROUP, topic, queue_id)
        queue = self._store.lookup.existing_queue(topic, queue_id)
        return -1 if offset is None or queue is None else min(offset, queue.max_offset - 1)

    def stop(self) -> None:
        """Stops reviving, and commits the offsets that are safe."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for queue_id, queue in enumerate(self._queues):
            self._advance(queue_id, queue)
        self._incarnation += 1
        self._remote.stop()
        self._queues = []
        self._reading.clear()
        self._cold_tries.clear()

    # rounds

    def _round(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROUND_BUDGET_S
        more = False
        count = len(self._queues) if self._live.current.timer_wheel_enable else 0
        try:
            for turn in range(count):
                queue_id = (self._next_queue + turn) % count
                if queue_id in self._reading:
                    continue
                more |= self._take_turn(queue_id, deadline)
                if loop.time() > deadline:
                    self._next_queue = (queue_id + 1) % count
                    more = True
                    break
        finally:
            period_s = self._live.current.revive_interval / 1000
            self._timer = loop.call_later(0 if more else period_s, self._round)

    def _take_turn(self, queue_id: int, deadline: float) -> bool:
        """Reads and revives until the time is over. Returns whether there is more to do."""
        loop = asyncio.get_running_loop()
        queue = self._queues[queue_id]
        try:
            self._advance(queue_id, queue)
            while True:
                progress = self._read_some(queue_id, queue)
                progress |= self._revive_settled(queue_id, queue)
                if not progress:
                    return False
                if loop.time() > deadline:
                    return True
        except NotResidentError as missing:
            self._read_from_disk(queue_id, missing)
        except _NotReadError:
            self._read_remotely(queue_id, queue)
        except _BlockedError as why:
            log.warning("revive queue %d cannot continue now: %s", queue_id, why)
        except Exception:  # the other queues must go on, and this one in the next round
            log.exception("revive queue %d failed; it continues in the next round", queue_id)
        finally:
            self._advance(queue_id, queue)
        return False

    def _read_from_disk(self, queue_id: int, missing: NotResidentError) -> None:
        self._cold_tries[queue_id] = self._cold_tries.get(queue_id, 0) + 1
        incarnation = self._incarnation

        def done(error: Exception | None) -> None:
            if incarnation == self._incarnation:
                self._reading.discard(queue_id)

        try:
            self._cold_reads.submit(self, missing, done)
        except RequestError as error:
            log.warning("revive queue %d waits for a read from the disk: %s", queue_id, error)
            return
        self._reading.add(queue_id)

    def _read_remotely(self, queue_id: int, queue: ReviveQueue) -> None:
        checkpoint = queue.settled()
        assert checkpoint is not None

        def done() -> None:
            self._reading.discard(queue_id)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(0, self._round)

        self._reading.add(queue_id)
        self._remote.read(queue_id, checkpoint, done)

    # reading the revive topic

    def _read_some(self, queue_id: int, queue: ReviveQueue) -> bool:
        """Reads the next records. Returns whether there were any."""
        if queue.is_full:
            return False
        files = self._store.lookup.existing_queue(self._revive_log.topic, queue_id)
        if files is None:
            return False
        cold = self._cold_tries.get(queue_id, 0) >= COLD_READS_MAX
        get = self._store.get if cold else self._store.reader.get_resident
        offset = queue.next_offset
        result = get(files, offset, READ_MAX)
        if result.status is GetStatus.FOUND:
            self._cold_tries.pop(queue_id, None)
            self._take_all(queue_id, queue, result.body)
            traffic = self._stats.get_traffic(REVIVE_GROUP, self._revive_log.topic, queue_id)
            traffic.messages += result.count
            traffic.bytes += result.size
            traffic.requests += 1
            queue.next_offset = result.next_offset
            return True
        if result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE):
            queue.reached_end(now_ms(), timer_is_behind=self._timer_is_behind())
            return False
        log.error(
            "revive queue %d has no record at offset %d (%s); it continues at %d",
            queue_id,
            offset,
            result.status.value,
            result.next_offset,
        )
        queue.move_to(result.next_offset)
        return queue.next_offset != offset

    def _take_all(self, queue_id: int, queue: ReviveQueue, body: bytes) -> None:
        """Takes consecutive records. Sets those aside that are damaged."""
        at = 0
        while at < len(body):
            size = record_layout.INT.unpack_from(body, at)[0]
            if not 0 < size <= len(body) - at:
                size = len(body) - at
            try:
                record = records.decode_record(body, at)
            except Exception as error:
                self._set_aside(queue_id, queue.next_offset, body[at : at + size], error)
                queue.read_other(queue.next_offset, 0)
            else:
                self._take(queue_id, queue, record.queue_offset, record)
            at += size

    def _set_aside(
        self, queue_id: int, offset: int, record: MessageExt | bytes | None, reason: object
    ) -> int:
        """Sets a record of the revive topic aside. Raises `reason` if it is an error for which the record is
        not to blame. Returns the end of the copy in the log."""
        if isinstance(reason, Exception) and not concerns_record(reason):
            raise reason
        origin = Origin(self._revive_log.topic, queue_id, offset)
        return self._quarantine.set_aside(QuarantiningService.POP, origin, record, reason)

    def _take(self, queue_id: int, queue: ReviveQueue, offset: int, record: MessageExt) -> None:
        properties = records.parse_properties(record.properties)
        tag = properties.get(PROPERTY_TAGS)
        try:
            deliver_ms = int(properties.get(PROPERTY_TIMER_DELIVER_MS, 0))
        except ValueError:
            deliver_ms = 0
        try:
            if tag == CK_TAG:
                checkpoint = decode_checkpoint(record.body)
                if checkpoint is not None:
                    self.records.add(
                        checkpoint.group or "", checkpoint.topic or "", str(queue_id), CHECKPOINT
                    )
                    queue.read_checkpoint(checkpoint, offset, deliver_ms)
                    return
            elif tag in (ACK_TAG, BATCH_ACK_TAG):
                config = self._live.current
                skip_ms = config.revive_ack_wait_ms if config.enable_skip_long_awaiting_ack else None
                ack = decode_ack(record.body)
                self.records.add(ack.group, ack.topic, str(queue_id), ACK)
                queue.read_ack(ack, offset, deliver_ms, now_ms=now_ms(), skip_after_ms=skip_ms)
                return
        except Exception as error:
            self._set_aside(queue_id, offset, record, error)
        queue.read_other(offset, deliver_ms)

    # reviving

    def _revive_settled(self, queue_id: int, queue: ReviveQueue) -> bool:
        """Revives the oldest settled checkpoint. Returns whether there was one."""
        checkpoint = queue.settled()
        if checkpoint is None:
            return False
        if not queue.has_room and not self._advance(queue_id, queue, acknowledged=True):
            return False
        if self._is_wanted(checkpoint):
            for offset in checkpoint.unacknowledged:
                try:
                    end = self._revive(queue_id, checkpoint, offset)
                except (_BlockedError, _NotReadError):
                    raise
                except Exception as error:
                    end = self._set_aside(queue_id, checkpoint.revive_offset, checkpoint.encode(), error)
                queue.revived(offset, end)
        queue.done()
        self._remote.forget(queue_id)
        return True

    def _is_wanted(self, checkpoint: PopCheckPoint) -> bool:
        """Whether topic and group of a checkpoint still exist."""
        assert checkpoint.topic is not None
        assert checkpoint.group is not None
        if topic_without_retry(checkpoint.topic, checkpoint.group) not in self._topics:
            log.warning("a checkpoint is dropped: its topic %s does not exist", checkpoint.topic)
            return False
        if self._groups.find(checkpoint.group) is None:
            log.warning("a checkpoint is dropped: its group %s does not exist", checkpoint.group)
            return False
        return True

    def _revive(self, queue_id: int, checkpoint: PopCheckPoint, offset: int) -> int:
        """Stores one message in the retry topic. Returns its `PutResult.end`, 0 if the message does not exist
        any more. Raises _BlockedError if it cannot be stored now, and _NotReadError."""
        config = self._live.current
        if checkpoint.broker_name in (None, "", config.broker_name):
            original = self._original(queue_id, checkpoint, offset)
        else:
            remote = self._remote.find(queue_id, checkpoint, offset)
            if remote is None:
                raise _NotReadError
            if remote.retries:
                return self._put_again(queue_id, checkpoint, offset)
            original = remote.message
        if original is None:
            log.info(
                "a popped message is not revived, because the log does not have it any more: %s-%d offset %d",
                checkpoint.topic,
                checkpoint.queue_id,
                offset,
            )
            return 0
        message = retry_message(checkpoint, original, self._host, is_v2=config.enable_retry_topic_v2)
        self._create_retry_topic(message.topic, checkpoint)
        try:
            stored = self._sinks[queue_id].put(message)
        except RequestError as error:
            log.error("the message at offset %d could not be stored in %s: %s", offset, message.topic, error)
            stored = PutResult(PutStatus.MESSAGE_ILLEGAL)
        self.retries.add(checkpoint.group or "", checkpoint.topic or "", stored.status.name)
        if stored.status in NEVER_STORED:  # it must not hold up the others of its queue
            log.warning(
                "the message at offset %d of %s-%d is revived later: its copy in %s would be rejected: %s",
                offset,
                checkpoint.topic,
                checkpoint.queue_id,
                message.topic,
                stored.status.value,
            )
            return self._put_again(queue_id, checkpoint, offset)
        if stored.status is not PutStatus.PUT_OK:
            raise _BlockedError(f"a message could not be stored in {message.topic}: {stored.status.value}")
        self.revived += 1
        self._in_flight.remove(
            checkpoint.topic or "", checkpoint.group or "", checkpoint.queue_id, checkpoint.pop_time, 1
        )
        if not stored.is_remote:
            traffic = self._stats.put_traffic(stored.topic, stored.queue_id)
            traffic.messages += 1
            traffic.bytes += stored.size
            traffic.requests += 1
        return stored.end

    def _put_again(self, queue_id: int, checkpoint: PopCheckPoint, offset: int) -> int:
        """Stores a checkpoint for one message, to be revived later (PopReviveService.rePutCK)."""
        again = re_put(
            checkpoint, offset, now_ms(), skip_at_max=self._live.current.skip_when_ck_re_put_reach_max_times
        )
        if again is None:
            tries = checkpoint.times_re_put
            reason = f"offset {offset} of {checkpoint.topic} could not be revived in {tries} tries"
            return self._set_aside(queue_id, checkpoint.revive_offset, checkpoint.encode(), reason)
        stored = self._revive_log.put_checkpoint(again, queue_id, self._sinks[queue_id])
        if stored.status is not PutStatus.PUT_OK:
            raise _BlockedError(f"a checkpoint could not be stored again: {stored.status.value}")
        return stored.end

    def _original(self, queue_id: int, checkpoint: PopCheckPoint, offset: int) -> MessageExt | None:
        """The message that was popped; None if it does not exist any more."""
        assert checkpoint.topic is not None
        queue = self._store.lookup.existing_queue(checkpoint.topic, checkpoint.queue_id)
        if queue is None:
            return None
        reader = self._store.reader
        waits = self._cold_tries.get(queue_id, 0) >= COLD_READS_MAX
        try:
            with contextlib.nullcontext() if waits else reader.resident:
                unit = reader.unit(queue, offset)
                record = None if unit is None else reader.read(unit[0], unit[1])
                if record is None:
                    record = self._compacted_original(checkpoint, offset)
        except RequestError as error:
            raise _BlockedError(error) from error
        self._cold_tries.pop(queue_id, None)
        if record is None:
            return None
        try:
            return records.decode_record(record)
        except RemoteProtocolError as error:
            log.error("a popped message is damaged and not revived: %s", error)
            return None

    def _compacted_original(self, checkpoint: PopCheckPoint, offset: int) -> bytes | None:
        """A message that only the files of a compaction topic have; None if a newer one has replaced it."""
        assert checkpoint.topic is not None
        compacted = self._compacted.queue_of(checkpoint.topic, checkpoint.queue_id)
        if compacted is None:
            return None
        found = self._compacted.get(compacted, offset, 1)
        if found.status is not GetStatus.FOUND or found.next_offset != offset + 1:
            return None
        return found.body

    def _create_retry_topic(self, topic: str, checkpoint: PopCheckPoint) -> None:
        if topic in self._topics or len(topic.encode()) > RETRY_TOPIC_BYTES_MAX:
            return  # a longer name has no queue
        self._topics.create_if_absent(topic_config(topic, RETRY_QUEUES))
        assert checkpoint.group is not None
        if self._offsets.query(checkpoint.group, topic, 0) is None:
            self._offsets.commit(checkpoint.group, topic, 0, 0)

    # offsets

    def _advance(self, queue_id: int, queue: ReviveQueue, *, acknowledged: bool = False) -> bool:
        """Commits the offset of a queue as far as it is safe. Returns whether it advanced."""
        advanced = queue.advance(self._sinks[queue_id].safe_end(acknowledged=acknowledged))
        if advanced:
            self._offsets.commit(REVIVE_GROUP, self._revive_log.topic, queue_id, queue.offset)
        return advanced
