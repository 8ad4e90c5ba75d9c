# pure: how many logs a send waits for
"""How many logs must have a message before its sender is told (RIP-34; `CommitLog.asyncPutMessage`).

Only a SYNC_MASTER asks its replicas, and only for messages that want to wait. With a controller the size of
the SyncStateSet decides whether a send is taken at all, without one, and with `enableSlaveActingMaster`, the
number of replicas that are near enough.
"""

from __future__ import annotations

from epochmq_broker.ha.settings import HASettings
from epochmq_broker.ha.sync_state import SyncState

ALL = -1
"""Everybody who may be in the SyncStateSet."""


def needed(
    settings: HASettings, sync: SyncState, *, controlled: bool, alive: int | None = None
) -> int | None:
    """How many logs, our own included, a message must be in (`ALL`: those of the whole set); None when there
    are too few replicas to try. `alive` is how many brokers of the group the nameserver knows, where that is
    known."""
    if settings.broker_role != "SYNC_MASTER" and not controlled:
        return 1
    wanted = settings.in_sync_replicas
    if controlled:
        if sync.in_sync_count < settings.min_in_sync_replicas:
            return None
        return ALL if settings.all_ack_in_sync_state_set else wanted
    if settings.enable_slave_acting_master:
        there = sync.near(settings.ha_max_gap_not_in_sync)
        if alive is not None:
            there = min(there, alive)
        if settings.enable_auto_in_sync_replicas:
            wanted = max(min(wanted, there), settings.min_in_sync_replicas)
        if wanted > there:
            return None
    return wanted


def reached(need: int, sync: SyncState, least: int = 1) -> int:
    """Up to which byte the log is in as many logs as `need` says. `ALL` are at least `least` logs
    (minInSyncReplicas), also when the set has shrunk since the send was taken: its sender is not told that it
    is safe while the master alone has it."""
    return min(sync.reached_by_all(), sync.reached_by(least)) if need == ALL else sync.reached_by(need)
