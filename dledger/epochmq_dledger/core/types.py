"""What goes into the core and what comes out of it. Times are milliseconds of one monotonic clock."""

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
    """What a peer is. Java's MemberState.Role."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One peer's settings; defaults are DLedgerConfig's, ours where DLedger has none."""

    group: str
    self_id: str
    peers: tuple[str, ...]
    """Ids of all peers, this one among them, until the log says who they are (see `members`)."""
    joining: bool = False
    """This peer is not one of them yet: it neither votes nor stands before the log says that it belongs to
    the group."""
    shared_settings: str | None = None
    """What all peers of ours must have set alike: one that says something else is not dealt with."""
    file_size: int = 1 << 30
    """Bytes of a data file. Positions depend on it, so all peers of a group must have the same."""

    heartbeat_interval_ms: int = 2000
    heartbeat_leaks_max: int = 3
    """Intervals without a sign of life after which a follower, or a leader without a quorum, becomes a
    candidate."""
    vote_interval_min_ms: int = 300
    vote_interval_max_ms: int = 1000
    rpc_timeout_ms: int = 3000
    """After this long an unanswered compare, truncate or vote is given up."""

    push_in_flight_max: int = 1000
    """Entries sent to one peer and not yet answered."""
    push_in_flight_bytes_max: int = 8 << 20
    push_batch_max: int = 256
    """Entries of one push."""
    push_batch_bytes_max: int = 256 << 10
    push_calls_max: int = 2
    """Pushes to one peer under way before what does not fill a batch waits: one is made durable there, one is
    on its way. What comes meanwhile leaves together."""
    push_timeout_ms: int = 1000
    """An unanswered push is taken for lost after this long, and the peer compared anew."""
    push_pause_ms: int = 500
    """How long a peer that answered with an error is left alone."""
    commit_push_interval_ms: int = 1000
    """An idle follower is told the committed index this often."""

    pending_max: int = 10000
    """Proposals that wait for their quorum; one more is refused with LEADER_PENDING_FULL."""
    ack_wait_max_ms: int = 2500
    """A proposal not committed by then is answered WAIT_QUORUM_ACK_TIMEOUT; it may still be committed
    later."""
    transfer_wait_max_ms: int = 1000
    entry_of_own_term: bool = True
    """A new leader appends an entry with an empty body, so that what earlier terms left behind becomes
    committed (Raft §5.4.2). A broker's commit log, whose entries are messages, switches it off."""

    snapshot_entries: int = 0
    """Entries applied since the last snapshot after which the next one is taken; 0: none is taken."""
    snapshot_chunk_bytes: int = 256 << 10
    """Of a snapshot that a peer is sent, the bytes of one call."""
    snapshot_bytes_max: int = 256 << 20
    """A larger snapshot is not received."""

    catch_up_rounds_max: int = 10
    """A new peer is sent what the log has, then what came meanwhile, and so on; when so many rounds took too
    long each, it is given up."""
    catch_up_wait_max_ms: int = 30_000
    """A new peer that makes no progress for so long is given up."""

    @property
    def read_retry_interval_ms(self) -> int:
        """While reads wait for a proof of leadership, a round of heartbeats begins at least this often."""
        return max(1, self.heartbeat_interval_ms // 4)

    @property
    def election_timeout_ms(self) -> int:
        """How long a silent leader is still believed in."""
        return self.heartbeat_interval_ms * self.heartbeat_leaks_max


class Snapshot(msgspec.Struct, frozen=True):
    """What is known of a saved state machine: it has applied everything up to `entry`, which stands in the
    log still. `members`: the voters, where a membership entry is among what it has applied."""

    entry: DLedgerEntry
    size: int
    crc: int
    """CRC-32 of its bytes."""
    members: dict[str, str] | None = None

    @property
    def index(self) -> int:
        """The last entry it includes."""
        return self.entry.index


Jitter = Callable[[], float]
"""A number in [0, 1), by the driver's generator: elections need randomness, the core has none."""


# Inputs -----------------------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class RequestReceived(msgspec.Struct, frozen=True):
    """A peer's (or client's) request; its answer is a `SendResponse` with the same `call`."""

    call: int
    request: RequestOrResponse


class CallCompleted(msgspec.Struct, frozen=True):
    """What came of a `SendRequest`: the peer's response, or None when there was none in time."""

    peer: str
    context: int
    request: RequestOrResponse
    response: RequestOrResponse | None


class LeaderDisconnected(msgspec.Struct, frozen=True):
    """The connection over which this leader's heartbeats came has closed: its process has ended, most
    likely."""

    leader: str


class Proposal(msgspec.Struct, frozen=True):
    """Append these bodies, one entry each, as one proposal; `token` comes back in `ProposalCommitted` or
    `OperationFailed`."""

    token: int
    bodies: tuple[bytes, ...]


class ProposalBatch(msgspec.Struct, frozen=True):
    """Proposals that came at once: written, and pushed, together."""

    proposals: tuple[Proposal, ...]


class ReadIndex(msgspec.Struct, frozen=True):
    """Does this peer still lead? Answered by `ReadReady` after a quorum round trip that began after this
    input (Raft §6.4), or by `OperationFailed`."""

    token: int


class LogSynced(msgspec.Struct, frozen=True):
    """The log is durable up to this entry. The term tells a late report about entries that were cut since."""

    index: int
    term: int


class ErasureCompleted(msgspec.Struct, frozen=True):
    """What an `EraseDroppedEntries` asked for is done: the log is settled."""


class TransferLeadership(msgspec.Struct, frozen=True):
    """Hand leadership to this peer."""

    to: str
    token: int


class ChangeMembers(msgspec.Struct, frozen=True):
    """A peer at this address shall belong to the group; without an address, it shall no longer. `addresses`
    are those of the present members. Answered by `ProposalCommitted` or `OperationFailed`."""

    token: int
    peer: str
    address: str | None
    addresses: dict[str, str]


class SnapshotSaved(msgspec.Struct, frozen=True):
    """A snapshot of this peer's own is durable."""

    snapshot: Snapshot


class SnapshotInstalled(msgspec.Struct, frozen=True):
    """The snapshot of an `InstallSnapshot` is durable."""

    snapshot: Snapshot


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
)


