# pure: who is alive
"""Who is alive, as this controller heard it (`DefaultBrokerHeartbeatManager`). Not replicated: brokers send
their heartbeats to every controller, so that a new leader knows already."""

from __future__ import annotations

from dataclasses import dataclass

from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo

TIMEOUT_DEFAULT_MS = 10_000


@dataclass
class Heartbeat:
    """The latest of one replica. `channel` is whatever the driver tells its connections by."""

    last_ms: int
    timeout_ms: int
    channel: object
    address: str
    epoch: int
    max_offset: int
    confirm_offset: int
    election_priority: int | None
    in_doubt: bool = False
    """Its log may lack acknowledged messages."""
    confirmed_by_all: int = -1
    """Up to where every member of the SyncStateSet has the log, as the sender knows; -1: not said."""
    lacks_confirmed: bool = False
    """Its log ends in front of what every member had before (`confirmed.Confirmed`)."""

    def alive(self, now_ms: int) -> bool:
        """Whether it was heard of in time."""
        return self.last_ms + self.timeout_ms >= now_ms


BrokerIdentityInfo = tuple[str, str, int]
"""(cluster, broker name, broker id)."""


class HeartbeatTable:
    """The heartbeats of all replicas. Times are the driver's monotonic clock."""

    def __init__(self) -> None:
        self.table: dict[BrokerIdentityInfo, Heartbeat] = {}

    def record(self, replica: BrokerIdentityInfo, beat: Heartbeat) -> None:
        """Takes a heartbeat. Over one connection epoch and offset only move forward; a broker that comes over
        another one may have lost the end of its log. Address and channel follow the newest heartbeat (in Java
        they stay those of the first one, and a broker that reconnected is not seen to go)."""
        known = self.table.get(replica)
        if (
            known is not None
            and known.channel is beat.channel
            and (known.epoch, known.max_offset) > (beat.epoch, beat.max_offset)
        ):
            beat.epoch, beat.max_offset = known.epoch, known.max_offset
        self.table[replica] = beat

    def remove_channel(self, channel: object) -> list[BrokerIdentityInfo]:
        """A connection has ended: its replicas are gone, at once."""
        gone = [replica for replica, beat in self.table.items() if beat.channel is channel]
        for replica in gone:
            del self.table[replica]
        return gone

    def remove_expired(self, now_ms: int) -> list[BrokerIdentityInfo]:
        """Removes and returns the replicas that have been silent for too long."""
        gone = [replica for replica, beat in self.table.items() if not beat.alive(now_ms)]
        for replica in gone:
            del self.table[replica]
        return gone

    def live_info(self, replica: BrokerIdentityInfo, now_ms: int) -> ReplicaLiveInfo | None:
        """What elections need to know, None for a replica that is not alive."""
        beat = self.table.get(replica)
        if beat is None or not beat.alive(now_ms):
            return None
        return ReplicaLiveInfo(
            beat.epoch, beat.max_offset, beat.election_priority, beat.in_doubt, beat.lacks_confirmed
        )
