# pure: the steps of going online; the caller passes events and the time
"""Decides by which steps an isolated broker goes online (RocketMQ's BrokerPreOnlineService, RIP-32).

A broker that starts is isolated: it is not registered, and clients cannot use it. One step is under way at a
time. A step that fails ends the attempt, and the next attempt begins a second later.

A returning master:

1. Ask the nameservers which members of the group are alive. If no other is, go online.
2. Announce the own HA address to each slave (906), and wait until that slave's HA connection arrives. A slave
   that has connected is not asked again in later attempts.
3. Take back the tables of every slave, in descending order of broker ids. The acting master is the last: its
   tables are the newest, and win over others of the same data version. (RocketMQ's order is ascending: a
   slave that did not act may overwrite what the acting master has.)
4. Go online.

A slave whose group has a master:

1. Ask that master for its HA address (906). If it has none, go online.
2. Follow it, and wait until the HA connection exists.
3. Wait until the log lags by less than haMaxGapNotInSync. (RocketMQ's slave does not.)
4. Go online.

A slave whose group has no master goes online at once. The smallest id that it starts with is that of the
others, unless it is alone: another slave acts until both have seen each other. A slave with an empty log,
such as one whose disk was replaced, waits while another slave is alive: it might have the smaller id, and
consumers would lose sight of all messages of the other one. (RocketMQ's does not wait.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

MASTER_ID: Final = 0
RETRY_MS: Final = 1000
"""How long after a failed attempt the next one begins."""
CONNECT_TIMEOUT_MS: Final = 10_000
"""How long an attempt waits for an HA connection (CONNECTION_ESTABLISH_TIMEOUT)."""

# Steps: what the driver does next ---------------------------------------------------------------------------


class AskMembers(Struct, frozen=True):
    """Ask the nameservers for the living members of the group. Report `MembersReceived`."""


class AnnounceMaster(Struct, frozen=True):
    """Send this master's HA address to the slave at `address` (906). Report `MasterAnnounced`."""

    address: str


class AwaitSlave(Struct, frozen=True):
    """Look whether an HA connection from the host of `address` exists. Report `HAObserved`."""

    address: str


class TakeBackTables(Struct, frozen=True):
    """Copy the tables of the slave at `address` whose versions are not older. Report `TablesTakenBack`."""

    address: str


class AskMaster(Struct, frozen=True):
    """Ask the master at `address` for its HA address (906). Report `MasterAnswered`."""

    address: str


class AwaitMaster(Struct, frozen=True):
    """Follow the master at this HA address, and look whether the HA connection exists. Report
    `HAObserved`."""

    ha_address: str


class MeasureLag(Struct, frozen=True):
    """Compare this log with that of the master at `address`. Report `LagMeasured`."""

    address: str


class AwaitRetry(Struct, frozen=True):
    """Wait until `until_ms`, because of `why`. Report `RetryDue`."""

    until_ms: int
    why: str


class GoOnline(Struct, frozen=True):
    """Go online: the member with the smallest id, as far as this broker knows, is `min_id`. The last step."""

    min_id: int
    min_address: str


PreOnlineStep = (
    AskMembers
    | AnnounceMaster
    | AwaitSlave
    | TakeBackTables
    | AskMaster
    | AwaitMaster
    | MeasureLag
    | AwaitRetry
    | GoOnline
)

# Events: what came of a step --------------------------------------------------------------------------------


class MembersReceived(Struct, frozen=True):
    """The living members of the group: broker id → address. This broker may be among them from before its
    start. `has_log`: whether this broker's log has ever had a message."""

    members: Mapping[int, str]
    has_log: bool = True


class MasterAnnounced(Struct, frozen=True):
    """The slave accepted the announcement."""


class HAObserved(Struct, frozen=True):
    """Whether the HA connection exists, and may transfer the log."""

    connected: bool


class TablesTakenBack(Struct, frozen=True):
    """The tables of the slave are here, as far as they are not older."""


class MasterAnswered(Struct, frozen=True):
    """The master's HA address; None if it has none."""

    ha_address: str | None


class LagMeasured(Struct, frozen=True):
    """How many bytes of the master's log this broker lacks; negative if its log is longer. None: the master
    does not tell."""

    lag_bytes: int | None


class RetryDue(Struct, frozen=True):
    """The pause is over."""


class StepFailed(Struct, frozen=True):
    """The step failed."""

    why: str


PreOnlineEvent = (
    MembersReceived
    | MasterAnnounced
    | HAObserved
    | TablesTakenBack
    | MasterAnswered
    | LagMeasured
    | RetryDue
    | StepFailed
)