# Effects, to be carried out in their order ------------------------------------------------------------------


class SaveVote(msgspec.Struct, frozen=True):
    """Make term and vote durable before any later effect leaves the machine."""

    term: int
    voted_for: str | None


class EraseDroppedEntries(msgspec.Struct, frozen=True):
    """Erase durably what the log has dropped, and report with `ErasureCompleted`."""


class SendRequest(msgspec.Struct, frozen=True):
    """Call a peer; hand what comes back in as `CallCompleted` with the same `context`."""

    peer: str
    context: int
    request: RequestOrResponse


class SendResponse(msgspec.Struct, frozen=True):
    """Answer a `RequestReceived`."""

    call: int
    response: RequestOrResponse


class ApplyCommitted(msgspec.Struct, frozen=True):
    """Entries up to this index are committed, and will be applied in order."""

    index: int


class ProposalCommitted(msgspec.Struct, frozen=True):
    """A proposal is committed; its last entry stands at `index`, byte `pos`."""

    token: int
    index: int
    pos: int
    term: int


class OperationFailed(msgspec.Struct, frozen=True):
    """A proposal, read or transfer failed. TERM_CHANGED and WAIT_QUORUM_ACK_TIMEOUT leave a proposal's fate
    open; every other code means that nothing was appended."""

    token: int
    code: DLedgerResponseCode


class ReadReady(msgspec.Struct, frozen=True):
    """This peer led at some moment after the `ReadIndex`; reads are good once `index` is applied."""

    token: int
    index: int
    term: int


class LeadershipTransferred(msgspec.Struct, frozen=True):
    """The transferee says that it leads."""

    token: int


class RoleChanged(msgspec.Struct, frozen=True):
    """Role, term or known leader changed."""

    role: RaftRole
    term: int
    leader: str | None


class Alarm(msgspec.Struct, frozen=True):
    """Something that must not happen was asked of this peer, and refused; a person should read it."""

    text: str


class SendSnapshotChunk(msgspec.Struct, frozen=True):
    """Call a peer as by `SendRequest`, with the `size` bytes of the latest snapshot that begin at the
    request's offset as its data."""

    peer: str
    context: int
    request: InstallSnapshotRequest
    size: int


class InstallSnapshot(msgspec.Struct, frozen=True):
    """Make a leader's snapshot durable in the place of this peer's own, and report with
    `SnapshotInstalled`."""

    snapshot: Snapshot
    data: bytes


class RestoreSnapshot(msgspec.Struct, frozen=True):
    """The state machine becomes what the installed snapshot says; what it includes counts as applied."""

    snapshot: Snapshot


class RejoinCompleted(msgspec.Struct, frozen=True):
    """This peer has caught up with what it had lost, and votes again, also after a restart."""


class MembersChanged(msgspec.Struct, frozen=True):
    """Where the members are that the log names, and a peer that is being added."""

    addresses: dict[str, str]


RaftEffect = (
    SaveVote
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
