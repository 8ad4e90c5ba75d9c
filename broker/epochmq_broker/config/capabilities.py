# pure: what a broker may do, by its role, its lease and its disk
"""What a broker may do now: one value, which one function derives from the role, the write lease, the state
of the disk, and the settings.

`BrokerStanding` keeps the value. The availability mode, the write lease, the switchover gate and the store
report their changes to it. Requests and services, the fast paths included, read
`BrokerStanding.capabilities`. A lease ends by time alone, so the value holds the time until which it is
valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from epochmq_broker.config.refusals import SendRefusal
from epochmq_broker.config.role import ActingRole, IsolatedRole, MasterRole, ReplicaRole, Role, RoleMachine

NO_LIMIT_MS: Final = math.inf
"""The end of a lease that does not end: none is needed, or the leading controller grants none."""
NO_LEASE_MS: Final = -math.inf
"""The end of a lease that this broker does not have."""


class RoleSettings(Protocol):
    """The settings that change what a role may do."""

    @property
    def enable_controller_mode(self) -> bool: ...

    @property
    def enable_slave_acting_master(self) -> bool: ...

    @property
    def enable_remote_escape(self) -> bool: ...

    @property
    def slave_read_enable(self) -> bool: ...


class Capabilities(Struct, frozen=True):
    """What a broker may do. Times are milliseconds of `config.clock.boot_ms`."""

    accepts_sends: bool
    """Whether sends are looked at. If not, they get SYSTEM_BUSY before they are decoded (`rejectRequest`)."""
    serves_pulls: bool
    """Whether pulls are looked at. If not, they get SYSTEM_BUSY."""
    is_master: bool
    """Whether this broker decides for its group: ends transactions, keeps checkpoints of POPs, compacts."""
    hands_out: bool
    """Whether POPs may hand out messages. During a switchover their checkpoints would not reach the new
    master."""
    runs_special_services: bool
    """Whether this broker delivers delayed messages and timers, revives POPs and checks transactions."""
    delivers_here: bool
    """Whether the messages of the special services go into this broker's log."""
    escapes: bool
    """Whether they go to other groups, because this broker acts for its master (RIP-32)."""
    store_is_open: bool
    """Whether the store takes messages. It also rejects each append itself."""
    writes_until_ms: float
    """Until when this broker may store messages of clients."""
    acknowledges_until_ms: float
    """Until when this broker may acknowledge what it has stored."""

    def may_write(self, now_ms: float) -> bool:
        """Whether this broker may store messages of clients now."""
        return now_ms < self.writes_until_ms

    def may_acknowledge(self, now_ms: float) -> bool:
        """Whether this broker may acknowledge what it has stored."""
        return now_ms < self.acknowledges_until_ms


class StandingFacts(Struct, frozen=True):
    """What capabilities are derived from, besides the settings. The default is a broker without a group."""

    role: Role
    lease_until_ms: float = NO_LIMIT_MS
    """The end of the write lease."""
    hands_over: bool = False
    """Whether requests for the master are held, or relayed to another broker, in a switchover."""
    is_stopping: bool = False
    """Whether the broker is being stopped, and takes no more messages of clients."""
    store_is_open: bool = True
    """Whether the store takes messages."""


def capabilities(facts: StandingFacts, settings: RoleSettings) -> Capabilities:
    """What a broker may do. An isolated master counts as the master: a gate in front of its requests rejects
    those of clients (`acting.isolation`)."""
    role, acting_group = facts.role, settings.enable_slave_acting_master
    is_master = isinstance(role, MasterRole) or (isinstance(role, IsolatedRole) and role.broker_id == 0)
    blocked = facts.hands_over or facts.is_stopping
    return Capabilities(
        accepts_sends=is_master or acting_group,
        serves_pulls=is_master or settings.slave_read_enable,
        is_master=is_master,
        hands_out=not facts.hands_over,
        runs_special_services=isinstance(role, MasterRole | ActingRole),
        delivers_here=is_master or settings.enable_controller_mode or not acting_group,
        escapes=settings.enable_remote_escape and isinstance(role, ActingRole),
        store_is_open=facts.store_is_open,
        writes_until_ms=NO_LEASE_MS if blocked else facts.lease_until_ms,
        acknowledges_until_ms=facts.lease_until_ms,
    )


class BrokerStanding:
    """The role, the lease and the disk of one broker, and its capabilities."""

    def __init__(self, role: Role, settings: RoleSettings) -> None:
        self._machine = RoleMachine(role)
        self._settings = settings
        self._facts = StandingFacts(role)
        self.capabilities = capabilities(self._facts, settings)
        """What the broker may do now; replaced as a whole."""
        self.waits_for: Callable[[], str | None] = lambda: None
        """Says what a master without the right to write waits for; None if it has the right, or is none."""
        self.refusal: Callable[[], SendRefusal | None] = lambda: None
        """Says why the broker stores no messages now; None if it does, or is a replica in order."""

    @property
    def role(self) -> Role:
        """The present role."""
        return self._machine.role

    @property
    def is_stopping(self) -> bool:
        """Whether the broker is being stopped."""
        return self._facts.is_stopping

    def become(self, role: Role) -> None:
        """Takes another role. Raises IllegalRoleTransitionError."""
        self._machine.become(role)
        self._derive(replace(self._facts, role=role))

    def start_isolated(self, broker_id: int) -> None:
        """Sets the first role of a broker that is not in service yet."""
        self._machine = RoleMachine(IsolatedRole(broker_id))
        self._derive(replace(self._facts, role=self._machine.role))

    def lease_changed(self, until_ms: float) -> None:
        """The write lease now ends at this time."""
        self._derive(replace(self._facts, lease_until_ms=until_ms))

    def handover_changed(self, hands_over: bool) -> None:
        """A switchover begins to hold or relay requests, or ends."""
        self._derive(replace(self._facts, hands_over=hands_over))

    def store_changed(self, store_is_open: bool) -> None:
        """The store begins or ceases to take messages."""
        self._derive(replace(self._facts, store_is_open=store_is_open))

    def begin_stop(self) -> None:
        """The broker is being stopped."""
        self._derive(replace(self._facts, is_stopping=True))

    def settings_changed(self, settings: RoleSettings) -> None:
        """Other settings are in force."""
        self._settings = settings
        self._derive(self._facts)

    def _derive(self, facts: StandingFacts) -> None:
        self._facts = facts
        self.capabilities = capabilities(facts, self._settings)


def role_of_settings(broker_id: int, broker_role: str) -> Role:
    """The role that brokerId and brokerRole name."""
    return ReplicaRole(broker_id) if broker_role == "SLAVE" else MasterRole()
