"""Decides what a broker of a group without controllers does (RIP-32; `syncBrokerMemberGroup`,
`updateMinBroker`, `onMinBrokerChange` and `startService` of RocketMQ's BrokerController).

The rules:

1. Nameservers know the living brokers of a group by their ids. The broker with the smallest id runs the
   special services: delivery of delayed and of timer messages, POP revive, transaction checks. Id 0 is the
   master; another smallest id is the acting master.
2. An isolated broker takes no part: it only counts the living brokers (`alive_replicas`).
3. The master always runs the special services once it is in service, whatever the nameservers say.
4. A slave learns of a new smallest id by a notification (905) or by its own poll (901, or 105 with old
   nameservers). When the master goes offline, the slave forgets its addresses. When the master comes back,
   the slave follows it and releases the held pulls, so that consumers move on to the master.

What RocketMQ does not do:

- All nameservers are polled. A broker is alive if one of them says so. RocketMQ asks one of them, and obeys
  every notification: nameservers that disagree make it start and stop the special services in turn.
- An answer to a poll that was sent before a notification arrived is ignored, because it may be older.
- A broker that a nameserver does not list registers there again at once; RocketMQ's waits up to 30 s.
- The nameservers are polled twice in a period (syncBrokerMemberGroupPeriod). A master that is alive registers
  again within half a period, and the slave that acts for it stops within the other half.
- An acting master that no nameserver has answered for `timeout_ms` stops the special services, because the
  nameservers have dropped it by then and another slave acts.
"""
# pure: the driver polls, connects and tells the time

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct

MASTER_ID = 0
FRESH_PERIODS = 3
"""A nameserver's answer counts until it is older than this many periods of polls."""
REGISTER_PAUSE_PERIODS_MAX = 30
"""The longest pause, in periods, between registrations with a nameserver that does not list this broker."""


class GroupRole(enum.Enum):
    """What a broker is in its group."""

    ISOLATED = "isolated"
    """Not in service: neither registered nor visible to clients."""
    MASTER = "master"
    ACTING_MASTER = "acting master"
    SLAVE = "slave"


class MasterPresence(enum.Enum):
    """What a broker knows of its group's master."""

    UNKNOWN = "unknown"
    ONLINE = "online"
    OFFLINE = "offline"


class GroupMember(Struct, frozen=True):
    """This broker. Times are in milliseconds: `period_ms` is syncBrokerMemberGroupPeriod, `timeout_ms` is
    brokerNotActiveTimeoutMillis."""

    broker_id: int
    address: str
    period_ms: int = 1000
    timeout_ms: int = 10_000


class MinBrokerIdChange(Struct, frozen=True):
    """A notification (905): the group's smallest id, its address, the address of the broker that went
    offline, and the HA address of a master that came online."""

    min_broker_id: int
    min_broker_address: str | None = None
    offline_address: str | None = None
    ha_address: str | None = None


class RunSpecialServices(Struct, frozen=True):
    """Effect: start or stop the special services."""

    run: bool


class FollowMaster(Struct, frozen=True):
    """Effect: copy the tables and the log of the master at this address. Without an HA address, ask the
    master for it (906)."""

    address: str
    ha_address: str | None


class ForgetMaster(Struct, frozen=True):
    """Effect: close the connections to the master at this address, and follow none."""

    address: str


class ReleaseHeldPulls(Struct, frozen=True):
    """Effect: run all held pulls again, so that their consumers move on to the master."""


class SetAliveReplicas(Struct, frozen=True):
    """Effect: so many brokers of the group are alive, this one included (aliveReplicasInGroup)."""

    count: int


class PollGroup(Struct, frozen=True):
    """Effect: poll the nameservers now."""


class RegisterAgain(Struct, frozen=True):
    """Effect: register with this nameserver now, because it does not list this broker."""

    nameserver: str


GroupEffect = (
    RunSpecialServices
    | FollowMaster
    | ForgetMaster
    | ReleaseHeldPulls
    | SetAliveReplicas
    | PollGroup
    | RegisterAgain
)


class _Answer(Struct, frozen=True):
    """The members that one nameserver listed, by id, and when its answer came."""

    members: dict[int, str]
    answered_ms: float


