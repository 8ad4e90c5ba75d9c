"""Drives `core`: carries out its effects, keeps the lease, and puts what comes from controllers in."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from epochmq_broker.config import BrokerConfig
from epochmq_broker.ha.service import HARole, HAService
from epochmq_broker.ha.sync_state import SyncStateSetProposal
from epochmq_broker.replicas.controller_client import ControllerClient, view
from epochmq_broker.replicas.heartbeats import ControllerHeartbeats, HeartbeatLogState, clock_ms
from epochmq_broker.replicas.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.replicas.identity_files import IdentityFiles
from epochmq_broker.replicas.request_gate import GatePhase, RequestGate
from epochmq_broker.replicas.role_transitions import ReplicaDependencies, RoleTransitions
from epochmq_broker.replicas.state_machine import ReplicaStateMachine
from epochmq_broker.replicas.state_machine_types import (
    AdoptSyncStateSet,
    AskController,
    ControllerLeaderFound,
    ControllerReply,
    DropApplication,
    ElectMasterQuestion,
    FindControllerLeader,
    GiveUpEpoch,
    IdentitySaved,
    LeaseMissing,
    LogCaughtUp,
    ProposalMade,
    ProposalRejected,
    ReplicaEffect,
    ReplicaInput,
    ReplicaSettings,
    ReplyLost,
    ReplyReceived,
    RoleNotification,
    RoleTaken,
    SaveIdentity,
    SearchFinished,
    StopWriting,
    TakeRole,
    TimeAdvanced,
    WriteLogLine,
)
from epochmq_broker.replicas.switchover import Switchover
from epochmq_broker.replicas.write_lease import WriteLease
from epochmq_broker.store.mapped_file import DiskFullError
from epochmq_broker.store.statuses import RunningFlags
from epochmq_protocol.bodies import SyncStateSet, from_json
from epochmq_protocol.errors import ConnectError, EpochMQError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_controller import NotifyBrokerRoleChangedRequestHeader

log = logging.getLogger(__name__)

ADDRESSES_PERIOD_S = 120.0
"""How often controllers' names are looked up (fetchControllerAddrByDnsLookup)."""
HANDOVER_MS = 1000
"""How long a master that is stopped waits for its replicas, and then for the controllers."""
HANDOVER_LOOK_MS = 10
LEASE_WAIT_S = 1.0
"""How long sends are held for a new master's first lease, and for as many replicas as it needs."""


