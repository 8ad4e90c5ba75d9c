"""The scrub checks the entries of a DLedger log, and reports what is broken without changing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE, ENTRY_POSITION_AT, ENTRY_SIZE_AT
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol import record_layout
from epochmq_store.log.record_checks import ENTRIES
from tests.unit.broker.dledger_bench import numbered, peers_of, ready, running, send, settings_of
from tests.unit.broker.kit import Bench, until

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
}


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
        assert "and empty its store" in bench.broker.scrub.damage_texts()[0]
        assert found.start == file.start + size
        assert found.end == found.start + ENTRIES.size(file.map[:100], 0) or name == "size"
        assert found.size < 1000
        assert path.read_bytes() == changed
