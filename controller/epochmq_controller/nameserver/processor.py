"""Serves the request codes of the nameserver for brokers and administrators (RocketMQ
DefaultRequestProcessor).

It decodes requests and encodes responses; `routes` holds the tables. `route_processor` serves clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import partial

from epochmq_controller import settings_file
from epochmq_controller.nameserver import config as configs
from epochmq_controller.nameserver.external_routes import external_cluster_info, external_route
from epochmq_controller.nameserver.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from epochmq_controller.nameserver.route_processor import ZONE_NAME, RouteProcessor
from epochmq_controller.nameserver.routes import (
    BrokerRegistration,
    BrokerUnregistration,
    RouteEffect,
    RouteTables,
)
from epochmq_protocol import headers_namesrv as headers
from epochmq_protocol.bodies_admin import ClusterInfo, KVTable, TopicList
from epochmq_protocol.bodies_base import from_json, to_json
from epochmq_protocol.bodies_controller import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.codes import V3_0_11, RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import EXTERNAL_ADDRESS, TopicRouteData
from epochmq_protocol.topics import (
    TOPICS_AT_A_TIME,
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
)
from epochmq_protocol.transport import RemotingConnection, RequestHandler
from epochmq_protocol.transport.turns import Turns, in_ordered_turns

log = logging.getLogger(__name__)


class NamesrvProcessor:
    """The handlers of one nameserver.

    `now_ms` returns the time, `apply` carries out effects, and `schedule_unregister` schedules a call of
    `RouteTables.unregister_pending`.
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
        self._routes = RouteProcessor(tables=tables, kv=kv, now_ms=now_ms, route_of=tables.route)
        self._external_routes = RouteProcessor(
            tables=tables, kv=kv, now_ms=now_ms, route_of=partial(external_route, tables)
        )

    def handlers(self) -> dict[int, RequestHandler]:
        """The handlers by request code."""
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
            code.GET_ROUTEINFO_BY_TOPIC: self._routes.get_route,
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

    def external_handlers(self) -> dict[int, RequestHandler]:
        """The handlers at the external port, by request code: what clients need, with the addresses for
        clients outside. Brokers register, and administrators make changes, at the other port."""
        code = RequestCode
        handlers = self.handlers()
        same = (
            code.GET_KV_CONFIG,
            code.GET_KVLIST_BY_NAMESPACE,
            code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            code.GET_TOPICS_BY_CLUSTER,
            code.GET_UNIT_TOPIC_LIST,
            code.GET_HAS_UNIT_SUB_TOPIC_LIST,
            code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
        return {
            **{one: handlers[one] for one in same},
            code.GET_ROUTEINFO_BY_TOPIC: self._external_routes.get_route,
            code.GET_BROKER_CLUSTER_INFO: self.get_external_cluster_info,
            code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics_for_external,
        }

    @staticmethod
    def reject_external(connection: RemotingConnection, request: Command) -> Command:
        """The response to every other request at the external port."""
        remark = (
            f"the external port does not serve request code {request.code}: use the nameserver's listenPort"
        )
        return response(request, ResponseCode.NO_PERMISSION, remark)

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

    def register_broker(
        self, connection: RemotingConnection, request: Command
    ) -> Command | Awaitable[Command]:
        """REGISTER_BROKER (103), before the requests that follow on the connection."""
        return in_ordered_turns(self._register_broker(connection, request, Turns()), connection)

    async def _register_broker(
        self, connection: RemotingConnection, request: Command, turns: Turns
    ) -> Command:
        header = headers.RegisterBrokerRequestHeader.decode(request.ext)
        if header.body_crc32 and header.body_crc32 != crc32(request.body) & CRC_MASK:
            log.warning(
                "rejected the registration of %s by %s: wrong CRC-32", header.broker_name, connection.remote
            )
            return response(request, ResponseCode.SYSTEM_ERROR, "crc32 not match")
        steps = _registered_topics(request, is_compressed=header.compressed)
        topics, filter_servers = await turns.run(steps)
        if len(topics.topic_config_table) > TOPICS_AT_A_TIME:
            await turns.end()
        is_new = self._tables.live.data_version(header.cluster_name, header.broker_addr) is None
        registration = BrokerRegistration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_address=header.ha_server_addr,
            topics=topics,
            filter_servers=filter_servers,
            zone_name=(request.ext or {}).get(ZONE_NAME),
            external_address=(request.ext or {}).get(EXTERNAL_ADDRESS),
            heartbeat_timeout_ms=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            channel=connection,
        )
        registered, effects = self._tables.register(registration, self._now_ms())
        self._apply(effects)
        if registered is None:
            log.warning(
                "rejected broker %s at %s: its first registration has only one topic",
                registration.broker_name,
                registration.address,
            )
            return response(request, ResponseCode.SYSTEM_ERROR, "register broker failed")
        if is_new:
            log.info(
                "broker %s:%d registered with address %s, HA address %s",
                registration.broker_name,
                registration.broker_id,
                registration.address,
                registration.ha_address,
            )
        result_header = headers.RegisterBrokerResponseHeader(
            ha_server_addr=registered.ha_address, master_addr=registered.master_address
        )
        order = None
        if self._tables.config.return_order_topic_config_to_broker:
            order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        body = b"" if order is None else to_json(KVTable(table=order))
        return response(request, ResponseCode.SUCCESS, header=result_header, body=body)

    def unregister_broker(self, connection: RemotingConnection, request: Command) -> Command:
        """UNREGISTER_BROKER (104): responds at once; the next batch removes the broker."""
        header = headers.UnRegisterBrokerRequestHeader.decode(request.ext)
        unregistration = BrokerUnregistration(
            header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
        )
        if not self._tables.submit_unregister(unregistration):
            log.warning("rejected %s: too many unregistrations are pending", unregistration)
            return response(request, ResponseCode.SYSTEM_ERROR)
        log.info(
            "broker %s:%d at %s unregistered",
            unregistration.broker_name,
            unregistration.broker_id,
            unregistration.address,
        )
        self._schedule_unregister()
        return response(request, ResponseCode.SUCCESS)

    def broker_heartbeat(self, connection: RemotingConnection, request: Command) -> Command:
        """BROKER_HEARTBEAT (904)."""
        header = headers.BrokerHeartbeatRequestHeader.decode(request.ext)
        self._tables.live.record_heartbeat(header.cluster_name, header.broker_addr, self._now_ms())
        return response(request, ResponseCode.SUCCESS)

    def query_data_version(self, connection: RemotingConnection, request: Command) -> Command:
        """QUERY_DATA_VERSION (322): whether the broker has changes to register. Counts as a heartbeat."""
        header = headers.QueryDataVersionRequestHeader.decode(request.ext)
        cluster, address = header.cluster_name, header.broker_addr
        theirs = from_json(DataVersion, request.body) if request.body else None
        ours = self._tables.live.data_version(cluster, address)
        self._tables.live.record_heartbeat(cluster, address, self._now_ms())
        result_header = headers.QueryDataVersionResponseHeader(changed=ours is None or ours != theirs)
        body = b"" if ours is None else to_json(ours)
        return response(request, ResponseCode.SUCCESS, header=result_header, body=body)

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

    def get_cluster_info(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO (106)."""
        clusters = {cluster: list(names) for cluster, names in self._tables.clusters.items()}
        info = ClusterInfo(broker_addr_table=self._tables.brokers, cluster_addr_table=clusters)
        return response(request, ResponseCode.SUCCESS, body=to_json(info))

    def get_external_cluster_info(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO (106) at the external port."""
        return response(request, ResponseCode.SUCCESS, body=to_json(external_cluster_info(self._tables)))

    def wipe_write_permission(self, connection: RemotingConnection, request: Command) -> Command:
        """WIPE_WRITE_PERM_OF_BROKER (205)."""
        header = headers.WipeWritePermOfBrokerRequestHeader.decode(request.ext)
        count = self._tables.set_write_permission(header.broker_name, allowed=False)
        log.info(
            "%s removed the write permission of %s: %d topics", connection.remote, header.broker_name, count
        )
        result_header = headers.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        return response(request, ResponseCode.SUCCESS, header=result_header)

    def add_write_permission(self, connection: RemotingConnection, request: Command) -> Command:
        """ADD_WRITE_PERM_OF_BROKER (327)."""
        header = headers.AddWritePermOfBrokerRequestHeader.decode(request.ext)
        count = self._tables.set_write_permission(header.broker_name, allowed=True)
        log.info(
            "%s added the write permission of %s: %d topics", connection.remote, header.broker_name, count
        )
        result_header = headers.AddWritePermOfBrokerResponseHeader(add_topic_count=count)
        return response(request, ResponseCode.SUCCESS, header=result_header)

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

    def get_system_topics_for_external(self, connection: RemotingConnection, request: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304) at the external port."""
        brokers = external_cluster_info(self._tables).broker_addr_table.values()
        addresses = (address for broker in brokers for address in broker.broker_addrs.values())
        return _topic_list(request, self._tables.system_topics()[0], next(addresses, None))

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
            "%s deleted topic %s of cluster %s",
            connection.remote,
            header.topic,
            header.cluster_name or "(all)",
        )
        return response(request, ResponseCode.SUCCESS)

    def register_topic(self, connection: RemotingConnection, request: Command) -> Command:
        """REGISTER_TOPIC_IN_NAMESRV (217). A topic with an unknown broker name is ignored; the response is
        success, as in Java."""
        header = headers.RegisterTopicRequestHeader.decode(request.ext)
        if request.body:
            route = from_json(TopicRouteData, request.body)
            if route.queue_datas and not self._tables.register_topic(header.topic, route.queue_datas):
                log.warning("ignored topic %s: one of its brokers is not registered", header.topic)
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
        """UPDATE_NAMESRV_CONFIG (318): changes settings that are not black-listed, here and in the settings
        file."""
        config = self._tables.config
        changed, changes = settings_file.change(
            config,
            self._extra,
            request.body,
            black_list=config.black_list(),
            changeable=configs.CHANGEABLE_KEYS,
            check=configs.check,
        )
        self._tables.configure(changed)
        log.info("%s changed settings: %s", connection.remote, changes)
        async with self._saving:  # one write at a time, on a worker thread
            await asyncio.to_thread(settings_file.save, config.config_store_path, changes)
        return response(request, ResponseCode.SUCCESS)


def _registered_topics(
    request: Command, *, is_compressed: bool
) -> Generator[None, None, tuple[TopicConfigSerializeWrapper, list[str] | None]]:
    """The topics and filter servers of a registration, in steps. Brokers older than 3.0.11 send only
    topics."""
    if not request.body:
        is_old = request.version < V3_0_11
        return TopicConfigSerializeWrapper(data_version=DataVersion()), None if is_old else []
    if request.version < V3_0_11:
        return from_json(TopicConfigSerializeWrapper, request.body), None
    body = yield from RegisterBrokerBody.decode_steps(
        request.body, compressed=is_compressed, version=request.version
    )
    return body.topic_config_serialize_wrapper, body.filter_server_list


def _topic_list(request: Command, topics: list[str], address: str | None = None) -> Command:
    return response(
        request, ResponseCode.SUCCESS, body=to_json(TopicList(topic_list=topics, broker_addr=address))
    )
