"""Encodes and decodes the calls of DLedger 0.3.1.2, and defines its log entries.

A call is a remoting frame whose body is one of these objects in JSON. The remoting code of a response is
always 200; the DLedger code is inside the body. Bodies of entries travel as base64, which is msgspec's form
of `bytes`."""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from functools import cache
from typing import TypeVar

import msgspec

from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.integers import Int, Long

ENTRY_MAGIC = 1


class DLedgerRequestCode(IntEnum):
    """Remoting codes of DLedger's calls (`DLedgerRequestCode`)."""

    METADATA = 50000
    APPEND = 50001
    GET = 50002
    VOTE = 51001
    HEART_BEAT = 51002
    PULL = 51003
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005
    INSTALL_SNAPSHOT = 51006
    """In DLedger from 0.4 on. Between EpochMQ peers it carries `InstallSnapshotRequest`."""
    CHANGE_MEMBERS = 51091
    """Our own request: gets or changes the members of the group (`ChangeMembersRequest`)."""


class DLedgerResponseCode(IntEnum):
    """Codes inside the body of a DLedger response (`DLedgerResponseCode`)."""

    UNKNOWN = -1
    SUCCESS = 200
    TIMEOUT = 300
    METADATA_ERROR = 301
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    UNEXPECTED_MEMBER = 402
    EXPIRED_TERM = 403
    NOT_LEADER = 404
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_INDEX = 408
    INCONSISTENT_LEADER = 409
    INDEX_OUT_OF_RANGE = 410
    UNEXPECTED_ARGUMENT = 411
    REPEATED_REQUEST = 412
    REPEATED_PUSH = 413
    DISK_ERROR = 414
    DISK_FULL = 415
    TERM_NOT_READY = 416
    FALL_BEHIND_TOO_MUCH = 417
    TAKE_LEADERSHIP_FAILED = 418
    INDEX_LESS_THAN_LOCAL_BEGIN = 419
    REQUEST_WITH_EMPTY_BODYS = 420
    PUSH_REQUEST_IS_FULL = 421
    INTERNAL_ERROR = 500
    TERM_CHANGED = 501
    WAIT_QUORUM_ACK_TIMEOUT = 502
    LEADER_PENDING_FULL = 503
    ILLEGAL_MEMBER_STATE = 504
    LEADER_NOT_READY = 505
    LEADER_TRANSFERRING = 506


class VoteResult(StrEnum):
    """`VoteResponse.RESULT`."""

    UNKNOWN = "UNKNOWN"
    ACCEPT = "ACCEPT"
    REJECT_UNKNOWN_LEADER = "REJECT_UNKNOWN_LEADER"
    REJECT_UNEXPECTED_LEADER = "REJECT_UNEXPECTED_LEADER"
    REJECT_EXPIRED_VOTE_TERM = "REJECT_EXPIRED_VOTE_TERM"
    REJECT_ALREADY_VOTED = "REJECT_ALREADY_VOTED"
    REJECT_ALREADY_HAS_LEADER = "REJECT_ALREADY_HAS_LEADER"
    REJECT_TERM_NOT_READY = "REJECT_TERM_NOT_READY"
    REJECT_TERM_SMALL_THAN_LEDGER = "REJECT_TERM_SMALL_THAN_LEDGER"
    REJECT_EXPIRED_LEDGER_TERM = "REJECT_EXPIRED_LEDGER_TERM"
    REJECT_SMALL_LEDGER_END_INDEX = "REJECT_SMALL_LEDGER_END_INDEX"
    REJECT_TAKING_LEADERSHIP = "REJECT_TAKING_LEADERSHIP"


class PushType(StrEnum):
    """`PushEntryRequest.Type`."""

    APPEND = "APPEND"
    COMMIT = "COMMIT"
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"