class PreOnline:
    """The way of one broker from its start to its registration. `step` is the step under way."""

    def __init__(self, broker_id: int, address: str, lag_limit_bytes: int) -> None:
        """`lag_limit_bytes`: a slave goes online when its log lags by less (haMaxGapNotInSync)."""
        self.step: PreOnlineStep = AskMembers()
        self.attempts = 1
        self._id = broker_id
        self._address = address
        self._lag_limit_bytes = lag_limit_bytes
        self._others: dict[int, str] = {}
        """The living members without this broker, ascending."""
        self._connected: set[tuple[int, str]] = set()
        """The slaves whose HA connection has arrived; kept over failed attempts (waitBrokerIndex)."""
        self._taken: set[int] = set()
        """The slaves whose tables were taken back in this attempt."""
        self._waits_since_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether the broker may go online."""
        return isinstance(self.step, GoOnline)

    def handle(self, event: PreOnlineEvent, now_ms: int) -> PreOnlineStep:
        """Takes what came of the step under way; returns the next step, which may be the same again.
        `now_ms`: a clock that never goes back."""
        if isinstance(event, StepFailed):
            self.step = AwaitRetry(now_ms + RETRY_MS, event.why)
            return self.step
        step = self.step
        match step, event:
            case AwaitRetry(), RetryDue():
                self.attempts += 1
                self.step = AskMembers()
            case AskMembers(), MembersReceived(members=members, has_log=has_log):
                self._use_members(members)
                self.step = self._first_step(now_ms, has_log=has_log)
            case AnnounceMaster(address=address), MasterAnnounced():
                self.step, self._waits_since_ms = AwaitSlave(address), now_ms
            case AwaitSlave(address=address), HAObserved(connected=connected):
                self._slave_observed(address, connected=connected, now_ms=now_ms)
            case TakeBackTables(address=address), TablesTakenBack():
                self._taken |= {number for number, other in self._others.items() if other == address}
                self.step = self._next_master_step()
            case AskMaster(), MasterAnswered(ha_address=ha_address):
                self._waits_since_ms = now_ms
                self.step = self._go_online() if ha_address is None else AwaitMaster(ha_address)
            case AwaitMaster(ha_address=ha_address), HAObserved(connected=connected):
                self._master_observed(ha_address, connected=connected, now_ms=now_ms)
            case MeasureLag(), LagMeasured(lag_bytes=lag_bytes):
                if lag_bytes is None or lag_bytes < self._lag_limit_bytes:
                    self.step = self._go_online()
            case _:
                raise AssertionError(f"{event} is no outcome of {step}")
        return self.step

    def _use_members(self, members: Mapping[int, str]) -> None:
        self._others = {
            number: address
            for number, address in sorted(members.items())
            if number != self._id and address != self._address
        }
        self._taken.clear()

    def _first_step(self, now_ms: int, *, has_log: bool) -> PreOnlineStep:
        if self._id == MASTER_ID:
            return self._next_master_step()
        if MASTER_ID in self._others:
            return AskMaster(self._others[MASTER_ID])
        if self._others and not has_log:
            serving = self._others[min(self._others)]
            return AwaitRetry(now_ms + RETRY_MS, f"this log is empty, and the slave at {serving} serves")
        return self._go_online()

    def _next_master_step(self) -> PreOnlineStep:
        for member in self._others.items():
            if member not in self._connected:
                return AnnounceMaster(member[1])
        for number in sorted(self._others, reverse=True):
            if number not in self._taken:
                return TakeBackTables(self._others[number])
        return GoOnline(MASTER_ID, self._address)

    def _go_online(self) -> GoOnline:
        if not self._others:
            return GoOnline(self._id, self._address)
        smallest = min(self._others)
        return GoOnline(smallest, self._others[smallest])

    def _slave_observed(self, address: str, *, connected: bool, now_ms: int) -> None:
        if connected:
            self._connected |= {member for member in self._others.items() if member[1] == address}
            self.step = self._next_master_step()
        else:
            self._check_connect_timeout(f"the slave at {address} has made no HA connection", now_ms)

    def _master_observed(self, ha_address: str, *, connected: bool, now_ms: int) -> None:
        if connected:
            self.step = MeasureLag(self._others[MASTER_ID])
        else:
            self._check_connect_timeout(f"there is no HA connection to the master at {ha_address}", now_ms)

    def _check_connect_timeout(self, why: str, now_ms: int) -> None:
        if now_ms - self._waits_since_ms > CONNECT_TIMEOUT_MS:
            self.step = AwaitRetry(now_ms + RETRY_MS, f"{why} within {CONNECT_TIMEOUT_MS} ms")
