"""Snapshots replace the first entries of a log: on disk, at a restart, and for a peer that lags behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import make_entry
from epochmq_dledger.core.types import Snapshot
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.segments import sync_and_close
from epochmq_dledger.store.snapshot_file import SnapshotFile, open_snapshot
from epochmq_formats.dledger_log import encode_entry
from epochmq_formats.dledger_peer_files import SNAPSHOT_MAGIC
from epochmq_protocol.dledger import (
    DLedgerEntry,
    DLedgerRequestCode,
    DLedgerResponseCode,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    decode_body,
)
from tests.unit.dledger.raft_group import RaftGroup, RunningPeer, until

FILE_SIZE = 1024
INDEX_FILE_SIZE = 32 * 16


def opened(folder: Path) -> FileLog:
    log = FileLog(folder, FILE_SIZE, INDEX_FILE_SIZE)
    log.open()
    return log


def filled(log: FileLog, count: int) -> list[DLedgerEntry]:
    """Appends entries of 100 bytes."""
    entries = []
    for _ in range(count):
        entry = make_entry(log.end_index + 1, 1, b"%052d" % log.end_index, log.end_pos, FILE_SIZE)
        log.append([entry])
        entries.append(entry)
    return entries


@pytest.mark.parametrize("at", range(0, 60, 7))
def test_a_log_drops_whole_files_before_an_entry_and_restarts_without_them(tmp_path: Path, at: int) -> None:
    log = opened(tmp_path)
    entries = filled(log, 60)
    log.drop_before(at)
    for removal in log.take_removals():
        removal()
    begin = log.begin_index
    assert begin <= at
    assert entries[at].pos - entries[begin].pos < FILE_SIZE
    assert entries[begin].pos % FILE_SIZE == 0
    for _ in range(2):
        assert (log.begin_index, log.end_index) == (begin, 59)
        for entry in entries:
            assert log.entry(entry.index) == (entry if entry.index >= begin else None)
            assert log.term(entry.index) == (1 if entry.index >= begin else -1)
        assert [path.name for path in sorted((tmp_path / "data").iterdir())] == [
            f"{base:020d}" for base in range(entries[begin].pos, log.end_pos, FILE_SIZE)
        ]
        sync_and_close(log.take_unsynced())
        log.close()
        log = opened(tmp_path)
    filled(log, 30)
    assert log.end_index == 89
    log.close()


def snapshot_of(entry: DLedgerEntry, data: bytes) -> Snapshot:
    return Snapshot(entry, len(data), zlib.crc32(data), {"n0": "h:1"})


def saved(folder: Path, snapshot: Snapshot, data: bytes) -> SnapshotFile:
    snapshots = SnapshotFile(folder)
    snapshots.set_current(snapshot, snapshots.save(snapshot, data))
    return snapshots


def test_a_snapshot_is_read_in_chunks_and_replaced_as_a_whole(tmp_path: Path) -> None:
    entry = make_entry(7, 3, b"x", 700, FILE_SIZE)
    first = saved(tmp_path, snapshot_of(entry, b"first"), b"first")
    data = random.Random(1).randbytes(3000)
    first.set_current(snapshot_of(entry, data), first.save(snapshot_of(entry, data), data))
    again = SnapshotFile(tmp_path)
    again.open()
    for one in (first, again):
        assert one.current == snapshot_of(entry, data)
        assert b"".join(one.read(at, 1000) for at in (0, 1000, 2000)) == data
        one.close()


def test_a_snapshot_with_any_changed_byte_is_rejected(tmp_path: Path) -> None:
    saved(tmp_path, snapshot_of(make_entry(7, 3, b"x", 700, FILE_SIZE), b"data"), b"data").close()
    path = tmp_path / "snapshot"
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x20]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="snapshot"):
            SnapshotFile(tmp_path).open()
        path.write_bytes(whole[:at])
        with pytest.raises(ValueError, match="snapshot"):
            SnapshotFile(tmp_path).open()
    assert whole.startswith(SNAPSHOT_MAGIC)


def test_a_log_that_lags_behind_its_snapshot_after_a_crash_is_reset(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 5)
    entry = make_entry(30, 2, b"committed elsewhere", 2100, FILE_SIZE)
    snapshots = saved(tmp_path, snapshot_of(entry, b"state"), b"state")
    assert open_snapshot(log, snapshots, has_state_machine=True) == snapshots.current
    log.close()
    log = opened(tmp_path)
    assert (log.begin_index, log.end_index, log.end_term) == (30, 30, 2)
    assert log.entry(30) == entry
    log.close()
    snapshots.close()


def test_entries_that_are_neither_in_log_nor_snapshot_are_an_error(tmp_path: Path) -> None:
    log = opened(tmp_path)
    entries = filled(log, 60)
    log.drop_before(40)
    with pytest.raises(ValueError, match=f"begins at entry {log.begin_index}"):
        open_snapshot(log, SnapshotFile(tmp_path), has_state_machine=True)
    assert open_snapshot(log, SnapshotFile(tmp_path), has_state_machine=False) is None
    saved(tmp_path, snapshot_of(entries[3], b"old"), b"old").close()
    with pytest.raises(ValueError, match=r"ends at 3"):
        open_snapshot(log, SnapshotFile(tmp_path), has_state_machine=True)
    (tmp_path / "snapshot").write_bytes(b"garbled")
    with pytest.raises(ValueError, match="no snapshot of this version"):
        open_snapshot(log, SnapshotFile(tmp_path), has_state_machine=True)
    log.close()


def test_a_complete_log_is_replayed_if_the_snapshot_is_damaged(tmp_path: Path) -> None:
    log = opened(tmp_path)
    filled(log, 5)
    (tmp_path / "snapshot").write_bytes(b"garbled")
    assert open_snapshot(log, SnapshotFile(tmp_path), has_state_machine=True) is None
    log.close()


# Peers ------------------------------------------------------------------------------------------------------


class Bodies:
    """A state machine: the list of applied entries, saved as the text of their bodies."""

    def __init__(self, applied: list[DLedgerEntry]) -> None:
        self.applied = applied

    def save(self) -> bytes:
        return json.dumps([entry.body.decode() for entry in self.applied if entry.body]).encode()

    def check(self, data: bytes) -> None:
        json.loads(data)

    def restore(self, data: bytes) -> None:
        self.applied[:] = [DLedgerEntry(-1, -1, -1, one.encode(), 0) for one in json.loads(data)]


def bodies(running: RunningPeer) -> list[bytes]:
    return [entry.body for entry in running.applied if entry.body]


async def test_peers_save_snapshots_and_restart_from_them(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """The log drops its first entries, a restart does not need them, and a peer that lags behind receives the
    rest."""
    settings = {"snapshot_entries": 50, "snapshot_chunk_bytes": 300, "file_size": 4096}
    ports = [unused_tcp_port_factory() for _ in range(3)]
    group = RaftGroup(tmp_path, ports, machines=Bodies, settings=settings)
    wanted = [b"entry %d %s" % (i, b"." * (i % 50)) for i in range(600)]
    for name in group.addresses:
        await group.start(name)
    try:
        leader = await group.leader()
        away = next(name for name in group.addresses if name != leader.settings.self_id)
        await leader.propose(wanted[0])
        await until(lambda: all(bodies(one) == wanted[:1] for one in group.running.values()))
        await group.stop(away)
        for at in range(1, 600, 50):
            await asyncio.gather(*(leader.propose(one) for one in wanted[at : at + 50]))
        others = list(group.running.values())
        await until(lambda: all(one.peer.log.begin_index > 400 for one in others))
        await group.start(away)
        back = group.running[away]
        await until(lambda: bodies(back) == wanted)
        assert back.peer.log.begin_index > 400
        for name in list(group.running):
            await group.stop(name)
        for name in group.addresses:
            await group.start(name)
        leader = await group.leader()
        await leader.propose(b"last")
        await until(lambda: all(bodies(one) == [*wanted, b"last"] for one in group.running.values()))
    finally:
        for name in list(group.running):
            await group.stop(name)
    data = b"".join(path.read_bytes() for path in sorted((tmp_path / "n0" / "data").iterdir()))
    assert encode_entry(make_entry(0, 1, b"", 0, 4096))[:24] not in data


async def test_a_snapshot_that_the_state_machine_cannot_load_leaves_the_peer_as_it_was(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    """Its CRC is right, so only the state machine can tell. Were it saved, the peer would stop for good, and
    at each start again."""
    ports = [unused_tcp_port_factory() for _ in range(3)]
    group = RaftGroup(tmp_path, ports, machines=Bodies, settings={"snapshot_entries": 1000})
    for name in group.addresses:
        await group.start(name)
    try:
        leader = await group.leader()
        await leader.propose(b"first")
        name = next(one for one in group.addresses if one != leader.settings.self_id)
        follower = group.running[name]
        await until(lambda: bodies(follower) == [b"first"])
        data = b'["no end'
        chunk = InstallSnapshotRequest(
            group="g",
            remote_id=name,
            local_id=leader.settings.self_id,
            leader_id=leader.settings.self_id,
            term=leader.term,
            entry=make_entry(900, leader.term, b"x", 2000, 1 << 16),
            size=len(data),
            crc=zlib.crc32(data),
            data=data,
            members=dict(group.addresses),
        )
        answer = await group.ask(name, DLedgerRequestCode.INSTALL_SNAPSHOT, chunk)
        response = decode_body(InstallSnapshotResponse, answer)
        assert response.code == DLedgerResponseCode.UNEXPECTED_ARGUMENT
        await (await group.leader()).propose(b"second")
        await until(lambda: bodies(follower) == [b"first", b"second"])
        await group.stop(name)
        await group.start(name)
        await until(lambda: bodies(group.running[name]) == [b"first", b"second"])
    finally:
        for name in list(group.running):
            await group.stop(name)


async def test_a_failed_snapshot_is_retried_later_and_no_entry_is_dropped(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def full(_: SnapshotFile, snapshot: Snapshot, __: bytes) -> int:
        tried.append(snapshot.index)
        raise OSError(28, "No space left on device")

    settings = {"snapshot_entries": 20, "file_size": 4096}
    group = RaftGroup(tmp_path, [unused_tcp_port], machines=Bodies, settings=settings)
    await group.start("n0")
    peer = await group.leader()
    with monkeypatch.context() as patch:
        patch.setattr(SnapshotFile, "save", full)
        async with asyncio.timeout(120):
            while len(tried) < 3:
                await peer.propose(bytes(50))
    assert all(after >= before + 20 for before, after in itertools.pairwise(tried)), tried
    assert peer.log.begin_index == 0
    for number in range(40):
        await peer.propose(b"%050d" % number)
    await until(lambda: peer.log.begin_index > 0)
    await group.stop("n0")


async def test_without_the_setting_no_entry_is_dropped(
    tmp_path: Path, unused_tcp_port_factory: Callable[[], int]
) -> None:
    ports = [unused_tcp_port_factory() for _ in range(3)]
    group = RaftGroup(tmp_path, ports, machines=Bodies, settings={"file_size": 4096})
    for name in group.addresses:
        await group.start(name)
    leader = await group.leader()
    await asyncio.gather(*(leader.propose(b"%0100d" % i) for i in range(200)))
    for name in list(group.running):
        await group.stop(name)
        assert not (tmp_path / name / "snapshot").exists()
        assert (tmp_path / name / "data" / f"{0:020d}").exists()


def test_the_empty_directory_of_a_java_peer_makes_room_for_a_snapshot(tmp_path: Path) -> None:
    (tmp_path / "snapshot").mkdir()
    file = SnapshotFile(tmp_path)
    file.open()
    assert file.current is None
    assert not file.path.exists()


def test_a_java_peers_snapshot_is_kept_and_named(tmp_path: Path) -> None:
    (tmp_path / "snapshot" / "snapshot_7").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"snapshot is a directory .*expected a snapshot of EpochMQ"):
        SnapshotFile(tmp_path).open()
    assert (tmp_path / "snapshot" / "snapshot_7").is_dir()
