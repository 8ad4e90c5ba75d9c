"""Registers this broker with the nameservers: its address, its topics, and that it is alive
(registerBrokerAll, registerIncrementBrokerData, sendHeartbeat and unregisterBrokerAll of RocketMQ's
BrokerController).

Each nameserver has its own task, so that a slow or dead one delays no other. A nameserver is either not
registered (the next message is a full registration, retried after growing pauses) or registered (a full
registration every period, and an incremental one as soon as topics change). A full registration always comes
first: a nameserver rejects single topics of a broker that it does not know.

An error never ends a task; the task logs it and retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.tables.static_topics.mapping_table import StaticTopicTable
from epochmq_broker.tables.topics import TopicTable
from epochmq_protocol.bodies import ClusterInfo, KVTable, from_json, to_json
from epochmq_protocol.checksum import CRC_MASK, crc32
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_namesrv import (
    BrokerHeartbeatRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
)
from epochmq_protocol.route import EXTERNAL_ADDRESS
from epochmq_protocol.topics import (
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
)

log = logging.getLogger(__name__)

PERIOD_MIN_MS, PERIOD_MAX_MS = 10_000, 60_000
RETRY_MIN_S, RETRY_MAX_S = 0.2, 10.0
UNREGISTER_TIMEOUT_MS = 3000
SUCCESSOR_WAIT_S, SUCCESSOR_POLL_S = 2.0, 0.02
MASTER_ID = 0


class ClosableConnection(Protocol):
    """The part of a connection that is used here."""

    on_close: list[Callable[[Any], None]]


class RegistrationClient(Protocol):
    """The part of RemotingClient that is used here."""

    async def connect(self, addr: str) -> ClosableConnection:
        """Returns a connection to `addr`."""
        ...

    async def call(self, addr: str, command: Command, timeout_ms: float = 3000) -> Command:
        """Sends a request to `addr` and returns the response."""
        ...

    async def oneway(self, addr: str, command: Command, timeout_ms: float = 3000) -> None:
        """Sends a request that gets no response to `addr`."""
        ...


class NameserverRegistration:
    """The registrations of one broker. `changed` is a listener for `TopicTable.on_change`."""

    def __init__(
        self, live: LiveConfig, topics: TopicTable, static: StaticTopicTable, client: RegistrationClient
    ) -> None:
        self._live = live
        self._topics = topics
        self._client = client
        self._registrars: dict[str, _NameserverRegistrar] = {}
        self._running = False
        self._bodies = _RegistrationBodies(topics, static)
        self.on_response: list[Callable[[RegisterBrokerResponseHeader], None]] = []
        """Called with every nameserver's response."""

    def start(self) -> None:
        """Starts to register with every nameserver; needs a running loop."""
        self._running = True
        self._live.on_change.append(self._reconfigured)
        self._topics.on_change.append(self.changed)
        self._update_registrars()

    async def stop(self) -> None:
        """Unregisters from every nameserver, within `UNREGISTER_TIMEOUT_MS`, and ends the tasks."""
        if not self._running:
            return
        self._running = False
        self._topics.on_change.remove(self.changed)
        self._live.on_change.remove(self._reconfigured)
        registrars, self._registrars = list(self._registrars.values()), {}
        await asyncio.gather(*(registrar.stop(unregister=True) for registrar in registrars))

    def changed(self, names: tuple[str, ...]) -> None:
        """Registers these changed topics after the current iteration of the event loop."""
        for registrar in self._registrars.values():
            registrar.changed(names)

    def refresh(self) -> None:
        """Sends a full registration now, because anything may have changed (brokerPermission, for
        instance)."""
        for registrar in self._registrars.values():
            registrar.refresh()

    def refresh_at(self, addr: str) -> None:
        """Sends a full registration to a nameserver that has lost this broker, unless one is under way."""
        registrar = self._registrars.get(addr)
        if registrar is not None and registrar.registered:
            registrar.refresh()

    async def wait_until_registered(self, timeout_ms: float = 3000) -> bool:
        """Waits until every reachable nameserver has all changes made so far. Returns False after the
        timeout. Does not wait for a nameserver whose last registration failed, nor for one that an earlier
        call waited for in vain, until it responds again."""
        waits = [registrar.idle.wait() for registrar in self._registrars.values()]
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.gather(*waits)
        except TimeoutError:
            for registrar in self._registrars.values():
                if not registrar.idle.is_set():
                    registrar.unreachable()
            return False
        return True

    @property
    def registered(self) -> dict[str, bool]:
        """Nameserver -> whether it has this broker's full registration."""
        return {addr: registrar.registered for addr, registrar in self._registrars.items()}

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._update_registrars()
        if (before.broker_permission, before.external_addr) != (
            after.broker_permission,
            after.external_addr,
        ):
            self._topics.bump_version()
            self.refresh()

    def _update_registrars(self) -> None:
        """Starts and ends registrars to match the present nameservers."""
        wanted = self._live.nameservers
        for addr in wanted:
            if addr not in self._registrars:
                self._registrars[addr] = _NameserverRegistrar(
                    addr, self._live, self._topics, self._client, self._bodies, self.on_response
                )
        for addr in [addr for addr in self._registrars if addr not in wanted]:
            self._registrars.pop(addr).abandon()


