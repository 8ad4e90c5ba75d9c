"""The scrub checks the entries of a DLedger log, compares them with those of the other peers, and repairs
what is broken. Without another peer it reports what is broken, and changes nothing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from epochmq_formats.dledger_log import (
    CHAIN_CRC_AT,
    ENTRY_HEADER_SIZE,
    ENTRY_INDEX_AT,
    ENTRY_POSITION_AT,
    ENTRY_SIZE_AT,
    ENTRY_TERM_AT,
)
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_formats.store_checkpoint import CHECKPOINT_BYTES, FIELDS
from epochmq_protocol import record_layout
from epochmq_protocol.checksum import crc32
from epochmq_store.log.record_checks import ENTRIES
from tests.unit.broker.dledger_bench import TOPIC, numbered, peers_of, ready, running, send, settings_of
from tests.unit.broker.kit import Bench, until
from tests.unit.broker.replication.scrub.replicas import Group, Replica, scrubbing

FAST = {
    "mappedFileSizeCommitLog": str(1 << 17),
    "maxMessageSize": str(1 << 14),
    "scrubFirstDelayMs": "0",
    "scrubPassIntervalMs": "1",
    "scrubBytesPerSecond": str(1 << 30),
}
BROKEN = {
    "size": ENTRY_SIZE_AT + 3,
    "position": ENTRY_POSITION_AT + 7,
    "record": ENTRY_HEADER_SIZE + record_layout.PHYSICAL_OFFSET_AT + 7,
    "body": ENTRY_HEADER_SIZE + record_layout.HEAD_BYTES + 2,
    "channel": ENTRY_POSITION_AT + 8 + 3,
    "chain checksum": CHAIN_CRC_AT + 3,
    "body checksum": CHAIN_CRC_AT + 4 + 3,
}
"""Where a flipped bit shows by itself, from the start of an entry."""
COMPARED = {"index": ENTRY_INDEX_AT + 7, "term": ENTRY_TERM_AT + 7}
"""Where only the other peers tell, and no message is concerned."""


def flip(bench: Bench, offset: int) -> Path:
    """Flips a bit of the log's file."""
    file = bench.broker.store.log.files.find(offset)
    assert file is not None
    with file.path.open("r+b") as opened:
        opened.seek(offset - file.start)
        byte = opened.read(1)[0]
        opened.seek(offset - file.start)
        opened.write(bytes([byte ^ 1]))
    return file.path


async def two_files(bench: Bench) -> None:
    """Fills the first files of the log."""
    await ready(bench)
    while len(bench.broker.store.log.files.files) < 3:
        await send(bench, *numbered(100))


async def test_a_healthy_log_has_no_damage(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(peers_of(1), **FAST)) as bench:
        await two_files(bench)
        wanted = bench.broker.scrub.passes + 3
        await until(lambda: bench.broker.scrub.passes >= wanted)
        assert bench.broker.scrub.limit >= 1 << 17
        assert bench.broker.scrub.damage_texts() == []


async def test_a_flipped_bit_of_a_consume_queue_is_repaired(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(peers_of(1), **FAST)) as bench:
        await two_files(bench)
        store, scrub = bench.broker.store, bench.broker.scrub
        queue = max(store.queues.values(), key=lambda one: one.max_offset)
        await until(lambda: bool(queue.files.files) and queue.files.files[0].wrote > 10 * UNIT_BYTES)
        path = queue.files.files[0].path
        healthy = path.read_bytes()[: 10 * UNIT_BYTES]
        flipped = bytearray(healthy)
        flipped[5 * UNIT_BYTES + 6] ^= 4
        queue.files.files[0].overwrite(0, bytes(flipped))
        await until(lambda: path.read_bytes().startswith(healthy))
        assert scrub.metric_values()["broker_queue_units_repaired_total"] == 1


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_entry_is_reported_and_stays(tmp_path: Path, name: str) -> None:
    async with running(tmp_path, settings_of(peers_of(1), **FAST)) as bench:
        await two_files(bench)
        store = bench.broker.store
        file = store.log.files.files[1]
        size = ENTRIES.size(file.map[:ENTRY_HEADER_SIZE], 0)
        path = flip(bench, file.start + size + BROKEN[name])
        changed = path.read_bytes()
        await until(lambda: store.damage)
        (found,) = store.damage.ranges
        assert bench.broker.scrub.damage_texts()[0].startswith(
            f"the log is damaged from offset {found.start} "
        )
        assert found.start == file.start + size
        assert found.end == found.start + ENTRIES.size(file.map[:100], 0) or name == "size"
        assert found.size < 1000
        assert path.read_bytes() == changed


