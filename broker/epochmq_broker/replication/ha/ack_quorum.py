# pure: how many logs a send waits for
"""Computes how many logs must have a message before its send is acknowledged (RIP-34;
`CommitLog.asyncPutMessage`).

Without a controller only a SYNC_MASTER waits for replicas, and only for messages with WAIT=true. With a
controller the size of the SyncStateSet decides whether a send is accepted at all. Without one, and with
`enableSlaveActingMaster`, the number of replicas within `haMaxGapNotInSync` decides it.
"""

from __future__ import annotations

from epochmq_broker.replication.ha.settings import HASettings
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.errors import InvariantError

ALL_MEMBERS = -1
"""Stands for every broker that may be in the SyncStateSet."""


def required_copies(
    settings: HASettings, sync: SyncState, *, controlled: bool, alive: int | None = None
) -> int | None:
    """How many logs, the master's included, must have a message (`ALL_MEMBERS`: those of the whole set); None
    if too few replicas are in sync to accept it. `alive` is how many brokers of the group the nameserver
    knows, None if unknown."""
    if settings.broker_role != "SYNC_MASTER" and not controlled:
        return 1
    copies_wanted = settings.in_sync_replicas
    if controlled:
        if sync.in_sync_count < settings.min_in_sync_replicas or not sync.has_enough_members:
            return None
        return ALL_MEMBERS if settings.all_ack_in_sync_state_set else copies_wanted
    if settings.enable_slave_acting_master:
        in_sync = sync.count_within(settings.ha_max_gap_not_in_sync)
        if alive is not None:
            in_sync = min(in_sync, alive)
        if settings.enable_auto_in_sync_replicas:
            copies_wanted = max(min(copies_wanted, in_sync), settings.min_in_sync_replicas)
        if copies_wanted > in_sync:
            return None
    return copies_wanted


def lacks_replicas(end: int, copies: int, sync: SyncState) -> bool:
    """Whether surely too few logs reach `end`, because no replica has reported it, as after every append.
    `copies` is not 0 or 1."""
    return end > sync.highest_ack and (copies != ALL_MEMBERS or sync.in_sync_count > 1)


def replicated_until(copies: int, sync: SyncState, least: int = 1) -> int:
    """The end offset that `copies` logs have. `ALL_MEMBERS` means the whole set and at least `least` logs
    (minInSyncReplicas): the set may have shrunk since the send was accepted, and a message that only the
    master has must not be acknowledged. -1 while the set is too small."""
    if copies == ALL_MEMBERS and not sync.has_enough_members:
        return -1
    return (
        min(sync.offset_reached_by_all(), sync.offset_reached_by(least))
        if copies == ALL_MEMBERS
        else sync.offset_reached_by(copies)
    )


def check_acknowledged(offset: int, copies: int, sync: SyncState, least: int = 1) -> None:
    """Raises InvariantError if a send that ends at `offset` is acknowledged with too few copies. The
    invariants: `copies` logs have it, the master's included; with `ALL_MEMBERS` the log of every broker that
    may be a member, and at least `least` logs, and the set is large enough. Arguments as for
    `replicated_until`."""
    is_everywhere = copies != ALL_MEMBERS or sync.replicated_to_all(offset)
    needed = least if copies == ALL_MEMBERS else copies
    is_enough = needed <= 1 or sync.replicated_to(offset) >= needed
    is_enough = is_enough and (copies != ALL_MEMBERS or sync.has_enough_members)
    if not is_everywhere or not is_enough or offset > sync.end:
        raise InvariantError(
            "required_copies",
            "an acknowledged message is in as many logs as its send waits for",
            offset=offset,
            copies="all members" if copies == ALL_MEMBERS else copies,
            least=least,
            end=sync.end,
            members=sorted(sync.members_or_proposed),
            acknowledged={one.broker_id: one.ack_offset for one in sync.replicas.values()},
        )
