# pure: addresses for external clients
"""Replaces the addresses of brokers by those for clients outside the brokers' network.

A broker without an external listener is left out: such a client could not connect to it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from epochmq_controller.nameserver.routes import RouteTables
from epochmq_protocol.bodies_admin import ClusterInfo
from epochmq_protocol.route import BrokerData, TopicRouteData


def external_route(tables: RouteTables, topic: str) -> TopicRouteData | None:
    """The route of a topic for external clients; None if no broker with an external listener has the topic.
    The route shares objects with the tables, as that of `RouteTables.route`."""
    route = tables.route(topic)
    if route is None:
        return None
    brokers = _external_brokers(tables, route.broker_datas)
    names = {broker.broker_name for broker in brokers}
    if not names:
        return None
    route.broker_datas = brokers
    route.queue_datas = [queues for queues in route.queue_datas if queues.broker_name in names]
    route.filter_server_table = {}
    return route


def external_cluster_info(tables: RouteTables) -> ClusterInfo:
    """The brokers of all clusters with their external addresses."""
    brokers = {broker.broker_name: broker for broker in _external_brokers(tables, tables.brokers.values())}
    clusters = {
        cluster: present
        for cluster, names in tables.clusters.items()
        if (present := [name for name in names if name in brokers])
    }
    return ClusterInfo(broker_addr_table=brokers, cluster_addr_table=clusters)


def _external_brokers(tables: RouteTables, brokers: Iterable[BrokerData]) -> list[BrokerData]:
    found = []
    for broker in brokers:
        addresses = {
            broker_id: external
            for broker_id, address in broker.broker_addrs.items()
            if (external := tables.external_address(broker.cluster, address)) is not None
        }
        if addresses:
            found.append(msgspec.structs.replace(broker, broker_addrs=addresses))
    return found
