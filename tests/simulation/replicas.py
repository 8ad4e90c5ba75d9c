"""Simulates brokers that run production's pure modules: identity and role (`replicas.state_machine`), write
leases (`replicas.write_lease`), who is in sync and what is confirmed (`ha.sync_state`), how many logs a send
waits for (`ha.ack_quorum`), where logs diverge and epochs start (`ha.epochs`), the blocks of a connection
(`ha.block_planner`), the checks of reports (`ha.replica_reports`).

The drivers around them are written here a second time, with the same order of steps: `replicas.manager`,
`replicas.role_transitions`, `ha.service`, `ha.client`, `ha.replication_waiters`. Heartbeats are in
`replica_heartbeats`, connections in `ha_connections`. The module is longer than 600 lines because
these drivers change the same broker."""

from __future__ import annotations

import contextlib
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from epochmq_broker.membership.controlled import state_machine_types as messages
from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.write_lease import WriteLease, WriteRight
from epochmq_broker.membership.controlled.write_promises import POLL_MS, ReplicaPromises
from epochmq_broker.replication.ha import log_doubt
from epochmq_broker.replication.ha.ack_quorum import (
    ALL_MEMBERS,
    check_acknowledged,
    replicated_until,
    required_copies,
)
from epochmq_broker.replication.ha.epochs import (
    Epochs,
    begin_epoch,
)
from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_broker.tables.consumer_offsets import ConsumerOffsetTable
from epochmq_controller.replica_groups import requests
from epochmq_controller.replica_groups.rules import ReplicaGroupView as ControllerView
from epochmq_controller.replica_groups.state_machine_types import RejectRequest, RespondToRequest
from epochmq_protocol.epoch_entries import EpochEntry
from tests.simulation.broker_log import SimulatedLogHost
from tests.simulation.brokers import CLUSTER, Channel
from tests.simulation.controller_messages import master_view_of, reply_to, request_for
from tests.simulation.controllers import ControllerHost
from tests.simulation.ha_connections import SimulatedHAConnection
from tests.simulation.records import make_record
from tests.simulation.replica_heartbeats import SimulatedHeartbeats
from tests.simulation.replica_promises import SimulatedPromises

if TYPE_CHECKING:
    from tests.simulation.group_world import GroupWorld

TICK_MS = 100
CHECK_MS = 500
RETRY_MS = 200
TAKE_ROLE_MS = 20
NOT_CAUGHT_UP_MS = 1500
WAITERS_MAX = 1000


class Role(Enum):
    """As `ha.service.HARole`."""

    IDLE = "idle"
    CHANGING = "changing"
    MASTER = "master"
    REPLICA = "replica"


