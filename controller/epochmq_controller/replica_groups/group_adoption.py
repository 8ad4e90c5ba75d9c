# pure: a group that the controllers have forgotten
"""Makes the events that rebuild a replica group from what its living brokers say, after the controllers have
lost their storage (20012, ADOPT_GROUP).

Only events of RocketMQ's are used, so Java's controllers and earlier releases apply them, too. An epoch can
only be counted up, one election without a master at a time. So the rebuilding of a group with many epochs
takes several requests. Until the last one the group has an epoch, no SyncStateSet and no master: brokers may
register, and none can be elected.

1. Each replica gets its id, and each unused id between them is taken, because the next free id is counted up,
   too.
2. The epoch is counted up to the greatest epoch that a broker knows.
3. The chosen replica is elected. Its epoch is greater than every epoch that a broker knows. It is the whole
   SyncStateSet, and the other replicas join it when they have caught up.
4. The unused ids are removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from epochmq_controller.replica_groups.events import (
    ApplyBrokerIdEvent,
    CleanBrokerDataEvent,
    ControllerEvent,
    ElectMasterEvent,
)
from epochmq_controller.replica_groups.replicated_state import ReplicaGroup
from epochmq_protocol.replica_control import AdoptedGroup

EPOCHS_PER_REQUEST: Final = 1000
EPOCH_MAX: Final = 1_000_000
BROKER_ID_MAX: Final = 10_000
CHECK_CODE: Final = "adopted"
"""The check code of an adopted id. Brokers with an identity do not use theirs any more."""


def objection(plan: AdoptedGroup, group: ReplicaGroup | None, living: Iterable[int]) -> str | None:
    """Why the group cannot be rebuilt like this; None if it can. `living`: the ids under which brokers of the
    group send heartbeats."""
    name, ids = plan.broker_name, [one.broker_id for one in plan.replicas]
    if group is not None and (group.master_id is not None or group.sync_state_set):
        return (
            f"the controllers know group {name}: its master is {group.master_id}, its SyncStateSet "
            f"{sorted(group.sync_state_set)}; there is nothing to adopt"
        )
    if len(set(ids)) != len(ids) or not all(0 < one <= BROKER_ID_MAX for one in ids):
        return f"replicas: the broker ids {sorted(ids)}, expected different ones from 1 to {BROKER_ID_MAX}"
    if plan.master_broker_id not in ids:
        return f"masterBrokerId={plan.master_broker_id}: expected one of the replicas {sorted(ids)}"
    if not 0 <= plan.master_epoch <= EPOCH_MAX:
        return f"masterEpoch={plan.master_epoch}: expected 0 to {EPOCH_MAX}"
    others = sorted(set(living) - set(ids))
    if others:
        return (
            f"brokers {others} of group {name} are alive, too, and are not among the replicas {sorted(ids)}"
        )
    return None


def adoption_events(plan: AdoptedGroup, group: ReplicaGroup | None) -> tuple[list[ControllerEvent], int]:
    """The next events, and the number of epochs that remain to be counted after them. With 0 the last event
    has elected the master."""
    name = plan.broker_name
    known = group.replicas.keys() if group is not None else frozenset[int]()
    addresses = {one.broker_id: one.address for one in plan.replicas}
    unused = frozenset(range(1, max(addresses) + 1)) - addresses.keys()
    found: list[ControllerEvent] = []
    for one in range(1, max(addresses) + 1):
        if one not in known:
            address = addresses.get(one, "")
            found.append(ApplyBrokerIdEvent(name, plan.cluster_name, address, one, f"{address};{CHECK_CODE}"))
    epoch = group.master_epoch if group is not None else 0
    # At least one, so that no broker can be elected as the first master of a new group.
    missing = max(plan.master_epoch - epoch, 0 if epoch else 1)
    now = min(missing, EPOCHS_PER_REQUEST)
    found += [ElectMasterEvent(name, False)] * now
    if now == missing:
        found.append(ElectMasterEvent(name, True, plan.master_broker_id))
        if unused:
            found.append(CleanBrokerDataEvent(name, unused))
    return found, missing - now
