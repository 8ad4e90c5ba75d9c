"""What a leader knows of each of its peers: how far it is, and what it is sent next (see `leader` for the
way from state to state)."""

from __future__ import annotations

from collections import deque

import msgspec

from epochmq_dledger.core.types import Snapshot


class PausedState(msgspec.Struct):
    """Not heard of in this term, or left alone until `until_ms` after an error."""

    until_ms: int = 0


class CompareState(msgspec.Struct):
    """`index` -1 starts at the log's end. `context` is the outstanding call, None when it is to be sent.
    `mismatch` is the lowest index at which the logs were found to differ."""

    index: int = -1
    context: int | None = None
    mismatch: int | None = None


class TruncateState(msgspec.Struct):
    """The peer is to cut after, or begin anew at, the entry at `index`."""

    index: int
    context: int | None = None


class InFlightPush(msgspec.Struct, frozen=True):
    """One unanswered push."""

    context: int
    last: int
    count: int
    size: int
    sent_ms: int


class AppendState(msgspec.Struct):
    """`next_index` is the next entry to send."""

    next_index: int
    in_flight: deque[InFlightPush]
    entries: int = 0
    size: int = 0
    pushed_ms: int = 0


class InstallSnapshotState(msgspec.Struct):
    """The peer is sent this snapshot, next from `offset` on."""

    snapshot: Snapshot
    offset: int = 0
    context: int | None = None


ReplicationState = PausedState | CompareState | TruncateState | AppendState | InstallSnapshotState


class PeerProgress:
    """What a leader knows of one peer. `match_index`: the peer has, durably, our log up to here. One that is
    being added or was removed is no voter: it is sent everything, and counts for nothing."""

    def __init__(self, name: str, *, is_voter: bool = True) -> None:
        self.name = name
        self.is_voter = is_voter
        self.remove_at_ms: int | None = None
        """A removed peer is sent the log until then, so that it learns that it was removed."""
        self.state: ReplicationState = PausedState()
        self.match_index = -1
        self.contact_ms = -1
        """When the latest answered heartbeat was *sent*: the moment at which the peer surely followed us."""
        self.heartbeat_round = 0
        self.rejoin: int | None = None
        """The number of a peer that has lost something and has not caught up; it counts for nothing."""
        self.rejoin_until = -1
        """Where the log ended when this number was first heard."""
        self.alive = False
        """Whether the latest heartbeat was answered."""

    @property
    def snapshot_bytes_sent(self) -> int:
        """How much of a snapshot it has."""
        return self.state.offset if isinstance(self.state, InstallSnapshotState) else 0
