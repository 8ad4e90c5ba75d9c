"""Serves requests about static topics: creates them (513), and translates requests about a logical queue's
offsets into requests about the physical queues behind it (14, 15, 29, 30, 31, 32), as RocketMQ's
AdminBrokerProcessor and ConsumerManageProcessor do.

A physical queue of another broker group is asked with `lo=false`, which marks a translated request.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.requests.processors.topic_names import check_topic_name
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.static_topics.queue_items import (
    QueueContext,
    find_item,
    logical_offset,
    logical_offset_within,
    physical_offset,
)
from epochmq_broker.tables.static_topics.remote_queues import RemoteQueues
from epochmq_protocol.bodies import from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.fastjson import parse_int
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import CreateTopicRequestHeader
from epochmq_protocol.topics import (
    LogicQueueMappingItem,
    TopicConfig,
    TopicFilterType,
    TopicQueueMappingDetail,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

LONG_MAX = (1 << 63) - 1

_Serve = Callable[["_LogicalRequest"], Awaitable[Command]]


class StaticTopicProcessor:
    """Serves requests about static topics."""

    def __init__(
        self, components: MqadminDependencies, static: StaticTopicTable, remote: RemoteQueues
    ) -> None:
        self._components = components
        self._static = static
        self._remote = remote

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self.update}

    async def update(self, connection: RemotingConnection, command: Command) -> Command:
        """Creates or changes a static topic; responds when the nameservers have it. As in RocketMQ, the
        topic's settings change even if its mapping is rejected."""
        header = CreateTopicRequestHeader.decode(command.ext)
        components, topic = self._components, header.topic
        check_topic_name(components.live.current, components.topics, topic)
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=TopicFilterType.MULTI_TAG
            if header.topic_filter_type == "MULTI_TAG"
            else TopicFilterType.SINGLE_TAG,
            topic_sys_flag=header.topic_sys_flag or 0,
        )
        mapping = from_json(TopicQueueMappingDetail, command.body) if command.body else None
        components.topics.update([config])
        if mapping is not None:
            self._static.update(mapping, force=header.force)
        await components.registered()
        return response(command, ResponseCode.SUCCESS)

    # requests about logical queues

    def translate(self, handlers: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """These handlers of `TRANSLATED_CODES`, extended to static topics."""
        return {code: self._translated(handlers, code, _TRANSLATED[code]) for code in handlers}

    def _translated(self, handlers: Mapping[int, RequestHandler], code: int, serve: _Serve) -> RequestHandler:
        table = self._static.table
        handler = handlers[code]

        def handle(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            ext = command.ext
            if not table or ext is None or ext.get("topic") not in table or is_physical(ext.get("lo")):
                return handler(connection, command)
            return serve(_LogicalRequest(self._static, self._remote, handlers, connection, command, ext))

        return handle


def is_physical(lo: str | bool | None) -> bool:
    """Whether a request's `lo` field says that its queue id is a physical one."""
    return lo is False or (isinstance(lo, str) and lo.strip().lower() == "false")


class _LogicalRequest:
    """A request about a logical queue. Raises RequestError if it names none."""

    def __init__(
        self,
        static: StaticTopicTable,
        remote: RemoteQueues,
        handlers: Mapping[int, RequestHandler],
        connection: RemotingConnection,
        command: Command,
        ext: dict[str, str],
    ) -> None:
        self.command = command
        self.ext = ext
        self._remote = remote
        self._handlers = handlers
        self._connection = connection
        context = static.context(ext["topic"], self.number("queueId"))
        assert context is not None
        self.context: QueueContext = context

    def number(self, field: str) -> int:
        """A required number of the header."""
        text = self.ext.get(field, "")
        try:
            return int(text)
        except ValueError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{field}={text[:100]!r}: expected a whole number"
            ) from None

    def require_leader(self) -> None:
        """Raises RequestError NOT_LEADER_FOR_QUEUE unless this broker leads the queue."""
        require_leader(self.context)

    def item_at(self, offset: int) -> LogicQueueMappingItem:
        """The item with a logical offset."""
        item = find_item(self.context.items, offset)
        if item is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{self.context.topic}-{self.context.queue_id} has no item with decided offsets yet",
            )
        return item

    async def ask(self, item: LogicQueueMappingItem, code: int | None = None, /, **changed: str) -> Command:
        """Sends the request to the item's queue, here or on another broker, and returns the response with any
        code. `code`: another request code. `changed`: further ext fields that differ."""
        code = self.command.code if code is None else code
        ext = self.ext | changed | {"queueId": str(item.queue_id)}
        if not self.context.is_local(item):
            return await self._remote.call(item.bname or "", code, ext)
        ext |= {"lo": "false", "bname": item.bname or ""}
        local = msgspec.structs.replace(self.command, code=code, ext=ext)
        try:
            result = self._handlers[code](self._connection, local)
            if inspect.isawaitable(result):
                result = await result
        except RequestError as error:
            return response(self.command, error.code, error.remark)
        assert isinstance(result, Command)
        return result

    async def offset_of(self, item: LogicQueueMappingItem, code: int | None = None, /, **changed: str) -> int:
        """The physical offset in the response to this request about the item's queue."""
        answer = await self.ask(item, code, **changed)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestError(ResponseCode.SYSTEM_ERROR, answer.remark or "unknown remote error")
        return _number(answer, "offset")

    def answer(self, **fields: int) -> Command:
        """A successful response."""
        ext = {name: str(value) for name, value in fields.items()}
        return response(self.command, ResponseCode.SUCCESS, ext=ext)


