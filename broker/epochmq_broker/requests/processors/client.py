"""Serves the requests of connected clients: heartbeats (34), unregistration (35), consumer lists (38),
subscription checks (46), offsets (14, 15) and queue locks (41, 42); and notifies the members of a group of a
change (40) (RocketMQ's ClientManageProcessor, ConsumerManageProcessor and
DefaultConsumerIdsChangeListener)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import cast

from epochmq_broker.config.clock import now_ms
from epochmq_broker.membership.acting.lock_quorum import LockQuorum
from epochmq_broker.requests.processors.first_message_in_memory import is_first_message_in_memory
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.tables.clients import Channel, Client
from epochmq_broker.tables.filters.consumer_filters import SQL92
from epochmq_broker.tables.filters.sql import compile_sql
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
    from_json,
    to_json,
)
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

PULL_CONSUMER = "CONSUME_ACTIVELY"

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

    def heartbeat(self, connection: RemotingConnection, command: Command) -> Command:
        """Registers or refreshes a client's producer groups, consumer groups and subscriptions. A consumer
        group without configuration is skipped silently, as in RocketMQ."""
        data = from_json(HeartbeatData, command.body)
        self._check_bounds(data)
        received_ms = now_ms()

        def client() -> Client:
            """A member for one group: a later heartbeat may name some of the groups only."""
            return Client(connection, data.client_id, command.language, command.version, received_ms)

        fingerprint = data.heartbeat_fingerprint
        resend = not fingerprint
        with self._topics.on_change.joined(), self._groups.on_change.joined():
            for consumer in data.consumer_data_set:
                if consumer.consume_type == PULL_CONSUMER and self._live.current.reject_pull_consumer_enable:
                    continue
                resend |= self._register(client(), consumer, fingerprint, without_sub=data.without_sub)
        if self._live.current.enable_register_producer or not self._live.current.reject_transaction_message:
            for producer in data.producer_data_set:
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

    def check_client_config(self, connection: RemotingConnection, command: Command) -> Command:
        """Checks whether this broker supports a subscription; clients ask before a consumer starts."""
        subscription = from_json(CheckClientRequestBody, command.body).subscription_data
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
        try:
            compile_sql(subscription.sub_string)
        except SqlSyntaxError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"subString {subscription.sub_string!r:.200} is no SQL92 expression: {error}",
            ) from error
        return response(command, ResponseCode.SUCCESS)

    def notify_group_change(self, group: str, channels: list[Channel]) -> None:
        """Notifies the members of a consumer group to rebalance; a listener for
        `ClientRegistry.on_group_change`."""
        if not self._live.current.notify_consumer_ids_changed_enable:
            return
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
        body = from_json(LockBatchRequestBody, command.body)
        _require("queues", len(body.mq_set), "maxQueuesPerLock", self._live.current.max_queues_per_lock)
        if self._locks.is_needed(body):
            return self._lock_on_majority(command, body)
        return _locked(command, self._locks.lock_here(body))

    async def _lock_on_majority(self, command: Command, body: LockBatchRequestBody) -> Command:
        return _locked(command, await self._locks.lock(body))

    def unlock(self, connection: RemotingConnection, command: Command) -> Command:
        """Releases locked queues."""
        body = from_json(UnlockBatchRequestBody, command.body)
        _require("queues", len(body.mq_set), "maxQueuesPerLock", self._live.current.max_queues_per_lock)
        self._locks.unlock(body)
        return response(command, ResponseCode.SUCCESS)


def _require(what: str, count: int, key: str, count_max: int) -> None:
    if count > count_max:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the request names {count} {what}, more than {key}={count_max} of the broker: name fewer, or "
            f"raise {key}",
        )


def _locked(command: Command, queues: set[MessageQueue]) -> Command:
    return response(command, ResponseCode.SUCCESS, body=to_json(LockBatchResponseBody(lock_ok_mq_set=queues)))
