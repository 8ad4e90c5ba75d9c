"""Controllers in a simulated world: a consensus peer, and production's state machine. A `ControllerHost`
connects the two as `epochmq_controller.controller.controller.Controller` does."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, cast

from epochmq_controller.replica_groups import rules
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup
from epochmq_controller.replica_groups.requests import ControllerRequest, GetNextBrokerIdRequest
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    ChannelClosed,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    ControllerStateMachineSettings,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    NotifyBroker,
    ProposalCompleted,
    ProposeEvents,
    RejectRequest,
    RespondToLeaseRequests,
    RespondToRequest,
    TimeAdvanced,
)
from epochmq_dledger.core import types as raft
from epochmq_protocol.dledger import DLedgerResponseCode
from tests.simulation.clockwork import Call
from tests.simulation.peer_host import PeerHost

if TYPE_CHECKING:
    from tests.simulation.brokers import Channel
    from tests.simulation.controller_world import ControllerWorld

OPEN_FATE = (DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT, DLedgerResponseCode.TERM_CHANGED)


class ControllerHost(PeerHost):
    """A machine with a controller."""

    world: ControllerWorld

    def __init__(
        self,
        world: ControllerWorld,
        name: str,
        settings: raft.RaftSettings,
        state_machine_settings: ControllerStateMachineSettings,
    ) -> None:
        super().__init__(world, name, settings)
        self.state_machine_settings = state_machine_settings
        self.state_machine: ControllerStateMachine | None = None
        self.applied = -1
        self.state_machine_inbox: deque[ControllerInput] = deque()
        self.deciding = False
        self.state_machine_timer_at = float("inf")
        self.asks: dict[int, tuple[Call, ControllerRequest | None]] = {}
        self.proving: set[int] = set()
        self.epochs_before: dict[str, tuple[ReplicaGroup, tuple[int, int]]] = {}
        """The groups, and their epochs at the last check."""

    # Life ---------------------------------------------------------------------------------------------------

    def recovered(self) -> None:
        self.state_machine = ControllerStateMachine(self.state_machine_settings, self.clock())
        self.applied = -1
        self.state_machine_inbox.clear()
        self.asks.clear()
        self.proving.clear()
        self.state_machine_timer_at = float("inf")
        self.apply()
        self.arm_state_machine()

    def die(self, kept: int | None = None) -> None:
        super().die(kept)
        self.state_machine = None

    def arm_state_machine(self) -> None:
        """Sets the timer for the state machine's next deadline."""
        assert self.state_machine is not None
        due = (self.state_machine.next_deadline_ms() + 0.01 - self.leaps_ms) / self.rate
        if due < self.state_machine_timer_at:
            self.state_machine_timer_at = due
            self.world.at(due - self.world.now, self._on_state_machine_timer, self.life, due)

    def _on_state_machine_timer(self, life: int, due: float) -> None:
        if self.life == life and self.state_machine_timer_at == due:
            self.state_machine_timer_at = float("inf")
            self.receive(self.tell, TimeAdvanced())

    def clock_leapt(self) -> None:
        super().clock_leapt()
        if self.state_machine is not None and not self.paused:
            self.state_machine_timer_at = float("inf")
            self.arm_state_machine()

    # The core's effects -------------------------------------------------------------------------------------

    def carry_out(self, effect: raft.RaftEffect) -> None:
        super().carry_out(effect)
        match effect:
            case raft.ApplyCommitted():
                self.apply()
            case raft.RoleChanged(role=role, term=term):
                self.tell(LeadershipChanged(term if role is raft.RaftRole.LEADER else None))
            case raft.ProposalCommitted(token=token):
                self.tell(ProposalCompleted(token))
            case raft.ReadReady(token=token):
                self.proving.discard(token)
                self.tell(LeadershipCheckCompleted(token, True))
            case raft.OperationFailed(token=token, code=code):
                if token in self.proving:
                    self.proving.discard(token)
                    self.tell(LeadershipCheckCompleted(token, False))
                elif code not in OPEN_FATE:
                    self.tell(ProposalCompleted(token, code.name))
            case _:
                pass

    def apply(self) -> None:
        """Feeds committed entries to the state machine."""
        while self.applied < self.committed:
            self.applied += 1
            entry = self.log.entry(self.applied)
            assert entry is not None
            self.tell(EntryApplied(entry.index, entry.term, entry.body))

    # The state machine --------------------------------------------------------------------------------------

    def tell(self, event: ControllerInput) -> None:
        """Feeds inputs one after another."""
        self.state_machine_inbox.append(event)
        if self.deciding:
            return
        self.deciding = True
        try:
            while self.state_machine_inbox and self.state_machine is not None:
                event = self.state_machine_inbox.popleft()
                effects = self.state_machine.step(event, self.clock())
                self.check_state_machine(event)
                if isinstance(event, EntryApplied):
                    self.world.check_applied(self, self.state_machine, event)
                for effect in effects:
                    self.perform(effect)
        finally:
            self.deciding = False
        if self.state_machine is not None:
            self.arm_state_machine()

    def check_state_machine(self, event: ControllerInput) -> None:
        """Checks the rules that the state machine's parts state at their fields; and that the epochs of a
        group do not fall while it exists. Only entries of the log change groups."""
        assert self.state_machine is not None
        if not isinstance(event, EntryApplied):
            self.state_machine.check_leases()
            return
        self.state_machine.check_invariants()
        for name, group in self.state_machine.groups.groups.items():
            now = (group.master_epoch, group.sync_state_set_epoch)
            known, before = self.epochs_before.get(name, (group, now))
            if known is group and (now[0] < before[0] or now[1] < before[1]):
                self.world.fail(f"{self.name}: the epochs of group {name} fall from {before} to {now}")
            self.epochs_before[name] = group, now

    def perform(self, effect: ControllerEffect) -> None:
        """Carries out one effect of the state machine."""
        if self.state_machine is None:
            return
        world = self.world
        match effect:
            case ProposeEvents(token=token, bodies=bodies):
                world.proposing(bodies)
                self.submit(raft.Proposal(token, bodies))
            case CheckLeadership(token=token):
                self.proving.add(token)
                self.feed(raft.ReadIndex(token))
            case RespondToRequest(token=token, decision=decision):
                call, request = self.asks.pop(token)
                world.check_answer(request, decision)
                number = 0
                if isinstance(request, GetNextBrokerIdRequest):
                    number = rules.next_broker_id(self.state_machine.groups, request.name)
                world.answer(call, (effect, number))
            case RejectRequest(token=token):
                world.answer(self.asks.pop(token)[0], (effect, 0))
            case RespondToLeaseRequests(tokens=tokens, lease_ms=lease_ms):
                for lease_token in cast("list[int]", tokens):  # as `_token` made them
                    call, _ = self.asks.pop(lease_token)
                    if lease_ms > 0:
                        world.liveness.answered(self.name, world.now - call.came_ms)
                    world.answer(call, lease_ms)
            case NotifyBroker(address=address, view=view):
                broker = world.broker_at(address)
                world.send(self, broker, broker.notified, view)
            case LogMessage(text=text):
                world.note(f"{self.name}: {text}")

    def _token(self, call: Call, request: ControllerRequest | None) -> int:
        self.world.sequence += 1
        self.asks[self.world.sequence] = (call, request)
        return self.world.sequence

    # Brokers and operators ----------------------------------------------------------------------------------

    def met(self, call: Call) -> None:
        """A request for the leader (1005) has arrived."""
        node = self.node
        if node is not None:
            self.world.answer(call, (node.member.leader, node.leader is not None, node.member.term))

    def asked(self, call: Call, request: ControllerRequest) -> None:
        """A request has arrived."""
        self.tell(GroupRequestReceived(self._token(call, request), request))

    def on_heartbeat(
        self, channel: Channel, replica: BrokerIdentityInfo, beat: dict[str, Any], fenced: int | None
    ) -> None:
        """A one-way heartbeat has arrived."""
        if not channel.closed:
            self.tell(HeartbeatReceived(replica, self._beat(channel, beat), fenced))

    def heard_asking(
        self,
        call: Call,
        channel: Channel,
        replica: BrokerIdentityInfo,
        beat: dict[str, Any],
        fenced: int | None,
        epoch: int,
    ) -> None:
        """A heartbeat that requests a lease has arrived."""
        call.came_ms = self.world.now
        if not channel.closed:
            token = self._token(call, None)
            self.tell(HeartbeatReceived(replica, self._beat(channel, beat), fenced, epoch, token))

    def _beat(self, channel: Channel, beat: dict[str, Any]) -> Heartbeat:
        return Heartbeat(last_ms=self.clock(), channel=channel, confirm_offset=0, **beat)

    def channel_closed(self, channel: Channel) -> None:
        """A broker's connection has closed."""
        channel.closed = True
        self.tell(ChannelClosed(channel))