class DLedgerEntry(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the log. `pos` is its absolute byte offset in the data files, `size` = 48 + len(body).

    Equality is Java's, which ignores the two checksums (both are always 0 in 0.3.1.2).
    """

    index: Long
    term: Long
    pos: Long
    body: bytes
    size: Int
    magic: Int = ENTRY_MAGIC
    channel: Int = 0
    chain_crc: Int = 0
    body_crc: Int = 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DLedgerEntry):
            return NotImplemented
        return (
            self.index == other.index
            and self.term == other.term
            and self.pos == other.pos
            and self.size == other.size
            and self.magic == other.magic
            and self.channel == other.channel
            and self.body == other.body
        )

    def __hash__(self) -> int:
        return hash((self.index, self.term, self.pos))


class RequestOrResponse(msgspec.Struct, kw_only=True, rename="camel"):
    """The fields of every call and every response. `remote_id` is the receiver, `local_id` the sender."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    leader_id: str | None = None
    code: Int = DLedgerResponseCode.SUCCESS
    term: Long = -1
    epochmq: Int | None = None
    """Our own field: the extensions that the sender supports (`FEATURE_…` bits). Java peers ignore it and
    send none."""
    epochmq_agreed: str | None = None
    """Our own field: the settings that all EpochMQ peers must share, as text. Compared where both peers
    send it."""


FEATURE_PRE_VOTE = 1
FEATURE_SNAPSHOT = 2
"""Accepts a snapshot for entries that the leader has compacted (INSTALL_SNAPSHOT)."""
FEATURE_MEMBERS = 4
"""Applies membership entries of the log (`MEMBERS_CHANNEL`)."""
FEATURE_REJOIN = 8
"""Lets a peer that lost a part of its log, or its vote, catch up before it votes again."""
FEATURE_BLOCKS = 16
"""A push may carry a block of entries as bytes, if both logs are block logs."""
FEATURE_BLOCK_MEMBERS = 32
"""Applies membership entries of a block log, too."""
FEATURES = (
    FEATURE_PRE_VOTE
    | FEATURE_SNAPSHOT
    | FEATURE_MEMBERS
    | FEATURE_REJOIN
    | FEATURE_BLOCKS
    | FEATURE_BLOCK_MEMBERS
)
"""The extensions that this release announces."""


class HeartBeatRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """A leader's heartbeat; `leader_id` is the sender.

    Our own fields: `epochmq_all`: the extensions that every peer of the group has announced to this
    leader. `epochmq_rejoin`: the rejoin number that the receiver sent. `epochmq_until`: the end index of
    the leader's log when it first received that number."""

    epochmq_all: Int | None = None
    epochmq_rejoin: Long | None = None
    epochmq_until: Long | None = None


class HeartBeatResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """In Java a success carries neither group nor term. `epochmq_rejoin` (our own): the sender lost a part
    of its log, or its vote, and chose this random number at its start."""

    epochmq_rejoin: Long | None = None


class VoteRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """`leader_id` is the candidate. `pre_vote` (our own): a pre-vote, which the voter does not record."""

    ledger_end_index: Long = -1
    ledger_end_term: Long = -1
    pre_vote: bool | None = None


class VoteResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """`term` is the voter's, so a candidate learns of newer terms. `epochmq_new` (our own): the directory of
    the voter was empty at its start, and the voter does not know yet whether its group is new.
    `epochmq_if_all` (our own): the voter may have lost what it had not flushed. Its vote, which `vote_result`
    rejects, counts if all voters vote for the candidate."""

    vote_result: VoteResult = VoteResult.UNKNOWN
    epochmq_new: bool | None = None
    epochmq_if_all: bool | None = None


class PushEntryRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """A push of one of the four types. APPEND carries `entry`, or `batch_entry` for several entries. Between
    EpochMQ's peers it may carry a block instead: the bytes of `epochmq_count` entries from
    `epochmq_first_index` on, as they are in one data file. A TRUNCATE of a block log names the voters as of
    its entry (`epochmq_members`, addresses by id), because the receiver's log may begin anew with it; None if
    the log before that entry names none."""

    commit_index: Long = -1
    type: PushType = PushType.APPEND
    entry: DLedgerEntry | None = None
    batch_entry: list[DLedgerEntry] = []
    total_size: Int = 0
    epochmq_block: bytes | None = None
    epochmq_first_index: Long | None = None
    epochmq_count: Int | None = None
    epochmq_members: dict[str, str] | None = None

    @property
    def entries(self) -> list[DLedgerEntry]:
        """The pushed entries, in either form."""
        return self.batch_entry or ([self.entry] if self.entry is not None else [])


class PushEntryResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """`index` is the first pushed index, `count` the number of entries; begin and end index are those of
    the follower's log."""

    index: Long | None = None
    count: Int = 0
    begin_index: Long = -1
    end_index: Long = -1


class AppendEntryRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """A client's append; `batch_msgs` holds several bodies."""

    body: bytes | None = None
    batch_msgs: list[bytes] | None = None


class AppendEntryResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """The index and position of the entry; -1 if it was not appended."""

    index: Long = -1
    pos: Long = -1


class GetEntriesRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """A client's read. The response has only the entry at `begin_index`."""

    begin_index: Long | None = None
    max_size: Int = 0
    index_list: list[Long] | None = None


class GetEntriesResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """The entries read."""

    entries: list[DLedgerEntry] = []


class MetadataRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """Requests the leader and the peers."""


class MetadataResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """`peers` maps id to address."""

    peers: dict[str, str] = {}


class LeadershipTransferRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """`transfer_id` transfers the leadership to `transferee_id`, which must have the log up to the given
    index."""

    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: Long = -1


class LeadershipTransferResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """Code 200 once the transferee is the leader."""


class InstallSnapshotRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """Our own: a chunk of a leader's snapshot, `data` at byte `offset` of `size`. `entry`: the last entry
    that the snapshot includes; the receiver's log starts again with it. `crc`: the CRC-32 of the whole
    snapshot. `members`: the voters by the last membership entry that it includes."""

    entry: DLedgerEntry
    offset: Long = 0
    size: Long = 0
    crc: Long = 0
    members: dict[str, str] | None = None
    data: bytes = b""


class InstallSnapshotResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """`offset`: the next byte that the receiver expects."""

    offset: Long = 0


class ChangeMembersRequest(RequestOrResponse, kw_only=True, rename="camel"):
    """Our own. To the leader: adds `peer_id` at `address` to the group; without an address, removes it.
    Without a `peer_id`, to any peer: gets the members, and the group, which the request need not name."""

    peer_id: str | None = None
    address: str | None = None


class ChangeMembersResponse(RequestOrResponse, kw_only=True, rename="camel"):
    """`members`: addresses of the voters by id, from the log of the responding peer."""

    members: dict[str, str] = {}


MEMBERS_CHANNEL = 0x4D454D42
"""The `channel` of a membership entry, whose body is a `MembershipBody` in JSON. Every other entry has 0."""


MEMBERS_MAX = 9
"""More voters make a group slower and no safer."""
_MEMBER = re.compile(r"[^\s\x00-\x1f\x7f;-]{1,255}")
_ADDRESS = re.compile(r"[^\s\x00-\x1f\x7f;]{1,255}")


def is_member(name: str, address: str) -> bool:
    """Whether this can be the id of a voter, and its address."""
    return bool(_MEMBER.fullmatch(name) and _ADDRESS.fullmatch(address))


class MembershipBody(msgspec.Struct, frozen=True):
    """The voters from this log entry on: address by id."""

    peers: dict[str, str]


def encode_members(peers: dict[str, str]) -> bytes:
    """The body of a membership entry."""
    return msgspec.json.encode(MembershipBody(dict(sorted(peers.items()))))


def decode_members(entry: DLedgerEntry) -> dict[str, str]:
    """The voters in a membership entry. RemoteProtocolError: malformed."""
    try:
        return decode_members_body(entry.body)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"membership entry {entry.index}: {error}") from error


