"""Requests of brokers, clients and administrators to the nameserver (RocketMQ DefaultRequestProcessor,
ClientRequestProcessor, ZoneRouteRPCHook). What they mean is in `routes`; here they are decoded and
answered."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable

from epochmq_controller import settings_file
from epochmq_controller.nameserver import config as configs
from epochmq_controller.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from epochmq_controller.nameserver.routes import (
    BrokerRegistration,
    BrokerUnregistration,
    RouteEffect,
    RouteTables,
)
from epochmq_protocol import fastjson
from epochmq_protocol import headers_namesrv as headers
from epochmq_protocol.bodies_admin import ClusterInfo, KVTable, TopicList
from epochmq_protocol.bodies_base import from_json, to_json
from epochmq_protocol.bodies_controller import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from epochmq_protocol.codes import V3_0_11, RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import MASTER_ID, TopicRouteData, encode_route
from epochmq_protocol.topics import DataVersion, RegisterBrokerBody, TopicConfigSerializeWrapper
from epochmq_protocol.transport import RemotingConnection, RequestHandler

log = logging.getLogger(__name__)

ZONE_NAME, ZONE_MODE = "__ZONE_NAME", "__ZONE_MODE"
CRC_MASK = 0x7FFF_FFFF
FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class NamesrvProcessor:
    """The handlers of one nameserver.

    `now_ms` gives the time, `apply` carries out effects, `schedule_unregister` has `unregister_pending`
    called soon.
    """

    def __init__(
        self,
        tables: RouteTables,
        kv: KVConfig,
        *,
        extra: dict[str, str],
        now_ms: Callable[[], int],
        apply: Callable[[list[RouteEffect]], None],
        schedule_unregister: Callable[[], None],
    ) -> None:
        self._tables = tables
        self._kv = kv
        self._extra = extra
        self._saving = asyncio.Lock()
        self._now_ms = now_ms
        self._apply = apply
        self._schedule_unregister = schedule_unregister
        self._started_ms = now_ms()

    def handlers(self) -> dict[int, RequestHandler]:
        """Every request code that a nameserver answers."""
        code = RequestCode
        return {
            code.PUT_KV_CONFIG: self.put_kv_config,
            code.GET_KV_CONFIG: self.get_kv_config,
            code.DELETE_KV_CONFIG: self.delete_kv_config,
            code.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
            code.REGISTER_BROKER: self.register_broker,
            code.UNREGISTER_BROKER: self.unregister_broker,
            code.BROKER_HEARTBEAT: self.broker_heartbeat,
            code.QUERY_DATA_VERSION: self.query_data_version,
            code.GET_BROKER_MEMBER_GROUP: self.get_broker_member_group,
            code.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            code.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_permission,
            code.ADD_WRITE_PERM_OF_BROKER: self.add_write_permission,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
            code.GET_TOPICS_BY_CLUSTER: self.get_topics_of_cluster,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            code.GET_UNIT_TOPIC_LIST: self.get_unit_topics,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST: self.get_unit_sub_topics,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.get_unit_sub_not_unit_topics,
            code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            code.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            code.UPDATE_NAMESRV_CONFIG: self.update_config,
            code.GET_NAMESRV_CONFIG: self.get_config,
        }

    # KV config

    async def put_kv_config(self, connection: RemotingConnection, request: Command) -> Command:
        """PUT_KV_CONFIG (100)."""
        header = headers.PutKVConfigRequestHeader.decode(request.ext)
        await self._kv.put(header.namespace, header.key, header.value)
        return response(request, ResponseCode.SUCCESS)

    def get_kv_config(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_KV_CONFIG (101)."""
        header = headers.GetKVConfigRequestHeader.decode(request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return response(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return response(request, ResponseCode.SUCCESS, header=headers.GetKVConfigResponseHeader(value=value))

    async def delete_kv_config(self, connection: RemotingConnection, request: Command) -> Command:
        """DELETE_KV_CONFIG (102)."""
        header = headers.DeleteKVConfigRequestHeader.decode(request.ext)
        await self._kv.delete(header.namespace, header.key)
        return response(request, ResponseCode.SUCCESS)

    def get_kv_list(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_KVLIST_BY_NAMESPACE (219)."""
        header = headers.GetKVListByNamespaceRequestHeader.decode(request.ext)
        table = self._kv.namespace(header.namespace)
        if table is None:
            return response(
                request, ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return response(request, ResponseCode.SUCCESS, body=to_json(KVTable(table=table)))

    # brokers

    def register_broker(self, connection: RemotingConnection, request: Command) -> Command:
        """REGISTER_BROKER (103)."""
        header = headers.RegisterBrokerRequestHeader.decode(request.ext)
        if header.body_crc32 and header.body_crc32 != zlib.crc32(request.body) & CRC_MASK:
            log.warning("registration of %s from %s: wrong checksum", header.broker_name, connection.remote)
            return response(request, ResponseCode.SYSTEM_ERROR, "crc32 not match")
        topics, filter_servers = _registered_topics(request, is_compressed=header.compressed)
        is_new = self._tables.data_version(header.cluster_name, header.broker_addr) is None
        wanted = BrokerRegistration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            topics=topics,
            filter_servers=filter_servers,
            zone_name=(request.ext or {}).get(ZONE_NAME),
            heartbeat_timeout_ms=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            channel=connection,
        )
        registered, effects = self._tables.register(wanted, self._now_ms())
        self._apply(effects)
        if registered is None:
            log.warning(
                "refused %s %s: its first registration has one topic only", wanted.broker_name, wanted.address
            )
            return response(request, ResponseCode.SYSTEM_ERROR, "register broker failed")
        if is_new:
            log.info(
                "broker %s:%d is %s, HA %s",
                wanted.broker_name,
                wanted.broker_id,
                wanted.address,
                wanted.ha_address,
            )
        told = headers.RegisterBrokerResponseHeader(
            ha_server_addr=registered.ha_address, master_addr=registered.master_address
        )
        order = None
        if self._tables.config.return_order_topic_config_to_broker:
            order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        body = b"" if order is None else to_json(KVTable(table=order))
        return response(request, ResponseCode.SUCCESS, header=told, body=body)

    def unregister_broker(self, connection: RemotingConnection, request: Command) -> Command:
        """UNREGISTER_BROKER (104): answered at once, done with the next batch."""
        header = headers.UnRegisterBrokerRequestHeader.decode(request.ext)
        wanted = BrokerUnregistration(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        if not self._tables.submit_unregister(wanted):
            log.warning("too many unregistrations wait: refused %s", wanted)
            return response(request, ResponseCode.SYSTEM_ERROR)
        log.info("broker %s:%d at %s unregisters", wanted.broker_name, wanted.broker_id, wanted.address)
        self._schedule_unregister()
        return response(request, ResponseCode.SUCCESS)

    def broker_heartbeat(self, connection: RemotingConnection, request: Command) -> Command:
        """BROKER_HEARTBEAT (904)."""
        header = headers.BrokerHeartbeatRequestHeader.decode(request.ext)
        self._tables.record_heartbeat(header.cluster_name, header.broker_addr, self._now_ms())
        return response(request, ResponseCode.SUCCESS)

    def query_data_version(self, connection: RemotingConnection, request: Command) -> Command:
        """QUERY_DATA_VERSION (322): whether the broker has something to register. A sign of life, too."""
        header = headers.QueryDataVersionRequestHeader.decode(request.ext)
        cluster, address = header.cluster_name, header.broker_addr
        theirs = from_json(DataVersion, request.body) if request.body else None
        ours = self._tables.data_version(cluster, address)
        self._tables.record_heartbeat(cluster, address, self._now_ms())
        answer = headers.QueryDataVersionResponseHeader(changed=ours is None or ours != theirs)
        body = b"" if ours is None else to_json(ours)
        return response(request, ResponseCode.SUCCESS, header=answer, body=body)

    def get_broker_member_group(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_BROKER_MEMBER_GROUP (901)."""
        header = headers.GetBrokerMemberGroupRequestHeader.decode(request.ext)
        group = BrokerMemberGroup(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_addrs=self._tables.members(header.broker_name),
        )
        return response(
            request,
            ResponseCode.SUCCESS,
            body=to_json(GetBrokerMemberGroupResponseBody(broker_member_group=group)),
        )

    # routes

    def get_route(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        header = headers.GetRouteInfoRequestHeader.decode(request.ext)
        config = self._tables.config
        if config.need_wait_for_service:
            waited_ms = self._now_ms() - self._started_ms
            if waited_ms < config.wait_seconds_for_service * 1000:
                return response(request, ResponseCode.SYSTEM_ERROR, "name server not ready")
        route = self._tables.route(header.topic)
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

    def get_cluster_info(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO (106)."""
        clusters = {cluster: list(names) for cluster, names in self._tables.clusters.items()}
        info = ClusterInfo(broker_addr_table=self._tables.brokers, cluster_addr_table=clusters)
        return response(request, ResponseCode.SUCCESS, body=to_json(info))

    def wipe_write_permission(self, connection: RemotingConnection, request: Command) -> Command:
        """WIPE_WRITE_PERM_OF_BROKER (205)."""
        header = headers.WipeWritePermOfBrokerRequestHeader.decode(request.ext)
        count = self._tables.set_write_permission(header.broker_name, allowed=False)
        log.info(
            "%s wipes the write permission of %s: %d topics", connection.remote, header.broker_name, count
        )
        told = headers.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        return response(request, ResponseCode.SUCCESS, header=told)

    def add_write_permission(self, connection: RemotingConnection, request: Command) -> Command:
        """ADD_WRITE_PERM_OF_BROKER (327)."""
        header = headers.AddWritePermOfBrokerRequestHeader.decode(request.ext)
        count = self._tables.set_write_permission(header.broker_name, allowed=True)
        log.info(
            "%s adds the write permission of %s: %d topics", connection.remote, header.broker_name, count
        )
        told = headers.AddWritePermOfBrokerResponseHeader(add_topic_count=count)
        return response(request, ResponseCode.SUCCESS, header=told)

    # topics

    def get_all_topics(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        if not self._tables.config.enable_all_topic_list:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")
        return _topic_list(request, list(self._tables.topics))

    def get_topics_of_cluster(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_TOPICS_BY_CLUSTER (224)."""
        self._check_topic_lists()
        header = headers.GetTopicsByClusterRequestHeader.decode(request.ext)
        return _topic_list(request, self._tables.topics_of_cluster(header.cluster))

    def get_system_topics(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        names, address = self._tables.system_topics()
        return _topic_list(request, names, address)

    def get_unit_topics(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_UNIT_TOPIC_LIST (311)."""
        self._check_topic_lists()
        return _topic_list(request, self._tables.unit_topics(unit=True, unit_sub=None))

    def get_unit_sub_topics(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_HAS_UNIT_SUB_TOPIC_LIST (312)."""
        self._check_topic_lists()
        return _topic_list(request, self._tables.unit_topics(unit=None, unit_sub=True))

    def get_unit_sub_not_unit_topics(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST (313)."""
        self._check_topic_lists()
        return _topic_list(request, self._tables.unit_topics(unit=False, unit_sub=True))

    def delete_topic(self, connection: RemotingConnection, request: Command) -> Command:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        header = headers.DeleteTopicFromNamesrvRequestHeader.decode(request.ext)
        self._tables.delete_topic(header.topic, header.cluster_name)
        log.info(
            "%s deletes topic %s of cluster %s",
            connection.remote,
            header.topic,
            header.cluster_name or "(all)",
        )
        return response(request, ResponseCode.SUCCESS)

    def register_topic(self, connection: RemotingConnection, request: Command) -> Command:
        """REGISTER_TOPIC_IN_NAMESRV (217). Unknown broker names are left out in silence, as in Java."""
        header = headers.RegisterTopicRequestHeader.decode(request.ext)
        if request.body:
            route = from_json(TopicRouteData, request.body)
            if route.queue_datas and not self._tables.register_topic(header.topic, route.queue_datas):
                log.warning("topic %s names a broker that is not registered: ignored", header.topic)
        return response(request, ResponseCode.SUCCESS)

    def _check_topic_lists(self) -> None:
        if not self._tables.config.enable_topic_list:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "disable")

    # settings

    def get_config(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_NAMESRV_CONFIG (319)."""
        body = settings_file.to_text(self._tables.config, self._extra).encode()
        return response(request, ResponseCode.SUCCESS, body=body)

    async def update_config(self, connection: RemotingConnection, request: Command) -> Command:
        """UPDATE_NAMESRV_CONFIG (318): changes what is not black-listed, here and in the settings file."""
        config = self._tables.config
        changed, changes = settings_file.change(
            config,
            self._extra,
            request.body,
            black_list=config.black_list(),
            fixed=configs.IMMUTABLE_KEYS,
            check=configs.check,
        )
        self._tables.config = changed
        log.info("%s changes settings: %s", connection.remote, changes)
        async with self._saving:  # one after another, and not on the event loop
            await asyncio.to_thread(settings_file.save, config.config_store_path, changes)
        return response(request, ResponseCode.SUCCESS)


def _registered_topics(
    request: Command, *, is_compressed: bool
) -> tuple[TopicConfigSerializeWrapper, list[str] | None]:
    """Topics and filter servers of a registration; brokers older than 3.0.11 send topics alone."""
    if not request.body:
        is_old = request.version < V3_0_11
        return TopicConfigSerializeWrapper(data_version=DataVersion()), None if is_old else []
    if request.version < V3_0_11:
        return from_json(TopicConfigSerializeWrapper, request.body), None
    body = RegisterBrokerBody.decode(request.body, compressed=is_compressed, version=request.version)
    return body.topic_config_serialize_wrapper, body.filter_server_list


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Command:
    return response(
        request, ResponseCode.SUCCESS, body=to_json(TopicList(topic_list=topics, broker_addr=address))
    )


def _in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """The brokers of one zone, and those without a master: their slaves are read from anywhere."""
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
