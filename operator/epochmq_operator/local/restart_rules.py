"""Decides when pods of this machine restart: after what delay a pod that ended starts again, which changed
pods need no restart, and which pods of a group that change one after another restart next. Time is an
argument."""

# pure: pods, exits and their times in, decisions out.

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from epochmq_operator.pods import Component, Pod
from epochmq_protocol import properties

DELAY_FIRST_S = 0.2
DELAY_MAX_S = 10.0
STEADY_AFTER_S = 5.0
"""A process that was ready for this long starts a new count."""
CONSECUTIVE_READY_ENDS_MAX = 3
"""The limit of the count for ends of processes that were ready: delays of up to 0.8 s."""
ACCEPTED_KEYS = frozenset({"controllerAddr", "namesrvAddr"})
"""The keys that a running broker has to get."""
ADDRESS_KEYS: Mapping[Component, frozenset[str]] = {
    Component.NAMESERVER: frozenset(),
    Component.CONTROLLER: frozenset({"controllerDLegerPeers", "joinControllerGroup"}),
    Component.BROKER: ACCEPTED_KEYS | {"dLegerPeers", "joinDLedgerGroup"},
}
"""The keys whose change needs no restart."""


@dataclass(frozen=True, slots=True)
class RestartHistory:
    """The ends of a pod. The delay before a restart doubles with every consecutive end, up to a bound. The
    bound is low for a process that had been ready, because a retry is worthwhile, and high for one that had
    not. A process that was ready for a while starts a new count. `total` counts all restarts;
    `consecutive_ends` those since it was last ready for `STEADY_AFTER_S`; `consecutive_unready_ends` those
    since it was last ready at all."""

    total: int = 0
    consecutive_ends: int = 0
    consecutive_unready_ends: int = 0

    @property
    def delay_s(self) -> float:
        """The delay before the next start."""
        return min(DELAY_FIRST_S * 2.0 ** min(max(self.consecutive_ends - 1, 0), 16), DELAY_MAX_S)

    def ready(self) -> RestartHistory:
        """The history after the process became ready."""
        return replace(self, consecutive_unready_ends=0)

    def ended(self, ready_for_s: float | None) -> RestartHistory:
        """The history after the process ended or could not be started. `ready_for_s` is how long it had been
        ready, None if it never was."""
        if ready_for_s is None:
            consecutive_ends = self.consecutive_ends + 1
        else:
            consecutive_ends = (
                1
                if ready_for_s >= STEADY_AFTER_S
                else min(self.consecutive_ends + 1, CONSECUTIVE_READY_ENDS_MAX)
            )
        return replace(
            self,
            total=self.total + 1,
            consecutive_ends=consecutive_ends,
            consecutive_unready_ends=1 if ready_for_s is not None else self.consecutive_unready_ends + 1,
        )


def changed_addresses(before: Pod, after: Pod) -> dict[str, str] | None:
    """The new values of the keys that differ, if no others do; None if the pod has to be restarted. Keys that
    the new configuration lacks are left out. Only addresses of controllers and nameservers may differ: a
    member of a Raft group reads its peers when it starts, and only while its log names none; a running broker
    accepts other addresses of controllers and nameservers."""
    if dataclasses.replace(before, config_files=after.config_files, probe=after.probe) != after:
        return None
    changes: dict[str, str] = {}
    for old, new in zip(before.config_files, after.config_files, strict=True):
        was, now = properties.parse(old.text), properties.parse(new.text)
        differing = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
        if old.path != new.path or not differing <= ADDRESS_KEYS[after.component]:
            return None
        changes |= {key: now[key] for key in differing & now.keys()}
    return changes


@dataclass(frozen=True, slots=True)
class BrokerInTurn:
    """A broker of the group. `outdated`: it runs with a former configuration. `leads`: it is the leader of a
    DLedger group."""

    name: str
    ordinal: int
    outdated: bool
    ready: bool
    leads: bool = False


def next_restarts(brokers: Iterable[BrokerInTurn]) -> list[str]:
    """The brokers of a group to restart now, of a group whose changed pods restart one after another; none
    while the others have to become ready first, and when all have been restarted.

    The slaves restart first, the highest ordinal first, and the master restarts last: in the mode MasterSlave
    replica 0, in the mode DLedger the leader. Each restarts only while all other brokers of the group are
    ready. In the mode MasterSlave a slave that has caught up and is in service then acts for the master; a
    broker is ready when a nameserver lists it, which is so after its pre-online phase. In the mode DLedger
    the others are a majority that elects a new leader. Outdated brokers that are not ready serve no clients,
    and restart at once."""
    known = list(brokers)
    outdated = [one for one in known if one.outdated]
    unready = [one.name for one in outdated if not one.ready]
    if unready or not outdated:
        return unready
    if not all(one.ready for one in known):
        return []
    return [max(outdated, key=lambda one: (not one.leads, one.ordinal)).name]
