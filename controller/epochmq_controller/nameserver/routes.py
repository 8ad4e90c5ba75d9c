"""Keeps the nameserver's routing tables (RocketMQ RouteInfoManager). Pure: time comes in, effects go out.

    topics     topic -> broker name -> QueueData
    brokers    broker name -> BrokerData (id -> address)
    clusters   cluster -> broker names
    live       (cluster, address) -> last heartbeat, data version, channel (see `live_brokers`)
    mappings   topic -> broker name -> static topic mapping

After every call:

- an address appears under one id of its broker name only;
- a broker name without addresses does not exist, nor do its queues, nor a topic without queues;
- a broker name is in the cluster that it registered with last.

A channel identifies a connection for the driver; the tables only compare channels. Java has a thread that
drains a queue of unregistrations; here the driver calls `unregister_pending`, once for all that are pending.
A registration comes after the unregistrations that were queued before it: in Java, one that is still queued
removes the broker that has just registered again (apache/rocketmq 11043).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import msgspec

from epochmq_controller.nameserver.live_brokers import BrokerKey, BrokerLiveInfo, LiveBrokers
from epochmq_protocol.route import MASTER_ID, BrokerData, QueueData, TopicRouteData
from epochmq_protocol.topics import (
    PERM_READ,
    PERM_WRITE,
    SYNC_BROKER_MEMBER_GROUP_PREFIX,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicQueueMappingInfo,
    is_writeable,
)

if TYPE_CHECKING:
    from epochmq_controller.nameserver.config import NamesrvConfig

HEARTBEAT_TIMEOUT_MS = 120_000
"""The time-out of brokers that register without one."""
UNIT_FLAG, UNIT_SUB_FLAG = 1, 2  # TopicSysFlag; RocketMQ's unit is a deployment of a cluster in one place


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A REGISTER_BROKER request."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    topics: TopicConfigSerializeWrapper
    filter_servers: list[str] | None = None
    zone_name: str | None = None
    external_address: str | None = None
    heartbeat_timeout_ms: int | None = None
    enable_acting_master: bool | None = None
    """None: the broker is older than 5.0 and lacks the field."""
    channel: Hashable = None


class RegisterBrokerResult(msgspec.Struct, frozen=True):
    """The addresses of the broker's master, if it is a slave and there is a master."""

    ha_address: str | None = None
    master_address: str | None = None


class BrokerUnregistration(msgspec.Struct, frozen=True):
    """An UNREGISTER_BROKER request."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


class NotifyMinBrokerId(msgspec.Struct, frozen=True):
    """Effect: send NOTIFY_MIN_BROKER_ID_CHANGE (905) one-way to these addresses."""

    addresses: tuple[str, ...]
    min_broker_id: int
    min_broker_address: str
    offline_address: str | None
    ha_address: str | None


class CloseChannel(msgspec.Struct, frozen=True):
    """Effect: close this channel, because its broker's heartbeats have timed out."""

    channel: Hashable
    address: str
    timeout_ms: int


RouteEffect = NotifyMinBrokerId | CloseChannel


