"""Checks the half queues every transactionCheckInterval while this broker is the master (RocketMQ's
TransactionalMessageCheckService)."""

from __future__ import annotations

import asyncio
import logging

from epochmq_broker.services.safe_progress import SafeProgress
from epochmq_broker.services.service_context import ServiceContext
from epochmq_broker.services.transactions import half_messages
from epochmq_broker.services.transactions.check_round import CheckRound, CheckSettings
from epochmq_broker.services.transactions.half_queue import MayPublish, StoredHalfQueue
from epochmq_broker.services.transactions.op_writer import OpMessageWriter
from epochmq_broker.services.transactions.transaction_metrics import TransactionMetrics
from epochmq_broker.writing.escape.message_sink import MessageSink

log = logging.getLogger(__name__)

SAFE_POLL_S = 0.1
"""How often offsets that are not safe yet are examined."""
UNSAFE_MAX = 64
"""Rounds of one half queue whose offsets may wait. Further rounds replace the last one."""


class TransactionalMessageCheckService:
    """The checks of one broker."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        sink: MessageSink,
        metrics: TransactionMetrics,
        ops: OpMessageWriter,
        may_publish: MayPublish,
    ) -> None:
        self.rounds = 0
        """Rounds since the start."""
        self.checked = 0
        """Half messages whose producer was asked, since the start."""
        self.discarded = 0
        """Half messages that were moved to the discard topic, since the start."""
        self.unreachable = 0
        """Checks that found no connection to the producer group, since the start."""
        self._context = context
        self._sink = sink
        self._metrics = metrics
        self._offsets = context.tables.offsets
        self._ops = ops
        self._may_publish = may_publish
        self._progress: dict[int, SafeProgress[tuple[int, int]]] = {}
        """Half queue → the offsets (half message, op message) before which everything is checked."""
        self._task: asyncio.Task[None] | None = None
        self._current: tuple[int, CheckRound] | None = None

    @property
    def ahead(self) -> int:
        """Half messages that the checks have not passed yet, ended ones included."""
        topic = half_messages.HALF_TOPIC
        found = 0
        for queue in self._context.store.queues.of_topic(topic):
            offset = self._offsets.query(half_messages.TRANSACTION_GROUP, topic, queue.queue_id)
            found += queue.max_offset - max(offset or 0, queue.min_offset)
        return max(found, 0)

    def start(self) -> None:
        """Starts the checks; needs a running loop."""
        self._progress.clear()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="check half messages")

    def stop(self) -> None:
        """Stops the checks, and stores the offsets that are safe."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._end_round()
        self._store_safe_offsets()
        self._progress.clear()

    async def _run(self) -> None:
        while True:
            try:
                await self._wait(self._context.live.current.transaction_check_interval / 1000)
                await self.check()
            except Exception:  # the next round must come
                log.exception("the check of half messages failed; the next one follows")
                await asyncio.sleep(SAFE_POLL_S)

    async def _wait(self, seconds: float) -> None:
        """Waits, and stores offsets when they become safe."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + seconds
        while (left_s := until_s - loop.time()) > 0:
            waits_for_safety = self._waits_for_safety
            await asyncio.sleep(min(left_s, SAFE_POLL_S) if waits_for_safety else left_s)
            self._store_safe_offsets()

    async def check(self) -> None:
        """Checks every half queue once."""
        topic = self._context.tables.topics.create_in_send_back(half_messages.HALF_TOPIC, 1)
        for queue_id in range(topic.read_queue_nums):
            await self._check_queue(queue_id)
        self.rounds += 1

    async def _check_queue(self, queue_id: int) -> None:
        self._ops.flush()
        config = self._context.live.current
        half_offset, op_offset = self._start_offsets(queue_id)
        queue = StoredHalfQueue(
            self._context,
            sink=self._sink,
            metrics=self._metrics,
            ops=self._ops,
            queue_id=queue_id,
            may_publish=self._may_publish,
        )
        settings = CheckSettings(
            config.transaction_time_out, config.transaction_check_max, config.file_reserved_time
        )
        ended = self._ops.ended_of(queue_id)
        check_round = CheckRound(
            queue=queue, half_offset=half_offset, op_offset=op_offset, settings=settings, ended=ended
        )
        self._current = (queue_id, check_round)
        try:
            await check_round.run()
            self._ops.flush()
        finally:
            self.unreachable += queue.unreachable
            if self._current is not None and self._current[1] is check_round:
                self._end_round()

    def _start_offsets(self, queue_id: int) -> tuple[int, int]:
        progress = self._progress.get(queue_id)
        if progress is not None and progress.unsafe:
            return progress.reached
        return (
            self._stored_offset(half_messages.HALF_TOPIC, queue_id),
            self._stored_offset(half_messages.OP_TOPIC, queue_id),
        )

    def _stored_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the group of the checks; without one, that of the first message of the queue."""
        offset = self._offsets.query(half_messages.TRANSACTION_GROUP, topic, queue_id)
        if offset is not None and offset >= 0:
            return offset
        queue = self._context.store.lookup.existing_queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def _end_round(self) -> None:
        """Records how far the present round has come, also if it was interrupted."""
        if self._current is None:
            return
        queue_id, found = self._current
        self._current = None
        self.checked += found.checked
        self.discarded += found.discarded
        reached = found.half_offset, found.op_offset
        if reached != self._start_offsets(queue_id):
            progress = self._progress.setdefault(queue_id, SafeProgress(reached, UNSAFE_MAX))
            progress.advance(reached, self._sink.end)
            self._store_safe_offsets()

    @property
    def _waits_for_safety(self) -> bool:
        return any(progress.unsafe for progress in self._progress.values())

    def _store_safe_offsets(self) -> None:
        """Moves the stored offsets as far as the log is safe."""
        if not self._waits_for_safety:
            return
        safe_end = self._sink.safe_end()
        for queue_id, progress in self._progress.items():
            if not progress.settle(safe_end):
                continue
            topics = half_messages.HALF_TOPIC, half_messages.OP_TOPIC
            for topic, offset in zip(topics, progress.safe, strict=True):
                self._offsets.commit(half_messages.TRANSACTION_GROUP, topic, queue_id, offset)
