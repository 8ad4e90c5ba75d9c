"""Three peers on loopback append, transfer leadership, survive restarts, and respond as DLedger does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from epochmq_dledger import log_syncer
from epochmq_dledger.core.types import RaftRole, SendRequest
from epochmq_dledger.peer_addresses import parse_peers
from epochmq_dledger.results import RaftOperationError
from epochmq_dledger.store.segments import UnsyncedFiles, sync_and_close
from epochmq_dledger.store.state_files import load_stopped_end
from epochmq_protocol.dledger import (
    AppendEntryRequest,
    AppendEntryResponse,
    DLedgerRequestCode,
    DLedgerResponseCode,
    GetEntriesRequest,
    GetEntriesResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    RequestOrResponse,
    decode_body,
)
from tests.unit.dledger.raft_group import RaftGroup, until


@pytest.fixture
async def group(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[RaftGroup]:
    found = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(3)])
    for name in found.addresses:
        await found.start(name)
    yield found
    for name in list(found.running):
        await found.stop(name)


async def test_all_peers_apply_appended_entries_in_order(group: RaftGroup) -> None:
    leader = await group.leader()
    appended = await asyncio.gather(*(leader.propose(b"%d" % i) for i in range(300)))
    assert [one.index for one in appended] == list(range(appended[0].index, appended[0].index + 300))
    for running in group.running.values():
        await until(lambda running=running: len(running.applied) == appended[-1].index + 1)
        assert [entry.body for entry in running.applied if entry.body] == [b"%d" % i for i in range(300)]


async def test_an_asynchronous_flush_follows_soon(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each of two appends: nothing but the timer starts it."""
    syncs = 0

    def counted(unsynced: UnsyncedFiles) -> None:
        nonlocal syncs
        sync_and_close(unsynced)
        syncs += bool(unsynced.files)

    monkeypatch.setattr(log_syncer, "sync_and_close", counted)
    group = RaftGroup(tmp_path, [unused_tcp_port_factory()], flush_async=True)
    await group.start("n0")
    try:
        leader = await group.leader()
        for _ in range(2):
            before = syncs
            await leader.propose(b"x")
            await until(lambda before=before: syncs > before)
    finally:
        await group.stop("n0")


async def test_proposals_of_one_turn_are_pushed_together(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await group.leader()
    await leader.propose(b"first")
    pushed: list[int] = []
    start = leader._calls.start

    def counted(effect: SendRequest) -> None:
        if isinstance(effect.request, PushEntryRequest):
            pushed.append(len(effect.request.entries))
        start(effect)

    monkeypatch.setattr(leader._calls, "start", counted)
    await asyncio.gather(*(leader.propose(b"%d" % i) for i in range(100)))
    assert max(pushed) >= 100  # 101 for a peer that has not had the first one yet
    assert len(pushed) <= 20  # a few, some of which a slow disk makes come again


async def test_an_orderly_stop_with_asynchronous_flush_loses_nothing(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    group = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(3)], flush_async=True)
    for _ in range(2):
        for name in group.addresses:
            await group.start(name)
        leader = await group.leader()
        await asyncio.gather(*(leader.propose(b"%d" % i) for i in range(200)))
        end = leader.log.end_index
        await until(lambda end=end: all(r.peer.log.end_index >= end for r in group.running.values()))
        for name in list(group.running):
            ended = group.running[name].peer.log.end_index
            await group.stop(name)
            assert load_stopped_end(tmp_path / name) == ended
    await group.start("n0")
    log = group.running["n0"].peer.log
    bodies = [entry.body for i in range(log.end_index + 1) if (entry := log.entry(i)) and entry.body]
    assert bodies == [b"%d" % i for i in range(200)] * 2
    await group.stop("n0")


async def test_a_group_continues_without_its_leader_and_takes_it_back(group: RaftGroup) -> None:
    leader = await group.leader()
    await leader.propose(b"one")
    await group.stop(leader.settings.self_id)
    successor = await group.leader()
    await successor.propose(b"two")
    await group.start(leader.settings.self_id)
    back = group.running[leader.settings.self_id]
    await until(lambda: [entry.body for entry in back.applied if entry.body] == [b"one", b"two"])


async def test_a_peer_restarts_with_its_log_term_and_applied_entries(group: RaftGroup) -> None:
    leader = await group.leader()
    await leader.propose(b"kept")
    term = leader.term
    for name in list(group.running):
        await group.stop(name)
    for name in group.addresses:
        await group.start(name)
    leader = await group.leader()
    assert leader.term > term
    await leader.propose(b"more")
    for running in group.running.values():
        await until(lambda running=running: [e.body for e in running.applied if e.body] == [b"kept", b"more"])


