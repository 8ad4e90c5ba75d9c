"""Decides which pods restart next on one machine, of a group whose changed pods restart one after another.

The slaves restart first, the highest ordinal first, and the master restarts last: in the mode MasterSlave
replica 0, in the mode DLedger the leader. Each restarts only while all other brokers of the group are ready.
In the mode MasterSlave a slave that has caught up and is in service then acts for the master; a broker is
ready when a nameserver lists it, which is so after its pre-online phase. In the mode DLedger the others are a
majority that elects a new leader."""

# pure: data in, names out.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    """The brokers of a group to restart now; none while the others have to become ready first, and when all
    have been restarted. Outdated brokers that are not ready serve no clients, and restart at once."""
    known = list(brokers)
    outdated = [one for one in known if one.outdated]
    unready = [one.name for one in outdated if not one.ready]
    if unready or not outdated:
        return unready
    if not all(one.ready for one in known):
        return []
    return [max(outdated, key=lambda one: (not one.leads, one.ordinal)).name]