class GroupBroker(SimulatedLogHost):
    """The machine of one broker. A kill -9 leaves its log, epochs and identity, and older versions of what is
    written only now and then."""

    world: GroupWorld

    def __init__(self, world: GroupWorld, group: str, number: int) -> None:
        super().__init__(world, group, number)
        self.address = self.name
        # On disk.
        self.identity: BrokerIdentity | None = None
        self.application: BrokerIdApplication | None = None
        self.offsets_kept: dict[int, int] = {}
        self.processes: list[str] = []
        """The names of its processes, back to the last one that the controllers acknowledged."""
        # In memory.
        self.settings = HASettings(
            all_ack_in_sync_state_set=True, min_in_sync_replicas=world.wanted.options["min_in_sync"]
        )
        self.channels: dict[str, Channel] = {}
        self.beats = SimulatedHeartbeats(self)
        self.promises = SimulatedPromises(self)
        self._boot()

    def _boot(self) -> None:
        self.forget()
        self.core: ReplicaStateMachine | None = None
        self.inbox: deque[messages.ReplicaInput] = deque()
        self.stepping = False
        self.timer_at = float("inf")
        self.lease = WriteLease()
        self.role = Role.IDLE
        self.sync_state: SyncState | None = None
        self.sync_before: tuple[SyncState | None, int, int] = (None, 0, 0)
        """The mastership, its confirm offset and set epoch at the last check."""
        self.sent_before = -1.0
        """When the lease of the last check was requested."""
        self.doubt_before: log_doubt.LogDoubt | None = None
        """The doubt at the last check."""
        self.connections: list[SimulatedHAConnection] = []
        self.client_connection: SimulatedHAConnection | None = None
        self.master_address: str | None = None
        self.waiters: deque[tuple[int, int, int]] = deque()
        """(required copies, end offset, number of the message)"""
        self.offsets = ConsumerOffsetTable(self.clock)
        self.beats.reset()
        self.promises.reset()

    # Life ---------------------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> int | None:
        """The broker id that the controllers gave."""
        return self.identity.id if self.identity is not None else None

    @property
    def epoch(self) -> int:
        """The newest epoch of its log."""
        return self.epochs.last_epoch

    def start(self) -> None:
        super().start()
        self.world.sequence += 1
        self.processes = [f"{self.name}-{self.world.sequence}", *self.processes]
        world, luck = self.world, self.world.random.random
        self._boot()
        self.open_log()
        self.shown = self.confirmed
        self.take_offsets(self.offsets_kept)
        self.channels = {name: Channel() for name in world.controllers}
        world.note(f"{self.name} starts, log to {self.log.end}, epochs {brief(self.epochs)}")
        self.core = ReplicaStateMachine(
            CLUSTER,
            self.group,
            messages.ReplicaSettings(
                metadata_period_ms=world.sync_ms, controller_search_period_ms=2 * world.sync_ms
            ),
            self.clock(),
            promises=ReplicaPromises(self.clock()),
            identity=self.identity,
            application=self.application,
            gives_up=self.doubt.gives_up,
            given_up_epoch=self.doubt.given_up_epoch,
            in_doubt=self.doubt.in_doubt,
        )
        self.later(luck() * 50, self.feed, messages.TimeAdvanced())
        self.later(luck() * 50, self.beats.send, self.beats.number)
        self.later(luck() * POLL_MS, self.promises.poll)
        self.later(luck() * world.write_ms, self.write)
        self.later(luck() * TICK_MS, self.tick)
        self.later(luck() * CHECK_MS, self.check)

    def die(self) -> None:
        super().die()
        self.world.note(f"{self.name} dies, log to {self.log.end}")
        for name, channel in self.channels.items():
            self.world.close(self, self.world.controllers[name], channel)
        for link in [
            *self.connections,
            *([self.client_connection] if self.client_connection is not None else []),
        ]:
            link.died(self)
        if self.world.random.random() < 0.5:
            self.confirmed_kept = min(self.confirm_offset, self.log.dispatched)
            self.offsets_kept = self.all_offsets()
        self._boot()

    def check_invariants(self) -> None:
        """Checks the rules that production's classes state at their fields; and that the confirm offset of a
        mastership advances only to what every member has."""
        if not self.up:
            return
        lease, sync = self.lease, self.sync_state
        if lease.sent_ms != self.sent_before:  # a lease changes with each grant, and with the role
            self.sent_before = lease.sent_ms
            lease.check_invariants(self.clock())
        self.epochs.check_invariants(self.log.end)
        if self.doubt is not self.doubt_before:
            self.doubt_before = self.doubt
            self.doubt.check_invariants()
        if sync is None:
            return
        sync.check_invariants()
        known, confirmed, set_epoch = self.sync_before
        if sync is known:
            if sync.confirm_offset != confirmed:
                sync.check_advance(confirmed)
            elif sync.set_epoch == set_epoch:
                return
            if sync.set_epoch < set_epoch:
                self.world.fail(f"{self.name} goes back from set epoch {set_epoch} to {sync.set_epoch}")
        self.sync_before = sync, sync.confirm_offset, sync.set_epoch

    def disconnect(self, controller: ControllerHost) -> None:
        """Breaks its connection to a controller; the next heartbeat makes a new one."""
        self.world.close(self, controller, self.channels[controller.name])
        self.channels[controller.name] = Channel()

    # The core (`replicas.manager`) --------------------------------------------------------------------------

    def feed(self, event: messages.ReplicaInput) -> None:
        """Takes one input after another."""
        if self.core is None:
            return
        self.inbox.append(event)
        if self.stepping:
            return
        self.stepping = True
        try:
            while self.inbox and self.core is not None:
                self.world.steps += 1
                for effect in self.core.step(self.inbox.popleft(), self.clock()):
                    self.carry_out(effect)
        finally:
            self.stepping = False
        due = self.world_time(max(self.core.next_deadline_ms(), self.clock() + 1))
        if due < self.timer_at:
            self.timer_at = due
            self.world.at(due - self.world.now, self._on_timer, self.life, due)

    def _on_timer(self, life: int, due: float) -> None:
        if self.life == life and self.timer_at == due:
            self.timer_at = float("inf")
            self.receive(self.feed, messages.TimeAdvanced())

    def clock_leapt(self) -> None:
        if self.core is not None and not self.paused:
            self.timer_at = float("inf")
            self.feed(messages.TimeAdvanced())

    def carry_out(self, effect: messages.ReplicaEffect) -> None:
        """Carries out one effect of the state machine."""
        match effect:
            case messages.FindControllerLeader():
                self._search()
            case messages.AskController():
                self._ask(effect)
            case messages.SaveIdentity(what=what):
                if isinstance(what, BrokerIdentity):
                    self.identity, self.application = what, None
                else:
                    self.application = what
                self.feed(messages.IdentitySaved(what))
                self.beats.send_now()
            case messages.DropApplication():
                self.application = None
            case messages.StopWriting():
                self.lease.end()
            case messages.TakeRole(view=view, broker_id=broker_id):
                if view.master_id == broker_id:
                    self.lease.begin(view.epoch)
                else:
                    self.lease.end()
                took = self.world.random.random() * TAKE_ROLE_MS
                self.later(took, self._become, view, broker_id)
            case messages.GiveUpEpoch(epoch=epoch):
                self.world.note(f"{self.name} gives up epoch {epoch}: its log may have lost its end")
                self.world.count_event("epochs given up")
                with contextlib.suppress(OSError):
                    self.keep_doubt(log_doubt.given_up(self.doubt, max(epoch, self.epochs.last_epoch)))
                self.beats.send_now()
            case messages.AdoptSyncStateSet(members=members, set_epoch=set_epoch, least=least):
                self.adopt(members, set_epoch, least)
            case messages.ProposalRejected(refused=refused, reason=reason):
                if self.sync_state is not None:
                    self.sync_state.proposal_rejected(refused, reason, self.clock())
                    self.progress()
                    if refused is not None:
                        self.propose()
            case messages.ControllerLeaderFound(grants=grants):
                if grants is not None:
                    self.lease.leader_grants = grants
                    self.settle()
            case messages.WriteLogLine(text=text):
                if self.world.verbose:
                    self.world.note(f"{self.name}: {text}")

    def _search(self) -> None:
        found: list[messages.ControllerMetadata] = []
        left = len(self.world.controllers)

        def back(name: str, response: tuple[str | None, bool, int] | None) -> None:
            nonlocal left
            left -= 1
            if response is not None:
                leader, leads, term = response
                found.append(messages.ControllerMetadata(name, leader, leads, True, term))
            if left == 0:
                self.feed(messages.SearchFinished(tuple(found)))

        for name, controller in self.world.controllers.items():
            self.world.call(
                self, controller, controller.met, lambda response, name=name: back(name, response)
            )

    def _ask(self, effect: messages.AskController) -> None:
        controller = self.world.controllers[effect.address]
        question = effect.question
        request = request_for(
            self.group,
            self.address,
            question,
            in_doubt=self.may_lack_acknowledged,
            lineage=",".join(self.processes),
        )
        if isinstance(request, requests.AlterSyncStateSetRequest):
            self.world.asked_sets.add(request)

        def back(response: tuple[RespondToRequest | RejectRequest, int] | None) -> None:
            reply: messages.ControllerReply = messages.ReplyLost("no answer")
            if response is not None:
                reply = reply_to(question, *response, f"{self.address};{self.name}")
                if isinstance(question, messages.RegisterQuestion) and isinstance(reply, messages.MasterView):
                    del self.processes[1:]
                    self.beats.send_now()
            self.feed(messages.ReplyReceived(effect.token, reply))

        self.world.call(self, controller, controller.asked, back, request)

    def notified(self, view: ControllerView) -> None:
        """Takes a controller's notification of the master (1008)."""
        self.feed(messages.RoleNotification(master_view_of(view)))

    # The lease ----------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether it accepts messages now."""
        return self.up and self.role is Role.MASTER and self.lease.is_open(self.clock())

    @property
    def holds_lease(self) -> bool:
        """Whether it accepts messages now by a lease of the controllers, and not by promises only."""
        return self.writable and self.lease.right(self.clock()) is WriteRight.LEASE

    def fence(self) -> None:
        """Fences a master, and reports it."""
        if self.role is Role.MASTER:
            self.world.note(f"{self.name} fences itself under epoch {self.lease.epoch}")
            self.lease.fence()
            self.beats.send_now()

    # Roles (`replicas.role_transitions`, `ha.service`) ------------------------------------------------------

    def _become(self, view: messages.MasterView, broker_id: int) -> None:
        error = None
        if view.epoch < self.epochs.last_epoch:
            error = f"epoch {view.epoch} is over, the log's is {self.epochs.last_epoch}"
            self.lease.end()
        else:
            try:
                if view.master_id == broker_id:
                    self._lead(view, broker_id)
                else:
                    self._follow_role(view)
            except OSError as failure:
                error = str(failure)
        self.feed(messages.RoleTaken(view, error))
        self.beats.send_now()

    def _lead(self, view: messages.MasterView, broker_id: int) -> None:
        if not log_doubt.may_lead(self.doubt, view.epoch):
            raise OSError(f"the mastership of epoch {view.epoch} is given up")
        members = view.members | {broker_id}
        sync = self.sync_state
        if self.role is Role.MASTER and sync is not None:
            self.disk.check("keep an epoch")
            if self.epochs.append(EpochEntry(view.epoch, self.log.end)):
                sync.epoch_start = self.log.end
            sync.adopt(members, view.set_epoch, view.least)
            for link in self.connections:
                link.epochs_changed()
            self.progress()
            self.propose()
        else:
            self.leave()
            self._end_whole()
            self.dispatch(self.log.end)
            end = self.log.end
            self.disk.check("keep an epoch")
            begin_epoch(self.epochs, self.epochs.last_epoch, view.epoch, end)
            last = self.epochs.last
            assert last is not None
            self.sync_state = SyncState(
                self_id=broker_id,
                epoch_start=last.start_offset,
                members=members,
                set_epoch=view.set_epoch,
                confirm_offset=min(self.confirmed, end),
                end=end,
                not_caught_up_max_ms=NOT_CAUGHT_UP_MS,
                since_ms=self.clock(),
                all_ack=True,
                recorded_least=view.least,
                flushed=self.disk.flushed if self.disk.sync_flush else None,
                durable=self.disk.flushed,
                min_copies=self.settings.min_in_sync_replicas,
            )
            self.role = Role.MASTER
            self.settle_doubt()
            self.log_is_ours()
            self.sync_state.log_appended(end)
            self.world.note(f"{self.name} is master of epoch {view.epoch} from {end} on, {sorted(members)}")
            self.world.check_new_master(self)
            self.progress()
        self._promoted()

    def _follow_role(self, view: messages.MasterView) -> None:
        if self.role is not Role.REPLICA:
            self.leave()
            self.confirmed = min(self.confirmed, self.log.end)
            self.shown = self.confirmed
            self.role = Role.REPLICA
        self.follow(view.address)

    def leave(self) -> None:
        """Ends the present role."""
        self.role = Role.CHANGING
        sync, self.sync_state = self.sync_state, None
        if sync is not None:
            self.confirmed = sync.confirmed_records
            self.verified = self.log.end
        self.waiters.clear()
        for link in list(self.connections):
            link.close_at_master("we serve no replicas any more")
        self.master_address = None
        if self.client_connection is not None:
            self.client_connection.close_at_replica("this broker is no replica any more")

    def _promoted(self) -> None:
        """Lowers copied consumer offsets that are ahead of the log (`SlaveSync.align_with_log`)."""
        moved = self.offsets.clamp(lambda _topic, queue: len(self.log.queues[queue]))
        self.world.count_event("consumer offsets taken back", moved)
        self.world.check_consumer_offsets(self)

    def offset(self, queue: int) -> int:
        """The consumer's offset."""
        return self.offsets.query("g", "t", queue) or 0

    def take_offsets(self, offsets: dict[int, int]) -> None:
        """Takes over consumer offsets, from the file or from a master."""
        for queue, offset in offsets.items():
            self.offsets.commit("g", "t", queue, offset)

    def all_offsets(self) -> dict[int, int]:
        """A copy of the consumer offsets."""
        return dict(self.offsets.table.get("t@g", {}))

    def adopt(self, members: frozenset[int], set_epoch: int, least: int) -> None:
        """Uses the controllers' SyncStateSet."""
        if self.sync_state is not None and self.sync_state.adopt(members, set_epoch, least):
            self.promises.count()
            self.progress()
            self.propose()

    def propose(self) -> None:
        """Proposes another SyncStateSet, if one is wanted."""
        sync = self.sync_state
        if sync is None or self.role is not Role.MASTER or self.world.frozen:
            return
        proposal = sync.change_to_propose(self.clock())
        if proposal is not None:
            sync.proposal_sent(proposal.members)
            self.promises.count()
            self.progress()
            self.feed(messages.ProposalMade(proposal.members, proposal.set_epoch, proposal.least))

    def check(self) -> None:
        """Periodically proposes to remove members that have fallen behind, and saves the offsets."""
        self.later(CHECK_MS, self.check)
        self.offsets_kept = self.all_offsets()
        self.confirmed_kept = min(self.confirm_offset, self.log.dispatched)
        self.flush()
        self.propose()
        if self.client_connection is not None:
            self.client_connection.copy_tables()

    # Writes (`put`, `ha.replication_waiters`) ---------------------------------------------------------------

    def write(self) -> None:
        """Stores messages of clients, while that is allowed."""
        self.later(self.world.write_ms, self.write)
        if not self.world.frozen and self.world.sending:
            for _ in range(self.world.random.choice((1, 1, 1, 3))):
                self.put()

    def put(self) -> None:
        """Stores a message, if that is allowed."""
        sync, world = self.sync_state, self.world
        if not self.writable or sync is None or self.disk.failed:
            return
        sync.log_appended(self.log.end)
        if required_copies(self.settings, sync, controlled=True) is None:
            world.count_event("sends refused for too few replicas")
            return
        if self.lease.right(self.clock()) is WriteRight.PROMISES:
            world.count_event("messages stored by promises")
        world.writes += 1
        number, queue = world.writes, world.random.randrange(len(self.log.queues))
        offset = len(self.log.queues[queue])
        try:
            self.disk.check("store a message")
        except OSError:
            return  # refused: the log's files have their size, so that nothing is written in part
        self.log.data += make_record(queue, offset, number, world.random.choice((1, 9, 60)))
        self.dispatch(self.log.end)
        world.sent[number] = (self.group, queue, offset)
        sync.log_appended(self.log.end)
        need = required_copies(self.settings, sync, controlled=True)
        if need is None:
            need = ALL_MEMBERS
        self.settle_or_wait(need, self.log.end, number)
        self.progress()
        for link in list(self.connections):
            link.pump()

    def settle_or_wait(self, need: int, end: int, number: int) -> None:
        """Acknowledges a message at once (ASYNC_FLUSH, and no replica is required), or lets it wait for the
        flush and for replicas."""
        sync = self.sync_state
        assert sync is not None
        least = self.settings.min_in_sync_replicas
        if self.is_flushed(end) and end <= replicated_until(need, sync, least):
            check_acknowledged(end, need, sync, least)
            self.world.acknowledge_message(self, number, end)
        elif len(self.waiters) < WAITERS_MAX:
            self.waiters.append((need, end, number))
        if self.disk.sync_flush:
            self.flush()

    def _flushed(self, end: int, cuts: int) -> None:
        self.flushing = False
        if cuts != self.cuts:
            end = min(
                end, self.disk.flushed
            )  # the log was truncated meanwhile: this flush was of other bytes
        if not self.disk.flush_ended(end):
            self.world.note(f"a flush of {self.name} fails: it takes no more messages")
            self.flush_failed()
            return
        if self.sync_state is not None:
            self.sync_state.durable = self.disk.flushed
            self.propose()
        if not self.disk.sync_flush:
            return
        if self.sync_state is not None:
            self.sync_state.log_appended(self.log.end)
            self.sync_state.log_flushed_to(self.disk.flushed)
            self.progress()
        if self.client_connection is not None and self.client_connection.agreed:
            self.client_connection.flushed()
        self.flush()

    def flush_failed(self) -> None:
        """A master reports the failure with its next heartbeat, and a replica leaves its master. The broker
        is restarted after a while."""
        self.waiters.clear()
        if self.client_connection is not None:
            self.client_connection.close_at_replica("our disk has failed")
        self.beats.send_now()
        self.world.at(self.world.random.uniform(1000, 6000), self.world.restart, self, self.life)

    def settle(self) -> None:
        """Acknowledges the messages that enough replicas have."""
        sync = self.sync_state
        if sync is None or not self.lease.is_open(self.clock()):
            return
        left: deque[tuple[int, int, int]] = deque()
        least = self.settings.min_in_sync_replicas
        for waiter in self.waiters:
            need, end, number = waiter
            if self.is_flushed(end) and end <= replicated_until(need, sync, least):
                check_acknowledged(end, need, sync, least)
                self.world.acknowledge_message(self, number, end)
            else:
                left.append(waiter)
        self.waiters = left

    def progress(self) -> None:
        """Publishes the confirmed offset, after a replica acknowledged, joined or left."""
        sync = self.sync_state
        if sync is None:
            return
        self.shown = sync.confirm_offset if sync.waits_for_replicas else None
        self.world.check_confirmed(self, sync.confirm_offset)
        self.settle()

    @property
    def confirm_offset(self) -> int:
        """The confirmed offset, as far as this broker knows it."""
        return self.sync_state.confirmed_records if self.sync_state is not None else self.confirmed

    # Replication (`ha.client`, `ha.client_connection`) ------------------------------------------------------

    def tick(self) -> None:
        """Called ten times a second: drives the connections, and connects to the master."""
        self.later(TICK_MS, self.tick)
        for link in list(self.connections):
            link.tick()
        if self.client_connection is not None:
            self.client_connection.watch()
        elif (
            self.role is Role.REPLICA
            and self.master_address
            and self.world.random.random() < TICK_MS / RETRY_MS
        ):
            self.connect()

    def follow(self, address: str | None) -> None:
        """Follows another master, and ends the connection to the former one at once."""
        if address == self.master_address:
            return
        self.master_address = address
        if self.client_connection is not None:
            self.client_connection.close_at_replica(f"the master is at {address} now")

    def connect(self) -> None:
        """Truncates an incomplete record at the end of the log, and connects."""
        assert self.master_address is not None
        try:
            self._end_whole()
        except OSError:
            return  # tried again
        if self.disk.failed:
            return
        if self.disk.sync_flush and self.disk.flushed < self.log.end:
            self.flush()
            return
        self.epochs.truncate_suffix(self.log.end + 1)
        master = self.world.broker_at(self.master_address)
        if master is not self:
            self.client_connection = SimulatedHAConnection(self.world, master, self)

    def log_is_ours(self) -> None:
        """Reports that the log is no longer in doubt (`ReplicasManager._doubt_cleared`)."""
        self.feed(messages.LogCaughtUp())
        self.beats.send_now()

    def confirmed_by_master(self, offset: int) -> None:
        """Takes the master's confirmed offset, limited to the end of this log."""
        if offset > self.confirmed:
            self.confirmed = offset
            self.shown = offset
            self.world.check_confirmed(self, offset)
            self.dispatch(offset)


def brief(epochs: Epochs) -> str:
    """The last epochs as a short text."""
    return ", ".join(f"{entry.epoch} from {entry.start_offset}" for entry in epochs.entries[-4:])