class _NameserverRegistrar:
    """Registers the broker with one nameserver."""

    def __init__(
        self,
        addr: str,
        live: LiveConfig,
        topics: TopicTable,
        client: RegistrationClient,
        bodies: _RegistrationBodies,
        on_response: list[Callable[[RegisterBrokerResponseHeader], None]],
    ) -> None:
        self.addr = addr
        self.registered = False
        self._registered_id: int | None = None  # the broker id in the latest registration
        self.idle = asyncio.Event()  # no change waits, or the nameserver is unreachable
        self._reachable = True  # until a registration fails or takes too long; again when one succeeds
        self._live = live
        self._topics = topics
        self._client = client
        self._bodies = bodies
        self._on_response = on_response
        self._pending: set[str] = set()
        self._full = True
        self._wake = asyncio.Event()
        self._connection: ClosableConnection | None = None
        self._task = asyncio.create_task(self._run(), name=f"register with {addr}")

    def changed(self, names: tuple[str, ...]) -> None:
        self._pending.update(names)
        self._wake_up()

    def refresh(self) -> None:
        self._full = True
        self._wake_up()

    def _wake_up(self) -> None:
        if self._reachable:
            self.idle.clear()
        self._wake.set()

    def unreachable(self) -> None:
        """No change waits for this nameserver until it has responded again."""
        self._reachable = False
        self.idle.set()

    def abandon(self) -> None:
        """Ends the task without unregistering: the nameserver is no longer configured."""
        self._task.cancel()

    async def stop(self, *, unregister: bool) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.idle.set()
        if not (unregister and self.registered):
            return
        config = self._live.current
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.client_addr,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        try:
            await self._client.call(
                self.addr, request(RequestCode.UNREGISTER_BROKER, header), UNREGISTER_TIMEOUT_MS
            )
        except EpochMQError as error:
            log.warning("could not unregister from nameserver %s: %s", self.addr, error)

    async def _run(self) -> None:
        heartbeat = asyncio.create_task(self._send_heartbeats(), name=f"heartbeat to {self.addr}")
        try:
            await self._register_forever()
        finally:
            heartbeat.cancel()
            await asyncio.gather(heartbeat, return_exceptions=True)

    async def _register_forever(self) -> None:
        pause_s = RETRY_MIN_S
        while True:
            full = self._full or not self.registered
            names, self._pending = self._pending, set()
            self._full = False
            self._wake.clear()
            try:
                await self._register(None if full else names)
            except Exception as error:
                if self.registered or pause_s >= RETRY_MAX_S:
                    log.warning("registration with nameserver %s failed: %s", self.addr, error)
                self.registered = False
                self.unreachable()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
                continue
            if not self.registered:
                log.info("registered with nameserver %s", self.addr)
            self.registered = self._reachable = True
            await self._watch()
            pause_s = RETRY_MIN_S
            if self._wake.is_set():
                continue
            self.idle.set()
            period_ms = self._live.current.register_name_server_period
            try:
                async with asyncio.timeout(max(PERIOD_MIN_MS, min(period_ms, PERIOD_MAX_MS)) / 1000):
                    await self._wake.wait()
            except TimeoutError:
                self._full = True

    async def _watch(self) -> None:
        """Watches the connection: a nameserver removes a broker whose connection is lost, and knows no broker
        after its own restart."""
        try:
            connection = await self._client.connect(self.addr)
        except EpochMQError:
            self._connection_lost(None)
            return
        if connection is not self._connection:
            self._connection = connection
            connection.on_close.append(self._connection_lost)

    def _connection_lost(self, connection: object) -> None:
        if connection is self._connection or connection is None:
            self._connection = None
            self.registered = False
            self._wake.set()

    async def _register(self, names: set[str] | None) -> None:
        """Sends one registration: with the named topics, or all if `names` is None. Raises EpochMQError if
        the nameserver rejects it."""
        config = self._live.current
        if names is None:
            if self.registered and not config.force_register and not await self._is_outdated(config):
                return
            body = self._bodies.full(config.broker_permission)
        elif any(name in self._topics for name in names):
            body = self._bodies.of(names, config.broker_permission)
        else:  # only deletions: registration cannot delete a topic at the nameserver
            return
        if self._registered_id == MASTER_ID != config.broker_id:
            await self._wait_for_successor(config)
        acting = config.enable_slave_acting_master
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.client_addr,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=config.ha_server_addr,
            broker_id=config.broker_id,
            heartbeat_timeout_millis=config.broker_not_active_timeout_millis if acting else None,
            enable_acting_master=acting,
            compressed=False,
            body_crc32=crc32(body) & CRC_MASK,
        )
        external = config.external_addr
        ext = None if external is None else {EXTERNAL_ADDRESS: external}
        command = request(RequestCode.REGISTER_BROKER, header, body, ext)
        response = await self._client.call(self.addr, command, config.register_broker_timeout_mills)
        if response.code != ResponseCode.SUCCESS:
            raise EpochMQError(f"response code {response.code}: {response.remark}")
        self._registered_id = config.broker_id
        response_header = RegisterBrokerResponseHeader.decode(response.ext)
        for listener in self._on_response:
            listener(response_header)
        if response.body:
            self._topics.mark_ordered((from_json(KVTable, response.body).table or {}).keys())

    async def _wait_for_successor(self, config: BrokerConfig) -> None:
        """Waits, at most `SUCCESSOR_WAIT_S`, until the nameserver knows the next master. Otherwise the group
        would have no master between the two registrations, and a producer that asks for the route then would
        have nowhere to send."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SUCCESSOR_WAIT_S
        while (left_s := deadline_s - loop.time()) > 0:
            command = request(RequestCode.GET_BROKER_CLUSTER_INFO)
            response = await self._client.call(self.addr, command, left_s * 1000)
            if response.code != ResponseCode.SUCCESS:
                return
            group = from_json(ClusterInfo, response.body).broker_addr_table.get(config.broker_name)
            if group is None or group.broker_addrs.get(MASTER_ID) != config.client_addr:
                return
            await asyncio.sleep(SUCCESSOR_POLL_S)

    async def _is_outdated(self, config: BrokerConfig) -> bool:
        """Whether the nameserver has another version of the topics. The request also counts as a sign of
        life."""
        command = self._data_version_question(config)
        response = await self._client.call(self.addr, command, config.register_broker_timeout_mills)
        if response.code != ResponseCode.SUCCESS:
            return True
        return bool(QueryDataVersionResponseHeader.decode(response.ext).changed)

    def _data_version_question(self, config: BrokerConfig) -> Command:
        header = QueryDataVersionRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.client_addr,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        return request(RequestCode.QUERY_DATA_VERSION, header, to_json(self._topics.data_version))

    async def _send_heartbeats(self) -> None:
        """Sends a heartbeat every brokerHeartbeatInterval, with enableSlaveActingMaster. Heartbeats get no
        response: the polls of the member group show whether they arrive."""
        while True:
            config = self._live.current
            await asyncio.sleep(config.broker_heartbeat_interval / 1000)
            if not (config.enable_slave_acting_master and self.registered):
                continue
            timeout_ms = config.send_heartbeat_timeout_millis
            try:
                await self._client.oneway(self.addr, self._heartbeat(config), timeout_ms)
            except EpochMQError as error:
                log.info("heartbeat to nameserver %s failed: %s", self.addr, error)

    def _heartbeat(self, config: BrokerConfig) -> Command:
        """904; with compatibleWithOldNameSrv the question for the version of the topics (322), which old
        nameservers take for a sign of life."""
        if config.compatible_with_old_name_srv:
            return self._data_version_question(config)
        header = BrokerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=config.client_addr,
            broker_name=config.broker_name,
        )
        return request(RequestCode.BROKER_HEARTBEAT, header)


class _RegistrationBodies:
    """Encodes registration bodies. Caches the full one: it goes to every nameserver every period, and a large
    table takes long to encode."""

    def __init__(self, topics: TopicTable, static: StaticTopicTable) -> None:
        self._topics = topics
        self._static = static
        self._full: tuple[tuple[int, DataVersion, int], bytes] | None = None

    def full(self, permission: int) -> bytes:
        """The body with all topics."""
        key = (self._topics.generation, self._topics.data_version, permission)
        if self._full is None or self._full[0] != key:
            self._full = (key, self.of(self._topics.table, permission))
        return self._full[1]

    def of(self, names: Iterable[str], permission: int) -> bytes:
        """The body with the named topics that exist. A topic's permission is limited by the broker's."""
        both = PERM_READ | PERM_WRITE
        chosen = {name: topic for name in names if (topic := self._topics.get(name)) is not None}
        if permission & both != both:
            chosen = {
                name: msgspec.structs.replace(topic, perm=topic.perm & permission)
                for name, topic in chosen.items()
            }
        return to_json(
            RegisterBrokerBody(
                topic_config_serialize_wrapper=TopicConfigSerializeWrapper(
                    topic_config_table=chosen,
                    data_version=self._topics.data_version,
                    topic_queue_mapping_info_map=self._static.infos(chosen),
                )
            )
        )