class ReplicasManager:
    """What makes a broker part of a replica group. `load`, `start`, `stop`."""

    def __init__(self, parts: ReplicaDependencies) -> None:
        config = parts.live.current
        self._parts = parts
        self._ha: HAService = parts.ha
        self.lease = WriteLease()
        self.role_transitions = RoleTransitions(parts, self.lease, clock_ms)
        self.heartbeats = ControllerHeartbeats(
            parts.live,
            parts.client,
            self.lease,
            HeartbeatLogState(
                lambda: parts.ha.written_epoch,
                lambda: parts.store.max_phy_offset,
                lambda: parts.ha.confirm_offset,
                lambda: not parts.store.state.flags & RunningFlags.FLUSH_FAILED,
                lambda: parts.ha.may_lack_acknowledged,
                lambda: self._state_machine.gives_up_epoch if self._state_machine is not None else None,
                lambda: parts.ha.confirmed_by_all,
            ),
        )
        parts.store.state.on_fsync_failure.append(self.heartbeats.send_now)
        self.heartbeats.on_lease = self._leased
        self.heartbeats.on_lease_missing = lambda: self._feed(LeaseMissing())
        path = config.store_path_broker_identity or str(config.root_dir / "brokerIdentity")
        self._files = IdentityFiles(Path(path).expanduser())
        self._controllers = ControllerClient(
            parts.client,
            config.broker_cluster_name,
            config.broker_name,
            config.broker_addr,
            lambda: parts.ha.may_lack_acknowledged,
        )
        self._addresses: tuple[str, ...] = config.controllers
        self._state_machine: ReplicaStateMachine | None = None
        self._inputs: deque[ReplicaInput] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = False
        self._leaving = False
        """This broker is being stopped: it takes no more messages."""
        self.gate = RequestGate(parts.client, config.broker_addr)
        self._hold_timer: asyncio.TimerHandle | None = None
        self.switchover = Switchover(
            parts.store,
            parts.ha,
            self.gate,
            parts.client,
            election_obstacle=self._obstacle,
            elect=self._elect,
            given_up=self._say_fenced,
        )
        parts.writer.may_write = self.may_write
        parts.writer.may_acknowledge = parts.ha.may_acknowledge = self.may_acknowledge
        parts.ha.on_proposal = self._propose
        parts.ha.on_doubt_cleared = self._settled

    # Life

    def load(self) -> None:
        """Reads who this broker is; from now on it is nobody's master. ConfigError for a store of another
        broker's."""
        config = self._parts.live.current
        self._identity, self._application = self._files.load(config.broker_cluster_name, config.broker_name)
        self._parts.live.set_role(self._identity.id if self._identity is not None else 1, "SLAVE")

    def start(self) -> None:
        """Begins to look for controllers; needs a running loop."""
        config = self._parts.live.current
        self._state_machine = ReplicaStateMachine(
            config.broker_cluster_name,
            config.broker_name,
            _settings(config),
            _now_ms(),
            identity=self._identity,
            application=self._application,
            gives_up=self._ha.doubt.gives_up,
            given_up_epoch=self._ha.doubt.given_up_epoch,
        )
        self._open = True
        if config.fetch_controller_addr_by_dns_lookup:
            self._addresses = ()
            self._spawn(self._look_up(config.controller_addr))
        if self._identity is not None:
            self.heartbeats.start(self._identity.id, self._addresses)
        self._parts.live.on_change.append(self._reconfigured)
        self._feed(TimeAdvanced())

    async def stop(self) -> None:
        """Hands a mastership over if somebody can take it, and ends."""
        if not self._open:
            return
        await self._hand_over()
        self._open = False
        self._parts.live.on_change.remove(self._reconfigured)
        if self._timer is not None:
            self._timer.cancel()
        self._release_held()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.role_transitions.stop()
        await self.heartbeats.stop()

    async def _hand_over(self) -> None:
        """A master that goes says so: its replicas get what they lack, then the controllers need not wait for
        its lease to run out."""
        sync = self._ha.sync_state
        if self.lease.epoch is None or sync is None:
            return
        self._leaving = True
        store = self._parts.store
        for _ in range(HANDOVER_MS // HANDOVER_LOOK_MS):
            # What was taken is acknowledged before the fence forbids it.
            on_disk = not (store.config.sync_flush and store.unflushed_bytes)
            if on_disk and sync.replicated_to_all(store.max_phy_offset):
                break
            await asyncio.sleep(HANDOVER_LOOK_MS / 1000)
        await asyncio.sleep(0)
        self.lease.fence()
        await self.heartbeats.send_once(HANDOVER_MS)

    # What others ask

    def may_write(self) -> bool:
        """Whether messages may be taken now."""
        return self.gate.lets_through and not self._leaving and self.lease.is_open(clock_ms())

    def takes_messages(self) -> bool:
        """Whether a message that wants to wait would be taken now."""
        return self.may_write() and self._parts.writer.has_replicas_enough

    def may_acknowledge(self) -> bool:
        """Whether messages that were taken may be acknowledged now."""
        return self.lease.is_open(clock_ms())

    def role_notified(self, command: Command) -> None:
        """1008. RequestError for a header that cannot be read."""
        header = NotifyBrokerRoleChangedRequestHeader.decode(command.ext)
        members = from_json(SyncStateSet, command.body) if command.body else SyncStateSet()
        self._feed(RoleNotification(view(header, members)))

    @property
    def state_machine(self) -> ReplicaStateMachine:
        """The core of a started manager."""
        assert self._state_machine is not None, "not started"
        return self._state_machine

    # The core

    def _feed(self, event: ReplicaInput) -> None:
        """One input after another: what comes while effects are carried out waits until all of them are."""
        core = self._state_machine
        if core is None or not self._open:
            return
        self._inputs.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs:
                for effect in core.step(self._inputs.popleft(), _now_ms()):
                    self._carry_out(effect)
        finally:
            self._stepping = False
        if self._timer is not None:
            self._timer.cancel()
        at = max(core.next_deadline_ms(), _now_ms() + 1) / 1000
        self._timer = asyncio.get_running_loop().call_at(at, self._feed, TimeAdvanced())

    def _carry_out(self, effect: ReplicaEffect) -> None:
        match effect:
            case FindControllerLeader():
                self._spawn(self._search())
            case AskController():
                self._spawn(self._ask(effect))
            case SaveIdentity(what=what):
                self._keep(what)
            case DropApplication():
                self._drop()
            case StopWriting():
                self.lease.end()
            case TakeRole():
                self._spawn(self._become(effect))
            case GiveUpEpoch(epoch=epoch):
                self._spawn(self._give_up(epoch))
            case AdoptSyncStateSet(members=members, set_epoch=set_epoch):
                self._ha.adopt(members, set_epoch)
                self._leased()
            case ProposalRejected():
                self._ha.proposal_rejected()
            case ControllerLeaderFound(grants=grants):
                if grants is not None:
                    known, self.lease.leader_grants = self.lease.leader_grants, grants
                    self._leased()
                    if known is not grants:
                        self.heartbeats.send_now()
            case WriteLogLine(text=text, warns=warns):
                log.log(logging.WARNING if warns else logging.INFO, "%s", text)

    async def _give_up(self, epoch: int) -> None:
        log.warning(
            "the mastership of epoch %d is given up: the log may have lost its end (%s)",
            epoch,
            self._parts.store.tail.state.name,
        )
        try:
            await self._ha.give_up(epoch)
        except OSError as error:
            # The next start gives up whatever mastership it finds.
            log.error("that epoch %d is given up cannot be kept: %s", epoch, error)
        self.heartbeats.send_now()

    def _settled(self) -> None:
        """Our log is the group's: nothing speaks against an election any more."""
        self._feed(LogCaughtUp())
        self.heartbeats.send_now()

    async def _search(self) -> None:
        self._feed(SearchFinished(await self._controllers.search(self._addresses)))

    async def _ask(self, effect: AskController) -> None:
        self._feed(ReplyReceived(effect.token, await self._controllers.ask(effect.address, effect.question)))

    def _keep(self, what: BrokerIdApplication | BrokerIdentity) -> None:
        error = None
        try:
            if isinstance(what, BrokerIdentity):
                self._files.save(what)
            else:
                self._files.save_application(what)
        except OSError as fault:
            error = str(fault)
        if error is None and isinstance(what, BrokerIdentity):
            self.heartbeats.start(what.id, self._addresses)
        self._feed(IdentitySaved(what, error))

    def _drop(self) -> None:
        try:
            self._files.forget_application()
        except OSError as error:
            log.error("the application for an id stays on disk: %s", error)

    async def _become(self, effect: TakeRole) -> None:
        error = None
        if effect.view.master_id == effect.broker_id:
            self._hold_until_leased()
        try:
            await self.role_transitions.take(effect.view, effect.broker_id)
        except (EpochMQError, OSError, DiskFullError) as fault:
            error = str(fault)
        except Exception as fault:
            log.exception("taking the role of epoch %d failed", effect.view.epoch)
            error = repr(fault)
        if error is not None:
            self.lease.end()
            self._release_held()
        else:
            role = "master" if self._ha.role is HARole.MASTER else f"replica of {effect.view.address}"
            log.info("broker %d is %s under epoch %d", effect.broker_id, role, effect.view.epoch)
            self._role_taken(effect.view.address)
        self._feed(RoleTaken(effect.view, error))
        self.heartbeats.send_now()

    # A planned switch

    async def _obstacle(self, broker_id: int) -> str | None:
        """Why the controllers would not elect this replica now."""
        leader = self.state_machine.leader
        return (
            "none leads" if leader is None else await self._controllers.election_obstacle(leader, broker_id)
        )

    async def members(self) -> dict[int, str]:
        """Address by id of the SyncStateSet's living members, as the leading controller has them.
        EpochMQError when it does not say."""
        leader = self.state_machine.leader
        if leader is None:
            raise ConnectError("no leading controller is known")
        return await self._controllers.members(leader)

    async def _elect(self, broker_id: int) -> ControllerReply:
        """Has another replica elected. Under leases this broker is fenced before it asks, in the same breath:
        the controllers elect somebody for a fenced master, whatever happens. RocketMQ's may elect nobody, and
        then this broker must be able to go on."""
        leader, epoch = self.state_machine.leader, self.lease.epoch
        if leader is None or not self.lease.is_open(clock_ms()):
            return ReplyLost("no leading controller is known")
        if self.lease.leader_grants is False:
            epoch = None
        else:
            self.lease.fence()
        self.heartbeats.naming_successor = True
        try:
            return await self._controllers.ask(
                leader, ElectMasterQuestion(broker_id, designate=True, fenced_epoch=epoch)
            )
        finally:
            self.heartbeats.naming_successor = False

    def _say_fenced(self) -> None:
        """The election failed, or nobody knows: any other will do."""
        if self.lease.fenced:
            self._spawn(self._beat_once())

    async def _beat_once(self) -> None:
        await self.heartbeats.send_once(HANDOVER_MS)

    # Whom clients' requests reach

    def _hold_until_leased(self) -> None:
        """A master that has no lease yet, or whose replicas are on their way to it, would refuse what it can
        take in a moment."""
        self._cancel_hold()
        self.gate.hold()
        self._hold_timer = asyncio.get_running_loop().call_later(LEASE_WAIT_S, self._release_held)

    def _release_held(self) -> None:
        if self._cancel_hold():
            self.gate.open()

    def _cancel_hold(self) -> bool:
        """Whether anybody was held for a lease; nobody is any more."""
        timer, self._hold_timer = self._hold_timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _role_taken(self, master_address: str | None) -> None:
        if self._ha.role is HARole.MASTER:
            self._leased()
            return
        self._cancel_hold()
        if self.gate.phase is GatePhase.HOLDING and master_address:
            self.gate.relay(master_address)
        else:
            self.gate.master_changed(master_address)

    def _propose(self, proposal: SyncStateSetProposal) -> None:
        self._feed(ProposalMade(proposal.members, proposal.set_epoch))

    def _leased(self) -> None:
        """The lease is, or may be, open: who waited for it is answered, or let in."""
        self._ha.answer_replicated()
        if (
            self._hold_timer is not None
            and self._ha.role is HARole.MASTER
            and self.may_acknowledge()
            and self._parts.writer.has_replicas_enough
        ):
            self._release_held()

    # Addresses

    async def _look_up(self, text: str) -> None:
        """Keeps the addresses behind one name; a look-up that fails changes nothing (#6873)."""
        host, _, port = text.rpartition(":")
        loop = asyncio.get_running_loop()
        while True:
            try:
                found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
                addresses = tuple(sorted({f"{one[4][0]!s}:{port}" for one in found}))
                if addresses and addresses != self._addresses:
                    log.info("controllers: %s", ", ".join(addresses))
                    self._take_addresses(addresses)
            except OSError as error:
                log.warning("controllers' name %s: %s", host, error)
            await asyncio.sleep(ADDRESSES_PERIOD_S if self._addresses else 1.0)

    def _take_addresses(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses
        identity = self.state_machine.identity
        if identity is not None:
            self.heartbeats.start(identity.id, addresses)
        self._feed(LeaseMissing())

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.state_machine.settings = _settings(after)
        if before.controllers != after.controllers and not after.fetch_controller_addr_by_dns_lookup:
            self._take_addresses(after.controllers)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a step of the replicas manager failed", exc_info=task.exception())


def _settings(config: BrokerConfig) -> ReplicaSettings:
    return ReplicaSettings(
        metadata_period_ms=config.sync_broker_metadata_period,
        controller_search_period_ms=config.sync_controller_metadata_period,
    )


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
