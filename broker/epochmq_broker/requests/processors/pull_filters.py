"""Finds the filter of a pull: by the subscription that the pull carries, or by the group's own."""

from __future__ import annotations

import time
from typing import Protocol

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.requests.processors.pull_rejection import (
    FORBIDDEN_BROADCASTING,
    FORBIDDEN_SUBSCRIPTION,
    PullRejectedError,
)
from epochmq_broker.tables.clients import ClientRegistry
from epochmq_broker.tables.filters.consumer_filters import SQL92, ConsumerFilterTable
from epochmq_broker.tables.filters.message_filter import (
    MessageFilter,
    carried_filter,
    registered_filter,
    retry_filter,
    tag_filter,
)
from epochmq_broker.tables.filters.sql_compiler import require_compiled
from epochmq_broker.tables.subscription_groups import SubscriptionGroupTable
from epochmq_broker.tables.subscriptions import SubscriptionError, is_tag_type, parse_subscription
from epochmq_protocol.bodies import ConsumeType, MessageModel, SubscriptionData
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import RETRY_GROUP_TOPIC_PREFIX

FLAG_SUBSCRIPTION = 4
"""The bit of a pull's sysFlag for a pull that carries its subscription (PullSysFlag)."""

PROXY_FOR_BROADCAST, PROXY_FOR_STREAM = 1, 2
"""Values of a pull's requestSource (RequestSource)."""

FILTERS_MAX = 10_000
CARRIED_FRESH_MS = 60_000
"""How long a parsed subscription is reused. Its version is its time, by which the registry expires it."""


class PullSubscription(Protocol):
    """The fields of a pull that say what it subscribes. `request_source`: None or -1 if there is none."""

    @property
    def consumer_group(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def sys_flag(self) -> int: ...
    @property
    def subscription(self) -> str | None: ...
    @property
    def sub_version(self) -> int: ...
    @property
    def expression_type(self) -> str | None: ...
    @property
    def request_source(self) -> int | None: ...


class PullFilters:
    """The filters of one broker's pulls; those by tags are kept."""

    def __init__(
        self,
        live: LiveConfig,
        groups: SubscriptionGroupTable,
        clients: ClientRegistry,
        registered: ConsumerFilterTable,
    ) -> None:
        self._live = live
        self._groups = groups
        self._clients = clients
        self._registered = registered
        self._carried: dict[tuple[str, str | None, str | None], SubscriptionData] = {}
        self._filters: dict[int, tuple[SubscriptionData, MessageFilter]] = {}

    def filter_of(self, request: PullSubscription, group: SubscriptionGroupConfig) -> MessageFilter:
        """The filter of the pull's subscription: of the one that it carries, or of the one in the group's
        heartbeats. Raises RequestError and NotCompiledError."""
        carried = bool(request.sys_flag & FLAG_SUBSCRIPTION)
        if carried:
            subscription = self._carried_subscription(request)
        else:
            subscription = self._known_subscription(request, group)
        known = self._filters.get(id(subscription))
        if known is not None and known[0] is subscription:
            return known[1]
        if not is_tag_type(subscription.expression_type):
            return self._expression_filter(request, subscription, carried=carried)
        found = tag_filter(subscription)
        if len(self._filters) >= FILTERS_MAX:
            self._filters.clear()
        self._filters[id(subscription)] = (subscription, found)
        return found

    def _expression_filter(
        self, request: PullSubscription, subscription: SubscriptionData, *, carried: bool
    ) -> MessageFilter:
        """The filter of a subscription by an expression. Raises RequestError; NotCompiledError, with nothing
        changed, for a long expression that has to be compiled first."""
        registered = None
        if not carried:
            registered = self._registered.get(request.topic, request.consumer_group)
            if registered is None:
                raise RequestError(
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    "The broker's consumer filter data is not exist!Your expression may be wrong!",
                )
            if registered.data.client_version < request.sub_version:
                raise RequestError(
                    ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
                )
        config = self._live.current
        if not config.enable_property_filter:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {subscription.expression_type}",
            )
        if config.filter_support_retry and subscription.topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            return retry_filter(self._registered, subscription)
        if registered is not None:
            return registered_filter(registered)
        if subscription.expression_type == SQL92:
            require_compiled(subscription.sub_string)
        return carried_filter(subscription)

    def _carried_subscription(self, request: PullSubscription) -> SubscriptionData:
        """Returns the subscription that a pull carries; equal texts give the same object for a minute."""
        now_ms = time.time_ns() // 1_000_000
        words = (request.topic, request.subscription, request.expression_type)
        subscription = self._carried.get(words)
        if subscription is None or now_ms - subscription.sub_version > CARRIED_FRESH_MS:
            try:
                subscription = parse_subscription(*words, now_ms)
            except SubscriptionError as error:
                raise RequestError(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
                ) from error
            if len(self._carried) >= FILTERS_MAX:
                self._carried.clear()
            self._carried[words] = subscription
        source = request.request_source
        self._clients.compensate(
            request.consumer_group,
            request.topic,
            subscription,
            ConsumeType.CONSUME_ACTIVELY if source == PROXY_FOR_STREAM else ConsumeType.CONSUME_PASSIVELY,
            MessageModel.BROADCASTING if source == PROXY_FOR_BROADCAST else MessageModel.CLUSTERING,
        )
        return subscription

    def _known_subscription(
        self, request: PullSubscription, group: SubscriptionGroupConfig
    ) -> SubscriptionData:
        name, topic = request.consumer_group, request.topic
        online = self._clients.group(name)
        if online is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if not group.consume_broadcast_enable and online.is_broadcasting:
            raise PullRejectedError(
                FORBIDDEN_BROADCASTING, f"the consumer group[{name}] can not consume by broadcast way"
            )
        if self._groups.is_forbidden(name, topic):
            raise PullRejectedError(
                FORBIDDEN_SUBSCRIPTION, f"the consumer group[{name}] is forbidden for topic[{topic}]"
            )
        subscription = online.subscriptions.get(topic)
        if subscription is None:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < request.sub_version:
            raise RequestError(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        return subscription
