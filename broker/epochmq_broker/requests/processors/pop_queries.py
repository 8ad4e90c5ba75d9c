"""Serves the POP requests that hand out nothing: PEEK_MESSAGE, NOTIFICATION and POLLING_INFO (RocketMQ's
PeekMessageProcessor, NotificationProcessor and PollingInfoProcessor)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.held_requests import run_held, with_birth_time
from epochmq_broker.requests.processors.pop_checks import (
    DEFAULT_REMARK,
    check_broker_readable,
    check_queue_and_group,
    with_header_on_errors,
)
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.services.pop.pop_long_polling import HeldPop, Polling, PopLongPolling
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import (
    NotificationRequestHeader,
    NotificationResponseHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PollingInfoResponseHeader,
    PopMessageResponseHeader,
)
from epochmq_protocol.topics import pop_retry_topic
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.queues.consume_queue import ConsumeQueue
from epochmq_store.statuses import GetResult, GetStatus

RETRY_FIRST_ONE_IN: Final = 5
"""One request in five looks into the retry topic first."""
PEEK_MAX: Final = 32
"""RocketMQ's limit of a get from memory (maxTransferCountOnMessageInMemory)."""


class PopQueryProcessor:
    """Serves these requests. `pops` are the waiting POPs, which POLLING_INFO counts."""

    def __init__(self, context: ProcessorContext, *, pop: PopService, pops: PopLongPolling) -> None:
        live = context.live
        self.polling = PopLongPolling(
            self._rerun, lambda: live.current, pop.compacted.listen, now_ms, newest_first=True
        )
        self._live = context.live
        self._store = context.store
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._stats = context.tables.stats
        self._pop = pop
        self._pops = pops
        pop.on_free.append(self.notify)

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.PEEK_MESSAGE: with_header_on_errors(
                self.peek,
                PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0),
            ),
            RequestCode.NOTIFICATION: with_header_on_errors(self.notification, NotificationResponseHeader()),
            RequestCode.POLLING_INFO: with_header_on_errors(
                self.polling_info, PollingInfoResponseHeader(polling_num=0)
            ),
        }

    # peek

    def peek(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns messages that a POP would hand out, and hands out none."""
        header = PeekMessageRequestHeader.decode(command.ext)
        check_broker_readable(self._live.current, "peeking")
        check_queue_and_group(self._live, self._topics, self._groups, header, connection.remote)
        number = random.randrange(100)
        retry_first = number % RETRY_FIRST_ONE_IN == 0
        bodies: list[bytes] = []
        rest = count = 0
        traffic = []
        for topic, queue_id in self._queues(header, number, retry_first=retry_first):
            queue = self._store.lookup.existing_queue(topic, queue_id)
            if queue is None:
                continue
            first = self._pop.compacted.min_offset(queue)
            offset = self._next_offset(topic, header.consumer_group, queue_id, first)
            rest += self._store.max_offset(queue) - offset
            wanted = min(header.max_msg_nums, PEEK_MAX) - count
            if wanted <= 0:
                continue
            found = self._get(queue, offset, wanted)
            if found.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY):
                found = self._get(queue, found.next_offset, wanted)
            if found.status is GetStatus.FOUND:
                bodies.append(found.body)
                count += found.count
                traffic.append((topic, queue_id, found.count, found.size))
        for topic, queue_id, messages, size in traffic:
            counter = self._stats.get_traffic(header.consumer_group, topic, queue_id)
            counter.messages += messages
            counter.bytes += size
            counter.requests += 1
        answer = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
        if not bodies:
            return response(command, ResponseCode.PULL_NOT_FOUND, GetStatus.NO_MESSAGE_IN_QUEUE.value, answer)
        return response(command, ResponseCode.SUCCESS, "FOUND", answer, b"".join(bodies))

    def _get(self, queue: ConsumeQueue, offset: int, count: int) -> GetResult:
        compacted = self._pop.compacted.queue_of(queue.topic, queue.queue_id)
        if compacted is not None:
            return self._pop.compacted.get(compacted, offset, count)
        return self._store.get(queue, offset, count)

    def _queues(
        self,
        header: PeekMessageRequestHeader | NotificationRequestHeader,
        number: int,
        *,
        retry_first: bool,
    ) -> Iterator[tuple[str, int]]:
        """The queues to look into, from a random one on, the retry topics first or last."""
        retries = self._retry_topics(header)
        if retry_first:
            for retry in retries:
                yield from self._queues_of(retry, number)
        if header.queue_id < 0:
            yield from self._queues_of(header.topic, number)
        else:
            yield header.topic, header.queue_id
        if not retry_first:
            for retry in retries:
                yield from self._queues_of(retry, number)

    def _queues_of(self, name: str, number: int) -> Iterator[tuple[str, int]]:
        topic = self._topics.get(name)
        if topic is not None:
            for turn in range(topic.read_queue_nums):
                yield name, (number + turn) % topic.read_queue_nums

    def _retry_topics(self, header: PeekMessageRequestHeader | NotificationRequestHeader) -> list[str]:
        config = self._live.current
        topic, group = header.topic, header.consumer_group
        found = [pop_retry_topic(topic, group, is_v2=config.enable_retry_topic_v2)]
        if (
            isinstance(header, NotificationRequestHeader)
            and config.enable_retry_topic_v2
            and config.retrieve_message_from_pop_retry_topic_v1
        ):
            found.append(pop_retry_topic(topic, group))
        return found

    def _next_offset(self, topic: str, group: str, queue_id: int, first: int) -> int:
        """The offset at which the group's next POP continues; `first` for a group without an offset."""
        committed = self._offsets.query(group, topic, queue_id)
        offset = first if committed is None else committed
        return max(offset, self._pop.buffer.latest_offset((topic, group, queue_id)))

    # notifications

    def notification(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Responds when there is a message for the group."""
        command = with_birth_time(command)
        header = NotificationRequestHeader.decode(command.ext)
        check_broker_readable(self._live.current, "peeking")
        check_queue_and_group(self._live, self._topics, self._groups, header, connection.remote)
        number = random.randrange(100)
        retry_first = number % RETRY_FIRST_ONE_IN == 0
        has_message = any(
            self._has_message(header, topic, queue_id)
            for topic, queue_id in self._queues(header, number, retry_first=retry_first)
        )
        full = False
        if not has_message:
            polled = self._hold(connection, command, header)
            if polled is Polling.HELD:
                return None
            full = polled is Polling.FULL
        return response(
            command,
            ResponseCode.SUCCESS,
            DEFAULT_REMARK,
            NotificationResponseHeader(has_msg=has_message, polling_full=full),
        )

    def _has_message(self, header: NotificationRequestHeader, topic: str, queue_id: int) -> bool:
        group = header.consumer_group
        if header.order and self._pop.orders.blocks(header.attempt_id, header.topic, group, queue_id, 0):
            return False
        queue = self._store.lookup.existing_queue(topic, queue_id)
        if queue is None:
            return False
        first = self._pop.compacted.min_offset(queue)
        return self._store.max_offset(queue) > self._next_offset(topic, group, queue_id, first)

    def _hold(
        self, connection: RemotingConnection, command: Command, header: NotificationRequestHeader
    ) -> Polling:
        if command.is_oneway:
            return Polling.DOES_NOT_WAIT
        if not connection.can_defer:
            return Polling.FULL
        held = HeldPop(
            header.topic,
            header.consumer_group,
            header.queue_id,
            None,
            header.born_time + header.poll_time,
            connection,
            command,
            tuple(self._retry_topics(header)),
        )
        polled = self.polling.poll(held, header.poll_time)
        if polled is Polling.HELD:
            connection.defer(command.opaque, command.code, polls=True)
        return polled

    def _rerun(self, held: HeldPop) -> None:
        run_held(held.connection, held.request, self.notification, NotificationResponseHeader())

    def notify(self, topic: str, group: str, queue_id: int) -> None:
        """Wakes a waiting notification after the present iteration, because an orderly queue is free
        again."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self.polling.notify, topic, group, -1)
        loop.call_soon(self.polling.notify, topic, group, queue_id)

    # information

    def polling_info(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns how many POPs wait for a queue."""
        header = PollingInfoRequestHeader.decode(command.ext)
        check_broker_readable(self._live.current, "peeking")
        check_queue_and_group(self._live, self._topics, self._groups, header, connection.remote)
        count = self._pops.count(header.topic, header.consumer_group, header.queue_id)
        return response(
            command, ResponseCode.SUCCESS, DEFAULT_REMARK, PollingInfoResponseHeader(polling_num=count)
        )
