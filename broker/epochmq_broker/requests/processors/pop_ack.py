"""Serves ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME (RocketMQ's AckMessageProcessor and
ChangeInvisibleTimeProcessor).

An acknowledgement is a record in the revive topic, or a bit in memory while its checkpoint is there. The
consumer of an orderly POP acknowledges by the group's offset instead. A changed time is a new checkpoint for
the message, and an acknowledgement of the former one.

The response waits until the record is as safe as a sent message. As in RocketMQ, an acknowledgement that
could not be stored is answered with SUCCESS; the message is handed out again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.pop_checks import (
    DEFAULT_REMARK,
    check_topic,
    illegal_queue,
    reject_pop_on_slave,
    with_header_on_errors,
)
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.services.pop.checkpoints import AckMsg, PopCheckPoint
from epochmq_broker.services.pop.extra_info import (
    ORDER_REVIVE_QUEUE,
    ExtraInfo,
    parse_extra_info,
    topic_of_retry_flag,
)
from epochmq_broker.services.pop.order_info import ILLEGAL
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.tables.stats import (
    BROKER_ACK_NUMS,
    BROKER_CK_NUMS,
    GROUP_ACK_NUMS,
    GROUP_CK_NUMS,
)
from epochmq_broker.writing.inner_message import PutResult
from epochmq_protocol.bodies import BatchAck, BatchAckMessageRequestBody
from epochmq_protocol.bodies_in_turns import decode_steps
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import STEPS_MIN, Turns, in_turns
from epochmq_store.statuses import PutStatus

log = logging.getLogger(__name__)

BATCHES_MAX = 4096
"""Batches of one request; RocketMQ's proxy sends one for each checkpoint."""
OFFSETS_MAX = 1024
"""Acknowledged messages of one batch. A checkpoint lists 32 at most."""


NO_CHANGE = ChangeInvisibleTimeResponseHeader(pop_time=0, invisible_time=0, revive_qid=0)
"""The fields of a response to a request that changed nothing."""


