"""Holds what a leader knows of each peer: how far the peer's log matches its own, and the replication state
(see `entry_pusher` for the transitions)."""

from __future__ import annotations

from collections import deque

import msgspec

from epochmq_dledger.core.types import Snapshot
from epochmq_protocol.errors import InvariantError


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
    """The leader sends entries."""

    next_index: int
    """The next entry to send. Invariant: 0 <= next_index <= end of the leader's log + 1. It follows
    match_index, unless the peer has lost entries: its responses to comparisons show that before a heartbeat
    names its new incarnation (see `rejoin`)."""
    in_flight: deque[InFlightPush]
    """In the order of entries. Invariant: the last one ends before `next_index`."""
    entries: int = 0
    """Entries in flight. Invariant: the sum over `in_flight`; 0 exactly while that is empty."""
    size: int = 0
    """Bytes in flight, likewise."""
    pushed_ms: int = 0

    def check_invariants(self, end_index: int) -> None:
        """Raises InvariantError if the fields contradict each other. O(1)."""
        in_flight = self.in_flight
        if not 0 <= self.next_index <= end_index + 1:
            raise InvariantError(
                "AppendState",
                "0 <= next_index <= end of the leader's log + 1",
                next_index=self.next_index,
                end_index=end_index,
            )
        if not in_flight:
            if self.entries or self.size:
                raise InvariantError(
                    "AppendState", "nothing is in flight without a push", entries=self.entries, size=self.size
                )
        elif in_flight[-1].last != self.next_index - 1 or self.entries < in_flight[-1].count:
            raise InvariantError(
                "AppendState",
                "the pushes in flight end before next_index, and entries is their sum",
                last=in_flight[-1].last,
                next_index=self.next_index,
                entries=self.entries,
                last_count=in_flight[-1].count,
            )


class InstallSnapshotState(msgspec.Struct):
    """The leader sends this snapshot; `offset` is the next byte."""

    snapshot: Snapshot
    offset: int = 0
    context: int | None = None


ReplicationState = PausedState | CompareState | TruncateState | AppendState | InstallSnapshotState


class PeerProgress:
    """One peer's progress. A learner or a removed peer (`is_voter` False) receives the log, but is not
    counted."""

    def __init__(self, name: str, *, is_voter: bool = True) -> None:
        self.name = name
        self.is_voter = is_voter
        self.remove_at_ms: int | None = None
        """A removed peer receives the log until then, so that it learns of its removal."""
        self.state: ReplicationState = PausedState()
        self.match_index = -1
        """The peer has acknowledged that it holds the leader's log durably up to this index. Invariant: -1 <=
        match_index <= end of the leader's log. It falls when a heartbeat says that the peer has lost entries
        (see `rejoin`)."""
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

    def check_invariants(self, end_index: int) -> None:
        """Raises InvariantError if the progress contradicts its rules, for a leader whose log ends at
        `end_index`. O(1)."""
        if not -1 <= self.match_index <= end_index:
            raise InvariantError(
                "PeerProgress",
                "-1 <= match_index <= end of the leader's log",
                peer=self.name,
                match_index=self.match_index,
                end_index=end_index,
            )
        state = self.state
        if isinstance(state, AppendState):
            state.check_invariants(end_index)