def decode_members_body(body: bytes) -> dict[str, str]:
    """The voters that `encode_members` has encoded. RemoteProtocolError: malformed."""
    try:
        peers = msgspec.json.decode(body, type=MembershipBody).peers
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(str(error)) from error
    if not 0 < len(peers) <= MEMBERS_MAX:
        raise RemoteProtocolError(f"{len(peers)} voters, expected 1 to {MEMBERS_MAX}")
    for name, address in peers.items():
        if not is_member(name, address):
            raise RemoteProtocolError(f"voter {name!r:.100} at {address!r:.100}, expected words")
    return peers


REQUEST_TYPES: dict[int, type[RequestOrResponse]] = {
    DLedgerRequestCode.METADATA: MetadataRequest,
    DLedgerRequestCode.APPEND: AppendEntryRequest,
    DLedgerRequestCode.GET: GetEntriesRequest,
    DLedgerRequestCode.VOTE: VoteRequest,
    DLedgerRequestCode.HEART_BEAT: HeartBeatRequest,
    DLedgerRequestCode.PUSH: PushEntryRequest,
    DLedgerRequestCode.LEADERSHIP_TRANSFER: LeadershipTransferRequest,
    DLedgerRequestCode.INSTALL_SNAPSHOT: InstallSnapshotRequest,
    DLedgerRequestCode.CHANGE_MEMBERS: ChangeMembersRequest,
}
RESPONSE_TYPES: dict[int, type[RequestOrResponse]] = {
    DLedgerRequestCode.METADATA: MetadataResponse,
    DLedgerRequestCode.APPEND: AppendEntryResponse,
    DLedgerRequestCode.GET: GetEntriesResponse,
    DLedgerRequestCode.VOTE: VoteResponse,
    DLedgerRequestCode.HEART_BEAT: HeartBeatResponse,
    DLedgerRequestCode.PUSH: PushEntryResponse,
    DLedgerRequestCode.LEADERSHIP_TRANSFER: LeadershipTransferResponse,
    DLedgerRequestCode.INSTALL_SNAPSHOT: InstallSnapshotResponse,
    DLedgerRequestCode.CHANGE_MEMBERS: ChangeMembersResponse,
}
REQUEST_CODES: dict[type[RequestOrResponse], DLedgerRequestCode] = {
    body: DLedgerRequestCode(code) for code, body in REQUEST_TYPES.items()
}

B = TypeVar("B", bound=RequestOrResponse)
_encoder = msgspec.json.Encoder()


def encode_body(body: RequestOrResponse) -> bytes:
    """The body as JSON. fastjson reads an explicit null as absent, so None fields need not be removed."""
    return _encoder.encode(body)


@cache
def _decoder(kind: type[B]) -> msgspec.json.Decoder[B]:
    return msgspec.json.Decoder(kind, strict=False)


def decode_body(kind: type[B], data: bytes) -> B:
    """Decodes a body from a peer. RemoteProtocolError names the malformed field."""
    try:
        found: B = _decoder(kind).decode(data or b"{}")
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from error
    return found
