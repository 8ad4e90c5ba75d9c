"""No message of another peer, whatever its numbers, ends a peer or spoils what it has saved."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_dledger.core import message_bounds
from epochmq_dledger.core.raft_log import make_entry
from epochmq_dledger.core.types import (
    CallCompleted,
    EraseDroppedEntries,
    ErasureCompleted,
    InstallSnapshot,
    LogSynced,
    RaftEffect,
    RaftRole,
    RaftSettings,
    RequestReceived,
    SaveVote,
    SendRequest,
    SendResponse,
    SnapshotInstalled,
    Tick,
)
from epochmq_dledger.store import state_files
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.file_log import FileLog
from epochmq_formats.dledger_log import encode_entry
from epochmq_protocol.checksum import crc32
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.dledger import (
    FEATURES,
    MEMBERS_CHANNEL,
    REQUEST_CODES,
    RESPONSE_TYPES,
    AppendEntryRequest,
    AppendEntryResponse,
    DLedgerEntry,
    DLedgerRequestCode,
    DLedgerResponseCode,
    HeartBeatRequest,
    HeartBeatResponse,
    InstallSnapshotRequest,
    LeadershipTransferRequest,
    PushEntryRequest,
    PushType,
    RequestOrResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
    decode_body,
    encode_body,
    encode_members,
)
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_protocol.frame import request as make_request
from epochmq_protocol.integers import INT_MAX, INT_MIN, LONG_MAX, LONG_MIN
from tests.unit.dledger.file_logs import FILE_SIZE, INDEX_FILE_SIZE
from tests.unit.dledger.raft_group import RaftGroup
from tests.unit.dledger.scripted_node import ScriptedNode, settings_of

HEAD: dict[str, Any] = {"group": "g", "remote_id": "n0", "local_id": "n1", "leader_id": "n1"}


def entry_of(**changes: Any) -> DLedgerEntry:
    return msgspec.structs.replace(make_entry(0, 3, b"body", 0, FILE_SIZE), **changes)


def push_of(entry: DLedgerEntry, kind: PushType = PushType.TRUNCATE) -> PushEntryRequest:
    return PushEntryRequest(**HEAD, term=3, type=kind, entry=entry)


def chunk_of(entry: DLedgerEntry, **changes: Any) -> InstallSnapshotRequest:
    data: dict[str, Any] = {"size": 1, "crc": crc32(b"x"), "data": b"x"}
    return InstallSnapshotRequest(**HEAD, term=3, entry=entry, **{**data, **changes})


WRONG = [
    VoteRequest(**HEAD, term=LONG_MAX),
    VoteRequest(**HEAD, term=2 + message_bounds.TERM_LEAP_MAX + 1),
    HeartBeatRequest(**HEAD, term=LONG_MAX),
    HeartBeatRequest(**{**HEAD, "leader_id": "n1\ncurrTerm=77"}, epochmq=FEATURES, term=3),
    HeartBeatRequest(**{**HEAD, "local_id": "n" * 300}, term=3),
    LeadershipTransferRequest(**HEAD, term=LONG_MAX, transferee_id="n0", transfer_id="n1"),
    push_of(entry_of(index=LONG_MAX)),
    push_of(entry_of(index=-1)),
    push_of(entry_of(term=4)),
    push_of(entry_of(term=-1)),
    push_of(entry_of(size=47)),
    push_of(entry_of(size=INT_MAX)),
    push_of(entry_of(magic=7)),
    push_of(entry_of(pos=-1)),
    push_of(entry_of(pos=LONG_MAX)),
    push_of(entry_of(pos=FILE_SIZE - 52)),
    push_of(make_entry(0, 3, bytes(FILE_SIZE), 0, FILE_SIZE)),
    PushEntryRequest(**HEAD, term=3, commit_index=LONG_MAX, entry=entry_of()),
    PushEntryRequest(**HEAD, term=3, entry=entry_of(), epochmq_members={}),
    chunk_of(entry_of(index=LONG_MAX)),
    chunk_of(entry_of(term=LONG_MAX)),
    chunk_of(entry_of(), members={f"m{number}": "h:1" for number in range(10)}),
]


@pytest.mark.parametrize("request_", WRONG, ids=repr)
def test_a_request_that_no_correct_peer_sends_changes_nothing(
    tmp_path: Path, request_: RequestOrResponse
) -> None:
    log = FileLog(tmp_path, FILE_SIZE)
    log.open()
    core = ScriptedNode(log=log, term=2, settings={"file_size": FILE_SIZE})
    effects = core.step(RequestReceived(1, request_))
    responses = [one.response for one in effects if isinstance(one, SendResponse)]
    assert [one.code for one in responses] == [DLedgerResponseCode.UNEXPECTED_ARGUMENT]
    assert not [one for one in effects if isinstance(one, SaveVote)]
    member = core.node.member
    assert (member.term, member.role, log.end_index) == (2, RaftRole.CANDIDATE, -1)
    assert member.messages_rejected == 1


def test_a_response_that_no_correct_peer_sends_counts_as_none() -> None:
    core = ScriptedNode(term=2)
    core.elect()
    beat = core.take(HeartBeatRequest, "n1")[0]
    core.answer(beat, HeartBeatResponse(code=DLedgerResponseCode.EXPIRED_TERM, term=LONG_MAX))
    assert (core.node.role, core.node.member.term) == (RaftRole.LEADER, beat.request.term)
    assert core.node.member.messages_rejected == 1


def test_the_greatest_terms_that_a_peer_takes_leave_a_next_one() -> None:
    for own, greatest in [
        (2, 2 + message_bounds.TERM_LEAP_MAX),
        (message_bounds.TERM_MAX - 5, message_bounds.TERM_MAX),
        (0, message_bounds.FIRST_TERM_MAX),
    ]:
        core = ScriptedNode(term=own)
        core.step(RequestReceived(1, HeartBeatRequest(**HEAD, term=greatest + 1)))
        assert core.node.member.term == own
        core.step(RequestReceived(1, HeartBeatRequest(**HEAD, term=greatest)))
        assert core.node.member.term == greatest
        core.node.election.request_votes_in_new_term(core.now_ms)
        assert core.node.member.term == greatest + 1
        encode_entry(entry_of(term=greatest + 1))


def test_a_correct_group_needs_years_for_the_greatest_leap() -> None:
    """An election raises the term by one, and the next one starts after the shortest wait at the earliest."""
    shortest_s = RaftSettings(group="g", self_id="n0", peers=("n0",)).vote_interval_min_ms / 1000
    assert message_bounds.TERM_LEAP_MAX * shortest_s > 20 * 365 * 86_400


def test_a_membership_changes_by_one_voter() -> None:
    core = ScriptedNode(term=2, settings={"file_size": FILE_SIZE})
    core.step(RequestReceived(1, HeartBeatRequest(**HEAD, term=3)))
    for index, (names, code) in enumerate(
        [
            (("n0", "n1", "n2"), DLedgerResponseCode.SUCCESS),
            (("n0", "x1", "x2", "x3"), DLedgerResponseCode.UNEXPECTED_ARGUMENT),
        ]
    ):
        body = encode_members(dict.fromkeys(names, "h:1"))
        entry = make_entry(index, 3, body, core.log.end_pos, FILE_SIZE, MEMBERS_CHANNEL)
        effects = core.step(RequestReceived(1, push_of(entry, PushType.APPEND)))
        effects += core.step(LogSynced(core.log.end_index, core.log.end_term))
        assert [one.response.code for one in effects if isinstance(one, SendResponse)] == [code]
    assert core.node.member.voters == ("n0", "n1", "n2")


# Peers on loopback ------------------------------------------------------------------------------------------


@pytest.fixture
async def group(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[RaftGroup]:
    found = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(3)])
    for name in found.addresses:
        await found.start(name)
    yield found
    for name in list(found.running):
        await found.stop(name)


async def test_one_packet_with_the_greatest_term_does_not_end_a_group(group: RaftGroup) -> None:
    leader = await group.leader()
    await leader.propose(b"before")
    name = next(name for name in group.running if name != leader.settings.self_id)
    request = HeartBeatRequest(
        group="g", remote_id=name, local_id=leader.settings.self_id, term=LONG_MAX, epochmq=FEATURES
    )
    request.leader_id = leader.settings.self_id
    body = await group.ask(name, DLedgerRequestCode.HEART_BEAT, request)
    assert decode_body(HeartBeatResponse, body).code == DLedgerResponseCode.UNEXPECTED_ARGUMENT
    await group.stop(name)
    assert state_files.load_vote(group.folder / name).term == leader.term
    await group.start(name)
    await leader.propose(b"after")


async def test_a_request_that_cannot_be_decoded_gets_an_error_and_is_counted(group: RaftGroup) -> None:
    leader = await group.leader()
    name = leader.settings.self_id
    command = make_request(DLedgerRequestCode.VOTE, body=b'{"term":%d}' % (LONG_MAX + 1))
    response = await group.running[name].client.call(group.addresses[name], command, 60_000)
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "term" in (response.remark or "")
    assert leader.messages_rejected == 1


@pytest.mark.parametrize("blocks", [False, True])
async def test_an_append_that_fits_no_file_does_not_end_the_leader(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], blocks: bool
) -> None:
    group = RaftGroup(tmp_path, [unused_tcp_port_factory()], blocks=blocks)
    await group.start("n0")
    try:
        leader = await group.leader()
        request = AppendEntryRequest(group="g", remote_id="n0", body=bytes((1 << 16) - 55))
        body = await group.ask("n0", DLedgerRequestCode.APPEND, request)
        assert decode_body(AppendEntryResponse, body).code == DLedgerResponseCode.UNEXPECTED_ARGUMENT
        await leader.propose(b"after")
    finally:
        await group.stop("n0")


# Fuzz -------------------------------------------------------------------------------------------------------

NUMBERS = (LONG_MIN, -(1 << 40), INT_MIN, -2, -1, 0, 1, 2, 3, 5, 48, 60, INT_MAX, 1 << 40, LONG_MAX)
WORDS = ("g", "n0", "n1", "n2", "", "x\ny=1", "n9", "\u00e4", "n" * 400, None)
MEMBERS = (None, {}, {"n0": "h:1"}, {"n0": "h:1", "n1": "h:2", "n2": "h:3"}, {"n1": "nonsense"})
REQUESTS = (
    HeartBeatRequest,
    VoteRequest,
    PushEntryRequest,
    InstallSnapshotRequest,
    LeadershipTransferRequest,
)


class Fuzzer:
    """A peer with a log in files that gets the messages of a source of random numbers."""

    def __init__(self, folder: Path, seed: int, *, blocks: bool) -> None:
        self.random = random.Random(seed)
        self.log: FileLog
        body_log: dict[str, Any] = {}
        if blocks:
            self.log = body_log["body_log"] = BlockLog(
                folder, FILE_SIZE, INDEX_FILE_SIZE, check=lambda data, at, size, _: size != 1
            )
        else:
            self.log = FileLog(folder, FILE_SIZE, INDEX_FILE_SIZE)
        self.log.open()
        settings = settings_of("n0", file_size=FILE_SIZE)
        self.core = ScriptedNode(log=self.log, settings={"file_size": settings.file_size}, **body_log)

    def number(self) -> int:
        near = self.random.choice((self.core.node.member.term, self.log.end_index, self.log.end_pos))
        return self.random.choice((*NUMBERS, near, near + 1, near + 1, near + 2))

    def entry(self) -> DLedgerEntry:
        rng, log = self.random, self.log
        body = rng.choice((b"", b"x", b"\0" * 12, rng.randbytes(40), encode_members({"n0": "h:1"})))
        term = max(0, rng.choice((log.end_term, self.core.node.member.term)))
        entry = make_entry(log.end_index + rng.choice((0, 1, 1, 1, 2)), term, body, log.end_pos, FILE_SIZE)
        if rng.random() < 0.2:
            entry = msgspec.structs.replace(entry, channel=MEMBERS_CHANNEL)
        if rng.random() < 0.5:
            field = rng.choice(DLedgerEntry.__struct_fields__)
            if field != "body":
                value = self.number()
                entry = msgspec.structs.replace(entry, **{field: value})
        return entry

    def request(self) -> RequestOrResponse:
        rng = self.random
        term = max(0, self.core.node.member.term + rng.choice((0, 0, 0, 1)))
        kind = rng.choice(REQUESTS)
        head = {**HEAD, "leader_id": rng.choice(("n1", "n2")), "epochmq": rng.choice((None, FEATURES))}
        more: dict[str, Any] = {"entry": self.entry()} if kind is InstallSnapshotRequest else {}
        made: Any = kind(**head, term=term, **more)
        if isinstance(made, PushEntryRequest):
            made.type = rng.choice(tuple(PushType))
            made.entry = rng.choice((None, self.entry(), self.entry()))
            made.commit_index = rng.choice((-1, self.log.end_index))
            if rng.random() < 0.2:
                made.batch_entry = [self.entry() for _ in range(rng.randint(1, 4))]
            if rng.random() < 0.2:
                made.epochmq_block, made.epochmq_count = rng.randbytes(rng.randint(0, 99)), 1
                made.epochmq_first_index = self.log.end_index + 1
        if isinstance(made, InstallSnapshotRequest):
            made.data, made.size = b"x", 1
            made.crc = crc32(made.data)
        if isinstance(made, LeadershipTransferRequest):
            made.transfer_id, made.transferee_id = "n1", "n0"
        for _ in range(rng.randint(0, 2)):
            self.spoil(made)
        return made  # type: ignore[no-any-return]

    def spoil(self, message: Any) -> None:
        """Replaces a field of a message."""
        rng = self.random
        field = rng.choice(message.__struct_fields__)
        value = getattr(message, field)
        if isinstance(value, bool) or field in ("type", "entry", "batch_entry", "epochmq_block", "data"):
            return
        if isinstance(value, VoteResult):
            setattr(message, field, rng.choice(tuple(VoteResult)))
        elif "members" in field:
            setattr(message, field, rng.choice(MEMBERS))
        elif isinstance(value, int) or "epochmq_" in field:
            setattr(message, field, self.number())
        else:
            setattr(message, field, rng.choice(WORDS))

    def answer(self, send: SendRequest) -> RequestOrResponse:
        made: Any = RESPONSE_TYPES[REQUEST_CODES[type(send.request)]]()
        made.term, made.epochmq = send.request.term, FEATURES
        if isinstance(made, VoteResponse):
            made.vote_result = VoteResult.ACCEPT
        for _ in range(self.random.randint(0, 2)):
            self.spoil(made)
        return made  # type: ignore[no-any-return]

    def run(self, steps: int) -> None:
        for number in range(steps):
            choice = self.random.random()
            if choice < 0.1:
                wait_ms = max(0, self.core.node.next_deadline_ms() - self.core.now_ms)
                effects = self.core.step(Tick(), wait_ms)
            elif choice < 0.4 and self.core.sent:
                send = self.core.sent.pop(self.random.randrange(len(self.core.sent)))
                response = self.arrived(type(self.answer(send)), self.answer(send))
                if response is None:
                    continue
                effects = self.core.step(CallCompleted(send.peer, send.context, send.request, response))
            else:
                made = self.request()
                request = self.arrived(type(made), made)
                if request is None:
                    continue
                effects = self.core.step(RequestReceived(number, request), 1)
            self.carry_out(effects)
            self.core.sent = self.core.sent[-20:]
            self.core.node.check_invariants()

    def arrived(self, kind: type[RequestOrResponse], message: RequestOrResponse) -> RequestOrResponse | None:
        """A message as the port decodes it, None if it rejects the message."""
        try:
            return decode_body(kind, encode_body(message))
        except RemoteProtocolError:
            return None

    def carry_out(self, effects: list[RaftEffect]) -> None:
        for effect in effects:
            match effect:
                case EraseDroppedEntries():
                    self.log.erase_now()
                    self.carry_out(self.core.step(ErasureCompleted()))
                case SaveVote(term=term, voted_for=voted_for):
                    assert 0 <= term <= message_bounds.TERM_MAX
                    assert voted_for is None or "\n" not in voted_for
                case SendResponse(response=response):
                    encode_body(response)
                case InstallSnapshot(snapshot=snapshot):
                    self.carry_out(self.core.step(SnapshotInstalled(snapshot)))
                case _:
                    pass
        if self.log.is_writable and self.log.end_index > self.core.node.member.synced_index:
            self.core.step(LogSynced(self.log.end_index, self.log.end_term))


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_no_message_ends_a_peer(tmp_path: Path, seed: int, blocks: bool) -> None:
    """The driver ends a peer for good when the core, or its log, raises an error."""
    fuzzer = Fuzzer(tmp_path, seed, blocks=blocks)
    fuzzer.run(1500)
    member = fuzzer.core.node.member
    assert member.messages_rejected > 0
    assert member.term > 1