class MemberGroup:
    """One broker's view of its group. `now_ms` and `asked_ms` are milliseconds of a monotonic clock."""

    def __init__(self, member: GroupMember, *, isolated: bool) -> None:
        self.member = member
        """This broker; may be replaced at any time."""
        self.min_broker_id = MASTER_ID
        self.min_broker_address: str | None = None
        self.master_address: str | None = None
        """The master that is followed; None on the master itself, and while no master is known."""
        self.master_ha_address: str | None = None
        self.master = MasterPresence.UNKNOWN
        self.alive_replicas: int | None = None
        """How many brokers of the group are alive; None before the first answer of a nameserver."""
        self.runs_special_services = False
        self.acting_since_ms: float | None = None
        self._isolated = isolated
        self._answers: dict[str, _Answer] = {}
        self._reached_ms = 0.0
        """When the latest poll was sent to which a nameserver answered with members."""
        self._notified_ms = 0.0
        self._registers_again: dict[str, tuple[float, float]] = {}
        """Nameserver that does not list this broker → (the earliest time to register again, the pause after
        it), ms."""

    @property
    def role(self) -> GroupRole:
        """What this broker is in its group now."""
        if self._isolated:
            return GroupRole.ISOLATED
        if self._is_master:
            return GroupRole.MASTER
        return GroupRole.ACTING_MASTER if self.runs_special_services else GroupRole.SLAVE

    @property
    def _is_master(self) -> bool:
        return self.member.broker_id == MASTER_ID

    def alive_members(self, now_ms: float) -> dict[int, str]:
        """Broker id → address of the brokers that a nameserver lists now."""
        return self._alive(now_ms)

    # Inputs

    def service_started(
        self, min_broker_id: int, min_broker_address: str | None, now_ms: float
    ) -> list[GroupEffect]:
        """This broker goes into service (startService). It was told the smallest id."""
        self._isolated = False
        self._answers.clear()
        self._reached_ms = now_ms
        self._notified_ms = now_ms
        self.min_broker_id, self.min_broker_address = min_broker_id, min_broker_address
        return self._switch_services(now_ms)

    def poll_answered(
        self, nameserver: str, members: Mapping[int, str], asked_ms: float, now_ms: float
    ) -> list[GroupEffect]:
        """A nameserver answered a poll that was sent at `asked_ms`; `members` is empty if it does not know
        the group."""
        if asked_ms < self._notified_ms:
            return []
        effects: list[GroupEffect] = []
        if self.member.broker_id in members:
            self._registers_again.pop(nameserver, None)
        elif self._may_register_again(nameserver, now_ms):
            effects.append(RegisterAgain(nameserver))
        if not members:
            self._answers.pop(nameserver, None)
            return effects
        self._answers[nameserver] = _Answer(dict(members), now_ms)
        self._reached_ms = max(self._reached_ms, asked_ms)
        alive = self._alive(now_ms)
        count = len(alive.keys() | {self.member.broker_id})
        if count != self.alive_replicas:
            self.alive_replicas = count
            effects.append(SetAliveReplicas(count))
        return effects + self._adopt(alive, now_ms)

    def min_id_changed(self, change: MinBrokerIdChange, now_ms: float) -> list[GroupEffect]:
        """A nameserver sent a notification. It is obeyed at once, unless several nameservers are known: then
        they are polled, because the others may disagree."""
        if self._isolated or self._is_master:
            return []
        effects: list[GroupEffect] = []
        if len(self._fresh(now_ms)) <= 1:
            self._answers.clear()
            self._notified_ms = now_ms
            self._reached_ms = now_ms
            effects = self._change(change.min_broker_id, change.min_broker_address, change.ha_address, now_ms)
        return [*effects, PollGroup()]

    def registered(
        self, master_address: str | None, master_ha_address: str | None, now_ms: float
    ) -> list[GroupEffect]:
        """A nameserver accepted the registration, and named the master that it knows."""
        if self._is_master or not master_address:
            return []
        if self.min_broker_id != MASTER_ID and not self._isolated:
            return [PollGroup()]  # the nameserver's answer may be older than the master's end
        self.master = MasterPresence.ONLINE
        return self._follow(master_address, master_ha_address)

    def ha_address_learned(self, master_address: str, ha_address: str) -> list[GroupEffect]:
        """The master told its HA address (906)."""
        if master_address != self.master_address:
            return []
        return self._follow(master_address, ha_address)

    def tick(self, now_ms: float) -> list[GroupEffect]:
        """Time has passed; to be called about once in a period."""
        alive = self._alive(now_ms)
        if alive:
            return self._adopt(alive, now_ms)
        return self._switch_services(now_ms)

    def nameservers_changed(self, nameservers: frozenset[str]) -> None:
        """Only these nameservers are polled from now on."""
        for nameserver in self._answers.keys() - nameservers:
            del self._answers[nameserver]

    # Rules

    def _may_register_again(self, nameserver: str, now_ms: float) -> bool:
        """Whether to register now with a nameserver that does not list this broker: at once, then after
        growing pauses, in case registrations do not help."""
        due_ms, pause_ms = self._registers_again.get(nameserver, (now_ms, self.member.period_ms))
        if self._isolated or now_ms < due_ms:
            return False
        longest_ms = REGISTER_PAUSE_PERIODS_MAX * self.member.period_ms
        self._registers_again[nameserver] = now_ms + pause_ms, min(pause_ms * 2, longest_ms)
        return True

    def _fresh(self, now_ms: float) -> list[_Answer]:
        oldest_ms = now_ms - FRESH_PERIODS * self.member.period_ms
        return [answer for answer in self._answers.values() if answer.answered_ms >= oldest_ms]

    def _alive(self, now_ms: float) -> dict[int, str]:
        """The brokers that a nameserver lists; of several addresses of an id, that of the latest answer."""
        alive: dict[int, str] = {}
        for answer in sorted(self._fresh(now_ms), key=lambda answer: answer.answered_ms):
            alive.update(answer.members)
        return alive

    def _adopt(self, alive: Mapping[int, str], now_ms: float) -> list[GroupEffect]:
        """Follows what the nameservers say together."""
        if self._isolated or self._is_master:
            return []
        min_id = min(alive)
        if min_id != self.min_broker_id:
            return self._change(min_id, alive[min_id], None, now_ms)
        effects = self._switch_services(now_ms)
        if min_id == MASTER_ID:
            self.min_broker_address = alive[min_id]
            self.master = MasterPresence.ONLINE
            effects += self._follow(alive[min_id], None)
        return effects

    def _change(
        self, min_id: int, min_address: str | None, ha_address: str | None, now_ms: float
    ) -> list[GroupEffect]:
        """Obeys a smallest id that may be new (onMinBrokerChange)."""
        is_new = min_id != self.min_broker_id
        self.min_broker_id, self.min_broker_address = min_id, min_address
        effects = self._switch_services(now_ms)
        if min_id != MASTER_ID:
            self.master = MasterPresence.OFFLINE
            if self.master_address is not None:
                effects.append(ForgetMaster(self.master_address))
            self.master_address = self.master_ha_address = None
            return effects
        self.master = MasterPresence.ONLINE
        if min_address is not None:
            effects += self._follow(min_address, ha_address)
        if is_new:
            effects.append(ReleaseHeldPulls())
        return effects

    def _follow(self, address: str, ha_address: str | None) -> list[GroupEffect]:
        """Follows a master. Repeats the effect while the HA address is unknown, so that it is asked for
        again."""
        if address == self.member.address:
            return []
        if address != self.master_address:
            self.master_address, self.master_ha_address = address, ha_address
        elif ha_address is not None and ha_address != self.master_ha_address:
            self.master_ha_address = ha_address
        elif self.master_ha_address is not None:
            return []
        return [FollowMaster(address, self.master_ha_address)]

    def _switch_services(self, now_ms: float) -> list[GroupEffect]:
        """Starts or stops the special services, if that is to change."""
        run = not self._isolated and (self._is_master or self._may_act(now_ms))
        if run == self.runs_special_services:
            return []
        self.runs_special_services = run
        self.acting_since_ms = now_ms if run and not self._is_master else None
        return [RunSpecialServices(run)]

    def _may_act(self, now_ms: float) -> bool:
        return (
            self.min_broker_id == self.member.broker_id
            and now_ms - self._reached_ms <= self.member.timeout_ms
        )
