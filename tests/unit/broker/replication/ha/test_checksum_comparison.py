"""Tests log comparisons: a replica compares the content that the epochs say is common, finds the first byte
that differs, truncates bytes that were not confirmed, and leaves the rest to an administrator.
"""

from __future__ import annotations

import random
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from epochmq_broker.replication.ha import checksum_comparison
from epochmq_broker.replication.ha.checksum_comparison import LogComparison, LogRange, may_truncate
from epochmq_broker.replication.ha.client import HAClientPhase
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_protocol.errors import RemoteProtocolError
from epochmq_store.record import DispatchRequest
from tests.unit.broker.replication.ha.broker_node import LOG_FILE, BrokerNode, DirectChecksumClient, until
from tests.unit.broker.replication.ha.following_nodes import ALL_ACK, nodes, same
from tests.unit.store.support import adopt_abort_file, copy_after_crash


def sums(data: bytes, wanted: LogRange) -> bytes:
    found = [
        zlib.crc32(data[at : min(at + wanted.chunk, wanted.end)])
        for at in range(wanted.start, wanted.end, wanted.chunk)
    ]
    return struct.pack(f">{len(found)}I", *found)


def compare(own: bytes, theirs: bytes, first: int, verified: int) -> tuple[int | None, int]:
    """Returns (the offset of the first byte that differs, the number of bytes compared)."""
    found = LogComparison(first, verified, min(len(own), len(theirs)))
    looked_at = 0
    for _ in range(1000):
        wanted = found.next_range()
        if wanted is None:
            return found.difference, looked_at
        assert wanted.is_reasonable
        looked_at += wanted.end - wanted.start
        found.add_checksums(sums(own, wanted), sums(theirs, wanted))
    raise AssertionError("it does not end")


@pytest.mark.parametrize("seed", range(60))
def test_the_first_byte_that_differs_is_found_wherever_it_is(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksum_comparison, "TAIL_BYTES", 4096)
    monkeypatch.setattr(checksum_comparison, "RANGE_MAX", 64 * 1024)
    monkeypatch.setattr(checksum_comparison, "CHUNKS", (1024, 64, 1))
    rng = random.Random(seed)
    data = rng.randbytes(rng.randrange(1, 300_000))
    first = rng.randrange(len(data))
    at = rng.randrange(first, len(data))
    other = bytearray(data)
    other[at] ^= 1
    for spot in range(at + 1, len(data)):
        if rng.random() < 0.5:
            other[spot] ^= 1  # logs that have parted differ to the end
    found, _ = compare(data, bytes(other), first, verified=rng.randrange(at + 1))
    assert found == at
    assert compare(data, data, first, 0)[0] is None


def test_after_a_clean_history_only_the_tail_is_read() -> None:
    data = random.Random(1).randbytes(8 << 20)
    found, looked_at = compare(data, data, 0, verified=len(data))
    assert (found, looked_at) == (None, checksum_comparison.TAIL_BYTES)


def test_a_tail_that_differs_is_followed_back_to_where_the_logs_parted() -> None:
    """A master that resumed its epoch wrote other bytes up to the shorter end. They differ although the
    replica takes them for confirmed."""
    data = random.Random(1).randbytes(8 << 20)
    other = data[: 2 << 20] + random.Random(2).randbytes(6 << 20)
    at = next(at for at in range(2 << 20, 8 << 20) if data[at] != other[at])
    assert compare(data, other, 0, verified=len(data))[0] == at


def test_bytes_that_the_master_has_expired_are_not_compared() -> None:
    found = LogComparison(0, 0, 1000)
    found.limit_to_master_start(600)
    wanted = found.next_range()
    assert wanted is not None
    assert (wanted.start, wanted.end) == (600, 1000)
    found.limit_to_master_start(2000)
    assert found.next_range() is None


