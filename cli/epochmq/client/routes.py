"""Looks up the routes of topics at the nameservers, and lists their queues."""

from __future__ import annotations

from collections.abc import Sequence

from epochmq_protocol.bodies import ClusterInfo
from epochmq_protocol.bodies_base import MessageQueue, from_json
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError, RequestError, RetryableError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_base import Header
from epochmq_protocol.headers_namesrv import GetRouteInfoRequestHeader
from epochmq_protocol.route import MASTER_ID, TopicRouteData
from epochmq_protocol.topics import is_readable, is_writeable
from epochmq_protocol.transport import RemotingClient

LOOKUP_TIMEOUT_MS = 3000


class RouteLookup:
    """Queries the nameservers in turn, beginning with the one that responded most recently."""

    def __init__(self, remoting: RemotingClient, nameservers: Sequence[str]) -> None:
        assert nameservers, "at least one nameserver"
        self._remoting = remoting
        self._nameservers = list(nameservers)

    async def lookup(self, topic: str) -> TopicRouteData | None:
        """The route of the topic; None if the topic does not exist. Raises ConnectError if no nameserver
        responds, and RequestError for an error response."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        response = await self._call(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return from_json(TopicRouteData, _check_success(response).body)

    async def has_brokers(self) -> bool:
        """Whether any broker is registered. Raises the same errors as `lookup`."""
        response = await self._call(RequestCode.GET_BROKER_CLUSTER_INFO, None)
        return bool(from_json(ClusterInfo, _check_success(response).body).broker_addr_table)

    async def _call(self, code: RequestCode, header: Header | None) -> Command:
        failures: list[str] = []
        for nameserver in list(self._nameservers):
            try:
                return await self._remoting.call(nameserver, request(code, header), LOOKUP_TIMEOUT_MS)
            except RetryableError as error:
                failures.append(str(error))
                # The next call begins with the other nameservers.
                self._nameservers.remove(nameserver)
                self._nameservers.append(nameserver)
        raise ConnectError("no nameserver responds: " + "; ".join(failures))


def _check_success(response: Command) -> Command:
    if response.code != ResponseCode.SUCCESS:
        raise RequestError(
            response.code, response.remark or f"the nameserver responded with code {response.code}"
        )
    return response


def masters(route: TopicRouteData) -> dict[str, str]:
    """Maps broker names to the addresses of their masters; broker names without a master are left out."""
    return {
        broker.broker_name: broker.broker_addrs[MASTER_ID]
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs
    }


def readable_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    """The readable queues in RocketMQ's order: by broker, then by number."""
    masters_by_name = masters(route)
    return sorted(
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if is_readable(data.perm) and data.broker_name in masters_by_name
        for queue_id in range(data.read_queue_nums)
    )


def writeable_queues(
    topic: str, route: TopicRouteData, queue_nums_max: int | None = None
) -> list[MessageQueue]:
    """The writable queues, in an order that alternates between the brokers. `queue_nums_max` limits their
    number on each broker."""
    masters_by_name = masters(route)
    queues = [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if is_writeable(data.perm) and data.broker_name in masters_by_name
        for queue_id in range(
            data.write_queue_nums if queue_nums_max is None else min(data.write_queue_nums, queue_nums_max)
        )
    ]
    return sorted(queues, key=lambda queue: (queue.queue_id, queue.broker_name))