def require_leader(context: QueueContext) -> None:
    """Raises RequestError NOT_LEADER_FOR_QUEUE unless this broker leads the queue."""
    if not context.is_leader:
        raise RequestError(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            f"{context.topic}-{context.queue_id} does not exit in request process of current broker "
            f"{context.detail.bname}",
        )


async def _query_offset(logical: _LogicalRequest) -> Command:
    """The group's offset in the newest item in which it has one."""
    logical.require_leader()
    items = logical.context.items
    if len(items) == 1 and items[0].logic_offset == 0:
        answer = await logical.ask(items[0])
        answer.opaque = logical.command.opaque
        return answer
    for item in reversed(items):
        answer = await logical.ask(item, setZeroIfNotFound="false")
        if answer.code == ResponseCode.SUCCESS:
            offset = _number(answer, "offset")
            return logical.answer(offset=logical_offset(item, offset))
        if answer.code != ResponseCode.QUERY_NOT_FOUND:
            raise RequestError(ResponseCode.SYSTEM_ERROR, answer.remark or "unknown remote error")
    raise RequestError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")


async def _update_offset(logical: _LogicalRequest) -> Command:
    """Stores the group's offset at the queue that holds the message."""
    logical.require_leader()
    offset = logical.number("commitOffset")
    item = logical.item_at(offset)
    answer = await logical.ask(item, commitOffset=str(physical_offset(item, offset)))
    return response(logical.command, answer.code, answer.remark)


async def _search(logical: _LogicalRequest) -> Command:
    """The first message stored at the time or later; with the boundary UPPER, the last one until then.
    RocketMQ 5.3.3 returns 0 if the message is on another broker."""
    logical.require_leader()
    items = [item for item in logical.context.items if item.logic_offset >= 0]
    is_upper = logical.ext.get("boundaryType", "").upper() == "UPPER"
    timestamp = min(logical.number("timestamp") + is_upper, LONG_MAX)
    before = found = -1
    for at, item in enumerate(items):
        offset = await logical.offset_of(item, timestamp=str(timestamp), boundaryType="LOWER")
        found = logical_offset(item, offset)
        end = await logical.offset_of(item, RequestCode.GET_MAX_OFFSET)
        if offset < end or at == len(items) - 1:
            if is_upper and found >= 0:
                first = await logical.offset_of(item, RequestCode.GET_MIN_OFFSET)
                found = found - 1 if offset > first else max(before, logical_offset(item, first))
            break
        if end > 0:
            before = logical_offset(item, end - 1)
    return logical.answer(offset=found)


async def _max_offset(logical: _LogicalRequest) -> Command:
    logical.require_leader()
    item = logical.item_at(LONG_MAX)
    return logical.answer(offset=logical_offset(item, await logical.offset_of(item)))


async def _min_offset(logical: _LogicalRequest) -> Command:
    context = logical.context
    if not context.is_leader:
        raise RequestError(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            f"{context.topic}-{context.queue_id} is not leader in broker {context.detail.bname}, "
            f"request code {logical.command.code}",
        )
    item = logical.item_at(0)
    return logical.answer(offset=logical_offset_within(item, await logical.offset_of(item)))


async def _earliest_time(logical: _LogicalRequest) -> Command:
    """The time of the first item's first message."""
    logical.require_leader()
    answer = await logical.ask(logical.item_at(0))
    if answer.code != ResponseCode.SUCCESS:
        raise RequestError(ResponseCode.SYSTEM_ERROR, answer.remark or "unknown remote error")
    return logical.answer(timestamp=_number(answer, "timestamp"))


def _number(answer: Command, name: str) -> int:
    """A number in the response of the broker that has the queue. RequestError: it is none."""
    text = (answer.ext or {}).get(name, "")
    found = parse_int(text)
    if found is None:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the broker of the queue responded {name}={text!r:.50}: expected an integer",
        )
    return found


_TRANSLATED: Final[dict[int, _Serve]] = {
    RequestCode.QUERY_CONSUMER_OFFSET: _query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: _update_offset,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _search,
    RequestCode.GET_MAX_OFFSET: _max_offset,
    RequestCode.GET_MIN_OFFSET: _min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: _earliest_time,
}
TRANSLATED_CODES: Final = frozenset(_TRANSLATED)
"""Requests about offsets in a logical queue. They ask the physical queues with the same codes."""
