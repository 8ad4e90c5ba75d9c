"""Collects the bodies of requests and responses under RocketMQ's class names.

The classes are in `bodies_client` (heartbeats, connections, locks, assignments), `bodies_admin` (statistics,
offsets, lists, runtime information), `bodies_controller` (replicas, SyncStateSets, epochs, HA), `topics`
(topics, registration), `subscription_groups` and `route`. `bodies_base` encodes and decodes them.
"""

from __future__ import annotations

from epochmq_protocol.bodies_admin import *  # noqa: F403 (each module lists its names)
from epochmq_protocol.bodies_base import Body, MessageQueue, convert, from_json, from_request, to_json
from epochmq_protocol.bodies_client import *  # noqa: F403
from epochmq_protocol.bodies_controller import *  # noqa: F403
from epochmq_protocol.route import BrokerData, QueueData, TopicRouteData, encode_route
from epochmq_protocol.subscription_groups import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupWrapper,
)
from epochmq_protocol.topics import (
    CreateTopicListRequestBody,
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndQueueMapping,
    TopicConfigSerializeWrapper,
)

# The starred modules list their own names.
__all__ = [
    "Body",
    "BrokerData",
    "CreateTopicListRequestBody",
    "DataVersion",
    "GroupForbidden",
    "MessageQueue",
    "QueueData",
    "RegisterBrokerBody",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupWrapper",
    "TopicConfig",
    "TopicConfigAndQueueMapping",
    "TopicConfigSerializeWrapper",
    "TopicRouteData",
    "convert",
    "encode_route",
    "from_json",
    "from_request",
    "to_json",
]
