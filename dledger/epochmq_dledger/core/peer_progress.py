"""Holds what a leader knows of each peer: how far the peer's log matches its own, and the replication state
(see `entry_pusher` for the transitions)."""

from __future__ import annotations

from collections import deque

import msgspec

from epochmq_dledger.core.types import Snapshot


class PausedState(msgspec.Struct):
    """Nothing is sent: the peer has not responded in this term (`until_ms` 0), or had an error and is
    contacted again at `until_ms`."""

    until_ms: int = 0


class CompareState(msgspec.Struct):
    """The leader compares the entry at `index`; -1 means the end of the log. `context` identifies the request
    in flight, None before it is sent. `mismatch` is the lowest index at which the logs are known to
    differ."""

    index: int = -1
    context: int | None = None
    mismatch: int | None = None


class TruncateState(msgspec.Struct):
    """The peer must truncate its log after the entry at `index`, or replace its log by this entry."""

    index: int
    context: int | None = None


class InFlightPush(msgspec.Struct, frozen=True):
    """One push without a response yet."""

    context: int
    last: int
    count: int
    size: int
    sent_ms: int


class AppendState(msgspec.Struct):
    """The leader sends entries; `next_index` is the next one."""

    next_index: int
    in_flight: deque[InFlightPush]
    entries: int = 0
    size: int = 0
    pushed_ms: int = 0


class InstallSnapshotState(msgspec.Struct):
    """The leader sends this snapshot; `offset` is the next byte."""

    snapshot: Snapshot
    offset: int = 0
    context: int | None = None


ReplicationState = PausedState | CompareState | TruncateState | AppendState | InstallSnapshotState


class PeerProgress:
    """One peer's progress. `match_index`: the peer holds the leader's log durably up to this index. A learner
    or a removed peer (`is_voter` False) receives the log, but is not counted."""

    def __init__(self, name: str, *, is_voter: bool = True) -> None:
        self.name = name
        self.is_voter = is_voter
        self.remove_at_ms: int | None = None
        """A removed peer receives the log until then, so that it learns of its removal."""
        self.state: ReplicationState = PausedState()
        self.match_index = -1
        self.contact_ms = -1
        """When the latest acknowledged heartbeat was *sent*: at that moment the peer followed this leader."""
        self.heartbeat_round = 0
        self.rejoin_incarnation: int | None = None
        """The incarnation of a peer that recovers lost data (see `rejoin`); it is not counted."""
        self.rejoin_end_index = -1
        """Where the leader's log ended when it first saw this incarnation."""
        self.alive = False
        """Whether the peer responded to the latest heartbeat."""

    @property
    def snapshot_bytes_sent(self) -> int:
        """Bytes of a snapshot that the peer has received."""
        return self.state.offset if isinstance(self.state, InstallSnapshotState) else 0