@pytest.mark.parametrize("theirs", [b"", b"1234", b"12345678" * 2])
def test_a_response_of_another_size_is_rejected(theirs: bytes) -> None:
    found = LogComparison(0, 0, 100_000)
    with pytest.raises(RemoteProtocolError):
        found.add_checksums(b"12345678", theirs)


def test_a_log_that_changes_during_the_comparison_is_rejected() -> None:
    found = LogComparison(0, 0, 100_000)
    found.add_checksums(b"12345678", b"12345670")
    wanted = found.next_range()
    assert wanted is not None
    with pytest.raises(RemoteProtocolError, match="changed during the comparison"):
        found.add_checksums(bytes(4 * wanted.count), bytes(4 * wanted.count))


def test_confirmed_bytes_are_never_truncated() -> None:
    assert may_truncate(100, 100)
    assert not may_truncate(99, 100)


# With stores


def copied(node: BrokerNode, directory: Path, *, names: tuple[str, ...] = ()) -> None:
    """Copies a closed store, without the files of these names."""
    shutil.copytree(node.directory, directory)
    for name in names:
        for path in directory.rglob(name):
            path.unlink()


async def diverged(tmp_path: Path, *, confirmed: bool) -> tuple[BrokerNode, BrokerNode, int]:
    """A master of epoch 1 that lost its last messages and wrote others in their place, and a replica that has
    the first ones. Returns (master, replica, the offset where they diverge). Our masters no longer do
    that."""
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        address = await a.lead(1)
        await b.follow(address, 1)
        parted = a.put(50)
        await until(lambda: b.ha.confirm_offset == parted)
        a.put(20, b"y" * 300)
        await same(a, b)
        if confirmed:
            await until(lambda: b.ha.confirm_offset == a.end)
        await b.ha.stop()
        if not confirmed:
            b.store.checkpoint.confirm_phy_offset = parted
    master = BrokerNode(tmp_path / "1", 1, ALL_ACK)
    master.store.load()
    master.store.truncate(parted)
    master.store.stop()
    await master.open()
    master.ha.doubt.current = LogDoubt()
    await master.lead(1)
    master.put(15, b"z" * 300)
    replica = await BrokerNode(tmp_path / "2", 2, ALL_ACK).open()
    return master, replica, parted


async def test_a_difference_above_the_confirmed_offset_is_truncated(tmp_path: Path) -> None:
    master, replica, parted = await diverged(tmp_path, confirmed=False)
    try:
        assert replica.end > parted
        await replica.follow(master.address, 1, master)
        await same(master, replica)
        assert not replica.ha.doubt.may_lack_acknowledged
    finally:
        await replica.close()
        await master.close()


async def test_a_difference_below_the_confirmed_offset_is_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master, replica, parted = await diverged(tmp_path, confirmed=True)
    try:
        before = replica.log_bytes()
        await replica.follow(master.address, 1, master)
        await until(lambda: "differs from that of the master" in caplog.text)
        assert f"in the record at {parted}" in caplog.text
        assert str(replica.store.config.commit_log_dirs[0]) in caplog.text
        assert master.address in caplog.text
        assert replica.log_bytes() == before
        assert replica.ha.client is not None
        assert replica.ha.client.phase is not HAClientPhase.FOLLOWING
        assert replica.ha.doubt.may_lack_acknowledged, "no election chooses it"
        assert master.ha.sync_state is not None
        await until(lambda: 2 not in master.ha.sync_state.replicas)
    finally:
        await replica.close()
        await master.close()


