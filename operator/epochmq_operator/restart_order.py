"""Decides which pods restart next on one machine, of a group whose changed pods restart one after another.

In the mode MasterSlave the slaves restart first, the highest ordinal first, and the master, which is replica
0, restarts last. Each restarts only while all other brokers of the group are ready: while the master is away,
a slave acts for it that has caught up and is in service. A broker is ready when a nameserver lists it, which
is so after its pre-online phase."""

# pure: data in, names out.

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerInTurn:
    """A broker of the group. `outdated`: it runs with a former configuration."""

    name: str
    ordinal: int
    outdated: bool
    ready: bool


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
    return [max(outdated, key=lambda one: one.ordinal).name]