@asynccontextmanager
async def equal_peers(directory: Path) -> AsyncIterator[Group]:
    """Three peers with the same committed log, whose own scrubs are off. The first one leads."""
    peers = peers_of(3)
    settings = FAST | {"scrubBytesPerSecond": "0"}
    async with AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(
                running(directory / str(number), settings_of(peers, number, **settings))
            )
            for number in range(3)
        ]
        leader = await ready(*benches)
        await two_files(leader)
        end = leader.broker.store.max_phy_offset
        for bench in benches:
            await until(lambda store=bench.broker.store: store.max_phy_offset == end)
        group = Group()
        benches.sort(key=lambda one: one is not leader)
        for name, bench in zip(("one", "two", "three"), benches, strict=True):
            group.replicas[name] = Replica(name, bench.broker.store, group)
        yield group


def record_at(replica: Replica, file: int = 1) -> int:
    """Where the second entry of a file begins there."""
    return ENTRIES.size(replica.original[file], 0)


@pytest.mark.long
@pytest.mark.parametrize("name", [*BROKEN, *COMPARED])
async def test_a_broken_entry_is_repaired_from_the_other_peers(tmp_path: Path, name: str) -> None:
    """The leader and a follower have one each."""
    async with equal_peers(tmp_path) as group:
        one, two = group.replicas["one"], group.replicas["two"]
        at = {**BROKEN, **COMPARED}[name]
        one.flip(1, record_at(one) + at)
        two.flip(2, record_at(two, 2) + at)
        async with scrubbing(group, *group.replicas):
            for broken in (one, two):
                await until(
                    lambda scrub=broken.scrub: (
                        scrub.metric_values()["broker_damaged_ranges_repaired_total"] == 1
                    )
                )
            for replica in group.replicas.values():
                await until(replica.passed())
        for replica in group.replicas.values():
            assert replica.files == replica.original
            assert not replica.store.damage


@pytest.mark.long
async def test_a_peer_with_another_property_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with equal_peers(tmp_path) as group:
        one = group.replicas["one"]
        start = record_at(one)
        size = ENTRIES.size(one.original[1], start)
        one.flip(1, start + size - 2)
        changed = one.files
        with caplog.at_level(logging.ERROR):
            async with scrubbing(group, *group.replicas):
                for replica in group.replicas.values():
                    await until(replica.passed(3))
                (found,) = one.store.damage.ranges
                assert found.start == one.store.log.files.files[1].start + start
                assert (found.size, found.repairable) == (size, False)
                assert "and empty its store" in one.scrub.damage_texts()[0]
                assert not group.replicas["two"].store.damage
                assert not group.replicas["three"].store.damage
        assert one.files == changed
        assert "has other records there, which are whole, too" in caplog.text


async def test_a_peer_serves_its_entries_to_the_others(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(peers_of(1), **FAST)) as bench:
        await two_files(bench)
        file = bench.broker.store.log.files.files[0]
        served = bench.broker.scrub.served
        assert await served.data(0, 1000) == file.map[:1000]
        assert await served.checksums([(0, 1000)]) == [crc32(file.map[:1000])]


async def test_headers_without_a_majority_stay(tmp_path: Path) -> None:
    async with equal_peers(tmp_path) as group:
        one, two = group.replicas["one"], group.replicas["two"]
        group.silent.add("three")
        one.flip(1, record_at(one) + COMPARED["term"])
        async with scrubbing(group, "one", "two"):
            await until(lambda: one.store.damage and two.store.damage)
        assert one.scrub.metric_values()["broker_damaged_ranges_repaired_total"] == 0
        assert two.files == two.original


@pytest.mark.parametrize("name", ["size", "record", "body"])
async def test_a_queue_is_built_again_past_a_broken_entry(tmp_path: Path, name: str) -> None:
    """A disk lost the pages of a queue, and an old entry has rotted since."""
    settings = settings_of(peers_of(1), **FAST | {"scrubBytesPerSecond": "0"})
    async with running(tmp_path, settings) as bench:
        store = bench.broker.store
        await ready(bench)
        while len(store.log.files.files) < 6:  # a peer reads the last three at its start
            await send(bench, *numbered(100))
        await send(bench, "another", queue_id=1)
        file = store.log.files.files[0]
        broken = file.start + ENTRIES.size(file.map[:ENTRY_HEADER_SIZE], 0)
        end, count = store.max_phy_offset, store.queue(TOPIC, 0).max_offset
        units = [store.queue(TOPIC, 0).unit(offset) for offset in range(count)]
        flip(bench, broken + BROKEN[name])
    path = tmp_path / "checkpoint"
    later = [time + 3_600_000 for time in FIELDS.unpack_from(path.read_bytes())[:3]]
    path.write_bytes(FIELDS.pack(*later, 0, 0).ljust(CHECKPOINT_BYTES, b"\0"))
    path = max((tmp_path / "consumequeue" / TOPIC / "0").iterdir())
    path.write_bytes(bytes(path.stat().st_size))
    async with running(tmp_path, settings) as bench:
        store = bench.broker.store
        assert store.max_phy_offset >= end
        queue = store.queue(TOPIC, 0)
        assert queue.max_offset == count
        for offset, unit in enumerate(units):
            if unit is not None and not broken < unit[0] < broken + 1000:
                assert queue.unit(offset) == unit
        assert [one.start for one in store.damage.ranges] in ([broken], [])