class RouteTables:
    """The tables of one nameserver. `config` may be replaced at any time."""

    def __init__(self, config: NamesrvConfig) -> None:
        self.config = config
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, BrokerData] = {}
        self.clusters: dict[str, dict[str, None]] = {}  # an ordered set
        self.live = LiveBrokers()
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        self._pending: dict[BrokerUnregistration, None] = {}

    def configure(self, config: NamesrvConfig) -> None:
        """Uses new settings."""
        self.config = config

    # registration

    def register(
        self, registration: BrokerRegistration, now_ms: int
    ) -> tuple[RegisterBrokerResult | None, list[RouteEffect]]:
        """Registers a broker. None: rejected, because the address is new and the registration has exactly one
        topic. RocketMQ takes that for an incremental registration; a first one must have all topics."""
        effects: list[RouteEffect] = []
        if any(pending.address == registration.address for pending in self._pending):
            effects = self.unregister_pending()
        broker = self.brokers.get(registration.broker_name)
        is_first = broker is None
        if broker is None:
            broker = BrokerData(cluster=registration.cluster, broker_name=registration.broker_name)
        addresses = broker.broker_addrs
        if registration.broker_id not in addresses and len(registration.topics.topic_config_table) == 1:
            return None, effects
        is_min_lower = bool(addresses) and registration.broker_id < min(addresses)
        key = (registration.cluster, registration.address)
        for other in [number for number, at in addresses.items() if at == registration.address]:
            if other != registration.broker_id:
                del addresses[other]  # the broker changed between master and slave
        self._add_broker(broker, registration)
        if self._is_outdated(registration, addresses.get(registration.broker_id)):
            self._drop_live(key)
            return RegisterBrokerResult(), effects

        is_first = is_first or registration.broker_id not in addresses
        addresses[registration.broker_id] = registration.address
        is_master = registration.broker_id == MASTER_ID
        is_prime_slave = (
            registration.enable_acting_master is not None
            and not is_master
            and registration.broker_id == min(addresses)
        )
        if is_master or is_prime_slave:
            self._register_topics(
                registration, is_first=is_first, is_read_only=is_prime_slave and broker.enable_acting_master
            )
        self.live.put(key, _live_info(registration, now_ms))
        if registration.filter_servers:
            self._filter_servers[key] = registration.filter_servers
        elif registration.filter_servers is not None:
            self._filter_servers.pop(key, None)
        if is_min_lower and self.config.notify_min_broker_id_changed:
            effects += _min_id_changed(addresses, None, registration.ha_address)
        return self._register_result(registration, addresses), effects

    def _is_outdated(self, wanted: BrokerRegistration, present: str | None) -> bool:
        """Whether another address holds the id with a newer state version. In controller mode this is the
        master epoch, so an old master cannot replace its successor."""
        if present is None or present == wanted.address:
            return False
        holder = self.live.get((wanted.cluster, present))
        return (
            holder is not None
            and holder.data_version.state_version > wanted.topics.data_version.state_version
        )

    def _add_broker(self, broker: BrokerData, registration: BrokerRegistration) -> None:
        name = registration.broker_name
        if broker.cluster != registration.cluster:
            self._leave_cluster(broker.cluster, name)
            broker.cluster = registration.cluster
        self.brokers[name] = broker
        self.clusters.setdefault(registration.cluster, {})[name] = None
        broker.enable_acting_master = bool(registration.enable_acting_master)
        broker.zone_name = registration.zone_name

    def _register_topics(
        self, registration: BrokerRegistration, *, is_first: bool, is_read_only: bool
    ) -> None:
        name, wrapper = registration.broker_name, registration.topics
        table = wrapper.topic_config_table
        infos = wrapper.topic_queue_mapping_info_map
        if self.config.delete_topic_with_broker_registration and not infos:
            for topic in [
                topic for topic, queues in self.topics.items() if name in queues and topic not in table
            ]:
                self._drop_queues(topic, name)
        is_changed = self.live.is_data_version_changed(
            registration.cluster, registration.address, wrapper.data_version
        )
        for config in table.values():
            if is_first or is_changed or name not in self.topics.get(config.topic_name, ()):
                self._put_queues(name, config, is_read_only=is_read_only)
        if is_first or is_changed:
            for topic, info in infos.items():
                self.mappings.setdefault(topic, {})[info.bname or name] = info

    def _put_queues(self, name: str, config: TopicConfig, *, is_read_only: bool) -> None:
        self.topics.setdefault(config.topic_name, {})[name] = QueueData(
            broker_name=name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm & ~PERM_WRITE if is_read_only else config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )

    def _register_result(self, wanted: BrokerRegistration, addresses: dict[int, str]) -> RegisterBrokerResult:
        if wanted.broker_id == MASTER_ID:
            return RegisterBrokerResult()
        master = addresses.get(MASTER_ID)
        found = self.live.get((wanted.cluster, master)) if master is not None else None
        return RegisterBrokerResult() if found is None else RegisterBrokerResult(found.ha_address, master)

    # liveness

    def scan(self, now_ms: int) -> list[RouteEffect]:
        """Returns the effects that close the channels of brokers whose heartbeats have timed out, and marks
        these brokers for the next unregistration."""
        effects: list[RouteEffect] = []
        for key, found in self.live.timed_out(now_ms):
            effects.append(CloseChannel(found.channel, key[1], found.heartbeat_timeout_ms))
            self._unregister_later(key, found)
        return effects

    def channel_closed(self, channel: Hashable) -> bool:
        """Marks the brokers that registered over a closed channel for the next unregistration. Returns
        whether there are any."""
        keys = self.live.of_channel(channel)
        for key in keys:
            found = self.live.get(key)
            if found is not None:
                self._unregister_later(key, found)
        return bool(keys)

    def _unregister_later(self, key: BrokerKey, info: BrokerLiveInfo) -> None:
        cluster, address = key
        name = info.broker_name
        broker_id = next((number for number, at in self.members(name).items() if at == address), None)
        if broker_id is None:
            self._drop_live(key)  # no route leads to it
        else:
            self.submit_unregister(BrokerUnregistration(cluster, name, broker_id, address))

    # unregistration

    def submit_unregister(self, wanted: BrokerUnregistration) -> bool:
        """Queues an unregistration for the next batch. False if too many are pending."""
        if (
            wanted not in self._pending
            and len(self._pending) >= self.config.un_register_broker_queue_capacity
        ):
            return False
        self._pending[wanted] = None
        return True

    @property
    def has_pending(self) -> bool:
        """Whether unregistrations are pending."""
        return bool(self._pending)

    def unregister_pending(self) -> list[RouteEffect]:
        """Removes all brokers with pending unregistrations in one step."""
        batch, self._pending = list(self._pending), {}
        removed: set[str] = set()
        reduced: set[str] = set()
        offline: dict[str, str] = {}  # broker name -> the address that was the smallest id
        for unregistration in batch:
            name = unregistration.broker_name
            key = (unregistration.cluster, unregistration.address)
            self._drop_live(key)
            broker = self.brokers.get(name)
            if broker is None:
                continue
            addresses = broker.broker_addrs
            was_min = bool(addresses) and unregistration.broker_id == min(addresses)
            for broker_id in [
                broker_id for broker_id, at in addresses.items() if at == unregistration.address
            ]:
                del addresses[broker_id]
            if not addresses:
                del self.brokers[name]
                self._leave_cluster(broker.cluster, name)
                removed.add(name)
                continue
            reduced.add(name)
            if was_min:
                offline[name] = unregistration.address
        self._clean_topics(removed, reduced & self.brokers.keys())
        effects: list[RouteEffect] = []
        if self.config.notify_min_broker_id_changed:
            for name, address in offline.items():
                broker = self.brokers.get(name)
                if broker is not None and broker.enable_acting_master:
                    effects += _min_id_changed(broker.broker_addrs, address, None)
        return effects

    def _clean_topics(self, removed: set[str], reduced: set[str]) -> None:
        without_master = [
            name
            for name in reduced
            if self.brokers[name].enable_acting_master and min(self.brokers[name].broker_addrs) != MASTER_ID
        ]
        if not removed and not without_master:
            return
        for topic, queues in list(self.topics.items()):
            for name in removed:
                queues.pop(name, None)
            if not queues:
                del self.topics[topic]
            for name in without_master:  # read-only
                if name in queues:
                    queues[name].perm &= ~PERM_WRITE

    # queries

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic, None if no broker has the topic. The route shares objects with the tables:
        encode it, and do not keep it."""
        queues = self.topics.get(topic)
        if not queues:
            return None
        brokers = [self.brokers[name] for name in queues if name in self.brokers]
        if not brokers:
            return None
        if self.config.support_acting_master and not topic.startswith(SYNC_BROKER_MEMBER_GROUP_PREFIX):
            brokers = [_with_acting_master(broker, queues[broker.broker_name]) for broker in brokers]
        route = TopicRouteData(
            queue_datas=list(queues.values()),
            broker_datas=brokers,
            topic_queue_mapping_by_broker=self.mappings.get(topic),
        )
        if self._filter_servers:
            for broker in brokers:
                for address in broker.broker_addrs.values():
                    servers = self._filter_servers.get((broker.cluster, address))
                    if servers is not None:
                        route.filter_server_table[address] = servers
        return route

    def external_address(self, cluster: str, address: str) -> str | None:
        """The address for clients outside of the live broker that is known by `address`."""
        found = self.live.get((cluster, address))
        return None if found is None else found.external_address

    def members(self, broker_name: str) -> dict[int, str]:
        """The addresses of a broker name by id, empty for an unknown name."""
        broker = self.brokers.get(broker_name)
        return {} if broker is None else dict(broker.broker_addrs)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics that brokers of this cluster have."""
        names = self.clusters.get(cluster, {})
        return [topic for topic, queues in self.topics.items() if not names.keys().isdisjoint(queues)]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Cluster and broker names, which are topics, too, and the address of some broker."""
        names = [name for cluster, brokers in self.clusters.items() for name in (cluster, *brokers)]
        addresses = (at for broker in self.brokers.values() for at in broker.broker_addrs.values())
        return names, next(addresses, None)

    def unit_topics(self, *, unit: bool | None, unit_sub: bool | None) -> list[str]:
        """The topics with these flags of RocketMQ's deployment units (UNIT_FLAG, UNIT_SUB_FLAG) in the data
        of their first broker. None ignores a flag."""

        def has(flags: int, flag: int, wanted: bool | None) -> bool:
            return wanted is None or bool(flags & flag) is wanted

        firsts = (
            (topic, next(iter(queues.values())).topic_sys_flag) for topic, queues in self.topics.items()
        )
        return [
            topic
            for topic, flags in firsts
            if has(flags, UNIT_FLAG, unit) and has(flags, UNIT_SUB_FLAG, unit_sub)
        ]

    # administration

    def set_write_permission(self, broker_name: str, *, allowed: bool) -> int:
        """Removes the write permission of all topics of a broker name (205), or gives read and write
        permission (327). Returns the number of topics. The broker's next change of its topics undoes it."""
        count = 0
        for queues in self.topics.values():
            found = queues.get(broker_name)
            if found is not None:
                found.perm = PERM_READ | PERM_WRITE if allowed else found.perm & ~PERM_WRITE
                count += 1
        return count

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """REGISTER_TOPIC_IN_NAMESRV: adds queues. False, and no change, if one has an unknown broker name."""
        wanted = list(queues)
        if not wanted or any(queue.broker_name not in self.brokers for queue in wanted):
            return False
        table = self.topics.setdefault(topic, {})
        for queue in wanted:
            table[queue.broker_name] = queue
        return True

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """DELETE_TOPIC_IN_NAMESRV: removes a topic from all brokers, or from those of one cluster."""
        if not cluster:
            self.topics.pop(topic, None)
            return
        for name in self.clusters.get(cluster, {}):
            self._drop_queues(topic, name)

    # the tables

    def _drop_queues(self, topic: str, name: str) -> None:
        queues = self.topics.get(topic)
        if queues is not None:
            queues.pop(name, None)
            if not queues:
                del self.topics[topic]

    def _drop_live(self, key: BrokerKey) -> None:
        self._filter_servers.pop(key, None)
        self.live.drop(key)

    def _leave_cluster(self, cluster: str, name: str) -> None:
        names = self.clusters.get(cluster)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self.clusters[cluster]


