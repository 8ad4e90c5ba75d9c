"""Nameservers and brokers of a group with an acting master, on simulated machines.

Production's code are the nameservers' tables (`RouteTables`), the brokers' decisions (`MemberGroup`), and the
steps of going online (`PreOnline`, driven by `acting_pre_online`). Written for the simulation are the drivers
around them: connections, polls, heartbeats, registrations, and the log (`acting_progress`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochmq_broker.membership.acting.member_group import (
    MASTER_ID,
    FollowMaster,
    ForgetMaster,
    GroupEffect,
    GroupMember,
    GroupRole,
    MemberGroup,
    MinBrokerIdChange,
    PollGroup,
    RegisterAgain,
    ReleaseHeldPulls,
    RunSpecialServices,
    SetAliveReplicas,
)
from epochmq_controller.nameserver.config import NamesrvConfig
from epochmq_controller.nameserver.routes import (
    BrokerRegistration,
    CloseChannel,
    NotifyMinBrokerId,
    RouteEffect,
    RouteTables,
)
from epochmq_protocol.topics import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from tests.simulation.acting_pre_online import SimulatedPreOnline
from tests.simulation.acting_progress import BrokerProgress
from tests.simulation.clockwork import Call, Host

if TYPE_CHECKING:
    from tests.simulation.acting_world import ActingWorld

CLUSTER, NAME = "cluster", "broker-a"
PERIOD_MS = 1000
POLL_MS = 500
HEARTBEAT_MS = 1000
TIMEOUT_MS = 10_000
SCAN_MS = 5000
REGISTER_MS = 30_000
RETRY_MS = 200
HA_PORT = ":10912"

TOPICS = TopicConfigSerializeWrapper(
    topic_config_table={name: TopicConfig(topic_name=name) for name in ("T1", "T2")},
    data_version=DataVersion(),
)


class NameserverHost(Host):
    """A nameserver. Its tables are lost when it stops."""

    world: ActingWorld

    def __init__(self, world: ActingWorld, name: str) -> None:
        super().__init__(world, name)
        self.tables = RouteTables(NamesrvConfig())

    def start(self) -> None:
        super().start()
        self.tables = RouteTables(
            NamesrvConfig(support_acting_master=True, notify_min_broker_id_changed=True)
        )
        self.later(SCAN_MS, self._scan)

    @property
    def members(self) -> dict[int, str]:
        """The brokers that this nameserver lists."""
        return self.tables.members(NAME)

    def register(self, call: Call, broker: BrokerHost, channel: tuple[str, int]) -> None:
        """REGISTER_BROKER."""
        wanted = BrokerRegistration(
            cluster=CLUSTER,
            broker_name=NAME,
            broker_id=broker.broker_id,
            address=broker.name,
            ha_address=broker.name + HA_PORT,
            topics=TOPICS,
            heartbeat_timeout_ms=TIMEOUT_MS,
            enable_acting_master=True,
            channel=channel,
        )
        result, effects = self.tables.register(wanted, self.clock())
        self._carry_out(effects)
        self.world.answer(call, result)

    def poll(self, call: Call) -> None:
        """GET_BROKER_MEMBER_GROUP."""
        self.world.answer(call, self.members)

    def heartbeat(self, address: str) -> None:
        """BROKER_HEARTBEAT."""
        self.tables.live.record_heartbeat(CLUSTER, address, self.clock())

    def connection_lost(self, channel: tuple[str, int]) -> None:
        """A broker's connection was closed by its end."""
        if self.tables.channel_closed(channel):
            self._carry_out(self.tables.unregister_pending())

    def _scan(self) -> None:
        self.later(SCAN_MS, self._scan)
        self._carry_out(self.tables.scan(self.clock()))
        if self.tables.has_pending:
            self._carry_out(self.tables.unregister_pending())

    def _carry_out(self, effects: list[RouteEffect]) -> None:
        for effect in effects:
            match effect:
                case NotifyMinBrokerId(addresses, min_id, min_address, offline, ha_address):
                    change = MinBrokerIdChange(min_id, min_address, offline, ha_address)
                    for address in addresses:
                        self.world.notify(self, self.world.broker(address), change)
                case CloseChannel(_, address, _):
                    self.world.count_event("heartbeats timed out")
                    broker = self.world.broker(address)
                    if self.world.is_noticed():
                        self.world.send(self, broker, broker.connection_closed, self)