async def test_a_confirmed_record_that_a_power_loss_damaged_is_copied_again(
    tmp_path: Path,
) -> None:
    """Its page was never flushed. It may look complete, because its checksum covers the body only."""
    settings = ALL_ACK | {"flushIntervalCommitLog": "100000"}
    async with nodes(tmp_path, 2, settings) as (a, b):
        address = await a.lead(1)
        await b.follow(address, 1)
        end = a.put(60)
        await until(lambda: b.ha.confirm_offset == end)
        await same(a, b)
        b.store.checkpoint.confirm_phy_offset = end
        b.store.checkpoint.store()
        copy_after_crash(b.store, tmp_path / "back")
        adopt_abort_file(tmp_path / "back", boot_id="another boot")
        spoil(b, tmp_path / "back", 20)
        back = await BrokerNode(tmp_path / "back", 2, settings).open()
        try:
            assert back.end == end, "recovery takes it for whole"
            assert back.ha.confirm_offset == end
            assert back.log_bytes() != a.log_bytes()
            await back.follow(address, 1, a)
            await until(lambda: not back.ha.doubt.may_lack_acknowledged)
            await same(a, back)
        finally:
            await back.close()


async def test_a_replica_that_returns_compares_only_the_tail(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        address = await a.lead(1)
        a.put(1500)
        await b.follow(address, 1, a)
        await same(a, b)
        log = b.ha.master_checksums
        assert isinstance(log, DirectChecksumClient)
        assert log.asked == [], "an empty log has nothing to compare"
        await until(lambda: b.ha.confirm_offset == a.end)
        assert b.ha.client is not None
        b.ha.client.reconnect()
        await until(lambda: bool(log.asked))
        a.put(1)
        await same(a, b)
        assert sum(one.end - one.start for one in log.asked) <= checksum_comparison.TAIL_BYTES


async def test_a_log_whose_epoch_file_is_lost_is_compared_as_a_whole(tmp_path: Path) -> None:
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        address = await a.lead(1)
        a.put(700)
        await b.follow(address, 1)
        await same(a, b)
        await b.close()
        copied(b, tmp_path / "lost", names=("epochFileCheckpoint", "epochFileCheckpoint.bak"))
        back = await BrokerNode(tmp_path / "lost", 2, ALL_ACK).open()
        try:
            a.put(10)
            await back.follow(address, 1, a)
            await same(a, back)
            log = back.ha.master_checksums
            assert isinstance(log, DirectChecksumClient)
            assert min(one.start for one in log.asked) == 0
            assert back.epochs == [(1, 0)]
        finally:
            await back.close()
        await b.open()


async def test_a_log_whose_epoch_file_is_lost_follows_no_master_that_cannot_compare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with nodes(tmp_path, 2, ALL_ACK) as (a, b):
        address = await a.lead(1)
        a.put(20)
        await b.follow(address, 1)
        await same(a, b)
        await b.close()
        copied(b, tmp_path / "lost", names=("epochFileCheckpoint", "epochFileCheckpoint.bak"))
        back = await BrokerNode(tmp_path / "lost", 2, ALL_ACK).open()
        try:
            await back.follow(address, 1)
            await until(lambda: "clear this store" in caplog.text)
            assert back.ha.client is not None
            assert back.ha.client.phase is not HAClientPhase.FOLLOWING
        finally:
            await back.close()
        await b.open()


async def test_checksums_cross_the_ends_of_files(tmp_path: Path) -> None:
    async with nodes(tmp_path, 1) as (a,):
        await a.lead(1)
        a.put(700)
        data = a.log_bytes()
        for start, end, chunk in ((0, a.end, 1000), (LOG_FILE - 7, LOG_FILE + 9, 4), (5, 6, 1)):
            wanted = LogRange(start, end, chunk)
            assert await a.ha.checksums.of(wanted) == sums(data, wanted)
        before = descriptors()
        with pytest.raises(ValueError, match="no byte"):
            await a.ha.checksums.of(LogRange(0, a.end + 1, 1000))
        assert descriptors() == before


def spoil(node: BrokerNode, directory: Path, number: int) -> None:
    """Clears the born timestamp of a record in a copy of a store."""
    position = 0
    for _ in range(number):
        found = node.store.log.parse(position, (), check_crc=True)
        assert isinstance(found, DispatchRequest)
        position += found.size
    with (directory / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(position + 40)
        log.write(bytes(8))


def descriptors() -> int:
    """How many file descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
