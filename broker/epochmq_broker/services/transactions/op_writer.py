"""Ends transactions: writes the op messages that name ended half messages (RocketMQ's
TransactionalOpBatchService and deletePrepareMessage).

Ends wait in memory until they fill an op message (transactionOpMsgMaxSize), or until
transactionOpBatchInterval after the last one. Before this broker gives up being the master, or stops, it
writes them all. A killed master loses those that wait; the producers are then asked again, as with RocketMQ.
"""

from __future__ import annotations

import asyncio
import logging

from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.transactions.check_round import EndedOffsets
from epochmq_broker.services.transactions.half_messages import op_message
from epochmq_broker.services.transactions.op_buffer import OpBuffer
from epochmq_broker.tables.stats import BrokerStats
from epochmq_broker.writing.inner_message import PutResult
from epochmq_broker.writing.message_writer import MessageWriter
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

RETRY_S = 1.0


class OpMessageWriter:
    """The op messages of one broker."""

    def __init__(self, context: ServiceContext, *, writer: MessageWriter) -> None:
        self.ended: dict[int, EndedOffsets] = {}
        """Half queue -> the ends that the checks know from elsewhere than op messages."""
        self._live = context.live
        self._writer = writer
        self._stats = context.tables.stats
        self._store_host = context.store_host
        self._buffers: dict[int, OpBuffer] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._running = False

    @property
    def waiting(self) -> int:
        """Ended half messages that no op message names yet."""
        return sum(len(buffer) for buffer in self._buffers.values())

    def start(self) -> None:
        """Starts writing; needs a running loop."""
        self._forget()
        self._running = True

    def stop(self) -> None:
        """Writes what waits, if this broker may still write, and forgets everything: another master may give
        the same offsets to other half messages."""
        self.flush()
        self._running = False
        self._forget()

    def ended_of(self, queue_id: int) -> EndedOffsets:
        """The ends of a half queue that this broker knows from elsewhere than op messages."""
        found = self.ended.get(queue_id)
        if found is None:
            found = self.ended[queue_id] = EndedOffsets()
        return found

    def end(self, queue_id: int, offset: int) -> None:
        """Records that the transaction of the half message at this offset of a half queue has ended; an op
        message follows."""
        self.ended_of(queue_id).served.add(offset)
        self.remove(queue_id, offset)

    def remove(self, queue_id: int, offset: int) -> None:
        """Lets an op message name a half message, which then needs no check."""
        buffer = self._buffers.get(queue_id)
        if buffer is None:
            buffer = self._buffers[queue_id] = OpBuffer(now_ms())
        buffer.add(offset)
        if buffer.size >= self._live.current.transaction_op_msg_max_size:
            self._write(queue_id, buffer)
        if self._timer is None:
            self._schedule()

    def flush(self) -> None:
        """Writes all ends that wait."""
        for queue_id, buffer in self._buffers.items():
            while len(buffer) and self._write(queue_id, buffer):
                pass

    def _write(self, queue_id: int, buffer: OpBuffer) -> bool:
        """Writes one op message. Returns whether that succeeded."""
        count, body = buffer.first(self._live.current.transaction_op_msg_max_size)
        now = now_ms()
        try:
            stored = self._writer.put(op_message(queue_id, body, self._store_host, now))
        except Exception as error:  # the ends must be written later
            log.error("%d ends of transactions could not be written yet: %s", len(buffer), error)
            return False
        if stored.status is not PutStatus.PUT_OK:
            log.warning(
                "%d ends of transactions could not be written yet: %s", len(buffer), stored.status.value
            )
            return False
        buffer.written(count, now)
        count_put(self._stats, stored)
        return True

    def _schedule(self) -> None:
        """Sets the timer to the next op message that is due."""
        if not self._running:
            return
        config, now = self._live.current, now_ms()
        due = [
            at
            for buffer in self._buffers.values()
            if (at := buffer.due_ms(config.transaction_op_batch_interval, config.transaction_op_msg_max_size))
            is not None
        ]
        if due:
            delay_s = max(0.0, (min(due) - now) / 1000)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._write_due)

    def _write_due(self) -> None:
        self._timer = None
        config, now = self._live.current, now_ms()
        failed = False
        for queue_id, buffer in self._buffers.items():
            due = buffer.due_ms(config.transaction_op_batch_interval, config.transaction_op_msg_max_size)
            if due is not None and due <= now:
                failed |= not self._write(queue_id, buffer)
        if failed:
            self._timer = asyncio.get_running_loop().call_later(RETRY_S, self._write_due)
        else:
            self._schedule()

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._buffers.clear()
        self.ended.clear()


def count_put(stats: BrokerStats, stored: PutResult) -> None:
    """Counts a stored message, as RocketMQ counts those of the half topic and the op topic."""
    traffic = stats.put_traffic(stored.topic, stored.queue_id)
    traffic.messages += 1
    traffic.bytes += stored.size
    traffic.requests += 1
