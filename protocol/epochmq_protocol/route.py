"""Encodes topic routes, which say where the queues of a topic are (QueueData, BrokerData, TopicRouteData).

Clients from 4.9.4 on, and clients that request it, get standard JSON (`{"0":"addr"}`). Older ones get
fastjson's own form (`{0:"addr"}`).
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from epochmq_protocol import fastjson
from epochmq_protocol.bodies_base import Body
from epochmq_protocol.codes import V4_9_4
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.topics import TopicQueueMappingInfo

MASTER_ID = 0
EXTERNAL_ADDRESS = "externalAddr"
"""Field of EpochMQ's own in a registration: the broker's address for clients outside. RocketMQ's nameserver
ignores fields that it does not know."""


class QueueData(Body):
    """The queues of a topic on one broker name."""

    broker_name: str = ""
    read_queue_nums: Int = 0
    write_queue_nums: Int = 0
    perm: Int = 0
    topic_sys_flag: Int = 0


class BrokerData(Body):
    """The brokers of one broker name: broker id to `ip:port`."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[Long, str] = field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicRouteData(Body):
    """Response to GET_ROUTEINFO_BY_TOPIC. `order_topic_conf`: `broker-a:4;broker-b:4`."""

    STRICT_FIRST: ClassVar[bool] = True

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


def encode_route(
    route: TopicRouteData, *, version: int, accept_standard_json_only: bool | None = None
) -> bytes:
    """The route in the JSON form that the requester reads. `version` is the one in the request's header."""
    if version >= V4_9_4 or accept_standard_json_only:
        return fastjson.dumps_standard(route)
    return fastjson.dumps(route)
