"""Finds messages and offsets: by key (12), by commit-log offset (33), by time (29), and the ends of a queue
(30, 31, 32) (RocketMQ's QueryMessageProcessor and parts of its AdminBrokerProcessor)."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.services.compaction.compacted_reads import CompactedReads
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import (
    BoundaryType,
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    ViewMessageRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.message_store import MessageStore

UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


class QueryProcessor:
    """Reads from the store. Changes nothing; a request for a queue that does not exist does not create it."""

    def __init__(self, live: LiveConfig, store: MessageStore, compacted: CompactedReads) -> None:
        self._live = live
        self._store = store
        self._compacted = compacted

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.QUERY_MESSAGE: self.query,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest_store_time,
        }

    def query(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns records whose key's hash matches, newest index first; the client compares the keys
        themselves."""
        header = QueryMessageRequestHeader.decode(command.ext)
        max_num = header.max_num
        if (command.ext or {}).get(UNIQUE_KEY_QUERY) == "true":
            max_num = self._live.current.default_query_max_num
        found = self._store.reader.query(
            header.topic, header.key, max_num, header.begin_timestamp, header.end_timestamp
        )
        response_header = QueryMessageResponseHeader(
            index_last_update_timestamp=found.index_last_update_timestamp,
            index_last_update_phyoffset=found.index_last_update_phyoffset,
        )
        if found.body:
            return response(command, ResponseCode.SUCCESS, header=response_header, body=found.body)
        remark = "can not find message, maybe time range not correct"
        return response(command, ResponseCode.QUERY_NOT_FOUND, remark, header=response_header)

    def view(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the record at a commit-log offset."""
        offset = ViewMessageRequestHeader.decode(command.ext).offset
        record = self._store.visibility.read(offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return response(command, ResponseCode.SUCCESS, body=record)

    def search_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the offset of the first (LOWER) or last (UPPER) message of that store time, or of its
        neighbour."""
        header = SearchOffsetRequestHeader.decode(command.ext)
        upper = header.boundary_type is BoundaryType.UPPER
        offset = self._compacted.offset_by_time(header.topic, header.queue_id, header.timestamp, upper=upper)
        return response(command, ResponseCode.SUCCESS, header=SearchOffsetResponseHeader(offset=offset))

    def max_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the offset of a queue's next message."""
        header = GetMaxOffsetRequestHeader.decode(command.ext)
        queue = self._store.lookup.existing_queue(header.topic, header.queue_id)
        offset = 0 if queue is None else self._store.max_offset(queue)
        return response(command, ResponseCode.SUCCESS, header=GetMaxOffsetResponseHeader(offset=offset))

    def min_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the offset of a queue's first existing message."""
        header = GetMinOffsetRequestHeader.decode(command.ext)
        offset = self._compacted.first_offset(header.topic, header.queue_id)
        return response(command, ResponseCode.SUCCESS, header=GetMinOffsetResponseHeader(offset=offset))

    def earliest_store_time(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the store time in epoch ms of a queue's first message; -1 if it has none."""
        header = GetEarliestMsgStoretimeRequestHeader.decode(command.ext)
        time_ms = self._store.lookup.earliest_time(header.topic, header.queue_id)
        return response(
            command, ResponseCode.SUCCESS, header=GetEarliestMsgStoretimeResponseHeader(timestamp=time_ms)
        )