class PopAckProcessor:
    """Serves the acknowledgements of one broker."""

    def __init__(self, context: ProcessorContext, *, pop: PopService) -> None:
        self._live = context.live
        self._store = context.store
        self._topics = context.tables.topics
        self._offsets = context.tables.offsets
        self._stats = context.tables.stats
        self._pop = pop

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.ACK_MESSAGE: self.ack,
            RequestCode.BATCH_ACK_MESSAGE: self.ack_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: with_header_on_errors(
                self.change_invisible_time, NO_CHANGE
            ),
        }

    # acknowledgements

    def ack(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Acknowledges one message."""
        self._check_service(connection, command)
        header = AckMessageRequestHeader.decode(command.ext)
        first, end = self._check(header, connection.remote)
        if not first <= header.offset <= end:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
                f"store:{first}~{end}",
            )
        info = parse_extra_info(header.extra_info)
        if info.is_order:
            remark = self._ack_orderly(
                header.topic,
                header.consumer_group,
                header.queue_id,
                header.offset,
                info.pop_time,
                info.invisible_time,
                connection.remote,
            )
            code = ResponseCode.SUCCESS if remark is None else ResponseCode.MESSAGE_ILLEGAL
            return response(command, code, remark)
        ack = AckMsg(
            ack_offset=header.offset,
            start_offset=info.start_offset,
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            pop_time=info.pop_time,
            broker_name=info.broker_name,
        )
        end = self._store_ack(ack, info.revive_queue_id, info.revive_time)
        return self._respond_when_safe(connection, command, end)

    def ack_batch(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command | None] | None:
        """Acknowledges messages of several POPs."""
        return in_turns(self._ack_batch(connection, command, Turns()))

    async def _ack_batch(
        self, connection: RemotingConnection, command: Command, turns: Turns
    ) -> Command | None:
        self._check_service(connection, command)
        body = None
        if command.body:
            body = await turns.run(decode_steps(BatchAckMessageRequestBody, command.body))
        if body is None or not body.acks:
            return response(command, ResponseCode.NO_MESSAGE)
        if len(body.acks) > BATCHES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"acks: {len(body.acks)} entries, expected at most {BATCHES_MAX}"
            )
        code, remark, end = ResponseCode.SUCCESS, None, 0
        for batch in body.acks:
            await turns.pause(STEPS_MIN // 2)  # it is stored
            illegal, batch_end = self._ack_one_batch(batch, body.broker_name, connection.remote)
            end = max(end, batch_end)
            if illegal is not None:
                code, remark = ResponseCode.MESSAGE_ILLEGAL, illegal
        if connection.closed:
            return None  # since an earlier turn
        return self._respond_when_safe(connection, command, end, code, remark)

    def _ack_one_batch(self, batch: BatchAck, broker_name: str | None, remote: str) -> tuple[str | None, int]:
        """Returns the remark about an illegal offset, and the end of the log behind what was stored."""
        topic = topic_of_retry_flag(batch.topic, batch.consumer_group, batch.retry)
        queue = self._store.lookup.existing_queue(topic, batch.queue_id)
        if queue is None:
            log.warning("acknowledgements for %s-%d are ignored: no such queue", topic, batch.queue_id)
            return None, 0
        if len(batch.bit_set) * 8 > OFFSETS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"bitSet: {len(batch.bit_set) * 8} bits, expected at most {OFFSETS_MAX}",
            )
        first, end = self._pop.compacted.min_offset(queue), self._store.max_offset(queue)
        offsets = [offset for offset in batch.offsets() if first <= offset <= end]
        if batch.revive_queue_id == ORDER_REVIVE_QUEUE:
            remark = None
            for offset in offsets:
                illegal = self._ack_orderly(
                    topic,
                    batch.consumer_group,
                    batch.queue_id,
                    offset,
                    batch.pop_time,
                    batch.invisible_time,
                    remote,
                )
                remark = illegal or remark
            return remark, 0
        if not offsets:
            return None, 0
        ack = AckMsg(
            ack_offset=-1,
            start_offset=batch.start_offset,
            group=batch.consumer_group,
            topic=topic,
            queue_id=batch.queue_id,
            pop_time=batch.pop_time,
            broker_name=broker_name,
            ack_offsets=offsets,
        )
        return None, self._store_ack(ack, batch.revive_queue_id, batch.pop_time + batch.invisible_time)

    def _store_ack(self, ack: AckMsg, revive_queue_id: int, revive_time: int) -> int:
        """Keeps or stores an acknowledgement. Returns the end of the log behind it, 0 if it is in memory."""
        self._check_revive_queue(revive_queue_id)
        count = len(ack.offsets)
        self._stats.add(BROKER_ACK_NUMS, self._stats.cluster, count)
        self._stats.add(GROUP_ACK_NUMS, f"{ack.topic}@{ack.group}", count)
        end = 0
        if not self._pop.acknowledge_buffered(ack):
            stored = self._pop.revive_log.put_ack(ack, revive_queue_id, revive_time)
            if stored.status is not PutStatus.PUT_OK:
                log.error("an acknowledgement could not be stored: %s", stored.status.value)
            end = stored.end if stored.ok else 0
        self._pop.in_flight.remove(ack.topic, ack.group, ack.queue_id, ack.pop_time, count)
        return end

    def _ack_orderly(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        pop_time: int,
        invisible_time: int,
        remote: str,
    ) -> str | None:
        """Acknowledges a message of an orderly POP. Returns the remark about an illegal offset."""
        committed = self._offsets.query(group, topic, queue_id)
        if offset < (-1 if committed is None else committed):
            return None
        following = self._pop.orders.commit_and_next(topic, group, queue_id, offset, pop_time)
        if following == ILLEGAL:
            return (
                f"offset is illegal, key:{topic}@{group}@{queue_id}, "
                f"old:{-1 if committed is None else committed}, "
                f"commit:{offset}, next:{following}, {remote}"
            )
        if following >= 0:
            if not self._offsets.has_pending_reset(group, topic, queue_id):
                self._offsets.commit(group, topic, queue_id, following)
            if not self._pop.orders.blocks(None, topic, group, queue_id, invisible_time):
                self._pop.notify_free(topic, group, queue_id)
        self._pop.in_flight.remove(topic, group, queue_id, pop_time, 1)
        return None

    # invisible time

    def change_invisible_time(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Changes when a received message becomes visible again."""
        self._check_service(connection, command)
        header = ChangeInvisibleTimeRequestHeader.decode(command.ext)
        first, end = self._check(header, connection.remote)
        if not first <= header.offset < end:
            return response(command, ResponseCode.NO_MESSAGE, DEFAULT_REMARK, NO_CHANGE)
        info = parse_extra_info(header.extra_info)
        if info.is_order:
            changed = self._change_orderly(header, info)
            return response(command, ResponseCode.SUCCESS, DEFAULT_REMARK, changed)
        self._check_revive_queue(info.revive_queue_id)
        stored, answer = self._store_again(header, info)
        if not stored.ok:
            log.error("a checkpoint with a changed time could not be stored: %s", stored.status.value)
            return response(command, ResponseCode.SYSTEM_ERROR, DEFAULT_REMARK, NO_CHANGE)
        ack = AckMsg(
            ack_offset=header.offset,
            start_offset=info.start_offset,
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            pop_time=info.pop_time,
            broker_name=info.broker_name,
        )
        end = max(stored.end, self._store_former_ack(ack, info))
        return self._respond_when_safe(connection, command, end, remark=DEFAULT_REMARK, header=answer)

    def _store_again(
        self, header: ChangeInvisibleTimeRequestHeader, info: ExtraInfo
    ) -> tuple[PutResult, ChangeInvisibleTimeResponseHeader]:
        """Stores the message's new checkpoint."""
        checkpoint = PopCheckPoint(
            count=1,
            pop_time=now_ms(),
            invisible_time=header.invisible_time,
            start_offset=header.offset,
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            diffs=[0],
            broker_name=info.broker_name,
        )
        stored = self._pop.revive_log.put_checkpoint(checkpoint, info.revive_queue_id)
        if stored.ok:
            self._stats.add(BROKER_CK_NUMS, self._stats.cluster)
            self._stats.add(GROUP_CK_NUMS, f"{header.topic}@{header.consumer_group}")
        return stored, ChangeInvisibleTimeResponseHeader(
            pop_time=checkpoint.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=info.revive_queue_id,
        )

    def _store_former_ack(self, ack: AckMsg, info: ExtraInfo) -> int:
        self._stats.add(BROKER_ACK_NUMS, self._stats.cluster)
        self._stats.add(GROUP_ACK_NUMS, f"{ack.topic}@{ack.group}")
        if self._pop.acknowledge_buffered(ack):
            return 0
        stored = self._pop.revive_log.put_ack(ack, info.revive_queue_id, info.revive_time)
        if not stored.ok:
            log.error("an acknowledgement could not be stored: %s", stored.status.value)
        return stored.end if stored.ok else 0

    def _change_orderly(
        self, header: ChangeInvisibleTimeRequestHeader, info: ExtraInfo
    ) -> ChangeInvisibleTimeResponseHeader:
        """Changes the time of a message of an orderly POP; one that was acknowledged is ignored."""
        topic, group, queue_id = header.topic, header.consumer_group, header.queue_id
        committed = self._offsets.query(group, topic, queue_id)
        if header.offset < (-1 if committed is None else committed):
            return NO_CHANGE
        visible_ms = now_ms() + header.invisible_time
        self._pop.orders.set_next_visible(topic, group, queue_id, header.offset, info.pop_time, visible_ms)
        return ChangeInvisibleTimeResponseHeader(
            pop_time=info.pop_time,
            invisible_time=visible_ms - info.pop_time,
            revive_qid=info.revive_queue_id,
        )

    # checks and responses

    def _check_service(self, connection: RemotingConnection, command: Command) -> None:
        """Rejects a request on a slave, and one whose response could not wait until the log is safe."""
        reject_pop_on_slave(self._live.standing.capabilities, self._pop.sink)
        if self._pop.sink.sends_wait and not command.is_oneway and not connection.can_defer:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)

    def _check(
        self, header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader, remote: str
    ) -> tuple[int, int]:
        """Checks topic and queue. Returns the queue's first offset, and the one behind its last message."""
        topic = check_topic(self._topics, header.topic)
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, illegal_queue(header, topic, remote))
        queue = self._store.lookup.existing_queue(header.topic, header.queue_id)
        if queue is None:
            return 0, 0
        return self._pop.compacted.min_offset(queue), self._store.max_offset(queue)

    def _check_revive_queue(self, queue_id: int) -> None:
        """Rejects a number of a revive queue that this broker never gave out. RocketMQ creates any queue."""
        count = self._live.current.revive_queue_num
        if 0 <= queue_id < count:
            return
        if self._store.lookup.existing_queue(self._pop.revive_log.topic, queue_id) is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"reviveQid={queue_id}: expected 0 to {count - 1}, or 999"
            )

    def _respond_when_safe(
        self,
        connection: RemotingConnection,
        command: Command,
        end: int,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
        header: ChangeInvisibleTimeResponseHeader | None = None,
    ) -> Command | None:
        """Responds once the log is safe up to `end`, whether or not that succeeds."""
        answer = response(command, code, remark, header=header)
        if not end or not self._pop.sink.sends_wait or command.is_oneway:
            return answer
        connection.defer(command.opaque, command.code)
        respond: Callable[[PutStatus], None] = lambda _status: connection.respond(answer)  # noqa: E731
        self._pop.sink.when_safe(end, respond)
        return None
