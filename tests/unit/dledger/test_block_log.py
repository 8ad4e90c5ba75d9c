"""A log of blocks has DLedger's bytes, loses nothing over restarts, and takes no damaged block."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from epochmq_dledger.core.raft_log import LogFullError, MemoryLog
from epochmq_dledger.core.types import RaftSettings
from epochmq_dledger.recovery import PeerRecovery, RecoveredPeer
from epochmq_dledger.store.block_log import BlockLog
from epochmq_dledger.store.damage_evidence import RejoinMark
from epochmq_dledger.store.segments import Segments, sync_and_close
from epochmq_dledger.store.snapshot_file import SnapshotFile
from epochmq_formats.dledger_log import (
    ENTRY_HEADER_SIZE,
    FILLER_MAGIC,
    decode_entry,
    encode_entry,
    encode_index_unit,
)
from epochmq_protocol.dledger import MEMBERS_CHANNEL, DLedgerEntry, encode_members
from epochmq_protocol.errors import RemoteProtocolError
from tests.unit.dledger.block_logs import POSITION_AT, body, filled, grow, new_log, opened
from tests.unit.dledger.disk_room import room
from tests.unit.dledger.file_logs import FILE_SIZE, INDEX_FILE_SIZE, cut, same


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        f"{kind}/{path.name}": path.read_bytes()
        for kind in ("data", "index")
        for path in (folder / kind).iterdir()
    }


def expected_files(entries: list[DLedgerEntry]) -> dict[str, bytes]:
    """The files of DLedger for these entries, the first of index 0 at position 0."""
    files: dict[str, bytearray] = {}

    def put(kind: str, size: int, at: int, data: bytes) -> None:
        file = files.setdefault(f"{kind}/{at - at % size:020d}", bytearray(size))
        file[at % size : at % size + len(data)] = data

    end = 0
    for entry in entries:
        if entry.pos != end:
            put("data", FILE_SIZE, end, struct.pack(">ii", FILLER_MAGIC, entry.pos - end))
        put("data", FILE_SIZE, entry.pos, encode_entry(entry))
        put("index", INDEX_FILE_SIZE, entry.index * 32, encode_index_unit(entry))
        end = entry.pos + entry.size
    return {name: bytes(data) for name, data in files.items()}


def test_the_files_are_those_of_dledger_with_positions_in_the_bodies(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 40)
    assert files_of(tmp_path) == expected_files(model.entries)
    assert len({name for name in files_of(tmp_path) if name.startswith("data")}) > 3
    same(log, model)
    log.close()


def test_the_largest_entry_leaves_room_for_a_filler(tmp_path: Path) -> None:
    log = opened(tmp_path)
    size_max = FILE_SIZE - 8 - ENTRY_HEADER_SIZE
    log.append_bodies(1, [bytes(size_max)])
    assert (log.end_index, log.end_pos) == (0, FILE_SIZE - 8)
    before = files_of(tmp_path)
    for size in (size_max + 1, POSITION_AT + 7, 0):
        with pytest.raises(ValueError, match="body"):
            log.append_bodies(1, [bytes(20), bytes(size)])
        assert files_of(tmp_path) == before
    log.append_bodies(1, [bytes(20)])
    assert (log.end_index, log.end_pos) == (1, FILE_SIZE + 20 + ENTRY_HEADER_SIZE)
    log.close()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(15))
def test_any_history_of_appends_truncations_expiry_and_restarts_equals_the_model(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    log, model, term = opened(tmp_path), MemoryLog(), 1
    for _ in range(50):
        action = rng.random()
        if action < 0.6:
            bodies, entries = grow(rng, model, rng.randint(1, 12), term)
            log.append_bodies(term, bodies)
            model.append(entries)
        elif action < 0.75 and model.entries:
            end = rng.randint(model.begin_index, model.end_index)
            cut(log, end)
            model.truncate(end)
            term += 1
        elif action < 0.85 and model.entries:
            committed = rng.randint(model.begin_index, model.end_index)
            log.mark_synced(rng.randint(model.begin_index, model.end_index), log.end_term)
            begin = log.expire_files(rng.randint(0, model.end_pos), committed)
            assert begin == model.begin_index or begin <= min(committed, log.durable_index)
            for job in log.take_removals():
                job()
            model.drop_before(begin)
        else:
            sync_and_close(log.take_unsynced())
            log.close()
            log = opened(tmp_path)
        same(log, model)
    log.close()


def test_files_expire_only_before_a_durable_entry(tmp_path: Path) -> None:
    """A power failure may take all later entries, and the log would be empty."""
    log, model = filled(tmp_path, 60)
    bases = log._files.data.bases
    assert len(bases) > 2
    second = next(entry.index for entry in model.entries if entry.pos >= bases[1])
    for durable, begin in ((second - 1, 0), (second, second)):
        log.mark_synced(durable, 1)
        assert log.expire_files(log.end_pos, log.end_index) == begin
    log.close()


def test_a_follower_that_receives_blocks_of_any_size_has_the_leaders_files(tmp_path: Path) -> None:
    leader, model = filled(tmp_path / "leader", 60)
    for bytes_max in (1, 300, 700, 5000):
        folder = tmp_path / f"follower-{bytes_max}"
        follower = opened(folder)
        while follower.end_index < leader.end_index:
            data = leader.read_block(follower.end_index + 1, bytes_max)
            first = decode_entry(data)
            assert len(data) <= max(bytes_max, first.size)
            follower.append_received(data)
        assert files_of(folder) == files_of(tmp_path / "leader")
        same(follower, model)
        follower.close()
    assert leader.read_block(60, 1000) == leader.read_block(-1, 1000) == b""
    leader.close()


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, b"\0\0\0\2"),  # magic
        (4, b"\0\0\0\x70"),  # size
        (15, b"\x63"),  # index
        (23, b"\0"),  # term
        (31, b"\x63"),  # position
        (36, b"\1"),  # checksum of the header
        (40, b"\1"),  # checksum of the body
        (44, b"\x7f"),  # size of the body
        (ENTRY_HEADER_SIZE + 11, b"\x63"),  # position in the body
        (ENTRY_HEADER_SIZE, b"\x63"),  # the body
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_block_with_a_damaged_entry_is_rejected_whole(
    tmp_path: Path, at: int, value: bytes, number: int
) -> None:
    leader, follower = opened(tmp_path / "leader"), opened(tmp_path / "follower")
    rng = random.Random(5)
    leader.append_bodies(2, [body(rng) for _ in range(3)])
    follower.append_received(leader.read_block(0, 1))
    data = bytearray(leader.read_block(1, FILE_SIZE))
    at += decode_entry(bytes(data)).size if number == 2 else 0
    data[at : at + len(value)] = value
    with pytest.raises(RemoteProtocolError):
        follower.append_received(bytes(data))
    assert follower.end_index == 0
    follower.append_received(leader.read_block(1, FILE_SIZE))
    assert follower.end_index == 2
    leader.close()
    follower.close()


def test_a_block_that_is_cut_or_does_not_follow_is_rejected(tmp_path: Path) -> None:
    leader, _ = filled(tmp_path / "leader", 6)
    follower = opened(tmp_path / "follower")
    data = leader.read_block(0, FILE_SIZE)
    for wrong in (data[:-1], data + b"\0", data[:20], b"", leader.read_block(1, FILE_SIZE)):
        with pytest.raises(RemoteProtocolError):
            follower.append_received(wrong)
        assert (follower.end_index, follower.end_pos) == (-1, 0)
    follower.append_received(data)
    with pytest.raises(RemoteProtocolError):
        follower.append_received(data)
    leader.close()
    follower.close()


@pytest.mark.parametrize("bytes_left", [0, 1, 47, 48, 300, 1000, 1024, 1100, 2000, 2600])
def test_an_append_that_fills_the_disk_leaves_no_byte(tmp_path: Path, bytes_left: int) -> None:
    log, model = filled(tmp_path, 5)
    bodies, entries = grow(random.Random(2), model, 15, 1)
    with room(bytes_left), pytest.raises(LogFullError):
        log.append_bodies(1, bodies)
    if not log.is_writable:
        log.erase_now()
    same(log, model)
    log.append_bodies(1, bodies)
    model.append(entries)
    same(log, model)
    log.close()
    log = opened(tmp_path)
    same(log, model)
    log.close()


def test_a_lost_index_is_rebuilt_from_the_data(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 40)
    log.close()
    before = files_of(tmp_path)
    for path in (tmp_path / "index").iterdir():
        path.write_bytes(bytes(INDEX_FILE_SIZE))
    log = opened(tmp_path)
    same(log, model)
    assert files_of(tmp_path) == before
    log.close()


def _flip(folder: Path, pos: int) -> None:
    fd = os.open(folder / "data" / f"{pos - pos % FILE_SIZE:020d}", os.O_RDWR)
    one = os.pread(fd, 1, pos % FILE_SIZE)
    os.pwrite(fd, bytes([one[0] ^ 4]), pos % FILE_SIZE)
    os.close(fd)


def test_a_last_entry_whose_body_is_torn_does_not_count(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 20)
    log.close()
    last = model.entries[-1]
    _flip(tmp_path, last.pos + ENTRY_HEADER_SIZE)
    log = opened(tmp_path)
    assert log.damage is None
    model.truncate(last.index - 1)
    same(log, model)
    assert files_of(tmp_path) == expected_files(model.entries)
    log.close()


def test_a_torn_entry_that_was_committed_is_damage(tmp_path: Path) -> None:
    log, model = filled(tmp_path, 20)
    log.close()
    _flip(tmp_path, model.entries[-1].pos + ENTRY_HEADER_SIZE)
    before = files_of(tmp_path)
    log = opened(tmp_path, committed_index=19)
    assert log.damage is not None
    assert "entry 19 was committed" in log.damage.text
    assert files_of(tmp_path) == before
    log.close()


@pytest.mark.parametrize("committed_index", [12, 15, None], ids=["itself", "later", "no checkpoint"])
def test_a_damaged_body_before_whole_entries_is_damage_if_the_checkpoint_may_cover_it(
    tmp_path: Path, committed_index: int | None
) -> None:
    log, model = filled(tmp_path, 20)
    log.close()
    _flip(tmp_path, model.entries[12].pos + ENTRY_HEADER_SIZE + 12)
    log = opened(tmp_path, committed_index)
    assert log.damage is not None
    assert (log.end_index, log.damage.end_index) == (11, 11)
    log.close()


@pytest.mark.parametrize("place", [0, ENTRY_HEADER_SIZE], ids=["header", "body"])
def test_a_torn_entry_before_whole_ones_beyond_the_checkpoint_ends_the_log(
    tmp_path: Path, place: int
) -> None:
    """A power failure may leave any of the unsynced entries. The only peer of a group must start again."""
    log, model = filled(tmp_path, 20)
    log.close()
    _flip(tmp_path, model.entries[12].pos + place)
    log = opened(tmp_path, committed_index=11)
    assert log.damage is None
    model.truncate(11)
    same(log, model)
    assert files_of(tmp_path) == expected_files(model.entries)
    log.close()


@pytest.mark.parametrize("first_torn", [0, 5])
def test_a_power_failure_before_the_first_periodic_checkpoint_leaves_a_torn_tail(
    tmp_path: Path, first_torn: int
) -> None:
    """A new directory gets a checkpoint at its first start. Without one, torn writes would look like damage,
    and a majority of a new group could be without a vote."""
    settings = RaftSettings(group="g", self_id="n0", peers=("n0", "n1", "n2"), file_size=FILE_SIZE)

    def recover(log: BlockLog) -> RecoveredPeer:
        recovery = PeerRecovery(settings, tmp_path, log, SnapshotFile(tmp_path), reads_entries=False)
        return recovery.run(None, lambda _: None)

    log = new_log(tmp_path)
    assert recover(log).committed == -1
    log.append_bodies(1, [body(random.Random(number)) for number in range(10)])
    torn = log.entry(first_torn)
    assert torn is not None
    log.close()
    _flip(tmp_path, torn.pos + ENTRY_HEADER_SIZE + 12)
    log = new_log(tmp_path)
    found = recover(log)
    assert found.rejoin == RejoinMark(vote_lost=True, is_new_directory=True), "as before the first entry"
    assert log.end_index == first_torn - 1
    log.close()


def test_recovery_reads_only_the_last_three_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, model = filled(tmp_path, 200)
    bases = log._files.data.bases
    sync_and_close(log.take_unsynced())
    log.close()
    assert len(bases) > 20
    read: list[int] = []
    original = Segments.read

    def counted(self: Segments, offset: int, size: int) -> bytes:
        if self.folder.name == "data":
            read.append(offset)
        return original(self, offset, size)

    monkeypatch.setattr(Segments, "read", counted)
    log = opened(tmp_path)
    assert log.end_index == model.end_index
    assert {offset - offset % FILE_SIZE for offset in read} <= {bases[0], *bases[-3:]}
    log.close()


def test_membership_entries_are_found_in_blocks_and_at_a_start(tmp_path: Path) -> None:
    """Their channel marks them. A follower takes no malformed one."""
    leader, follower = (
        BlockLog(tmp_path / name, FILE_SIZE, INDEX_FILE_SIZE) for name in ("leader", "follower")
    )
    leader.open()
    follower.open()
    leader.append_bodies(1, [b"a", b"b"])
    leader.append_bodies(1, [encode_members({"n0": "h:1"})], MEMBERS_CHANNEL)
    leader.append_bodies(2, [b"c"])
    block = follower.append_received(leader.read_block(0, FILE_SIZE))
    assert block.members == (2,)
    assert follower.entry(2) == leader.entry(2)
    leader.append_bodies(2, [b"not the voters"], MEMBERS_CHANNEL)
    with pytest.raises(RemoteProtocolError):
        follower.append_received(leader.read_block(4, FILE_SIZE))
    assert follower.end_index == 3
    follower.close()
    again = BlockLog(tmp_path / "follower", FILE_SIZE, INDEX_FILE_SIZE)
    again.open()
    assert again.recovered_members == [2]
    for log in (leader, again):
        log.close()
