"""Defines the settings, inputs and effects of the core. Times are milliseconds of one monotonic clock.

An input tells the core what has happened or what is requested. An effect tells the driver what to do, or what
has happened in the core. `call` identifies a request that this peer received; `context` identifies one that
it sent; `token` identifies an operation of this peer's owner.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec

from epochmq_protocol.dledger import (
    DLedgerEntry,
    DLedgerResponseCode,
    InstallSnapshotRequest,
    RequestOrResponse,
)


class RaftRole(Enum):
    """The role of a peer in its term (DLedger's `MemberState.Role`)."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One peer's settings. Defaults are those of DLedgerConfig; settings that DLedger lacks have our own."""

    group: str
    self_id: str
    peers: tuple[str, ...]
    """Ids of all peers, this one included. They are the voters until the log names others (see
    `membership`)."""
    joining: bool = False
    """This peer is new: it neither votes nor starts an election before the log names it as a voter."""
    shared_settings: str | None = None
    """Settings that all EpochMQ peers of a group must have alike. A peer ignores peers that report others."""
    file_size: int = 1 << 30
    """Bytes of a data file. Positions in the log depend on it, so all peers of a group need the same
    value."""

    heartbeat_interval_ms: int = 2000
    heartbeat_leaks_max: int = 3
    """A follower that hears nothing of its leader, or a leader that hears nothing of a quorum, becomes a
    candidate after this many heartbeat intervals."""
    vote_interval_min_ms: int = 300
    vote_interval_max_ms: int = 1000
    rpc_timeout_ms: int = 3000
    """A compare, truncate or vote request fails after this time without a response."""

    push_in_flight_max: int = 1000
    """Entries sent to one peer and not yet acknowledged."""
    push_in_flight_bytes_max: int = 8 << 20
    push_batch_max: int = 256
    """Entries of one push."""
    push_batch_bytes_max: int = 256 << 10
    push_calls_max: int = 2
    """With this many pushes in flight to a peer, entries wait until they fill a batch. Two keep a peer busy:
    it makes one push durable while the next one is on the network."""
    push_timeout_ms: int = 1000
    """After this time without a response a push counts as lost, and the leader compares the logs again."""
    push_pause_ms: int = 500
    """How long the leader pauses replication to a peer that responded with an error."""
    commit_push_interval_ms: int = 1000
    """The leader sends the committed index to an idle follower this often."""

    pending_max: int = 10000
    """Proposals that wait for a quorum. Further ones are rejected with LEADER_PENDING_FULL."""
    ack_wait_max_ms: int = 2500
    """A proposal that is not committed within this time fails with WAIT_QUORUM_ACK_TIMEOUT. It may still be
    committed later."""
    transfer_wait_max_ms: int = 1000
    """A transfer of leadership fails if the transferee does not lead after this time."""
    transfer_lag_max: int = 1000
    """A leader transfers its leadership only to a peer that lacks fewer entries."""
    preferred_leaders: tuple[str, ...] = ()
    """Ids of peers that shall lead. Another leader transfers its leadership to one of them when it can."""
    preferred_check_interval_ms: int = 1000
    """How often a leader looks for a preferred one."""
    entry_of_own_term: bool = True
    """A new leader appends an entry, which commits the entries of earlier terms (Raft §5.4.2). Its body is
    empty, or what a `BodyLog` says."""

    replaces_expired: bool = False
    """A follower that lacks entries which have expired on the leader drops its log, if nothing is committed
    that the leader has, and begins with the leader's first entry. If not, it rejects that entry and raises an
    alarm as soon as it has committed anything. The log's owner must handle a log that begins anew."""

    snapshot_entries: int = 0
    """The peer takes a snapshot after it has applied this many entries since the last one. 0: never."""
    snapshot_chunk_bytes: int = 256 << 10
    """Bytes of a snapshot that one request carries."""
    snapshot_bytes_max: int = 256 << 20
    """A follower rejects larger snapshots."""

    catch_up_rounds_max: int = 10
    """The leader catches a learner up in rounds (see `membership_change`). It drops a learner after this many
    rounds that each took longer than the election timeout."""
    catch_up_wait_max_ms: int = 30_000
    """The leader drops a learner that makes no progress for this long."""

    @property
    def read_retry_interval_ms(self) -> int:
        """While reads wait for a confirmation of leadership, a heartbeat round starts at least this often."""
        return max(1, self.heartbeat_interval_ms // 4)

    @property
    def election_timeout_ms(self) -> int:
        """How long a follower waits for a silent leader."""
        return self.heartbeat_interval_ms * self.heartbeat_leaks_max


class Snapshot(msgspec.Struct, frozen=True):
    """Describes a saved state machine, which has applied all entries up to `entry`. The log still holds
    `entry`. `members`: the voters, if a membership entry is among the applied ones."""

    entry: DLedgerEntry
    size: int
    crc: int
    """CRC-32 of its bytes."""
    members: dict[str, str] | None = None

    @property
    def index(self) -> int:
        """The last entry it includes."""
        return self.entry.index


class SavedMembership(msgspec.Struct, frozen=True):
    """The voters from an entry of the log on: address by id, None for those of the settings."""

    index: int
    term: int
    """The term of that entry."""
    peers: dict[str, str] | None
    begins_log: bool = False
    """The log began anew with this entry, which is committed."""


Jitter = Callable[[], float]
"""Returns a number in [0, 1) from the driver's random generator. Elections need randomness, the core has
none."""


# Inputs -----------------------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class RequestReceived(msgspec.Struct, frozen=True):
    """A peer sent a request. The effect `SendResponse` with the same `call` answers it."""

    call: int
    request: RequestOrResponse


class CallCompleted(msgspec.Struct, frozen=True):
    """A `SendRequest` completed with the peer's response, or with None when it failed or timed out."""

    peer: str
    context: int
    request: RequestOrResponse
    response: RequestOrResponse | None


class LeaderDisconnected(msgspec.Struct, frozen=True):
    """The connection that carried this leader's heartbeats has closed: most likely its process has ended."""

    leader: str


class Proposal(msgspec.Struct, frozen=True):
    """Append these bodies, one entry each, as one proposal. `ProposalCommitted` or `OperationFailed` with the
    same token reports the result."""

    token: int
    bodies: tuple[bytes, ...]


class ProposalBatch(msgspec.Struct, frozen=True):
    """Proposals that arrived together. The leader writes and pushes them together."""

    proposals: tuple[Proposal, ...]


class ReadIndex(msgspec.Struct, frozen=True):
    """Confirm that this peer itself leads, by a quorum round trip that starts after this input (Raft §6.4).
    `ReadReady` or `OperationFailed` reports the result."""

    token: int


class LogSynced(msgspec.Struct, frozen=True):
    """The log is durable up to this entry. By its term the core recognises a late report about entries that
    were truncated since."""

    index: int
    term: int


class ErasureCompleted(msgspec.Struct, frozen=True):
    """An `EraseDroppedEntries` is done: the log is writable again."""


class TransferLeadership(msgspec.Struct, frozen=True):
    """Transfer this peer's leadership to the peer `to`. `LeadershipTransferred` or `OperationFailed` reports
    the result."""

    to: str
    token: int


class ChangeMembers(msgspec.Struct, frozen=True):
    """Add a peer at this address to the group or, without an address, remove it. `addresses` are those of the
    present members. `ProposalCommitted` or `OperationFailed` reports the result."""

    token: int
    peer: str
    address: str | None
    addresses: dict[str, str]


class SnapshotSaved(msgspec.Struct, frozen=True):
    """A snapshot that this peer took is durable."""

    snapshot: Snapshot


class SnapshotInstalled(msgspec.Struct, frozen=True):
    """The snapshot of an `InstallSnapshot` is durable."""

    snapshot: Snapshot


class SnapshotRejected(msgspec.Struct, frozen=True):
    """The state machine cannot load the snapshot of an `InstallSnapshot`, and nothing has changed."""

    snapshot: Snapshot
    reason: str


RaftInput = (
    Tick
    | RequestReceived
    | CallCompleted
    | LeaderDisconnected
    | Proposal
    | ProposalBatch
    | ReadIndex
    | LogSynced
    | ErasureCompleted
    | TransferLeadership
    | ChangeMembers
    | SnapshotSaved
    | SnapshotInstalled
    | SnapshotRejected
)


# Effects, to be carried out in their order ------------------------------------------------------------------


class SaveVote(msgspec.Struct, frozen=True):
    """Make term and vote durable before any later effect is carried out."""

    term: int
    voted_for: str | None


class SaveMemberships(msgspec.Struct, frozen=True):
    """Make these memberships durable before any later effect is carried out. Only of a `BodyLog`."""

    memberships: tuple[SavedMembership, ...]


class EraseDroppedEntries(msgspec.Struct, frozen=True):
    """Erase durably the bytes that the log has dropped, and report with `ErasureCompleted`."""


class SendRequest(msgspec.Struct, frozen=True):
    """Send a request to a peer. `CallCompleted` with the same `context` reports the response."""

    peer: str
    context: int
    request: RequestOrResponse


class SendResponse(msgspec.Struct, frozen=True):
    """Respond to a `RequestReceived`."""

    call: int
    response: RequestOrResponse


class ApplyCommitted(msgspec.Struct, frozen=True):
    """Entries up to this index are committed: apply them in order."""

    index: int


class ProposalCommitted(msgspec.Struct, frozen=True):
    """A proposal is committed. Its last entry has index `index` and begins at byte `pos`."""

    token: int
    index: int
    pos: int
    term: int


class OperationFailed(msgspec.Struct, frozen=True):
    """A proposal, read, transfer or membership change failed. After TERM_CHANGED and WAIT_QUORUM_ACK_TIMEOUT
    a proposal may still be committed; every other code means that nothing was appended."""

    token: int
    code: DLedgerResponseCode


class ReadReady(msgspec.Struct, frozen=True):
    """This peer led at some moment after the `ReadIndex`. Reads are linearizable once `index` is applied."""

    token: int
    index: int
    term: int


class LeadershipTransferred(msgspec.Struct, frozen=True):
    """The transferee has reported that it leads."""

    token: int


class RoleChanged(msgspec.Struct, frozen=True):
    """The role, the term or the known leader changed."""

    role: RaftRole
    term: int
    leader: str | None


class Alarm(msgspec.Struct, frozen=True):
    """Log an error that a person should read, such as a rejected request that no correct peer sends."""

    text: str


class SendSnapshotChunk(msgspec.Struct, frozen=True):
    """Send a request as by `SendRequest`, with `size` bytes of the latest snapshot from the request's offset
    on as its data."""

    peer: str
    context: int
    request: InstallSnapshotRequest
    size: int


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Replace this peer's snapshot durably with a leader's, and report with `SnapshotInstalled`. Report
    `SnapshotRejected` instead if the state machine cannot load it."""

    snapshot: Snapshot
    data: bytes


class RestoreSnapshot(msgspec.Struct, frozen=True):
    """Load the installed snapshot into the state machine. Its entries count as applied."""

    snapshot: Snapshot


class RejoinCompleted(msgspec.Struct, frozen=True):
    """This peer has recovered the entries that it had lost, and votes again. Forget the loss durably, so that
    it votes after a restart, too."""


class MembersChanged(msgspec.Struct, frozen=True):
    """New addresses of peers are known, by id: all voters that the log names now or, when a learner is added,
    the learner's."""

    addresses: dict[str, str]


RaftEffect = (
    SaveVote
    | SaveMemberships
    | EraseDroppedEntries
    | SendRequest
    | SendResponse
    | ApplyCommitted
    | ProposalCommitted
    | OperationFailed
    | ReadReady
    | LeadershipTransferred
    | RoleChanged
    | Alarm
    | SendSnapshotChunk
    | InstallSnapshot
    | RestoreSnapshot
    | RejoinCompleted
    | MembersChanged
)
