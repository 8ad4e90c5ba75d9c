"""Asks a nameserver for the living brokers of this broker's group (`syncBrokerMemberGroup` of RocketMQ's
BrokerOuterAPI).

With compatibleWithOldNameSrv the question is the route of a topic that only this group's brokers have:
nameservers before version 5 know no other question."""

from __future__ import annotations

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_protocol.bodies import from_json
from epochmq_protocol.bodies_controller import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_namesrv import GetBrokerMemberGroupRequestHeader, GetRouteInfoRequestHeader
from epochmq_protocol.route import TopicRouteData
from epochmq_protocol.topics import SYNC_BROKER_MEMBER_GROUP_PREFIX
from epochmq_protocol.transport.request_client import RequestClient

POLL_TIMEOUT_MS = 3000


async def poll_members(client: RequestClient, nameserver: str, config: BrokerConfig) -> dict[int, str]:
    """Returns broker id → address of the group's brokers that the nameserver knows; empty if it knows none.
    Raises EpochMQError if the nameserver does not respond, or responds with an error."""
    response = await client.call(nameserver, poll_request(config), POLL_TIMEOUT_MS)
    return members_of(response, config)


async def other_members(client: RequestClient, live: LiveConfig) -> list[str]:
    """The addresses of the other living brokers of the group, in the order of their ids; empty without
    nameservers. Raises EpochMQError if no nameserver of version 5 answers."""
    config = live.current
    failure: EpochMQError | None = None
    for nameserver in live.nameservers:
        try:
            response = await client.call(nameserver, _group_request(config), POLL_TIMEOUT_MS)
            members = members_of(response, config, by_route=False)
        except EpochMQError as error:
            failure = error
            continue
        own = (config.broker_addr, config.client_addr)
        return [address for _, address in sorted(members.items()) if address not in own]
    if failure is not None:
        raise failure
    return []


def _group_request(config: BrokerConfig) -> Command:
    group = GetBrokerMemberGroupRequestHeader(
        cluster_name=config.broker_cluster_name, broker_name=config.broker_name
    )
    return request(RequestCode.GET_BROKER_MEMBER_GROUP, group)


def poll_request(config: BrokerConfig) -> Command:
    """The question: 105, or 901 for nameservers of version 5 and later."""
    if config.compatible_with_old_name_srv:
        route = GetRouteInfoRequestHeader(topic=SYNC_BROKER_MEMBER_GROUP_PREFIX + config.broker_name)
        return request(RequestCode.GET_ROUTEINFO_BY_TOPIC, route)
    return _group_request(config)


def members_of(response: Command, config: BrokerConfig, *, by_route: bool | None = None) -> dict[int, str]:
    """Reads the response to `poll_request`; `by_route`, that of a route or not. Raises EpochMQError for a
    response code that does not say which members there are, and BodyError."""
    by_route = config.compatible_with_old_name_srv if by_route is None else by_route
    if response.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    if response.code != ResponseCode.SUCCESS:
        raise EpochMQError(f"response code {response.code}: {response.remark}")
    if not response.body:
        return {}
    if not by_route:
        body = from_json(GetBrokerMemberGroupResponseBody, response.body)
        return dict((body.broker_member_group or BrokerMemberGroup()).broker_addrs)
    for broker in from_json(TopicRouteData, response.body).broker_datas:
        if (broker.broker_name, broker.cluster) == (config.broker_name, config.broker_cluster_name):
            return dict(broker.broker_addrs)
    return {}
