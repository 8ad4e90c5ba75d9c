# pure: which process a broker id belongs to
"""Decides which process may act under a broker id.

A process makes a random name at each start, its *incarnation*, and saves it in its store before it takes
part. The store also keeps the former incarnations back to the last one that the controllers acknowledged. The
names together are the *lineage*, the newest one first; registrations and heartbeats carry it
(`INCARNATION_FIELD`). The Raft log keeps the incarnation that registered last for each broker id. So:

- A restart of the same store succeeds its former process, because its lineage holds the registered
  incarnation.
- A store that was restored from an older copy does not know the registered incarnation. It may lack what the
  broker has acknowledged since, and is refused until a person adopts or discards it.
- A copy of a running store knows the registered incarnation. It is refused while the other process is alive.

Brokers of RocketMQ's, and of earlier releases, have no lineage. They are accepted as ever.
"""

from __future__ import annotations

import enum

from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo

SEPARATOR = ","


class IncarnationVerdict(enum.Enum):
    """What the controllers make of a process."""

    REGISTERED = "its incarnation is the registered one, or it names none"
    SUCCESSOR = "it continues the registered store, or the first one of its id, and may register"
    TWIN = "another process of the same store is alive"
    OUTDATED = "its store does not know the registered incarnation"

    @property
    def is_refused(self) -> bool:
        """Whether the process must not act under the broker id."""
        return self in (IncarnationVerdict.TWIN, IncarnationVerdict.OUTDATED)


def newest(lineage: str) -> str:
    """The incarnation of the process itself; empty without a lineage."""
    return lineage.partition(SEPARATOR)[0]


def is_other_process(living: ReplicaLiveInfo, lineage: str, address: str) -> bool:
    """Whether a heartbeat is of another process than the one at `address`. Two processes cannot serve one
    address, so the former process of this address has ended."""
    return living.address != address and newest(living.lineage) != newest(lineage)


def judge(registered: str, lineage: str, address: str, living: ReplicaLiveInfo | None) -> IncarnationVerdict:
    """Judges a process at `address`. `registered`: the incarnation that registered last under its id, empty
    if none did. `living`: what the latest heartbeat under this id says, None if it has timed out."""
    own = newest(lineage)
    if not own or own == registered:
        return IncarnationVerdict.REGISTERED
    if registered and registered not in lineage.split(SEPARATOR):
        return IncarnationVerdict.OUTDATED
    if living is not None and living.lineage and is_other_process(living, lineage, address):
        return IncarnationVerdict.TWIN
    return IncarnationVerdict.SUCCESSOR


def refusal_text(
    name: str,
    broker_id: int,
    verdict: IncarnationVerdict,
    address: str,
    known_address: str,
    *,
    is_alive: bool,
) -> str:
    """Says why a process is refused, at which addresses both processes are, and what to do. `known_address`
    and `is_alive` describe the process that has the broker id."""
    replica = f"{name}/{broker_id}"
    discard = f"`epochmq replica discard {replica}` makes it a new replica with a broker id of its own"
    if is_alive:
        kind = "a copy" if verdict is IncarnationVerdict.TWIN else "an older or diverged copy"
        return (
            f"broker {broker_id} of group {name} runs at {known_address}, and the store at {address} is "
            f"{kind} of its store: two processes must not act under one broker id. Stop the process at "
            f"{address}, or keep it: {discard}"
        )
    return (
        f"the store at {address} is older than the one with which broker {broker_id} of group {name} ran at "
        f"{known_address}, so it may lack acknowledged messages. Start the newer store again; if it is gone "
        f"for good, `epochmq replica adopt {replica}` accepts this store as a replica that must catch up, "
        f"and {discard}"
    )
