"""Drives production's pre-online core (`PreOnline`) on a simulated broker, and checks what it decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochmq_broker.membership.acting.pre_online import (
    MASTER_ID,
    AnnounceMaster,
    AskMaster,
    AskMembers,
    AwaitMaster,
    AwaitRetry,
    AwaitSlave,
    GoOnline,
    HAObserved,
    LagMeasured,
    MasterAnnounced,
    MasterAnswered,
    MeasureLag,
    MembersReceived,
    PreOnline,
    PreOnlineEvent,
    RetryDue,
    StepFailed,
    TablesTakenBack,
    TakeBackTables,
)

if TYPE_CHECKING:
    from tests.simulation.acting_group import BrokerHost
    from tests.simulation.acting_progress import Tables

LAG_MAX = 5
"""A slave goes online when it lacks fewer messages (haMaxGapNotInSync)."""
HA_POLL_MS, LAG_POLL_MS = 100, 500
NO_ANSWER = StepFailed("no answer")


class SimulatedPreOnline:
    """The way of one broker from its start to its registration. The checks do not use the core's own
    state."""

    def __init__(self, broker: BrokerHost) -> None:
        self.core = PreOnline(broker.broker_id, broker.name, LAG_MAX)
        self._broker = broker
        self._members: dict[int, str] = {}
        """The members that the nameservers listed in this attempt."""
        self._given: dict[str, int] = {}
        """Address of a slave → its progress, as taken back in this attempt."""
        self._lag: int | None = None

    def start(self) -> None:
        """Takes the first step."""
        self._take()

    def _report(self, event: PreOnlineEvent) -> None:
        step = self.core.step
        following = self.core.handle(event, self._broker.clock())
        if isinstance(event, StepFailed):
            self._broker.world.count_event("pre-online failed")
        if following is step or following == step:
            pause_ms = LAG_POLL_MS if isinstance(step, MeasureLag) else HA_POLL_MS
            self._broker.later(pause_ms, self._take)
        else:
            self._take()

    def _take(self) -> None:
        broker, world = self._broker, self._broker.world
        match self.core.step:
            case AskMembers():
                self._ask_members()
            case AnnounceMaster(address=address):
                slave = world.broker(address)
                world.call(broker, slave, slave.announced, self._announced, broker.ha_address)
            case AwaitSlave(address=address):
                self._report(HAObserved(address in broker.progress.known_slaves))
            case TakeBackTables(address=address):
                slave = world.broker(address)
                world.call(broker, slave, slave.tell_tables, lambda theirs: self._taken_back(address, theirs))
            case AskMaster(address=address):
                master = world.broker(address)
                world.call(broker, master, master.tell_ha_address, self._master_answered)
            case AwaitMaster(ha_address=ha_address):
                broker.followed_ha = ha_address
                self._report(HAObserved(broker.progress.connected))
            case MeasureLag(address=address):
                master = world.broker(address)
                world.call(broker, master, master.tell_end, self._lag_measured)
            case AwaitRetry(until_ms=until_ms):
                broker.later(max(until_ms - broker.clock(), 0), self._report, RetryDue())
            case GoOnline(min_id=min_id, min_address=min_address):
                self._check()
                broker.go_online(min_id, min_address)

    def _ask_members(self) -> None:
        """Asks all nameservers, as `poll_all_members`."""
        nameservers = self._broker.world.nameservers
        answers: list[dict[int, str] | None] = []

        def done(members: dict[int, str] | None) -> None:
            answers.append(members)
            if len(answers) < len(nameservers):
                return
            if all(one is None for one in answers):
                self._report(NO_ANSWER)
                return
            found: dict[int, str] = {}
            for one in answers:
                found = {**(one or {}), **found}
            self._members, self._lag = found, None
            self._given.clear()
            self._report(MembersReceived(found, has_log=self._broker.progress.stored > 0))

        for nameserver in nameservers:
            self._broker.world.call(self._broker, nameserver, nameserver.poll, done)

    def _announced(self, accepted: bool | None) -> None:
        self._report(MasterAnnounced() if accepted else NO_ANSWER)

    def _taken_back(self, address: str, theirs: Tables | None) -> None:
        if theirs is None:
            self._report(NO_ANSWER)
            return
        self._broker.progress.take_back(theirs)
        self._given[address] = theirs[0][1]
        self._broker.world.count_event("tables taken back")
        self._report(TablesTakenBack())

    def _master_answered(self, ha_address: str | None) -> None:
        self._report(NO_ANSWER if ha_address is None else MasterAnswered(ha_address))

    def _lag_measured(self, end: int | None) -> None:
        if end is None:
            self._report(NO_ANSWER)
            return
        self._lag = end - self._broker.progress.stored
        if self._lag > 0 and not self._broker.progress.connected:
            self._report(StepFailed("the HA connection was lost"))
        else:
            self._report(LagMeasured(self._lag))

    # Checks

    def _check(self) -> None:
        """Promises 6 and 7, when the broker goes online."""
        broker, fail = self._broker, self._broker.world.fail
        others = {
            number: address
            for number, address in self._members.items()
            if number != broker.broker_id and address != broker.name
        }
        if broker.broker_id != MASTER_ID:
            if MASTER_ID in others and (self._lag is None or self._lag >= LAG_MAX):
                fail(f"{broker.name} goes online, and lacks {self._lag} messages of its master")
            return
        for address in others.values():
            if address not in self._given:
                fail(f"the master goes online without the tables of {address}")
            if address not in broker.progress.known_slaves:
                fail(f"the master goes online, and {address} does not follow its log")
        if others and broker.progress.delivered < self._given[others[min(others)]]:
            fail(
                f"the master goes online with the progress {broker.progress.delivered}; the broker that acts"
                f" has {self._given[others[min(others)]]}"
            )
