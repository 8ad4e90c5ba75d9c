"""Defines subscription groups (the settings of consumer groups), and the bodies that carry them.

RocketMQ's classes are SubscriptionGroupConfig, GroupRetryPolicy, SubscriptionGroupWrapper and GroupForbidden.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

import msgspec
from msgspec import field

from epochmq_protocol.bodies_base import Body
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.topics import DataVersion


class GroupRetryPolicyType(StrEnum):
    """How the delays before redeliveries grow."""

    EXPONENTIAL = "EXPONENTIAL"
    CUSTOMIZED = "CUSTOMIZED"


class ExponentialRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """Delays in ms: `initial`, then multiplied each time, at most `max`."""

    initial: Long = 5_000
    max: Long = 7_200_000
    multiplier: Long = 2


class CustomizedRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """Delays in ms, one after the other."""

    next: list[Long] = field(default_factory=list)


class GroupRetryPolicy(msgspec.Struct, frozen=True, rename="camel"):
    """The retry policy of a group. `type` selects the policy; if that one is missing, RocketMQ's default
    applies."""

    type: GroupRetryPolicyType = GroupRetryPolicyType.CUSTOMIZED
    exponential_retry_policy: ExponentialRetryPolicy | None = None
    customized_retry_policy: CustomizedRetryPolicy | None = None


class SimpleSubscriptionData(msgspec.Struct, frozen=True, rename="camel"):
    """A subscription that a group's configuration carries."""

    topic: str = ""
    expression_type: str = "TAG"
    expression: str | None = None
    version: Long = 0


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The settings of one consumer group at a broker."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    broker_id: Long = 0
    which_broker_when_consume_slowly: Long = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    subscription_data_set: list[SimpleSubscriptionData] | None = None
    attributes: dict[str, str] = field(default_factory=dict)


class SubscriptionGroupWrapper(Body):
    """subscriptionGroup.json and the response to GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Java writes its whole
    manager, so the forbidden table is part of it: group, topic, and bits that say what the group may not do
    with the topic."""

    STRICT_FIRST: ClassVar[bool] = True

    subscription_group_table: dict[str, SubscriptionGroupConfig] = field(default_factory=dict)
    forbidden_table: dict[str, dict[str, Int]] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


class SubscriptionGroupList(Body):
    """Request of UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig] = field(default_factory=list)


class GroupForbidden(Body):
    """Response to UPDATE_AND_GET_GROUP_FORBIDDEN."""

    topic: str | None = None
    group: str | None = None
    readable: bool | None = None
