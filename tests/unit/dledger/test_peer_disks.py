"""Three peers on loopback with disks that are slow, fail, or have lost data."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from epochmq_dledger import checkpoint_writer, core_driver
from epochmq_dledger.core.types import RaftRole
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.results import RaftOperationError
from epochmq_dledger.store import damage_evidence, segments
from epochmq_dledger.store.state_files import load_vote
from epochmq_protocol import durable_files
from epochmq_protocol.dledger import DLedgerResponseCode
from tests.support.full_disk import FullDisk
from tests.unit.dledger.raft_group import RaftGroup, until

PACE = {"heartbeat_interval_ms": 300, "file_size": 1 << 12}


@pytest.fixture
async def group(tmp_path: Path, unused_tcp_port_factory: Callable[[], int]) -> AsyncIterator[RaftGroup]:
    found = RaftGroup(tmp_path, [unused_tcp_port_factory() for _ in range(3)], settings=PACE)
    for name in found.addresses:
        await found.start(name)
    yield found
    for name in list(found.running):
        await found.stop(name)


class SlowDisk:
    """Blocks every fsync of this process until `go_on` is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on = Event()
        self.waiting = 0
        for module in (segments, durable_files):
            for name in ("fsync", "fdatasync"):
                patch.setattr(module.os, name, self._slow(getattr(os, name)))

    def _slow(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            self.waiting += 1
            assert self.go_on.wait(60)
            self.waiting -= 1
            real(fd)

        return sync


@pytest.mark.long
async def test_a_slow_sync_stops_neither_heartbeats_nor_reads(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of all peers block in appends, checkpoints and new files. Meanwhile the leader confirms
    reads and the followers hear it, for longer than the election timeout."""
    leader = await group.leader()
    await leader.propose(b"first")
    term = leader.term
    monkeypatch.setattr(checkpoint_writer, "CHECKPOINT_INTERVAL_S", 0.05)
    for running in group.running.values():
        running.peer._checkpoints.due_s = 0.0
    with monkeypatch.context() as patch:
        disk = SlowDisk(patch)
        outcomes: list[Any] = []
        for number in range(10):
            leader.submit((b"%d" % number * 500,), outcomes.append)
        await until(lambda: disk.waiting >= 3)
        loop = asyncio.get_running_loop()
        began = loop.time()
        reads = 0
        while loop.time() - began < 2.0:
            assert await leader.read_index() >= 0
            reads += 1
        assert outcomes == []
        disk.go_on.set()
        await until(lambda: len(outcomes) == 10)
    assert reads > 20
    assert (leader.role, leader.term) == (RaftRole.LEADER, term)
    assert not any(isinstance(one, RaftOperationError) for one in outcomes)


async def test_no_effect_after_a_vote_is_carried_out_before_it_is_saved(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await group.leader()
    await leader.propose(b"x")
    heir = next(r.peer for r in group.running.values() if r.peer is not leader)
    with monkeypatch.context() as patch:
        disk = SlowDisk(patch)
        transfer = asyncio.ensure_future(leader.transfer_leadership(heir.settings.self_id))
        await until(lambda: disk.waiting >= 1)
        for _ in range(20):
            await asyncio.sleep(0)
            assert heir.role is not RaftRole.LEADER
        disk.go_on.set()
        await asyncio.wait([transfer])
    await until(lambda: any(r.peer.role is RaftRole.LEADER for r in group.running.values()))


async def test_a_disk_error_stops_the_peer_and_is_not_reported_as_a_full_disk(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await group.leader()
    await leader.propose(b"x")
    fatal: list[Exception] = []
    leader._driver._on_fatal = fatal.append

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(segments.os, "pwrite", broken)
        with pytest.raises(RaftOperationError) as caught:
            await leader.propose(b"y")
    assert caught.value.code is DLedgerResponseCode.TERM_CHANGED, "its fate is open"
    assert [type(one) for one in fatal] == [OSError]
    with pytest.raises(RaftOperationError):
        await leader.propose(b"z")


async def test_a_program_error_in_the_core_stops_the_peer(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer without its timer must not continue."""
    leader = await group.leader()
    fatal: list[Exception] = []
    leader._driver._on_fatal = fatal.append

    def wrong(*_: object) -> None:
        raise AssertionError("a mistake")

    monkeypatch.setattr(leader.node, "step", wrong)
    with pytest.raises(RaftOperationError):
        await leader.read_index()
    assert [str(one) for one in fatal] == ["a mistake"]
    others = [r.peer for r in group.running.values() if r.peer is not leader]
    await until(lambda: any(peer.role is RaftRole.LEADER for peer in others))


async def test_a_full_disk_is_reported_once_no_byte_of_the_append_can_come_back(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await group.leader()
    await leader.propose(b"x")
    end = leader.log.end_index
    real = os.pwrite
    left = 100

    def pwrite(fd: int, data: bytes, at: int) -> int:
        nonlocal left
        if not data.strip(b"\0"):
            return real(fd, data, at)
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(fd, data[:left], at)
        left -= done
        return done

    with monkeypatch.context() as patch:
        disk = SlowDisk(patch)
        patch.setattr(segments.os, "pwrite", pwrite)
        outcomes: list[Any] = []
        leader.submit((b"y" * 300,), outcomes.append)
        await until(lambda: disk.waiting >= 1)
        assert (outcomes, leader.log.end_index) == ([], end)
        disk.go_on.set()
        await until(lambda: len(outcomes) == 1)
    assert outcomes[0].code is DLedgerResponseCode.DISK_FULL
    appended = await leader.propose(b"z")
    assert appended.index == end + 1


async def test_a_peer_that_cannot_save_its_vote_takes_part_again_once_there_is_space(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three are left, so the one with the full disk has to vote. It casts no vote that it has not
    saved, and stops neither for good nor after many attempts."""
    monkeypatch.setattr(core_driver, "SAVE_RETRY_S", 0.01)
    leader = await group.leader()
    await leader.propose(b"x")
    full = next(running.peer for running in group.running.values() if running.peer is not leader)
    disk = FullDisk(monkeypatch, full.folder)
    await group.stop(leader.settings.self_id)
    await until(lambda: disk.rejected >= 20 and full.is_paused)
    assert full.role is not RaftRole.LEADER
    assert not any(running.peer.role is RaftRole.LEADER for running in group.running.values())
    with pytest.raises(RaftOperationError) as caught:
        await full.propose(b"y")
    assert caught.value.code is DLedgerResponseCode.DISK_FULL
    with pytest.raises(RaftOperationError):
        await full.read_index()
    rejected: list[int] = []
    drop_request = full._operations.drop_request
    with monkeypatch.context() as patch:
        patch.setattr(
            full._operations, "drop_request", lambda token: (rejected.append(token), drop_request(token))
        )
        await until(lambda: len(rejected) >= 5)
    dispatcher = group.running[full.settings.self_id].server.dispatcher
    assert dispatcher.in_flight <= 2, "the requests that were rejected are not kept"
    disk.has_space = True
    leader = await group.leader()
    appended = await leader.propose(b"z")
    await until(lambda: full.applied_index >= appended.index)
    assert not full.is_paused


async def test_a_peer_stops_while_it_cannot_save_its_vote(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_driver, "SAVE_RETRY_S", 0.01)
    leader = await group.leader()
    full = next(running.peer for running in group.running.values() if running.peer is not leader)
    FullDisk(monkeypatch, full.folder)
    await group.stop(leader.settings.self_id)
    await until(lambda: full.is_paused)
    async with asyncio.timeout(60):
        await group.stop(full.settings.self_id)


# Recovery ---------------------------------------------------------------------------------------------------


def flip(peer: DLedgerPeer, index: int) -> None:
    """Flips a bit of an entry's body on the disk of a stopped peer."""
    entry = peer.log._cache.entries.get(index)
    assert entry is not None
    base = entry.pos - entry.pos % peer.settings.file_size
    with (peer.folder / "data" / f"{base:020d}").open("r+b") as file:
        file.seek(entry.pos - base + 50)
        byte = file.read(1)[0]
        file.seek(entry.pos - base + 50)
        file.write(bytes([byte ^ 1]))


async def fill(group: RaftGroup, count: int = 30) -> DLedgerPeer:
    """Appends entries to all peers. Returns a follower."""
    leader = await group.leader()
    for number in range(count):
        appended = await leader.propose(b"number %4d" % number)
    for running in group.running.values():
        await until(lambda running=running: running.peer.applied_index >= appended.index)
    return next(r.peer for r in group.running.values() if r.peer is not leader)


async def test_a_peer_with_a_damaged_log_preserves_evidence_and_catches_up_before_it_votes(
    group: RaftGroup,
) -> None:
    follower = await fill(group)
    name, folder = follower.settings.self_id, follower.folder
    leader = await group.leader()
    other = next(n for n, r in group.running.items() if r.peer not in (follower, leader))
    await group.stop(name)
    flip(follower, 12)
    await group.stop(other)  # so that nobody leads, and nothing can be caught up with
    for _ in range(2):  # it survives a restart
        await group.start(name)
        peer = group.running[name].peer
        assert peer.node.member.rejoin is not None
        assert (peer.log.end_index, peer.committed_index) == (11, 11)
        await group.stop(name)
    kept = sorted(path.name for path in folder.glob("damaged-*"))
    assert kept == ["damaged-1"], "the evidence is kept once"
    report = (folder / "damaged-1" / "REPORT").read_text()
    assert "entry 12" in report
    assert "byte" in report
    assert any(path.name.isdigit() for path in (folder / "damaged-1").iterdir())
    await group.start(name)
    await group.start(other)
    peer = group.running[name].peer
    await until(lambda: peer.node.member.rejoin is None)
    await until(lambda: not (folder / damage_evidence.REJOIN).exists())
    await until(lambda: [e.body for e in group.running[name].applied if e.body][:30][-1] == b"number   29")
    leader = await group.leader()
    await leader.propose(b"more")


async def test_a_new_peer_saves_its_term_before_it_follows_anybody(group: RaftGroup) -> None:
    """Else its next start takes the missing file for a lost vote."""
    for running in group.running.values():
        assert (running.peer.folder / "currterm").exists()


async def test_a_log_that_ends_before_its_checkpoint_rejoins(group: RaftGroup) -> None:
    follower = await fill(group)
    name, folder = follower.settings.self_id, follower.folder
    last = follower.log.end_index
    await group.stop(name)
    flip(follower, last)
    await group.start(name)
    assert "was committed" in (folder / "damaged-1" / "REPORT").read_text()
    peer = group.running[name].peer
    await until(lambda: peer.node.member.rejoin is None and peer.applied_index >= last)


async def test_a_peer_with_a_lost_vote_does_not_vote_in_terms_that_others_know(group: RaftGroup) -> None:
    follower = await fill(group, 3)
    name, folder = follower.settings.self_id, follower.folder
    term = follower.term
    await group.stop(name)
    (folder / "currterm").write_text("")
    await group.start(name)
    peer = group.running[name].peer
    assert peer.node.member.rejoin is not None
    assert damage_evidence.load_rejoin_mark(folder) == damage_evidence.RejoinMark(vote_lost=True)
    await until(lambda: peer.node.member.rejoin is None)
    await until(lambda: load_vote(folder).voted_for == name)
    assert load_vote(folder).term >= term, "its own vote stands for all of them"
    assert (folder / "damaged-1" / "currterm").read_text() == ""


async def test_the_only_voter_does_not_start_with_a_damaged_log_and_says_what_to_do(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    group = RaftGroup(tmp_path, [unused_tcp_port], settings=PACE)
    await group.start("n0")
    peer = await group.leader()
    for number in range(10):
        await peer.propose(b"number %4d" % number)
    await group.stop("n0")
    flip(peer, 4)
    before = {path.name: path.read_bytes() for path in (peer.folder / "data").iterdir()}
    for _ in range(2):
        with pytest.raises(
            damage_evidence.DamagedFolderError, match=r"entry 4.*only voter.*backup.*accept-loss"
        ):
            await group.start("n0")
    assert {path.name: path.read_bytes() for path in (peer.folder / "data").iterdir()} == before
    (peer.folder / damage_evidence.ACCEPT_LOSS).touch()
    await group.start("n0")
    peer = await group.leader()
    assert (await peer.propose(b"on")).index >= 4
    assert not (peer.folder / damage_evidence.ACCEPT_LOSS).exists()
    await group.stop("n0")


async def test_a_peer_does_not_start_after_a_fourth_damage(group: RaftGroup) -> None:
    follower = await fill(group, 3)
    name, folder = follower.settings.self_id, follower.folder
    await group.stop(name)
    for number in (1, 2, 3):
        (folder / f"damaged-{number}").mkdir()
    flip(follower, follower.log.end_index)
    with pytest.raises(damage_evidence.DamagedFolderError, match="check the disk"):
        await group.start(name)


async def test_a_checkpoint_names_only_durable_entries(
    group: RaftGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that ends before its checkpoint would look damaged after a power failure. A follower with a slow
    disk can know a committed index beyond its durable entries."""
    follower = await fill(group, 3)
    leader = await group.leader()
    end = follower.log.durable_index
    monkeypatch.setattr(follower._context.sync_worker, "run", lambda *_: None)
    appended = await leader.propose(b"x")
    await leader.propose(b"y")
    await until(lambda: follower.committed_index >= appended.index)
    assert follower._checkpoints.durable() == (end, end)
    monkeypatch.undo()
    follower._syncer._is_syncing = False
