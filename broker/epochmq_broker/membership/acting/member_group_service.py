"""Runs a broker of a group with enableSlaveActingMaster: polls the nameservers for the group's members, takes
their notifications, and carries out what `member_group.MemberGroup` decides."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.config.role import ActingRole, MasterRole, ReplicaRole
from epochmq_broker.membership.acting.group_poll import poll_members
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
from epochmq_broker.membership.ha_info import exchange_ha_info
from epochmq_broker.membership.registration import NameserverRegistration
from epochmq_broker.replication.ha.service import HAService
from epochmq_broker.replication.slave_sync import SlaveSync
from epochmq_broker.services.master_services import MasterServices
from epochmq_broker.services.periodic_tasks import PeriodicTasks
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.headers_controller import NotifyMinBrokerIdChangeRequestHeader
from epochmq_protocol.headers_namesrv import RegisterBrokerResponseHeader
from epochmq_protocol.transport.client import RemotingClient

log = logging.getLogger(__name__)

HA_QUESTION_TIMEOUT_MS: Final = 3000
VIP_PORT_DISTANCE: Final = 2
POLLS_PER_PERIOD: Final = 2
"""How often each nameserver is polled in one syncBrokerMemberGroupPeriod (`member_group` says why)."""


@dataclass(frozen=True)
class MemberGroupDependencies:
    """The components of the broker that change with its role in the group. `master_services` run on the
    master; `special_services` are those of them that an acting master runs, too."""

    live: LiveConfig
    client: RemotingClient
    registration: NameserverRegistration
    ha: HAService
    slave_sync: SlaveSync
    master_services: MasterServices
    special_services: MasterServices
    release_held_pulls: Callable[[], None]


class MemberGroupService:
    """The part of one broker in its group: `start`, then `start_service` to put the broker into service."""

    def __init__(self, components: MemberGroupDependencies) -> None:
        self._components = components
        config = components.live.current
        self._group = MemberGroup(_member(config), isolated=True)
        self._pollers: dict[str, _Poller] = {}
        self._ticks = PeriodicTasks()
        self._ticks.every(
            lambda: components.live.current.sync_broker_member_group_period,
            "check the broker's role in its group",
            lambda: self._apply(self._group.tick(_now_ms())),
        )
        self._ha_question: tuple[str, asyncio.Task[None]] | None = None
        components.live.standing.start_isolated(config.broker_id)

    # Start and stop

    def start(self) -> None:
        """Starts to poll; needs a running loop. The broker stays isolated until `start_service`."""
        self._components.live.on_change.append(self._reconfigured)
        self._update_pollers()
        self._ticks.start()

    def start_service(self, min_broker_id: int, min_broker_address: str | None) -> None:
        """Puts the broker into service (BrokerController.startService): adopts the smallest id of the group,
        starts or stops the special services, registers with the nameservers, and ends the isolation."""
        log.info(
            "the broker goes into service; the smallest broker id of its group is %d (%s)",
            min_broker_id,
            min_broker_address,
        )
        was_isolated = self.isolated
        self._apply(self._group.service_started(min_broker_id, min_broker_address, _now_ms()))
        registration = self._components.registration
        if was_isolated:
            registration.start()
        else:
            registration.refresh()

    async def stop(self) -> None:
        """Ends the polls. The special services run until their owner stops them."""
        self._ticks.stop()
        if self._reconfigured in self._components.live.on_change:
            self._components.live.on_change.remove(self._reconfigured)
        tasks = [poller.stop() for poller in self._pollers.values()]
        self._pollers.clear()
        if self._ha_question is not None:
            self._ha_question[1].cancel()
            tasks.append(self._ha_question[1])
        await asyncio.gather(*tasks, return_exceptions=True)

    # State

    @property
    def isolated(self) -> bool:
        """Whether the broker is not in service: neither registered nor visible to clients."""
        return self._group.role is GroupRole.ISOLATED

    @property
    def is_acting_master(self) -> bool:
        """Whether this slave runs the special services, because it has the smallest id of the group."""
        return self._group.role is GroupRole.ACTING_MASTER

    @property
    def acting_since_ms(self) -> int | None:
        """When this broker began to act for its master, in milliseconds since 1970; None if it does not."""
        role = self._components.live.standing.role
        return role.since_ms if isinstance(role, ActingRole) else None

    @property
    def min_broker_id(self) -> int:
        """The smallest id of the group (minBrokerIdInGroup); 0 until another one is known."""
        return self._group.min_broker_id

    @property
    def master_address(self) -> str | None:
        """The address of the master that this slave follows; None if it is offline or unknown, and on the
        master itself."""
        return self._group.master_address

    def members(self) -> dict[int, str]:
        """The living brokers of the group as the nameservers know them now: broker id → address."""
        return self._group.alive_members(_now_ms())

    @property
    def group(self) -> MemberGroup:
        """Everything that is known of the group; not to be changed."""
        return self._group

    # Inputs

    def min_id_changed(self, header: NotifyMinBrokerIdChangeRequestHeader) -> None:
        """A nameserver says that the smallest id has changed (905)."""
        if header.min_broker_id is None:
            self.poll_now()
            return
        log.info(
            "a nameserver says that the smallest broker id is %d (%s); offline: %s",
            header.min_broker_id,
            header.min_broker_addr,
            header.offline_broker_addr,
        )
        change = MinBrokerIdChange(
            header.min_broker_id, header.min_broker_addr, header.offline_broker_addr, header.ha_broker_addr
        )
        self._apply(self._group.min_id_changed(change, _now_ms()))

    def poll_now(self) -> None:
        """Polls the nameservers at once: the smallest id may have changed."""
        for poller in self._pollers.values():
            poller.wake()

    def registered(self, response: RegisterBrokerResponseHeader) -> None:
        """A nameserver accepted the registration."""
        self._apply(self._group.registered(response.master_addr, response.ha_server_addr, _now_ms()))

    def _take_answer(self, nameserver: str, members: dict[int, str], asked_ms: float) -> None:
        self._apply(self._group.poll_answered(nameserver, members, asked_ms, _now_ms()))

    # Effects

    def _apply(self, effects: list[GroupEffect]) -> None:
        self._take_role()
        for effect in effects:
            try:
                self._carry_out(effect)
            except Exception:
                # The other effects, and those of later answers, must be carried out in any case.
                log.exception("the broker could not carry out %s", effect)

    def _take_role(self) -> None:
        """Takes the role that the group decided, before its effects are carried out."""
        standing, broker_id = self._components.live.standing, self._group.member.broker_id
        match self._group.role:
            case GroupRole.ACTING_MASTER if not isinstance(standing.role, ActingRole):
                standing.become(ActingRole(broker_id, now_ms()))
            case GroupRole.SLAVE if not isinstance(standing.role, ReplicaRole):
                standing.become(ReplicaRole(broker_id))
            case GroupRole.MASTER if not isinstance(standing.role, MasterRole):
                standing.become(MasterRole())

    def _carry_out(self, effect: GroupEffect) -> None:
        components = self._components
        match effect:
            case RunSpecialServices(run):
                self._run_special_services(run=run)
            case FollowMaster(address, ha_address):
                components.slave_sync.follow(address)
                self._follow_log(address, ha_address)
            case ForgetMaster(address):
                log.warning("the master %s is offline", address)
                self._forget_master(address)
            case ReleaseHeldPulls():
                components.release_held_pulls()
            case SetAliveReplicas(count):
                components.ha.set_alive_replicas(count)
            case PollGroup():
                self.poll_now()
            case RegisterAgain(nameserver):
                components.registration.refresh_at(nameserver)

    def _run_special_services(self, *, run: bool) -> None:
        components = self._components
        is_master = components.live.current.broker_id == MASTER_ID
        services = components.master_services if is_master else components.special_services
        log.info("the special services %s", "start" if run else "stop")
        if run and is_master:
            # After a power loss its consumer offsets may be ahead of its log. An acting master keeps such
            # offsets: it stores nothing in these queues, and the master may have the messages.
            components.slave_sync.lower_offsets_to_log()
        if run:
            services.start()
        else:
            services.stop()

    def _follow_log(self, address: str, ha_address: str | None) -> None:
        components = self._components
        if components.live.current.ha_master_address:
            return
        if ha_address is not None:
            components.ha.follow(ha_address)
        elif self._ha_question is None or self._ha_question[0] != address or self._ha_question[1].done():
            if self._ha_question is not None:
                self._ha_question[1].cancel()
            question = asyncio.create_task(self._ask_ha_address(address), name=f"HA address of {address}")
            self._ha_question = address, question

    async def _ask_ha_address(self, address: str) -> None:
        """Asks the master for its HA address (906). The next poll asks again if that fails."""
        try:
            found = await exchange_ha_info(self._components.client, address, HA_QUESTION_TIMEOUT_MS)
        except EpochMQError as error:
            log.warning("the master %s did not tell its HA address: %s", address, error)
            return
        if found.master_ha_address:
            self._apply(self._group.ha_address_learned(address, found.master_ha_address))

    def _forget_master(self, address: str) -> None:
        components = self._components
        host, _, port = address.rpartition(":")
        components.client.disconnect(address)
        components.client.disconnect(f"{host}:{int(port) - VIP_PORT_DISTANCE}")
        components.slave_sync.follow(None)
        if not components.live.current.ha_master_address:
            components.ha.follow(None)

    # Polling

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._group.member = _member(after)
        self._update_pollers()

    def _update_pollers(self) -> None:
        wanted = self._components.live.nameservers
        for nameserver in [known for known in self._pollers if known not in wanted]:
            self._pollers.pop(nameserver).stop()
        for nameserver in wanted:
            if nameserver not in self._pollers:
                self._pollers[nameserver] = _Poller(nameserver, self._components, self._take_answer)
        self._group.nameservers_changed(frozenset(wanted))


class _Poller:
    """Polls one nameserver `POLLS_PER_PERIOD` times in a period. A slow nameserver delays no other."""

    def __init__(
        self,
        nameserver: str,
        components: MemberGroupDependencies,
        on_response: Callable[[str, dict[int, str], float], None],
    ) -> None:
        self._nameserver = nameserver
        self._components = components
        self._on_response = on_response
        self._wake = asyncio.Event()
        self._fails = False
        self._task = asyncio.create_task(self._run(), name=f"poll the group at {nameserver}")

    def wake(self) -> None:
        """Polls as soon as a running poll has ended."""
        self._wake.set()

    def stop(self) -> asyncio.Task[None]:
        """Ends the polls, and returns the task that is to be awaited."""
        self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            await self._poll()
            period_ms = self._components.live.current.sync_broker_member_group_period
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(period_ms / POLLS_PER_PERIOD / 1000):
                    await self._wake.wait()

    async def _poll(self) -> None:
        components, asked_ms = self._components, _now_ms()
        try:
            members = await poll_members(components.client, self._nameserver, components.live.current)
        except EpochMQError as error:
            if not self._fails:
                log.warning("nameserver %s does not tell the group's members: %s", self._nameserver, error)
            self._fails = True
            return
        except Exception:
            log.exception("the answer of nameserver %s could not be read", self._nameserver)
            return
        if self._fails:
            log.info("nameserver %s tells the group's members again", self._nameserver)
        self._fails = False
        self._on_response(self._nameserver, members, asked_ms)


def _member(config: BrokerConfig) -> GroupMember:
    return GroupMember(
        config.broker_id,
        config.client_addr,
        config.sync_broker_member_group_period,
        config.broker_not_active_timeout_millis,
    )


def _now_ms() -> float:
    return asyncio.get_running_loop().time() * 1000