class BrokerHost(Host):
    """A broker. `broker_id` 0 is the master."""

    world: ActingWorld

    def __init__(self, world: ActingWorld, broker_id: int) -> None:
        super().__init__(world, f"b{broker_id}:10911")
        self.broker_id = broker_id
        self.group = MemberGroup(self._member(), isolated=True)
        self.registered: set[str] = set()
        self.registering: set[str] = set()
        self.followed_ha: str | None = None
        self.followed: str | None = None
        self.progress = BrokerProgress(self)
        self.pre_online = SimulatedPreOnline(self)
        self.holds_pulls = False
        self.alive = 0
        self.heard_ms = 0
        """When the latest poll was sent to which a nameserver answered, by this machine's clock."""
        self._asks_ha = False

    def _member(self) -> GroupMember:
        return GroupMember(self.broker_id, self.name, PERIOD_MS, TIMEOUT_MS)

    def start(self) -> None:
        """Starts isolated; the pre-online phase follows."""
        super().start()
        self.group = MemberGroup(self._member(), isolated=True)
        self.registered.clear()
        self.registering.clear()
        self.followed = self.followed_ha = None
        self.holds_pulls = self._asks_ha = False
        self.progress.start()
        self.pre_online = SimulatedPreOnline(self)
        for nameserver in self.world.nameservers:
            self._poll_later(nameserver)
            self.later(HEARTBEAT_MS, self._send_heartbeat, nameserver)
        self.later(PERIOD_MS, self._tick)
        self.later(REGISTER_MS, self._register_everywhere)
        self.later(self.world.random.random() * self.world.start_max_ms, self.pre_online.start)

    def die(self) -> None:
        super().die()
        self.world.services_changed(self)

    @property
    def runs(self) -> bool:
        """Whether the special services run on this machine now."""
        return self.up and not self.paused and self.group.runs_special_services

    @property
    def in_service(self) -> bool:
        """Whether this broker is in service."""
        return self.up and not self.paused and self.group.role is not GroupRole.ISOLATED

    @property
    def ha_address(self) -> str:
        """Where this broker serves its log."""
        return self.name + HA_PORT

    # Pre-online

    def go_online(self, min_id: int, address: str) -> None:
        """Pre-online is complete."""
        self.world.note(f"{self.name} goes into service; the smallest id is {min_id}")
        self.heard_ms = self.clock()
        self._apply(self.group.service_started(min_id, address, self.clock()))
        self._register_everywhere()

    def announced(self, call: Call, ha_address: str) -> None:
        """EXCHANGE_BROKER_HA_INFO of a returning master: this slave follows its log."""
        self.followed_ha = ha_address
        self.world.answer(call, True)

    def tell_tables(self, call: Call) -> None:
        """The tables of this broker."""
        self.world.answer(call, self.progress.tables)

    def tell_end(self, call: Call) -> None:
        """GET_BROKER_HA_STATUS."""
        self.world.answer(call, self.progress.stored)

    # Registration

    def _register_everywhere(self) -> None:
        self.later(REGISTER_MS, self._register_everywhere)
        if self.group.role is not GroupRole.ISOLATED:
            for nameserver in self.world.nameservers:
                self._register(nameserver)

    def _register(self, nameserver: NameserverHost) -> None:
        if nameserver.name in self.registering:
            return
        self.registering.add(nameserver.name)

        def done(result: object) -> None:
            self.registering.discard(nameserver.name)
            if result is None:
                self.later(RETRY_MS, self._register, nameserver)
                return
            self.registered.add(nameserver.name)
            master = getattr(result, "master_address", None)
            ha_address = getattr(result, "ha_address", None)
            self._apply(self.group.registered(master, ha_address, self.clock()))

        self.world.call(self, nameserver, nameserver.register, done, self, (self.name, self.life))

    def connection_closed(self, nameserver: NameserverHost) -> None:
        """The connection to a nameserver was closed by its end."""
        if nameserver.name in self.registered:
            self.registered.discard(nameserver.name)
            self._register(nameserver)

    def _send_heartbeat(self, nameserver: NameserverHost) -> None:
        self.later(HEARTBEAT_MS, self._send_heartbeat, nameserver)
        if nameserver.name in self.registered:
            self.world.send_heartbeat(self, nameserver)

    # Polls and notifications

    def _poll_later(self, nameserver: NameserverHost) -> None:
        self.later(POLL_MS, self._poll_later, nameserver)
        self._poll(nameserver)

    def _poll(self, nameserver: NameserverHost) -> None:
        asked_ms = self.clock()

        def done(members: dict[int, str] | None) -> None:
            if members:
                self.heard_ms = asked_ms
            if members is not None:
                effects = self.group.poll_answered(nameserver.name, members, asked_ms, self.clock())
                self._apply(effects)

        self.world.call(self, nameserver, nameserver.poll, done)

    def min_id_changed(self, change: MinBrokerIdChange) -> None:
        """NOTIFY_MIN_BROKER_ID_CHANGE."""
        self.heard_ms = self.clock()
        self._apply(self.group.min_id_changed(change, self.clock()))

    def _tick(self) -> None:
        self.later(PERIOD_MS, self._tick)
        self._apply(self.group.tick(self.clock()))

    # Effects

    def _apply(self, effects: list[GroupEffect]) -> None:
        for effect in effects:
            match effect:
                case RunSpecialServices(run):
                    self.world.note(f"{self.name} {'starts' if run else 'stops'} the special services")
                    self.world.count_event("switches")
                    if run and self.group.role is GroupRole.ISOLATED:
                        self.world.fail(f"{self.name} is isolated, and runs the special services")
                case FollowMaster(address, ha_address):
                    self.followed = address
                    if ha_address is not None:
                        self.followed_ha = ha_address
                    elif not self._asks_ha:
                        self._ask_ha_address(address)
                case ForgetMaster():
                    self.followed = self.followed_ha = None
                case ReleaseHeldPulls():
                    self.holds_pulls = False
                case SetAliveReplicas(count):
                    self.alive = count
                case PollGroup():
                    for nameserver in self.world.nameservers:
                        self._poll(nameserver)
                case RegisterAgain(nameserver):
                    if nameserver in self.registered:
                        self._register(self.world.nameserver(nameserver))
        if self.group.min_broker_id != MASTER_ID:
            self.holds_pulls = True
        self.world.services_changed(self)

    def _ask_ha_address(self, address: str) -> None:
        """EXCHANGE_BROKER_HA_INFO."""
        self._asks_ha = True
        master = self.world.broker(address)

        def done(ha_address: str | None) -> None:
            self._asks_ha = False
            if ha_address is not None:
                self._apply(self.group.ha_address_learned(address, ha_address))

        self.world.call(self, master, master.tell_ha_address, done)

    def tell_ha_address(self, call: Call) -> None:
        """The answer to EXCHANGE_BROKER_HA_INFO."""
        self.world.answer(call, self.ha_address)
