"""A fake nameserver and broker in this process, with only what the clients under test need: messages in
lists, held pulls, and consumer groups with members."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import TracebackType
from typing import Self

from epochmq_protocol import message
from epochmq_protocol.bodies import ClusterInfo, GetConsumerListByGroupResponseBody, HeartbeatData
from epochmq_protocol.bodies_base import from_json, to_json
from epochmq_protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.headers_client import (
    GetConsumerListByGroupRequestHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    NotifyConsumerIdsChangedRequestHeader,
    PullMessageRequestHeader,
    PullMessageResponseHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from epochmq_protocol.headers_namesrv import GetRouteInfoRequestHeader
from epochmq_protocol.javahash import tags_code
from epochmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route
from epochmq_protocol.topics import AUTO_CREATE_TOPIC_KEY_TOPIC
from epochmq_protocol.transport import RemotingConnection, RemotingServer
from tests.support.net import loopback

QUEUES = 4


class FakeCluster:
    """An asynchronous context manager. `rejections` are (code, remark) pairs for the next sends, `status` is
    the response code of the others."""

    def __init__(self, *, auto_create: bool = True) -> None:
        self.host = loopback(55)
        self.topics: dict[str, list[list[message.MessageExt]]] = {}
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[str, RemotingConnection]] = defaultdict(dict)
        self.rejections: list[tuple[int, str]] = []
        self.requests: list[int] = []
        self.status = ResponseCode.SUCCESS
        self.pulls_held = 0
        self._auto_create = auto_create
        self._arrived = asyncio.Event()
        self.registered = True
        self.leads = True  # the broker is registered as the master of its group
        self._nameserver = RemotingServer(
            {
                RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
                RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            }
        )
        self._broker = self._make_broker()

    def _make_broker(self) -> RemotingServer:
        handlers = {
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.PULL_MESSAGE: self._pull,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._list,
            RequestCode.QUERY_CONSUMER_OFFSET: self._query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._update_offset,
            RequestCode.GET_MIN_OFFSET: self._min_offset,
        }
        return RemotingServer(handlers, on_close=self._lost)

    async def __aenter__(self) -> Self:
        await self._nameserver.start(self.host, 0)
        await self._broker.start(self.host, 0)
        self.broker_port = self._broker.port
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._broker.stop(0)
        await self._nameserver.stop(0)

    @property
    def nameserver(self) -> str:
        """host:port."""
        return f"{self.host}:{self._nameserver.port}"

    async def restart_broker(self) -> None:
        """Restarts the broker at the same address. Its consumer groups have no members afterwards."""
        await self._broker.stop(0)
        self.members.clear()
        self._broker = self._make_broker()
        await self._broker.start(self.host, self.broker_port)

    def create(self, topic: str, queues: int = QUEUES) -> list[list[message.MessageExt]]:
        """The queues of the topic, created if it is missing."""
        return self.topics.setdefault(topic, [[] for _ in range(queues)])

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", sys_flag: int = 0) -> int:
        """Stores a message and wakes held pulls; returns its queue offset."""
        queue = self.create(topic)[queue_id]
        stored = message.MessageExt(
            topic,
            body,
            properties,
            queue_id,
            queue_offset=len(queue),
            physical_offset=sum(map(len, self.create(topic))),
        )
        stored.sys_flag = sys_flag
        stored.store_host = stored.born_host = message.encode_host(self.host, 10911)
        queue.append(stored)
        self._arrived.set()
        self._arrived = asyncio.Event()
        return stored.queue_offset

    # nameserver

    def _route(self, connection: RemotingConnection, command: Command) -> Command:
        topic = GetRouteInfoRequestHeader.decode(command.ext).topic
        if not self.registered:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for {topic}")
        if topic == AUTO_CREATE_TOPIC_KEY_TOPIC and self._auto_create:
            queues = 8
        elif topic in self.topics:
            queues = len(self.topics[topic])
        else:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for {topic}")
        route = TopicRouteData(
            queue_datas=[QueueData("b", queues, queues, 6)],
            broker_datas=[self._broker_data()],
        )
        return response(command, ResponseCode.SUCCESS, body=encode_route(route, version=CURRENT_VERSION))

    def _cluster_info(self, connection: RemotingConnection, command: Command) -> Command:
        known = ClusterInfo({"b": self._broker_data()}, {"c": {"b"}}) if self.registered else ClusterInfo()
        return response(command, ResponseCode.SUCCESS, body=to_json(known))

    def _broker_data(self) -> BrokerData:
        return BrokerData("c", "b", {0 if self.leads else 1: f"{self.host}:{self.broker_port}"})

    # broker

    def _send(self, connection: RemotingConnection, command: Command) -> Command:
        self.requests.append(command.code)
        if self.rejections:
            code, remark = self.rejections.pop(0)
            raise RequestError(code, remark)
        header = SendMessageRequestHeaderV2.decode(command.ext)
        queue_id = header.queue_id
        offset = self.put(header.topic, queue_id, command.body, (header.properties or "").encode())
        stored = self.topics[header.topic][queue_id][offset]
        header_out = SendMessageResponseHeader(msg_id=stored.msg_id, queue_id=queue_id, queue_offset=offset)
        return response(command, self.status, header=header_out)

    async def _pull(self, connection: RemotingConnection, command: Command) -> Command:
        header = PullMessageRequestHeader.decode(command.ext)
        queue = self.topics[header.topic][header.queue_id]
        deadline = asyncio.get_running_loop().time() + header.suspend_timeout_millis / 1000
        while header.queue_offset >= len(queue):
            self.pulls_held += 1
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return self._pulled(command, ResponseCode.PULL_NOT_FOUND, header.queue_offset, [])
            finally:
                self.pulls_held -= 1
        chosen = queue[header.queue_offset : header.queue_offset + header.max_msg_nums]
        following = header.queue_offset + len(chosen)
        wanted = {tags_code(tag.strip()) for tag in (header.subscription or "*").split("||")} - {
            tags_code("*")
        }
        found = [m for m in chosen if not wanted or self._code(m) in wanted]
        code = ResponseCode.SUCCESS if found else ResponseCode.PULL_RETRY_IMMEDIATELY
        return self._pulled(command, code, following, found)

    def _code(self, stored: message.MessageExt) -> int:
        return tags_code(message.parse_properties(stored.properties).get("TAGS", ""))

    def _pulled(
        self, command: Command, code: int, following: int, found: list[message.MessageExt]
    ) -> Command:
        header = PullMessageResponseHeader(
            suggest_which_broker_id=0, next_begin_offset=following, min_offset=0, max_offset=following
        )
        body = b"".join(message.encode_record(record) for record in found)
        return response(command, code, header=header, body=body)

    def _heartbeat(self, connection: RemotingConnection, command: Command) -> Command:
        beat = from_json(HeartbeatData, command.body)
        for consumer in beat.consumer_data_set:
            known = self.members[consumer.group_name]
            is_new = beat.client_id not in known
            known[beat.client_id] = connection
            if is_new:
                self._notify(consumer.group_name)
        return response(command, ResponseCode.SUCCESS)

    def _notify(self, group: str) -> None:
        for connection in self.members[group].values():
            if not connection.closed:
                header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
                connection.oneway(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))

    def _lost(self, connection: RemotingConnection) -> None:
        for group, members in self.members.items():
            gone = [client for client, known in members.items() if known is connection]
            for client in gone:
                del members[client]
            if gone:
                self._notify(group)

    def _unregister(self, connection: RemotingConnection, command: Command) -> Command:
        header = UnregisterClientRequestHeader.decode(command.ext)
        assert header.consumer_group is not None
        self.members[header.consumer_group].pop(header.client_id, None)
        self._notify(header.consumer_group)
        return response(command, ResponseCode.SUCCESS)

    def _list(self, connection: RemotingConnection, command: Command) -> Command:
        group = GetConsumerListByGroupRequestHeader.decode(command.ext).consumer_group
        body = GetConsumerListByGroupResponseBody(list(self.members[group]))
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def _query_offset(self, connection: RemotingConnection, command: Command) -> Command:
        header = QueryConsumerOffsetRequestHeader.decode(command.ext)
        offset = self.offsets.get((header.consumer_group, header.topic, header.queue_id))
        if offset is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, "Not found")
        return response(
            command, ResponseCode.SUCCESS, header=QueryConsumerOffsetResponseHeader(offset=offset)
        )

    def _update_offset(self, connection: RemotingConnection, command: Command) -> Command:
        header = UpdateConsumerOffsetRequestHeader.decode(command.ext)
        self.offsets[header.consumer_group, header.topic, header.queue_id] = header.commit_offset
        return response(command, ResponseCode.SUCCESS)

    def _min_offset(self, connection: RemotingConnection, command: Command) -> Command:
        GetMinOffsetRequestHeader.decode(command.ext)
        return response(command, ResponseCode.SUCCESS, header=GetMinOffsetResponseHeader(offset=0))
