"""Whole controllers in a simulated world: a consensus peer and the desk that production runs. What happens
between the two here is what `epochmq_controller.controller.controller.Controller` does."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from epochmq_controller.replicas import rules
from epochmq_controller.replicas.desk import Desk
from epochmq_controller.replicas.heartbeats import Heartbeat, Replica
from epochmq_controller.replicas.requests import NextId, Request
from epochmq_controller.replicas.types import (
    Answer,
    Applied,
    Asked,
    Closed,
    Effect,
    Heard,
    Input,
    Leased,
    Led,
    Notify,
    Propose,
    Prove,
    Proven,
    Reject,
    Said,
    Settings,
    Settled,
    Tick,
)
from epochmq_dledger.core import types as raft
from epochmq_protocol.dledger import DLedgerResponseCode
from tests.simulation.clockwork import Call
from tests.simulation.raft import Peer

if TYPE_CHECKING:
    from tests.simulation.brokers import Channel
    from tests.simulation.controller_world import ControllerWorld

OPEN_FATE = (DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT, DLedgerResponseCode.TERM_CHANGED)


class ControllerHost(Peer):
    """A machine with a controller."""

    world: ControllerWorld

    def __init__(
        self, world: ControllerWorld, name: str, settings: raft.Settings, desk_settings: Settings
    ) -> None:
        super().__init__(world, name, settings)
        self.desk_settings = desk_settings
        self.desk: Desk | None = None
        self.applied = -1
        self.desk_inbox: deque[Input] = deque()
        self.deciding = False
        self.desk_timer_at = float("inf")
        self.asks: dict[int, tuple[Call, Request | None]] = {}
        self.proving: set[int] = set()

    # Life ---------------------------------------------------------------------------------------------------

    def recovered(self) -> None:
        self.desk = Desk(self.desk_settings, self.clock())
        self.applied = -1
        self.desk_inbox.clear()
        self.asks.clear()
        self.proving.clear()
        self.desk_timer_at = float("inf")
        self.apply()
        self.arm_desk()

    def die(self, kept: int | None = None) -> None:
        super().die(kept)
        self.desk = None

    def arm_desk(self) -> None:
        """Keeps a timer for the desk's next deadline."""
        assert self.desk is not None
        due = (self.desk.next_deadline_ms() + 0.01 - self.leaps_ms) / self.rate
        if due < self.desk_timer_at:
            self.desk_timer_at = due
            self.world.at(due - self.world.now, self._on_desk_timer, self.life, due)

    def _on_desk_timer(self, life: int, due: float) -> None:
        if self.life == life and self.desk_timer_at == due:
            self.desk_timer_at = float("inf")
            self.receive(self.tell, Tick())

    def clock_leapt(self) -> None:
        super().clock_leapt()
        if self.desk is not None and not self.paused:
            self.desk_timer_at = float("inf")
            self.arm_desk()

    # The core's effects -------------------------------------------------------------------------------------

    def carry_out(self, effect: raft.Effect) -> None:
        super().carry_out(effect)
        match effect:
            case raft.Commit():
                self.apply()
            case raft.RoleChanged(role=role, term=term):
                self.tell(Led(term if role is raft.Role.LEADER else None))
            case raft.Committed(token=token):
                self.tell(Settled(token))
            case raft.ReadReady(token=token):
                self.proving.discard(token)
                self.tell(Proven((token,), True))
            case raft.Refused(token=token, code=code):
                if token in self.proving:
                    self.proving.discard(token)
                    self.tell(Proven((token,), False))
                elif code not in OPEN_FATE:
                    self.tell(Settled(token, code.name))
            case _:
                pass

    def apply(self) -> None:
        """Hands what is committed to the desk."""
        while self.applied < self.committed:
            self.applied += 1
            entry = self.log.entry(self.applied)
            assert entry is not None
            self.tell(Applied(entry.index, entry.term, entry.body))

    # The desk -----------------------------------------------------------------------------------------------

    def tell(self, event: Input) -> None:
        """One input after another."""
        self.desk_inbox.append(event)
        if self.deciding:
            return
        self.deciding = True
        try:
            while self.desk_inbox and self.desk is not None:
                event = self.desk_inbox.popleft()
                effects = self.desk.step(event, self.clock())
                if isinstance(event, Applied):
                    self.world.check_applied(self, self.desk, event)
                for effect in effects:
                    self.perform(effect)
        finally:
            self.deciding = False
        if self.desk is not None:
            self.arm_desk()

    def perform(self, effect: Effect) -> None:
        """One effect of the desk."""
        if self.desk is None:
            return
        world = self.world
        match effect:
            case Propose(token=token, bodies=bodies):
                world.proposing(bodies)
                self.submit(raft.Propose(token, bodies))
            case Prove(token=token):
                self.proving.add(token)
                self.feed(raft.ReadIndex(token))
            case Answer(token=token, verdict=verdict):
                call, request = self.asks.pop(token)
                world.check_answer(request, verdict)
                number = 0
                if isinstance(request, NextId):
                    number = rules.next_broker_id(self.desk.groups, request.name)
                world.answer(call, (effect, number))
            case Reject(token=token):
                world.answer(self.asks.pop(token)[0], (effect, 0))
            case Leased(token=token, lease_ms=lease_ms):
                call, _ = self.asks.pop(token)
                if lease_ms:
                    world.liveness.answered(self.name, world.now - call.came_ms)
                world.answer(call, lease_ms)
            case Notify(address=address, view=view):
                broker = world.broker_at(address)
                world.send(self, broker, broker.notified, view)
            case Said(text=text):
                world.note(f"{self.name}: {text}")

    def _token(self, call: Call, request: Request | None) -> int:
        self.world.sequence += 1
        self.asks[self.world.sequence] = (call, request)
        return self.world.sequence

    # What brokers say ---------------------------------------------------------------------------------------

    def met(self, call: Call) -> None:
        """Somebody asks who leads (1005)."""
        node = self.node
        if node is not None:
            self.world.answer(call, (node.member.leader, node.leader is not None, node.member.term))

    def asked(self, call: Call, request: Request) -> None:
        """A request has come."""
        self.tell(Asked(self._token(call, request), request))

    def heard(self, channel: Channel, replica: Replica, beat: dict[str, Any], fenced: int | None) -> None:
        """A one-way heartbeat has come."""
        if not channel.closed:
            self.tell(Heard(replica, self._beat(channel, beat), fenced))

    def heard_asking(
        self,
        call: Call,
        channel: Channel,
        replica: Replica,
        beat: dict[str, Any],
        fenced: int | None,
        epoch: int,
    ) -> None:
        """A heartbeat that asks for a lease has come."""
        call.came_ms = self.world.now
        if not channel.closed:
            token = self._token(call, None)
            self.tell(Heard(replica, self._beat(channel, beat), fenced, epoch, token))

    def _beat(self, channel: Channel, beat: dict[str, Any]) -> Heartbeat:
        return Heartbeat(last_ms=self.clock(), channel=channel, confirm_offset=0, **beat)

    def channel_closed(self, channel: Channel) -> None:
        """A broker's connection has ended."""
        channel.closed = True
        self.tell(Closed(channel))
