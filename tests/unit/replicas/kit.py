"""A broker's core with a test in the place of controllers and driver."""

from __future__ import annotations

from typing import TypeVar

from epochmq_broker.replicas.core import Core
from epochmq_broker.replicas.identity import Application, Identity
from epochmq_broker.replicas.types import (
    Ask,
    Become,
    Effect,
    FreeId,
    Granted,
    Input,
    Keep,
    Kept,
    MasterView,
    Met,
    Replied,
    Reply,
    Search,
    Searched,
    Settings,
    Taken,
    Tick,
)

T = TypeVar("T", bound=Effect)
LEADER = "10.0.0.1:9878"
OTHER = "10.0.0.2:9878"


def view(
    master_id: int | None, epoch: int, members: set[int] | None = None, set_epoch: int = 1
) -> MasterView:
    """What a controller says; brokers' addresses follow from their ids."""
    address = f"10.0.1.{master_id}:10911" if master_id is not None else None
    return MasterView(master_id, address, epoch, frozenset(members or {master_id or 0}), set_epoch)


class Stage:
    """One core. `effects` are those of the last input, `now_ms` its time."""

    def __init__(
        self,
        identity: Identity | None = None,
        application: Application | None = None,
        *,
        gives_up: bool = False,
        given_up_epoch: int = 0,
    ) -> None:
        self.now_ms = 1000
        self.core = Core(
            "c",
            "g",
            Settings(),
            self.now_ms,
            identity=identity,
            application=application,
            gives_up=gives_up,
            given_up_epoch=given_up_epoch,
        )
        self.effects: list[Effect] = []
        self.feed(Tick())

    def feed(self, event: Input) -> list[Effect]:
        """One input, now."""
        self.effects = self.core.step(event, self.now_ms)
        return self.effects

    def pass_ms(self, ms: int) -> list[Effect]:
        """Time passes, as the core wants to be woken; the effects of all of it."""
        found: list[Effect] = []
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            self.now_ms = min(max(self.core.next_deadline_ms(), self.now_ms + 1), end_ms)
            found += self.core.step(Tick(), self.now_ms)
        self.effects = found
        return found

    def only(self, kind: type[T]) -> T:
        """The one effect of this kind."""
        found = self.all(kind)
        assert len(found) == 1, self.effects
        return found[0]

    def all(self, kind: type[T]) -> list[T]:
        """The effects of this kind."""
        return [one for one in self.effects if isinstance(one, kind)]

    # Stories

    def meet(self, leader: str | None = LEADER, *, grants: bool = True) -> None:
        """The search for the leading controller ends."""
        found = (Met(leader, leader, True, grants, 1),) if leader is not None else ()
        self.feed(Searched(found))

    def answer(self, reply: Reply) -> list[Effect]:
        """The question asked last is answered."""
        return self.feed(Replied(self.only(Ask).token, reply))

    def identify(self, broker_id: int = 1) -> None:
        """As far as registering."""
        if not self.all(Search):
            self.pass_ms(1000)
        self.meet()
        self.answer(FreeId(broker_id, "10.0.1.1:10911;7"))
        self.feed(Kept(self.only(Keep).what))
        self.answer(Granted())
        self.feed(Kept(self.only(Keep).what))

    def lead(self, epoch: int = 1, set_epoch: int = 1) -> None:
        """As far as being master."""
        self.identify()
        self.answer(view(1, epoch, {1}, set_epoch))
        self.take()

    def take(self, error: str | None = None) -> None:
        """The driver takes the role that is to be taken."""
        self.feed(Taken(self.only(Become).view, error))
