"""A group of peers grows and shrinks by requests to its leader, one peer at a time."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from epochmq_dledger.core.membership import Membership
from epochmq_dledger.core.raft_log import make_entry
from epochmq_dledger.core.types import RaftRole, SavedMembership
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.results import RaftOperationError
from epochmq_dledger.store import state_files
from epochmq_protocol.dledger import (
    MEMBERS_CHANNEL,
    ChangeMembersRequest,
    ChangeMembersResponse,
    DLedgerEntry,
    DLedgerRequestCode,
    DLedgerResponseCode,
    decode_body,
    encode_members,
)
from tests.unit.dledger.raft_group import RaftGroup, until

FIRST = ("n0", "n1", "n2")


def entry_of(index: int, *peers: str) -> DLedgerEntry:
    body = encode_members({peer: f"h:{peer}" for peer in peers})
    return make_entry(index, 1, body, 0, 1 << 20, MEMBERS_CHANNEL)


def test_the_newest_membership_entry_counts_until_it_is_truncated() -> None:
    found = Membership(FIRST)
    assert (found.voters, found.addresses, found.index) == (FIRST, None, -1)
    assert found.add_entries([make_entry(0, 1, b"x", 0, 1 << 20), entry_of(1, "n0", "n1", "n2", "n3")])
    assert found.add_entries([entry_of(4, "n0", "n1", "n3")])
    assert (found.voters, found.index) == (("n0", "n1", "n3"), 4)
    assert [found.addresses_at(index) is None for index in (0, 1)] == [True, False]
    assert found.addresses_at(3) == {peer: f"h:{peer}" for peer in ("n0", "n1", "n2", "n3")}
    assert not found.truncate(4)
    assert found.truncate(3)
    assert (found.voters, found.index) == (("n0", "n1", "n2", "n3"), 1)
    assert found.truncate(0)
    assert (found.voters, found.addresses, found.index) == (FIRST, None, -1)
    assert not found.add_entries([make_entry(1, 1, b"x", 0, 1 << 20)])


def test_a_snapshot_names_the_voters_if_the_log_no_longer_does() -> None:
    found = Membership(FIRST, (9, {"n0": "a", "n5": "b"}))
    assert (found.voters, found.index, found.addresses_at(9)) == (("n0", "n5"), 9, {"n0": "a", "n5": "b"})
    found.add_entries([entry_of(12, "n0")])
    found.forget_before(12)
    assert found.addresses_at(12) == {"n0": "h:n0"}
    found.reset(20, None)
    assert (found.voters, found.addresses) == (FIRST, None)


@pytest.fixture
async def group(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[RaftGroup]:
    """n0, n1 and n2 run; n3 and n4 have addresses."""
    found = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(5)])
    for name in FIRST:
        await found.start(name, {one: found.addresses[one] for one in FIRST})
    yield found
    for name in list(found.running):
        await found.stop(name)


async def change(
    group: RaftGroup, peer_id: str | None = None, to: str | None = None
) -> ChangeMembersResponse:
    """Sends a request to the leader, and retries while the leader is not ready."""
    unknown = peer_id if peer_id is not None and to is not None else ""
    while True:
        name = (await group.leader(without=unknown)).settings.self_id
        request = ChangeMembersRequest(group="g", remote_id=name, peer_id=peer_id, address=to)
        data = await group.ask(name, DLedgerRequestCode.CHANGE_MEMBERS, request)
        response = decode_body(ChangeMembersResponse, data)
        if response.code != DLedgerResponseCode.LEADER_NOT_READY:
            return response


async def proposed(group: RaftGroup, body: bytes) -> DLedgerPeer:
    """Appends an entry at the leader, and at the next one if it loses its leadership; returns the leader."""
    while True:
        leader = await group.leader()
        try:
            await leader.propose(body)
        except RaftOperationError:
            await asyncio.sleep(0.05)
        else:
            return leader


async def join(group: RaftGroup, name: str) -> None:
    """Starts a new peer, and adds it."""
    await group.start(name, {one: group.addresses[one] for one in (*FIRST, name)}, joining=True)
    response = await change(group, name, group.addresses[name])
    assert response.code == DLedgerResponseCode.SUCCESS, response
    assert name in response.members


async def test_three_become_five_and_three_and_nothing_is_lost(group: RaftGroup) -> None:
    leader = await group.leader()
    term = leader.term
    await asyncio.gather(*(leader.propose(b"%d" % i) for i in range(100)))
    await join(group, "n3")
    await leader.propose(b"100")
    await join(group, "n4")
    assert set(leader.members) == set(group.addresses)
    gone = [name for name in FIRST if name != leader.settings.self_id]
    for name in gone:
        response = await change(group, name)
        assert (response.code, name in response.members) == (DLedgerResponseCode.SUCCESS, False)
        again = await change(group, name)
        assert again.code == DLedgerResponseCode.SUCCESS
    assert leader.term == term
    kept = {leader.settings.self_id, "n3", "n4"}
    for name in gone:
        peer = group.running[name].peer
        await until(lambda peer=peer: set(peer.members) == kept)
    await leader.propose(b"101")
    for name in kept:
        running = group.running[name]
        await until(lambda running=running: len([e for e in running.applied if e.body]) == 102)
        assert [entry.body for entry in running.applied if entry.body] == [b"%d" % i for i in range(102)]


async def test_the_log_names_the_members_even_after_a_restart_with_the_old_setting(group: RaftGroup) -> None:
    await join(group, "n3")
    for name in list(group.running):
        await group.stop(name)
    for name in (*FIRST, "n3"):
        await group.start(name, {one: group.addresses[one] for one in FIRST} | {name: group.addresses[name]})
    leader = await group.leader()
    assert set(leader.members) == {*FIRST, "n3"}
    await leader.propose(b"x")
    assert [name for name in group.running if group.running[name].peer.members != leader.members] == []


async def test_a_member_moves_to_another_address(group: RaftGroup) -> None:
    leader = await group.leader()
    name = next(one for one in FIRST if one != leader.settings.self_id)
    await group.stop(name)
    group.addresses[name] = group.addresses["n4"]
    await group.start(name, {one: group.addresses[one] for one in FIRST})
    response = await change(group, name, group.addresses[name])
    assert (response.code, response.members[name]) == (DLedgerResponseCode.SUCCESS, group.addresses["n4"])
    await leader.propose(b"x")
    moved = group.running[name]
    await until(lambda: [entry.body for entry in moved.applied if entry.body] == [b"x"])


async def test_a_leader_transfers_its_leadership_before_it_is_removed(group: RaftGroup) -> None:
    leader = await group.leader()
    name = leader.settings.self_id
    first = await change(group, name)
    while first.code == DLedgerResponseCode.TAKE_LEADERSHIP_FAILED:  # none took it in time: ask again
        first = await change(group, name)
    assert first.code == DLedgerResponseCode.NOT_LEADER
    await until(lambda: leader.role is not RaftRole.LEADER)
    response = await change(group, name)
    assert response.code == DLedgerResponseCode.SUCCESS
    assert set(response.members) == set(FIRST) - {name}
    await until(lambda: name not in leader.members)
    term = leader.term
    await (await group.leader()).propose(b"without")
    assert leader.term == term


async def test_invalid_changes_are_rejected_and_reads_change_nothing(group: RaftGroup) -> None:
    assert set((await change(group)).members) == set(FIRST)
    for peer_id, address in (("n-3", "h:1"), ("n3", "h"), ("", "h:1"), ("n3", "h:1;n4-h:2")):
        response = await change(group, peer_id, address)
        assert response.code == DLedgerResponseCode.UNEXPECTED_ARGUMENT
    follower = next(r.peer for r in group.running.values() if r.peer.role is not RaftRole.LEADER)
    with pytest.raises(RaftOperationError) as caught:
        await follower.change_members("n3", "h:1")
    assert caught.value.code is DLedgerResponseCode.NOT_LEADER
    assert set((await change(group)).members) == set(FIRST)


async def test_a_peer_with_other_shared_settings_is_ignored_and_an_error_is_logged(
    group: RaftGroup, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await group.leader()
    name = next(one for one in FIRST if one != leader.settings.self_id)
    for one in FIRST:
        await group.stop(one)
    for one in FIRST:
        await group.start(
            one,
            {each: group.addresses[each] for each in FIRST},
            shared_settings=f"lease={1 if one == name else 2}",
        )
    leader = await group.leader(without=name)
    await leader.propose(b"x")
    text = f"peer {name} has lease=1, expected lease=2 as here; its messages are ignored until both are equal"
    await until(lambda: text in caplog.text)
    assert leader.settings.self_id != name
    assert group.running[name].peer.leader_id is None


async def test_peers_with_block_logs_know_their_voters_after_the_entries_that_name_them_expired(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    group = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(4)], blocks=True)
    try:
        for name in FIRST:
            await group.start(name, {one: group.addresses[one] for one in FIRST})
        await (await group.leader()).propose(b"first")
        await join(group, "n3")
        leader = await group.leader()
        removed = next(name for name in FIRST if name != leader.settings.self_id)
        assert (await change(group, removed)).code == DLedgerResponseCode.SUCCESS
        kept = {*group.addresses} - {removed}
        await until(lambda: set(group.running[removed].peer.members) == kept)
        await group.stop(removed)
        for number in range(40):
            leader = await proposed(group, b"%d" % number + bytes(10_000))
        for name in kept:
            running = group.running[name].peer
            await until(lambda peer=running: peer.committed_index == leader.log.end_index)
            await until(lambda peer=running: peer.log.durable_index == peer.log.end_index)
            running.log.expire_files(running.log.end_pos, running.committed_index)
            assert running.log.begin_index > running.node.member.membership.index
        for name in kept:
            await group.stop(name)
            await group.start(name, {one: group.addresses[one] for one in group.addresses})
        assert all(set(group.running[name].peer.members) == kept for name in kept)
        await proposed(group, b"last")
        await join_again(group, removed)
        leader = await group.leader()
        assert set(leader.members) == set(group.addresses)
        assert group.running[removed].peer.log.begin_index == leader.log.begin_index
    finally:
        for name in list(group.running):
            await group.stop(name)


async def join_again(group: RaftGroup, name: str) -> None:
    """Adds a removed peer with an empty directory."""
    shutil.rmtree(group.folder / name)
    await join(group, name)


def test_a_damaged_file_of_memberships_is_no_group(tmp_path: Path) -> None:
    saved = [SavedMembership(3, 2, None, begins_log=True), SavedMembership(7, 2, {"n0": "h:1"})]
    state_files.save_memberships(tmp_path, saved)
    assert state_files.load_memberships(tmp_path) == saved
    path = tmp_path / state_files.MEMBERSHIPS
    for damaged in (path.read_bytes()[:-1], path.read_bytes().replace(b"n0", b"n1"), b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="Remove the peer from the group"):
            state_files.load_memberships(tmp_path)