def _live_info(registration: BrokerRegistration, now_ms: int) -> BrokerLiveInfo:
    timeout_ms = registration.heartbeat_timeout_ms
    return BrokerLiveInfo(
        registration.broker_name,
        now_ms,
        HEARTBEAT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
        registration.topics.data_version,
        registration.channel,
        registration.ha_address,
        registration.external_address,
    )


def _with_acting_master(broker: BrokerData, queues: QueueData) -> BrokerData:
    """Shows the smallest id as the master, if there is no master and the queues are read-only (RIP-32)."""
    addresses = broker.broker_addrs
    if MASTER_ID in addresses or not broker.enable_acting_master or is_writeable(queues.perm):
        return broker
    lowest = min(addresses)
    shown = {MASTER_ID: addresses[lowest], **{key: at for key, at in addresses.items() if key != lowest}}
    return msgspec.structs.replace(broker, broker_addrs=shown)


def _min_id_changed(
    addresses: dict[int, str], offline: str | None, ha_address: str | None
) -> list[RouteEffect]:
    if not addresses:
        return []
    lowest = min(addresses)
    notified = [
        at
        for broker_id, at in addresses.items()
        if offline is not None or len(addresses) == 1 or broker_id != lowest
    ]
    return [NotifyMinBrokerId(tuple(notified), lowest, addresses[lowest], offline, ha_address)]
