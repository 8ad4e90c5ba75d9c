"""Translates pulls of logical queues of static topics, and pulls what lies on another broker group
(PullMessageProcessor.rewriteRequestForStaticTopic).

The pull processor decides when: it translates a request each time that it runs, because the mapping may have
changed while the pull was held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.static_topics.pull_rules import logical_outcome
from epochmq_broker.tables.static_topics.queue_items import (
    PullOutcome,
    QueueContext,
    find_item,
    is_end_decided,
    physical_offset,
)
from epochmq_broker.tables.static_topics.remote_queues import RemoteQueues
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.fastpath import FastPullRequest
from epochmq_protocol.frame import Command, encode, response
from epochmq_protocol.headers_client import PullMessageRequestHeader, PullMessageResponseHeader
from epochmq_protocol.topics import LogicQueueMappingItem
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection

REMOTE_PULLS_MAX = 1000
NOT_FORWARDED_FLAGS = 1 | 2
"""COMMIT_OFFSET and SUSPEND: another broker neither stores the offset nor waits."""
PULLED_CODES = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

log = logging.getLogger(__name__)


class StaticPull(FastPullRequest):
    """A pull of a logical queue. Queue id, offset and count of the base are those of the physical queue; the
    logical ones are those that the client sent."""

    logical_id: int = -1
    logical_offset: int = 0
    logical_max: int = 0
    context: QueueContext | None = None
    item: LogicQueueMappingItem | None = None


class RemoteItemError(Exception):
    """The requested messages lie on another broker group."""


class StaticPulls:
    """Translates and forwards the pulls of one broker. `table` has the static topics."""

    def __init__(self, static: StaticTopicTable, remote: RemoteQueues, offsets: ConsumerOffsetTable) -> None:
        self.table = static.table
        self._static = static
        self._remote = remote
        self._offsets = offsets
        self._pulls: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Cancels the pulls that wait for other brokers."""
        for task in self._pulls:
            task.cancel()

    def logical(self, request: FastPullRequest) -> StaticPull:
        """The pull of a logical queue that a client sent."""
        return StaticPull(
            **msgspec.structs.asdict(request),
            logical_id=request.queue_id,
            logical_offset=request.queue_offset,
            logical_max=request.max_msg_nums,
        )

    def locate(self, request: StaticPull) -> None:
        """Sets the physical queue, offset and count. Raises RequestError NOT_LEADER_FOR_QUEUE, and
        RemoteItemError if another broker has the messages."""
        context = self._static.context(request.topic, request.logical_id)
        if context is None:  # the mapping was deleted while the pull was held
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist")
        item = find_item(context.items, request.logical_offset) if context.is_leader else None
        if item is None:
            raise RequestError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{request.topic}-{request.logical_id} cannot find mapping item in request process of "
                f"current broker {context.detail.bname}",
            )
        request.context, request.item = context, item
        request.queue_id = item.queue_id
        request.queue_offset = physical_offset(item, request.logical_offset)
        request.max_msg_nums = request.logical_max
        if is_end_decided(item):
            request.max_msg_nums = min(item.end_offset - item.start_offset, request.logical_max)
        if not context.is_local(item):
            raise RemoteItemError

    def outcome(self, request: StaticPull, found: PullOutcome) -> tuple[PullOutcome, int]:
        """(the outcome for the client, what it adds to the offsets of the messages)."""
        assert request.context is not None
        assert request.item is not None
        return logical_outcome(request.context, request.item, request.queue_offset, found)

    def commit(self, request: StaticPull) -> None:
        """Stores the offset that the group says it has consumed, if this broker has the message. RocketMQ
        5.3.3 stores the logical offset for the physical queue."""
        context = request.context
        item = None if context is None else find_item(context.items, request.commit_offset)
        if context is not None and item is not None and context.is_local(item):
            self._offsets.commit(
                request.consumer_group,
                request.topic,
                item.queue_id,
                physical_offset(item, request.commit_offset),
            )

    def forward(
        self,
        connection: RemotingConnection,
        request: StaticPull,
        refuse: Callable[[RequestError], bytes],
    ) -> None:
        """Pulls from the broker that has the messages, and responds when it has. Raises RequestError
        SYSTEM_BUSY if too many pulls wait already."""
        if len(self._pulls) >= REMOTE_PULLS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        connection.defer(request.opaque, request.code)
        task = asyncio.get_running_loop().create_task(self._forward(connection, request, refuse))
        self._pulls.add(task)
        task.add_done_callback(self._pulls.discard)

    async def _forward(
        self,
        connection: RemotingConnection,
        request: StaticPull,
        refuse: Callable[[RequestError], bytes],
    ) -> None:
        try:
            frame = await self._remote_frame(request)
        except RequestError as error:
            frame = refuse(error)
        except Exception as error:
            log.exception("a pull of %s-%d from another broker failed", request.topic, request.logical_id)
            frame = refuse(RequestError(ResponseCode.SYSTEM_ERROR, str(error)))
        if not connection.closed:
            connection.respond_encoded(request.opaque, frame)

    async def _remote_frame(self, request: StaticPull) -> bytes:
        item = request.item
        assert item is not None
        header = PullMessageRequestHeader(
            consumer_group=request.consumer_group,
            topic=request.topic,
            queue_id=request.queue_id,
            queue_offset=request.queue_offset,
            max_msg_nums=request.max_msg_nums,
            sys_flag=request.sys_flag & ~NOT_FORWARDED_FLAGS,
            commit_offset=request.commit_offset,
            suspend_timeout_millis=request.suspend_timeout_millis,
            subscription=request.subscription,
            sub_version=request.sub_version,
            expression_type=request.expression_type,
            request_source=request.request_source,
        )
        answer = await self._remote.call(item.bname or "", RequestCode.PULL_MESSAGE, header.encode())
        if answer.code not in PULLED_CODES:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"unexpected remote response code {answer.code} of broker {item.bname}: {answer.remark}",
            )
        found = PullMessageResponseHeader.decode(answer.ext)
        outcome, delta = self.outcome(
            request,
            PullOutcome(answer.code, found.next_begin_offset, found.min_offset, found.max_offset),
        )
        return static_frame(request, outcome, delta, found, answer.body, answer.remark)


def static_frame(
    request: StaticPull,
    outcome: PullOutcome,
    delta: int,
    header: PullMessageResponseHeader,
    body: bytes,
    remark: str | None,
) -> bytes:
    """The response to a pull of a logical queue. `header` has the fields that do not change."""
    header.next_begin_offset = outcome.next_offset
    header.min_offset = outcome.min_offset
    header.max_offset = outcome.max_offset
    header.offset_delta = delta
    is_found = outcome.code == ResponseCode.SUCCESS
    return encode(
        response(
            Command(request.code, opaque=request.opaque),
            outcome.code,
            remark if is_found else None,
            header=header,
            body=body if is_found else b"",
        )
    )
