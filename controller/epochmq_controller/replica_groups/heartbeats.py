# pure: which replicas are alive
"""Records which replicas are alive, by their heartbeats (`DefaultBrokerHeartbeatManager`).

The table is not replicated: brokers send heartbeats to every controller, so that a new leader already has it.
"""

from __future__ import annotations

import msgspec

from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo

TIMEOUT_DEFAULT_MS = 10_000
HEARSAY_MS = 2000
"""How long a replica's word counts that it hears its master: two heartbeats, by default."""


class Heartbeat(msgspec.Struct, gc=False):
    """The latest heartbeat of one replica. `channel` identifies its connection for the driver."""

    last_ms: int
    timeout_ms: int
    channel: object
    address: str
    epoch: int
    max_offset: int
    confirm_offset: int
    election_priority: int | None
    in_doubt: bool = False
    """The replica says that its log may lack acknowledged messages."""
    confirmed_by_all: int = -1
    """The offset that every member of the SyncStateSet has reached, from a master or member under
    `allAckInSyncStateSet`. -1: the sender does not know."""
    lacks_confirmed: bool = False
    """The replica's log ends before the offset that every member had (`offset_confirmed_by_all`)."""
    lineage: str = ""
    """The incarnations of the replica's store (`incarnations`); empty if it names none."""
    hears_epoch: int = -1
    """The epoch of a master that has answered the replica just now, and may write; -1 for none."""

    def hears(self, epoch: int, now_ms: int) -> bool:
        """Whether the replica hears the master of this epoch."""
        return self.hears_epoch == epoch and self.last_ms + HEARSAY_MS >= now_ms

    def alive(self, now_ms: int) -> bool:
        """Whether the heartbeat is recent enough."""
        return self.last_ms + self.timeout_ms >= now_ms


BrokerIdentityInfo = tuple[str, str, int]
"""(cluster, broker name, broker id)."""


class HeartbeatTable:
    """The heartbeats of all replicas. Times are the driver's monotonic clock."""

    def __init__(self) -> None:
        self.table: dict[BrokerIdentityInfo, Heartbeat] = {}

    def record(self, replica: BrokerIdentityInfo, beat: Heartbeat) -> None:
        """Records a heartbeat. If it came over the same connection as the one before and reports a lower
        epoch or offset, it was overtaken, and `beat` gets the higher values. A broker with a new connection
        may really have lost the end of its log. Address and channel are those of the newest heartbeat. (Java
        keeps the address and channel of the first one, and so does not notice when a later connection
        ends.)"""
        known = self.table.get(replica)
        if (
            known is not None
            and known.channel is beat.channel
            and (known.epoch, known.max_offset) > (beat.epoch, beat.max_offset)
        ):
            beat.epoch, beat.max_offset = known.epoch, known.max_offset
        self.table[replica] = beat

    def remove_channel(self, channel: object) -> list[BrokerIdentityInfo]:
        """Removes and returns the replicas of a closed connection."""
        gone = [replica for replica, beat in self.table.items() if beat.channel is channel]
        for replica in gone:
            del self.table[replica]
        return gone

    def remove_expired(self, now_ms: int) -> list[BrokerIdentityInfo]:
        """Removes and returns the replicas whose heartbeats have timed out."""
        gone = [replica for replica, beat in self.table.items() if not beat.alive(now_ms)]
        for replica in gone:
            del self.table[replica]
        return gone

    def living_ids(self, name: str, now_ms: int) -> frozenset[int]:
        """The ids under which brokers of this name send heartbeats."""
        return frozenset(
            broker_id for (_, of, broker_id), beat in self.table.items() if of == name and beat.alive(now_ms)
        )

    def live_info(self, replica: BrokerIdentityInfo, now_ms: int) -> ReplicaLiveInfo | None:
        """What elections need of a replica, None for a dead one."""
        beat = self.table.get(replica)
        if beat is None or not beat.alive(now_ms):
            return None
        return ReplicaLiveInfo(
            beat.epoch,
            beat.max_offset,
            beat.election_priority,
            beat.in_doubt,
            beat.lacks_confirmed,
            beat.address,
            beat.lineage,
            beat.confirmed_by_all,
        )
