"""Runs a replica state machine with the test in place of controllers and driver."""

from __future__ import annotations

from typing import TypeVar

from epochmq_broker.membership.controlled.identity import BrokerIdApplication, BrokerIdentity
from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.state_machine_types import (
    AskController,
    BrokerIdGranted,
    ControllerMetadata,
    ControllerReply,
    FindControllerLeader,
    FreeBrokerId,
    IdentitySaved,
    MasterView,
    ReplicaEffect,
    ReplicaInput,
    ReplicaSettings,
    ReplyReceived,
    RoleTaken,
    SaveIdentity,
    SearchFinished,
    TakeRole,
    TimeAdvanced,
)
from epochmq_broker.membership.controlled.write_promises import POLL_MS, ReplicaPromises

T = TypeVar("T", bound=ReplicaEffect)
LEADER = "10.0.0.1:9878"
OTHER = "10.0.0.2:9878"


def view(
    master_id: int | None, epoch: int, members: set[int] | None = None, set_epoch: int = 1
) -> MasterView:
    """A controller's view; brokers' addresses follow from their ids."""
    address = f"10.0.1.{master_id}:10911" if master_id is not None else None
    return MasterView(master_id, address, epoch, frozenset(members or {master_id or 0}), set_epoch)


def kept_promises(now_ms: int) -> ReplicaPromises:
    """The promises of a process that has run for a while, and has promised nothing."""
    found = ReplicaPromises(0)
    for at_ms in range(0, now_ms, POLL_MS):
        found.read(at_ms)
    assert found.left_ms(now_ms) == 0
    return found


class StateMachineHarness:
    """One state machine. `effects` are those of the last input, `now_ms` is its time."""

    def __init__(
        self,
        identity: BrokerIdentity | None = None,
        application: BrokerIdApplication | None = None,
        *,
        gives_up: bool = False,
        given_up_epoch: int = 0,
        in_doubt: bool = False,
        promises: ReplicaPromises | None = None,
    ) -> None:
        self.now_ms = 1000
        self.state_machine = ReplicaStateMachine(
            "c",
            "g",
            ReplicaSettings(),
            self.now_ms,
            promises=promises or kept_promises(self.now_ms),
            identity=identity,
            application=application,
            gives_up=gives_up,
            given_up_epoch=given_up_epoch,
            in_doubt=in_doubt,
        )
        self.effects: list[ReplicaEffect] = []
        self.feed(TimeAdvanced())

    def feed(self, event: ReplicaInput) -> list[ReplicaEffect]:
        """Feeds one input, now."""
        self.effects = self.state_machine.step(event, self.now_ms)
        return self.effects

    def pass_ms(self, ms: int) -> list[ReplicaEffect]:
        """Advances the time in the steps that the state machine asks for; returns all effects."""
        found: list[ReplicaEffect] = []
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(max(self.state_machine.next_deadline_ms(), self.now_ms + 1), end_ms)
            found += self.state_machine.step(TimeAdvanced(), self.now_ms)
        self.effects = found
        return found

    def only(self, kind: type[T]) -> T:
        """The only effect of this type."""
        found = self.all(kind)
        assert len(found) == 1, self.effects
        return found[0]

    def all(self, kind: type[T]) -> list[T]:
        """The effects of this type."""
        return [one for one in self.effects if isinstance(one, kind)]

    # Stories

    def meet(self, leader: str | None = LEADER, *, grants: bool = True) -> None:
        """Ends the search for the leading controller."""
        found = (ControllerMetadata(leader, leader, True, grants, 1),) if leader is not None else ()
        self.feed(SearchFinished(found))

    def answer(self, reply: ControllerReply) -> list[ReplicaEffect]:
        """Responds to the last question."""
        return self.feed(ReplyReceived(self.only(AskController).token, reply))

    def identify(self, broker_id: int = 1) -> None:
        """Goes on up to the registration."""
        if not self.all(FindControllerLeader):
            self.pass_ms(1000)
        self.meet()
        self.answer(FreeBrokerId(broker_id, "10.0.1.1:10911;7"))
        self.feed(IdentitySaved(self.only(SaveIdentity).what))
        self.answer(BrokerIdGranted())
        self.feed(IdentitySaved(self.only(SaveIdentity).what))

    def lead(self, epoch: int = 1, set_epoch: int = 1) -> None:
        """Goes on until the broker is the master."""
        self.identify()
        self.answer(view(1, epoch, {1}, set_epoch))
        self.take()

    def take(self, error: str | None = None) -> None:
        """Takes the role, as the driver does."""
        self.feed(RoleTaken(self.only(TakeRole).view, error))
