"""Serves clients' route queries (RocketMQ ClientRequestProcessor, ZoneRouteRPCHook)."""

from __future__ import annotations

from collections.abc import Callable

from epochmq_controller.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from epochmq_controller.nameserver.routes import RouteTables
from epochmq_protocol import fastjson
from epochmq_protocol import headers_namesrv as headers
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import MASTER_ID, TopicRouteData, encode_route
from epochmq_protocol.transport import RemotingConnection

ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class RouteProcessor:
    """The handler of route queries at one port of a nameserver. `now_ms` returns the time, `route_of` the
    route of a topic."""

    def __init__(
        self,
        *,
        tables: RouteTables,
        kv: KVConfig,
        now_ms: Callable[[], int],
        route_of: Callable[[str], TopicRouteData | None],
    ) -> None:
        self._tables = tables
        self._route_of = route_of
        self._kv = kv
        self._now_ms = now_ms
        self._started_ms = now_ms()

    def get_route(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        header = headers.GetRouteInfoRequestHeader.decode(request.ext)
        config = self._tables.config
        if config.need_wait_for_service:
            waited_ms = self._now_ms() - self._started_ms
            if waited_ms < config.wait_seconds_for_service * 1000:
                return response(request, ResponseCode.SYSTEM_ERROR, "name server not ready")
        route = self._route_of(header.topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {header.topic}{FAQ}"
            return response(request, ResponseCode.TOPIC_NOT_EXIST, remark)
        if config.order_message_enable:
            route.order_topic_conf = self._kv.get(ORDER_TOPIC_CONFIG, header.topic)
        ext = request.ext or {}
        zone = ext.get(ZONE_NAME, "")
        if zone.strip() and ext.get(ZONE_MODE, "").lower() == "true":
            body = fastjson.dumps(_in_zone(route, zone))
        else:
            body = encode_route(
                route,
                version=request.version,
                accept_standard_json_only=header.accept_standard_json_only,
            )
        return response(request, ResponseCode.SUCCESS, body=body)


def _in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Keeps the brokers of one zone, and those without a master: clients of all zones read from their
    slaves."""
    kept = [
        broker
        for broker in route.broker_datas
        if MASTER_ID not in broker.broker_addrs or (broker.zone_name or "").lower() == zone.lower()
    ]
    kept_names = {broker.broker_name for broker in kept}
    removed = [broker for broker in route.broker_datas if broker.broker_name not in kept_names]
    removed_names = {broker.broker_name for broker in removed}
    gone = {address for broker in removed for address in broker.broker_addrs.values()}
    route.broker_datas = kept
    route.queue_datas = [queue for queue in route.queue_datas if queue.broker_name not in removed_names]
    route.filter_server_table = {
        at: servers for at, servers in route.filter_server_table.items() if at not in gone
    }
    return route
