"""Drives the replica state machine: feeds it with inputs and carries out its effects (RocketMQ's
`ReplicasManager`)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from pathlib import Path

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.controlled.background_tasks import BackgroundTasks
from epochmq_broker.membership.controlled.controller_addresses import ControllerAddresses
from epochmq_broker.membership.controlled.controller_client import ControllerClient, decode_master_view
from epochmq_broker.membership.controlled.heartbeats import ControllerHeartbeats, HeartbeatLogState
from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.membership.controlled.identity_files import IdentityFiles
from epochmq_broker.membership.controlled.incarnation_file import IncarnationFile
from epochmq_broker.membership.controlled.lease_hold import LeaseHold
from epochmq_broker.membership.controlled.promise_polls import PromisePolls
from epochmq_broker.membership.controlled.refused_store import RefusedStore
from epochmq_broker.membership.controlled.request_gate import GatePhase, RequestGate
from epochmq_broker.membership.controlled.role_transitions import ReplicaDependencies, RoleTransitions
from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.state_machine_types import (
    AdoptSyncStateSet,
    AskController,
    ControllerLeaderFound,
    DistrustLog,
    DropApplication,
    FindControllerLeader,
    GiveUpEpoch,
    HeartbeatNotCounted,
    IdentitySaved,
    LeaseMissing,
    LeaveRole,
    LogCaughtUp,
    MasterMayHaveChanged,
    ProposalMade,
    ProposalRejected,
    ReplicaEffect,
    ReplicaInput,
    ReplicaSettings,
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
from epochmq_broker.membership.controlled.successor_election import SuccessorElection
from epochmq_broker.membership.controlled.switchover import Switchover
from epochmq_broker.membership.controlled.write_lease import WriteLease
from epochmq_broker.membership.controlled.write_promises import ReplicaPromises
from epochmq_broker.replication.ha.service import HARole, HAService
from epochmq_broker.replication.ha.sync_state import SyncStateSetProposal
from epochmq_protocol.bodies import SyncStateSet, from_json
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_controller import NotifyBrokerRoleChangedRequestHeader
from epochmq_store.files.mapped_file import DiskFullError
from epochmq_store.statuses import RunningFlags

log = logging.getLogger(__name__)

STOP_WAIT_MS = 1000
"""How long a master that is being stopped waits for its replicas, and then for the controllers."""
STOP_POLL_MS = 10


class ReplicasManager:
    """Makes a broker a member of a replica group under controllers. `load`, `start`, `stop`."""

    def __init__(self, components: ReplicaDependencies) -> None:
        config = components.live.current
        self._components = components
        self._ha: HAService = components.ha
        self._standing = standing = components.live.standing
        self.lease = WriteLease(on_change=lambda: standing.lease_changed(self.lease.open_until_ms()))
        self.lease.end()
        self.role_transitions = RoleTransitions(components, self.lease)
        self.heartbeats = ControllerHeartbeats(
            components.live,
            components.client,
            self.lease,
            HeartbeatLogState(
                lambda: components.ha.doubt.written_epoch,
                lambda: components.store.max_phy_offset,
                lambda: components.ha.confirm_offset,
                lambda: not components.store.state.flags & RunningFlags.FLUSH_FAILED,
                lambda: components.ha.doubt.may_lack_acknowledged,
                lambda: self._state_machine.gives_up_epoch if self._state_machine is not None else None,
                lambda: components.ha.confirmed_by_all,
                lambda: self._incarnations.lineage,
                self._heard_epoch,
            ),
        )
        components.store.state.on_fsync_failure.append(self.heartbeats.send_now)
        self.heartbeats.on_lease = self._lease_changed
        self.heartbeats.on_lease_missing = lambda: self._feed(LeaseMissing())
        path = config.store_path_broker_identity or str(config.root_dir / "brokerIdentity")
        self._files = IdentityFiles(Path(path).expanduser())
        self._incarnations = IncarnationFile(self._files.path)
        self.heartbeats.on_not_counted = lambda: self._feed(HeartbeatNotCounted())
        self._controllers = ControllerClient(
            components.client,
            config.broker_cluster_name,
            config.broker_name,
            config.broker_addr,
            lambda: components.ha.doubt.may_lack_acknowledged,
            lambda: self._incarnations.lineage,
            self._registered,
        )
        self._addresses = ControllerAddresses(config.controllers)
        self._addresses.on_change = self._addresses_changed
        self._state_machine: ReplicaStateMachine | None = None
        self._inputs: deque[ReplicaInput] = deque()
        self._stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = BackgroundTasks()
        self._running = False
        self.gate = RequestGate(
            components.client,
            config.broker_addr,
            on_change=lambda: standing.handover_changed(not self.gate.is_open),
        )
        self._lease_hold = LeaseHold(self.gate, self._is_ready)
        self.successor_election = SuccessorElection(
            self._controllers, lambda: self.state_machine.leader, self.lease, self.heartbeats, self._tasks
        )
        self.switchover = Switchover(
            components.store,
            components.ha,
            self.gate,
            components.client,
            prepare=components.master_services.prepare_fence,
            commit_replicated=components.master_services.commit_replicated,
            election_obstacle=self.successor_election.obstacle,
            elect=self.successor_election.elect,
            election_failed=self.successor_election.report_fence,
        )
        self.refused_store = RefusedStore(
            components.ha, self._files, self.heartbeats, lambda: self.state_machine, self._feed
        )
        self.promises = PromisePolls(
            components.live,
            components.client,
            components.ha,
            self.lease,
            lambda: self._state_machine,
            self._feed,
            self._lease_changed,
        )
        standing.waits_for = self.promises.waits_for
        components.ha.on_proposals(self._propose)
        components.ha.doubt.on_cleared.append(self._doubt_cleared)

    # Life

    def load(self) -> None:
        """Reads the broker's identity and names this process; until the controllers respond the broker is a
        slave. Raises ConfigError if the store belongs to another broker."""
        config = self._components.live.current
        self._incarnations.begin()
        self._identity, self._application = self._files.load(config.broker_cluster_name, config.broker_name)
        self._components.live.set_role(self._identity.id if self._identity is not None else 1, "SLAVE")

    def start(self) -> None:
        """Starts to search for the leading controller; needs a running loop."""
        config = self._components.live.current
        self._state_machine = ReplicaStateMachine(
            config.broker_cluster_name,
            config.broker_name,
            _settings(config),
            _now_ms(),
            promises=ReplicaPromises(_now_ms()),
            identity=self._identity,
            application=self._application,
            gives_up=self._ha.doubt.current.gives_up,
            given_up_epoch=self._ha.doubt.current.given_up_epoch,
            in_doubt=self._ha.doubt.may_lack_acknowledged,
        )
        self._running = True
        if config.fetch_controller_addr_by_dns_lookup:
            self._addresses.current = ()
            self._tasks.start(self._addresses.look_up(config.controller_addr))
        if self._identity is not None:
            self.heartbeats.start(self._identity.id, self._addresses.current)
        self._components.live.on_change.append(self._reconfigured)
        self.promises.start()
        self._feed(TimeAdvanced())

    async def stop(self) -> None:
        """Stops. A master first lets its replicas catch up and reports that it is fenced, so that the
        controllers elect a successor at once."""
        if not self._running:
            return
        fenced = await self._fence_before_stop()
        # From here on it takes no role: the controllers may elect it again when no other member lives.
        self._running = False
        if fenced:
            await self.heartbeats.send_once(STOP_WAIT_MS)
        self._components.live.on_change.remove(self._reconfigured)
        if self._timer is not None:
            self._timer.cancel()
        self._lease_hold.release()
        await self.promises.stop()
        await self._tasks.stop()
        await self.role_transitions.stop()
        await self.heartbeats.stop()

    async def _fence_before_stop(self) -> bool:
        """Waits until the replicas have the whole log, then fences this master; False if it is none. The
        controllers need not wait for its lease to expire once they know it."""
        sync = self._ha.sync_state
        if self.lease.epoch is None or sync is None:
            return False
        self._components.master_services.prepare_fence()
        self._standing.begin_stop()
        store = self._components.store
        for _ in range(STOP_WAIT_MS // STOP_POLL_MS):
            # Stored messages are acknowledged here, because the fence forbids it.
            on_disk = not (store.config.sync_flush and store.unflushed_bytes)
            if on_disk and sync.replicated_to_all(store.max_phy_offset):
                break
            await asyncio.sleep(STOP_POLL_MS / 1000)
        await asyncio.sleep(0)
        self.lease.fence()
        return True

    # What the rest of the broker asks

    def may_write(self) -> bool:
        """Whether the broker may store messages now."""
        return self._standing.capabilities.may_write(boot_ms())

    def takes_messages(self) -> bool:
        """Whether a message that waits for replicas would be stored now."""
        return self.may_write() and self._components.writer.has_enough_replicas

    def may_acknowledge(self) -> bool:
        """Whether the broker may acknowledge stored messages now."""
        return self._standing.capabilities.may_acknowledge(boot_ms())

    def role_notified(self, command: Command, *, verified: bool = True) -> None:
        """Takes a controller's notification of the master (1008). One whose sender is not known only makes
        this broker ask the leading controller. Raises RequestError for an invalid header."""
        if not verified:
            self._feed(MasterMayHaveChanged())
            return
        header = NotifyBrokerRoleChangedRequestHeader.decode(command.ext)
        members = from_json(SyncStateSet, command.body) if command.body else SyncStateSet()
        self._feed(RoleNotification(decode_master_view(header, members, command.ext)))

    async def members(self) -> dict[int, str]:
        """See `SuccessorElection.members`."""
        return await self.successor_election.members()

    @property
    def started_state_machine(self) -> ReplicaStateMachine | None:
        """The state machine; None before the start."""
        return self._state_machine

    @property
    def state_machine(self) -> ReplicaStateMachine:
        """The state machine of a started manager."""
        assert self._state_machine is not None, "the manager was not started"
        return self._state_machine

    # The state machine

    def _feed(self, event: ReplicaInput) -> None:
        """Takes one input and carries out its effects. An input that arrives meanwhile waits until that is
        done."""
        state_machine = self._state_machine
        if state_machine is None or not self._running:
            return
        self._inputs.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs:
                for effect in state_machine.step(self._inputs.popleft(), _now_ms()):
                    self._carry_out(effect)
        finally:
            self._stepping = False
        self.refused_store.stepped()
        if state_machine.elected_epoch is not None:
            self.promises.poll()  # the former master may have stopped
        if self._timer is not None:
            self._timer.cancel()
        at = max(state_machine.next_deadline_ms(), _now_ms() + 1) / 1000
        self._timer = asyncio.get_running_loop().call_at(at, self._feed, TimeAdvanced())

    def _carry_out(self, effect: ReplicaEffect) -> None:
        match effect:
            case FindControllerLeader():
                self._tasks.start(self._find_leader())
            case AskController():
                self._tasks.start(self._ask(effect))
            case SaveIdentity(what=what):
                self._save_identity(what)
            case DropApplication():
                self._drop_application()
            case StopWriting():
                self.lease.note_lapse(boot_ms())
                self.lease.end()
            case LeaveRole():
                identity = self.state_machine.identity
                self._tasks.start(self._leave_role(identity.id if identity is not None else 1))
            case DistrustLog():
                self._tasks.start(self._distrust_log())
            case TakeRole():
                self._tasks.start(self._take_role(effect))
            case GiveUpEpoch(epoch=epoch):
                self._tasks.start(self._give_up(epoch))
            case AdoptSyncStateSet(members=members, set_epoch=set_epoch, least=least):
                self._ha.adopt(members, set_epoch, least)
                self.promises.count()
                self._lease_changed()
            case ProposalRejected(refused=refused, reason=reason):
                self._ha.proposal_rejected(refused, reason)
            case ControllerLeaderFound(grants=grants):
                if grants is not None:
                    known = self.lease.leader_grants
                    self.lease.leader_found(grants=grants)
                    self._lease_changed()
                    if known is not grants:
                        self.heartbeats.send_now()
            case WriteLogLine(text=text, warns=warns):
                log.log(logging.WARNING if warns else logging.INFO, "%s", text)

    def _propose(self, proposal: SyncStateSetProposal) -> None:
        self.promises.count()  # before the controllers can accept it: its members may then be elected
        self._feed(ProposalMade(proposal.members, proposal.set_epoch, proposal.least))

    async def _give_up(self, epoch: int) -> None:
        log.warning(
            "the broker leads only under an epoch after %d: its log may have lost its end (tail state %s)",
            epoch,
            self._components.store.tail.state.name,
        )
        try:
            await self._ha.give_up(epoch)
        except OSError as error:
            # The next start gives up whichever mastership it finds.
            log.error("the broker could not save that it gave up epoch %d: %s", epoch, error)
        self.heartbeats.send_now()

    def _doubt_cleared(self) -> None:
        """The log is no longer in doubt, so that this broker may be elected."""
        self._feed(LogCaughtUp())
        self.heartbeats.send_now()

    async def _leave_role(self, broker_id: int) -> None:
        self._lease_hold.release()
        await self.role_transitions.leave(broker_id)

    async def _distrust_log(self) -> None:
        try:
            await self._ha.distrust()
        except OSError as error:
            log.error("the broker could not save that its log is in doubt: %s", error)

    def _registered(self, name: str) -> None:
        """The controllers have recorded the name of this process: from now on they count its heartbeats."""
        self._incarnations.acknowledged(name)
        self.heartbeats.send_now()

    async def _find_leader(self) -> None:
        self._feed(SearchFinished(await self._controllers.search(self._addresses.current)))

    async def _ask(self, effect: AskController) -> None:
        self._feed(ReplyReceived(effect.token, await self._controllers.ask(effect.address, effect.question)))

    def _save_identity(self, what: BrokerIdApplication | BrokerIdentity) -> None:
        error = None
        try:
            if isinstance(what, BrokerIdentity):
                self._files.save(what)
            else:
                self._files.save_application(what)
        except OSError as fault:
            error = str(fault)
        if error is None and isinstance(what, BrokerIdentity):
            self.heartbeats.start(what.id, self._addresses.current)
        self._feed(IdentitySaved(what, error))

    def _drop_application(self) -> None:
        try:
            self._files.forget_application()
        except OSError as error:
            log.error("the rejected application for a broker id could not be deleted: %s", error)

    async def _take_role(self, effect: TakeRole) -> None:
        error = None
        if effect.view.master_id == effect.broker_id:
            self._lease_hold.start()
        try:
            await self.role_transitions.take(effect.view, effect.broker_id)
        except (EpochMQError, OSError, DiskFullError) as fault:
            error = str(fault)
        except Exception as fault:
            log.exception("the broker failed to take its role of epoch %d", effect.view.epoch)
            error = repr(fault)
        if error is not None:
            self.lease.end()
            self._lease_hold.release()
        else:
            role = "master" if self._ha.role is HARole.MASTER else f"replica of {effect.view.address}"
            log.info("broker %d is %s under epoch %d", effect.broker_id, role, effect.view.epoch)
            self._role_taken(effect.view.address)
        self._feed(RoleTaken(effect.view, error))
        self.heartbeats.send_now()

    # The request gate

    def _is_ready(self) -> bool:
        """Whether this broker is a master that may take and acknowledge messages now."""
        return (
            self._ha.role is HARole.MASTER
            and self.may_acknowledge()
            and self._components.writer.has_enough_replicas
        )

    def _role_taken(self, master_address: str | None) -> None:
        if self._ha.role is HARole.MASTER:
            self._lease_changed()
            return
        self._lease_hold.cancel()
        if self.gate.phase is GatePhase.HOLDING and master_address:
            self.gate.relay(master_address)
        else:
            self.gate.master_changed(master_address)

    def _heard_epoch(self) -> int | None:
        """The epoch of the master that has answered this replica just now, and may write."""
        machine = self._state_machine
        return None if machine is None else machine.promises.heard_epoch(_now_ms())

    def _lease_changed(self) -> None:
        """The lease or the SyncStateSet has changed: answers waiting sends and releases held requests."""
        self._ha.answer_replicated()
        self._lease_hold.release_if_ready()

    # Addresses

    def _addresses_changed(self) -> None:
        identity = self.state_machine.identity
        if identity is not None:
            self.heartbeats.start(identity.id, self._addresses.current)
        self._feed(LeaseMissing())

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.state_machine.settings = _settings(after)
        if before.controllers != after.controllers and not after.fetch_controller_addr_by_dns_lookup:
            self._addresses.replace(after.controllers)


def _settings(config: BrokerConfig) -> ReplicaSettings:
    return ReplicaSettings(
        metadata_period_ms=config.sync_broker_metadata_period,
        controller_search_period_ms=config.sync_controller_metadata_period,
    )


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
