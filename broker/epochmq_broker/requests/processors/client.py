"""Serves the requests of connected clients: heartbeats (34), unregistration (35), consumer lists (38),
subscription checks (46), offsets (14, 15) and queue locks (41, 42); and notifies the members of a group of a
change (40) (RocketMQ's ClientManageProcessor, ConsumerManageProcessor and
DefaultConsumerIdsChangeListener)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator, Mapping
from typing import Final, TypeVar, cast

from epochmq_broker.config.clock import now_ms
from epochmq_broker.membership.acting.lock_quorum import LockQuorum
from epochmq_broker.requests.processors.first_message_in_memory import is_first_message_in_memory
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.tables.clients import Channel, Client
from epochmq_broker.tables.filters.consumer_filters import SQL92
from epochmq_broker.tables.filters.sql import EXPRESSION_MAX, compile_sql, parse_sql
from epochmq_broker.tables.filters.sql import keep as keep_compiled
from epochmq_broker.tables.filters.sql_compiler import AT_ONCE_CHARS
from epochmq_broker.tables.filters.sql_lexer import SqlSyntaxError
from epochmq_broker.tables.subscriptions import is_tag_type
from epochmq_broker.tables.topics import SYS_FLAG_UNIT_SUB
from epochmq_protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    GetConsumerListByGroupResponseBody,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    MessageQueue,
    UnlockBatchRequestBody,
    from_request,
    to_json,
)
from epochmq_protocol.bodies_in_turns import decode_steps, with_items
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectionClosedError, RequestError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.headers_client import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    UnregisterClientRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from epochmq_protocol.topics import RETRY_GROUP_TOPIC_PREFIX
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import STEPS_MIN, Turns, WorkInTurns, in_turns

PULL_CONSUMER = "CONSUME_ACTIVELY"
SLICE: Final = 20
"""Groups, or queues, that are handled between two looks at the clock: at most half a millisecond."""
ORDERED_MAX: Final = 100
"""A longer list of queues is not put into order, which takes long; no client needs it."""
NOTIFIED_AT_ONCE: Final = 50
"""Members of a group that are notified in one turn of the event loop, in some 0.4 ms."""
T = TypeVar("T")
L = TypeVar("L", bound=LockBatchRequestBody)

log = logging.getLogger(__name__)


class ClientProcessor:
    """Updates the registry, the offsets and the locks from clients' requests."""

    def __init__(self, context: ProcessorContext, *, locks: LockQuorum) -> None:
        self._live = context.live
        self._store = context.store
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._clients = context.tables.clients
        self._locks = locks
        self._unnotified: dict[str, list[Channel]] = {}
        """Group → members that are still to be notified of a change."""
        self._unnotified_again: dict[str, list[Channel]] = {}
        """Group → members that are to be notified of a further change after that."""
        self._notifying: asyncio.Handle | None = None

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client_config,
            RequestCode.QUERY_CONSUMER_OFFSET: self.query_offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update_offset,
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    # group membership

    def heartbeat(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Registers or refreshes a client's producer groups, consumer groups and subscriptions. A consumer
        group without configuration is skipped silently, as in RocketMQ."""
        return in_turns(self._heartbeat(connection, command, Turns()))

    async def _heartbeat(self, connection: RemotingConnection, command: Command, turns: Turns) -> Command:
        data = await turns.run(decode_steps(HeartbeatData, command.body))
        self._check_bounds(data)
        received_ms = now_ms()

        def client() -> Client:
            """A member for one group: a later heartbeat may name some of the groups only."""
            return Client(connection, data.client_id, command.language, command.version, received_ms)

        fingerprint = data.heartbeat_fingerprint
        resend = not fingerprint
        consumers, at = data.consumer_data_set, 0
        while at < len(consumers) and not connection.closed:  # a registration would outlive the connection
            with self._topics.on_change.joined(), self._groups.on_change.joined():
                while at < len(consumers):
                    resend |= self._register(
                        client(), consumers[at], fingerprint, without_sub=data.without_sub
                    )
                    at += 1
                    if turns.is_long and len(consumers) > SLICE:
                        break
            if at < len(consumers):
                await turns.end()
        if self._live.current.enable_register_producer or not self._live.current.reject_transaction_message:
            for producer in data.producer_data_set:
                await turns.pause()
                if connection.closed:
                    break
                self._clients.register_producer(producer.group_name, client())
        ext = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true" if resend else "false"}
        return response(command, ResponseCode.SUCCESS, ext=ext)

    def _check_bounds(self, data: HeartbeatData) -> None:
        """Rejects a heartbeat that would keep the event loop busy for long. RequestError SYSTEM_ERROR."""
        config = self._live.current
        groups = len(data.consumer_data_set) + len(data.producer_data_set)
        _require("groups", groups, "maxGroupsPerHeartbeat", config.max_groups_per_heartbeat)
        subscriptions = sum(len(consumer.subscription_data_set) for consumer in data.consumer_data_set)
        most = config.max_subscriptions_per_heartbeat
        _require("subscriptions", subscriptions, "maxSubscriptionsPerHeartbeat", most)

    def _register(self, client: Client, data: ConsumerData, fingerprint: int, *, without_sub: bool) -> bool:
        """Registers one consumer group of a heartbeat. Returns whether the client should send its
        subscriptions again."""
        if data.consume_type == PULL_CONSUMER and self._live.current.reject_pull_consumer_enable:
            return False
        name = data.group_name
        config = self._groups.find(name)
        if config is None:
            return False
        resend = self._clients.fingerprint_changed(name, fingerprint)
        self._topics.create_in_send_back(
            RETRY_GROUP_TOPIC_PREFIX + name,
            config.retry_queue_nums,
            sys_flag=SYS_FLAG_UNIT_SUB if data.unit_mode else 0,
            order=any(self._topics.is_order(sub.topic) for sub in data.subscription_data_set),
        )
        short = bool(fingerprint) and without_sub
        self._clients.register_consumer(
            client, data, notify=config.notify_consumer_ids_changed_enable, with_subscriptions=not short
        )
        # A short heartbeat of a group whose subscriptions are unknown, because this broker has just started
        # or the group was empty: they would stay unknown until the client rebalances.
        return resend or (short and not self._clients.subscription_count(name))

    def unregister(self, connection: RemotingConnection, command: Command) -> Command:
        """Removes a client from a producer group, a consumer group, or both."""
        header = UnregisterClientRequestHeader.decode(command.ext)
        if header.producer_group is not None:
            self._clients.unregister_producer(header.producer_group, connection)
        if header.consumer_group is not None:
            config = self._groups.find(header.consumer_group)
            notify = config is None or config.notify_consumer_ids_changed_enable
            self._clients.unregister_consumer(header.consumer_group, connection, notify=notify)
        return response(command, ResponseCode.SUCCESS)

    def consumer_list(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the client ids of a group's members, which share its queues."""
        name = GetConsumerListByGroupRequestHeader.decode(command.ext).consumer_group
        group = self._clients.group(name)
        if group is None or not group.clients:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        body = GetConsumerListByGroupResponseBody(consumer_id_list=group.client_ids)
        return response(command, ResponseCode.SUCCESS, body=to_json(body))

    def check_client_config(
        self, connection: RemotingConnection, command: Command
    ) -> Command | Awaitable[Command]:
        """Checks whether this broker supports a subscription; clients ask before a consumer starts."""
        subscription = from_request(CheckClientRequestBody, command.body).subscription_data
        if subscription is None or is_tag_type(subscription.expression_type):
            return response(command, ResponseCode.SUCCESS)
        kind = subscription.expression_type
        if not self._live.current.enable_property_filter:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
            )
        if kind != SQL92:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"expressionType {kind!r:.100}: expected TAG or SQL92"
            )
        if len(subscription.sub_string) > AT_ONCE_CHARS:
            return self._check_long_expression(command, subscription.sub_string)
        _check_expression(subscription.sub_string)
        return response(command, ResponseCode.SUCCESS)

    async def _check_long_expression(self, command: Command, expression: str) -> Command:
        if len(expression) <= EXPRESSION_MAX:
            keep_compiled(expression, await asyncio.to_thread(parse_sql, expression))
        _check_expression(expression)
        return response(command, ResponseCode.SUCCESS)

    def notify_group_change(self, group: str, channels: list[Channel]) -> None:
        """Notifies the members of a consumer group to rebalance; a listener for
        `ClientRegistry.on_group_change`. Many members are notified in later turns of the loop."""
        if not self._live.current.notify_consumer_ids_changed_enable:
            return
        if len(channels) <= NOTIFIED_AT_ONCE:
            self._notify(group, channels)
        elif group in self._unnotified:
            self._unnotified_again[group] = channels
        else:
            self._unnotified[group] = channels
            self._notify_soon()

    def _notify_soon(self) -> None:
        if self._notifying is None:
            self._notifying = asyncio.get_running_loop().call_soon(self._notify_more)

    def _notify_more(self) -> None:
        self._notifying = None
        group = next(iter(self._unnotified))
        channels = self._unnotified.pop(group)
        self._notify(group, channels[:NOTIFIED_AT_ONCE])
        rest = channels[NOTIFIED_AT_ONCE:] or self._unnotified_again.pop(group, [])
        if rest:
            self._unnotified[group] = rest
        if self._unnotified:
            self._notify_soon()

    def _notify(self, group: str, channels: list[Channel]) -> None:
        header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
        for channel in channels:
            connection = cast(RemotingConnection, channel)
            try:
                connection.oneway(request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header))
            except ConnectionClosedError:
                log.debug("could not notify %s of a change of group %s: it is gone", channel.remote, group)

    # offsets

    def query_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Returns the offset from which a group continues on a queue. Without an offset the group starts at 0
        if the queue's first message is still in memory; otherwise the client decides (QUERY_NOT_FOUND)."""
        header = QueryConsumerOffsetRequestHeader.decode(command.ext)
        offset = self._offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None or offset < 0:
            if header.set_zero_if_not_found is False:
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, do not set to zero, maybe this group boot first",
                )
            if not is_first_message_in_memory(self._store, header.topic, header.queue_id):
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
            offset = 0
        return response(
            command, ResponseCode.SUCCESS, header=QueryConsumerOffsetResponseHeader(offset=offset)
        )

    def update_offset(self, connection: RemotingConnection, command: Command) -> Command:
        """Stores a group's offset. While a reset waits for the group's next pull, the request succeeds and is
        ignored."""
        header = UpdateConsumerOffsetRequestHeader.decode(command.ext)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        if group not in self._groups:
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if topic not in self._topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if self._offsets.server_side_reset and self._offsets.has_pending_reset(group, topic, queue_id):
            return response(command, ResponseCode.SUCCESS, "Offset has been previously reset")
        self._offsets.commit(group, topic, queue_id, header.commit_offset)
        return response(command, ResponseCode.SUCCESS)

    # queue locks

    def lock(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Locks queues for an orderly consumer. Returns those that it got."""
        decoded = in_turns(self._lock_body(LockBatchRequestBody, command, Turns()))
        if not isinstance(decoded, LockBatchRequestBody):
            return self._lock_many(command, decoded)
        if self._locks.is_needed(decoded):
            return self._lock_on_majority(command, decoded)
        return in_turns(self._lock_here(command, decoded, Turns()))

    async def _lock_many(self, command: Command, decoding: WorkInTurns[LockBatchRequestBody]) -> Command:
        body = await decoding
        if self._locks.is_needed(body):
            return await self._lock_on_majority(command, body)
        return await WorkInTurns(self._lock_here(command, body, Turns()))

    async def _lock_body(self, cls: type[L], command: Command, turns: Turns) -> L:
        body = await turns.run(decode_steps(cls, command.body))
        _require("queues", len(body.mq_set), "maxQueuesPerLock", self._live.current.max_queues_per_lock)
        return body

    async def _lock_here(self, command: Command, body: LockBatchRequestBody, turns: Turns) -> Command:
        granted: list[MessageQueue] = []
        for some in _in_slices(_ordered(body.mq_set)):
            await turns.pause(2)
            granted += _ordered(self._locks.lock_here(body, some))
        encoded = []
        for some in _in_slices(granted):
            await turns.pause(STEPS_MIN // 4)
            encoded += [to_json(queue) for queue in some]
        empty = to_json(LockBatchResponseBody())
        return response(
            command,
            ResponseCode.SUCCESS,
            body=with_items(empty, "lockOKMQSet", b"[%b]" % b",".join(encoded)),
        )

    async def _lock_on_majority(self, command: Command, body: LockBatchRequestBody) -> Command:
        return _locked(command, await self._locks.lock(body))

    def unlock(self, connection: RemotingConnection, command: Command) -> Command | Awaitable[Command]:
        """Releases locked queues."""
        return in_turns(self._unlock(command, Turns()))

    async def _unlock(self, command: Command, turns: Turns) -> Command:
        body = await self._lock_body(UnlockBatchRequestBody, command, turns)
        for some in _in_slices(list(body.mq_set)):
            await turns.pause()
            self._locks.unlock_here(body, some)
        self._locks.unlock_elsewhere(body)
        return response(command, ResponseCode.SUCCESS)


def _check_expression(expression: str) -> None:
    """RequestError SUBSCRIPTION_PARSE_FAILED: it is no SQL92 expression. On the event loop only."""
    try:
        compile_sql(expression)
    except SqlSyntaxError as error:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"subString {expression!r:.200} is no SQL92 expression: {error}",
        ) from error


def _require(what: str, count: int, key: str, count_max: int) -> None:
    if count > count_max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the request names {count} {what}, more than {key}={count_max} of the broker: name fewer, or "
            f"raise {key}",
        )


def _locked(command: Command, queues: set[MessageQueue]) -> Command:
    return response(command, ResponseCode.SUCCESS, body=to_json(LockBatchResponseBody(lock_ok_mq_set=queues)))


def _ordered(queues: set[MessageQueue]) -> list[MessageQueue]:
    """The queues; few of them in order."""
    return sorted(queues) if len(queues) <= ORDERED_MAX else list(queues)


def _in_slices(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), SLICE):
        yield items[start : start + SLICE]
