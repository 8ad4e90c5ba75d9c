"""Serves mqadmin's requests about clients: connections (203, 204, 328), a group's subscription (345), and
requests that are forwarded to a consumer (307, 309, 223), as RocketMQ's AdminBrokerProcessor and
Broker2Client do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import cast

from epochmq_broker.requests.processors.mqadmin_dependencies import MqadminDependencies
from epochmq_broker.tables.clients import Client
from epochmq_protocol import message as records
from epochmq_protocol.bodies import Connection as ConnectionBody
from epochmq_protocol.bodies import (
    ConsumerConnection,
    GetConsumerStatusBody,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    from_json,
    to_json,
)
from epochmq_protocol.bodies_in_turns import map_entry, with_items
from epochmq_protocol.codes import V3_1_8_SNAPSHOT, LanguageCode, RequestCode, ResponseCode
from epochmq_protocol.errors import BodyError, CallTimeoutError, EpochMQError, RequestError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.headers_admin import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    GetProducerConnectionListRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
)
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_turns

CALL_TIMEOUT_MS = 10_000
STATUS_TIMEOUT_MS = 5_000
STATUS_BYTES_MAX = 1 << 20
"""The longest report of one client that is read."""

log = logging.getLogger(__name__)


class MqadminClientProcessor:
    """Serves requests about clients and forwards requests to them."""

    def __init__(self, components: MqadminDependencies) -> None:
        self._components = components

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.subscription,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
        }

    # connections

    def consumer_connections(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Returns the members of an online consumer group and its subscriptions."""
        return in_turns(self._consumer_connections(command, Turns()))

    async def _consumer_connections(self, command: Command, turns: Turns) -> Command:
        name = GetConsumerConnectionListRequestHeader.decode(command.ext).consumer_group
        group = self._components.clients.group(name)
        if group is None:
            raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        rest = ConsumerConnection(
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        subscriptions = sorted(group.subscriptions.items())
        members = await _connections(list(group.clients.values()), turns)
        body = with_items(to_json(rest), "connectionSet", members)
        encoded = []
        for topic, subscription in subscriptions:
            await turns.pause()
            encoded.append(map_entry(topic, subscription))
        body = with_items(body, "subscriptionTable", b"{%b}" % b",".join(encoded))
        return response(command, ResponseCode.SUCCESS, body=body)

    def producer_connections(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Returns the members of an online producer group."""
        return in_turns(self._producer_connections(command, Turns()))

    async def _producer_connections(self, command: Command, turns: Turns) -> Command:
        name = GetProducerConnectionListRequestHeader.decode(command.ext).producer_group
        clients = self._components.clients.producers.get(name)
        if clients is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        members = await _connections(list(clients.values()), turns)
        body = with_items(to_json(ProducerConnection()), "connectionSet", members)
        return response(command, ResponseCode.SUCCESS, body=body)

    def all_producers(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Returns every producer of every group."""
        return in_turns(self._all_producers(command, Turns()))

    async def _all_producers(self, command: Command, turns: Turns) -> Command:
        producers = self._components.clients.producers
        groups = []
        for name in sorted(producers):
            clients = producers.get(name)
            if clients is None:  # it has ended since the last turn
                continue
            encoded = []
            for client in list(clients.values()):
                await turns.pause()
                info = ProducerInfo(
                    client_id=client.client_id,
                    remote_ip=f"/{client.channel.remote}",  # Java's InetSocketAddress.toString
                    language=_language(client.language),
                    version=client.version,
                    last_update_timestamp=client.last_update_ms,
                )
                encoded.append(to_json(info))
            groups.append(b"%b:[%b]" % (to_json(name), b",".join(encoded)))
        body = with_items(to_json(ProducerTableInfo()), "data", b"{%b}" % b",".join(groups))
        return response(command, ResponseCode.SUCCESS, body=body)

    def subscription(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns a group's subscription to a topic; none if it has none."""
        header = QuerySubscriptionByConsumerRequestHeader.decode(command.ext)
        found = self._components.clients.subscription(header.group, header.topic or "")
        body = QuerySubscriptionResponseBody(subscription_data=found, group=header.group, topic=header.topic)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    # forwarded to a consumer

    async def running_info(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns a consumer's own report: settings, queues, rates, threads."""
        header = GetConsumerRunningInfoRequestHeader.decode(command.ext)
        client = self._find(header.consumer_group, header.client_id)
        return await self._forward(command, header.consumer_group, client, command.ext, command.body)

    async def consume_directly(self, connection: RemotingConnection, command: Command) -> Command:
        """Has a consumer consume one message now, named by its offset message id. Returns the consumer's
        result."""
        header = ConsumeMessageDirectlyResultRequestHeader.decode(command.ext)
        components = self._components
        ext = {**(command.ext or {}), "brokerName": components.live.current.broker_name}
        topic = components.topics.get(header.topic or "")
        if topic is not None:
            ext["topicSysFlag"] = str(topic.topic_sys_flag)
        group = components.groups.find(header.consumer_group) if header.consumer_group else None
        if group is not None:
            ext["groupSysFlag"] = str(group.group_sys_flag)
        client = self._find(header.consumer_group, header.client_id or "")
        try:
            _, offset = records.parse_message_id(header.msg_id or "")
        except EpochMQError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"msgId={header.msg_id}: {error}") from None
        record = components.store.read(offset)
        if record is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}")
        return await self._forward(command, header.consumer_group, client, ext, record)

    async def consumer_status(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns each member's own report of its offsets by queue, for all members of a group or one."""
        header = GetConsumerStatusRequestHeader.decode(command.ext)
        group = self._components.clients.group(header.group)
        if group is None or not group.clients:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{header.group}]"
            )
        wanted = (header.client_addr or "").strip()
        members = [client for client in group.clients.values() if wanted in ("", client.client_id)]
        asked = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group)
        results = await asyncio.gather(*(self._status_of(client, asked) for client in members))
        body = GetConsumerStatusBody()
        for client, result in zip(members, results, strict=True):
            if result is not None:
                body.consumer_table[client.client_id] = result.message_queue_table
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    async def _status_of(
        self, client: Client, asked: GetConsumerStatusRequestHeader
    ) -> GetConsumerStatusBody | None:
        """Returns one member's report, or None if it sent none."""
        try:
            result = await cast(RemotingConnection, client.channel).call(
                request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, asked), STATUS_TIMEOUT_MS
            )
            if result.code == ResponseCode.SUCCESS and result.body:
                if len(result.body) > STATUS_BYTES_MAX:
                    raise BodyError(f"{len(result.body)} bytes, expected at most {STATUS_BYTES_MAX}")
                # Its keys are objects, which only the slow parser reads.
                return await asyncio.to_thread(from_json, GetConsumerStatusBody, result.body)
        except EpochMQError as error:
            log.info("%s of group %s did not report its status: %s", client.client_id, asked.group, error)
        return None

    def _find(self, group: str, client_id: str) -> Client:
        members = self._components.clients.group(group)
        client = None if members is None else members.find(client_id)
        if client is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if client.version < V3_1_8_SNAPSHOT:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{client.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return client

    async def _forward(
        self, command: Command, group: str, client: Client, ext: dict[str, str] | None, body: bytes
    ) -> Command:
        """Forwards the request to a consumer and returns its response, whatever its code."""
        forwarded = request(command.code, body=body, ext=ext)
        try:
            result = await cast(RemotingConnection, client.channel).call(forwarded, CALL_TIMEOUT_MS)
        except CallTimeoutError as error:
            raise RequestError(
                ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{client.client_id}> Timeout: {error}"
            ) from None
        except EpochMQError as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"invoke consumer <{group}> <{client.client_id}> Exception: {error}",
            ) from None
        return response(command, result.code, result.remark, body=result.body, ext=result.ext)


async def _connections(clients: list[Client], turns: Turns) -> bytes:
    """A list of clients as JSON."""
    encoded = []
    for client in clients:
        await turns.pause()
        shown = ConnectionBody(
            client_id=client.client_id,
            client_addr=client.channel.remote,
            language=_language(client.language),
            version=client.version,
        )
        encoded.append(to_json(shown))
    return b"[%b]" % b",".join(encoded)


def _language(code: int) -> LanguageCode:
    try:
        return LanguageCode(code)
    except ValueError:
        return LanguageCode.OTHER