async def test_the_leader_confirms_reads_and_other_peers_reject_them(group: RaftGroup) -> None:
    leader = await group.leader()
    appended = await leader.propose(b"x")
    assert await leader.read_index() >= appended.index
    other = next(r.peer for r in group.running.values() if r.peer is not leader)
    with pytest.raises(RaftOperationError) as rejected:
        await other.read_index()
    assert rejected.value.code is DLedgerResponseCode.NOT_LEADER
    with pytest.raises(RaftOperationError):
        await other.propose(b"y")


async def test_leadership_is_transferred_on_request(group: RaftGroup) -> None:
    leader = await group.leader()
    await leader.propose(b"x")
    other = next(name for name in group.running if name != leader.settings.self_id)
    await leader.transfer_leadership(other)
    await until(lambda: group.running[other].peer.role is RaftRole.LEADER)
    await group.running[other].peer.propose(b"y")


async def test_a_transfer_of_another_term_is_rejected(group: RaftGroup) -> None:
    leader = await group.leader()
    await leader.propose(b"x")
    name = leader.settings.self_id
    other = next(name for name in group.running if name != leader.settings.self_id)
    request = LeadershipTransferRequest(transfer_id=name, transferee_id=other)
    request.group, request.remote_id, request.term = "g", name, leader.term - 1
    data = await group.ask(name, DLedgerRequestCode.LEADERSHIP_TRANSFER, request)
    code = decode_body(LeadershipTransferResponse, data).code
    assert code == DLedgerResponseCode.INCONSISTENT_TERM
    assert leader.role is RaftRole.LEADER


async def test_clients_append_and_read_as_with_dledger(group: RaftGroup) -> None:
    leader = await group.leader()
    name = leader.settings.self_id
    await leader.propose(b"first")

    def addressed(request: RequestOrResponse, to: str) -> RequestOrResponse:
        request.group, request.remote_id = "g", to
        return request

    data = await group.ask(name, DLedgerRequestCode.APPEND, addressed(AppendEntryRequest(body=b"hi"), name))
    appended = decode_body(AppendEntryResponse, data)
    assert appended.code == DLedgerResponseCode.SUCCESS
    get = addressed(GetEntriesRequest(begin_index=appended.index), name)
    got = decode_body(GetEntriesResponse, await group.ask(name, DLedgerRequestCode.GET, get))
    assert [(entry.index, entry.pos, entry.body) for entry in got.entries] == [
        (appended.index, appended.pos, b"hi")
    ]
    metadata = await group.ask(name, DLedgerRequestCode.METADATA, addressed(MetadataRequest(), name))
    known = decode_body(MetadataResponse, metadata)
    assert (known.leader_id, known.peers) == (name, group.addresses)

    other = next(one for one in group.running if one != name)
    request = addressed(AppendEntryRequest(body=b"hi"), other)
    rejected = decode_body(AppendEntryResponse, await group.ask(other, DLedgerRequestCode.APPEND, request))
    assert rejected.code == DLedgerResponseCode.NOT_LEADER
    assert rejected.leader_id == name
    astray = AppendEntryRequest(group="other", remote_id=name)
    rejected = decode_body(AppendEntryResponse, await group.ask(name, DLedgerRequestCode.APPEND, astray))
    assert rejected.code == DLedgerResponseCode.UNKNOWN_GROUP


def test_peers_may_have_dashes_in_their_hosts() -> None:
    """apache/rocketmq 1443: Java's controller fails with a dash in a host name."""
    assert parse_peers("n0-my-host-0.svc:1;n1-b:2;") == {"n0": "my-host-0.svc:1", "n1": "b:2"}
    for wrong in ("", "n0", "n0-host", "n0-host:x", "n0-a:1;n0-b:2", "-a:1"):
        with pytest.raises(ValueError, match=r"expected|twice"):
            parse_peers(wrong)


def test_a_deadline_that_is_due_at_once_works_on_uvloop(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop returns another kind of timer for it. Without this check one of a hundred kills ended the
    process."""

    async def life() -> None:
        group = RaftGroup(tmp_path, [unused_tcp_port])
        await group.start("n0")
        try:
            peer = await group.leader()
            monkeypatch.setattr(peer.node, "next_deadline_ms", lambda: 0)
            proven: list[object] = []
            for _ in range(3):
                peer.confirm_leadership(proven.append)
            monkeypatch.undo()
            await until(lambda: len(proven) == 3)
        finally:
            await group.stop("n0")

    uvloop.run(life())
