"""The scrub of a running broker finds damage in old files, reports it, and forgets it with its file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.replication.scrub.log_scrub import LogScrub
from epochmq_broker.replication.scrub.peer_copies import PeerCopies
from epochmq_protocol import record_layout
from epochmq_protocol.transport.client import RemotingClient
from epochmq_store.message_store import MessageStore
from tests.unit.broker.replication.ha.broker_node import until
from tests.unit.store.support import LOG_FILE, Message, open_store, put_all

FAST = {"scrubFirstDelayMs": "0", "scrubPassIntervalMs": "1", "scrubBytesPerSecond": str(1 << 30)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = open_store(tmp_path)
    put_all(opened, [Message(body=b"x" * 700) for _ in range(40)])
    opened.log_flusher.flush_now()
    assert len(opened.log.files.files) >= 4
    yield opened
    opened.stop()


def settings(**changes: str) -> LiveConfig:
    return LiveConfig(from_properties({"brokerName": "a"} | FAST | changes).config)


async def no_members() -> list[str]:
    return []


@asynccontextmanager
async def running(
    store: MessageStore, live: LiveConfig, confirmed: Callable[[], int] = lambda: 1 << 40
) -> AsyncIterator[LogScrub]:
    scrub = LogScrub(live, store, confirmed=confirmed, peers=PeerCopies(live, RemotingClient(), no_members))
    scrub.start()
    try:
        yield scrub
    finally:
        await scrub.stop()


def flip(store: MessageStore, offset: int) -> None:
    file = store.log.files.find(offset)
    assert file is not None
    at = offset - file.start
    file.write(at, memoryview(bytes([file.map[at] ^ 1])))


def passes(scrub: LogScrub, count: int = 2) -> Callable[[], bool]:
    """Whether so many passes have ended since now."""
    wanted = scrub.passes + count
    return lambda: scrub.passes >= wanted


async def test_a_broken_record_of_an_old_file_is_reported_once(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    second = store.log.files.files[1].start
    flip(store, second + record_layout.PHYSICAL_OFFSET_AT)
    with caplog.at_level(logging.INFO):
        async with running(store, settings()) as scrub:
            await until(passes(scrub, 3))
            values = scrub.metric_values()
            (found,) = store.damage.ranges
            assert found.start == second
            assert scrub.damage_texts() == [
                f"the log is damaged from offset {found.start} to {found.end}: {found.fault}"
            ]
    assert scrub.found == 1
    assert values["broker_damaged_bytes"] == found.size
    assert values["broker_damaged_ranges_found_total"] == 1
    assert values["broker_scrubbed_bytes_total"] >= 3 * LOG_FILE
    named = [one for one in caplog.records if "is damaged from" in one.getMessage()]
    assert len(named) == 1
    assert str(store.log.files.files[1].path) in named[0].getMessage()


async def test_damage_that_was_mended_is_no_longer_reported(store: MessageStore) -> None:
    flip(store, record_layout.PHYSICAL_OFFSET_AT)
    async with running(store, settings()) as scrub:
        await until(lambda: bool(store.damage))
        flip(store, record_layout.PHYSICAL_OFFSET_AT)
        await until(passes(scrub))
        assert not store.damage
        assert scrub.damage_texts() == []


async def test_unconfirmed_records_are_not_read(store: MessageStore) -> None:
    files = store.log.files.files
    flip(store, files[2].start + record_layout.PHYSICAL_OFFSET_AT)
    flip(store, files[-1].start + record_layout.PHYSICAL_OFFSET_AT)
    confirmed = [files[2].start]
    async with running(store, settings(), lambda: confirmed[0]) as scrub:
        await until(passes(scrub))
        assert not store.damage
        confirmed[0] = files[-1].start
        await until(passes(scrub))
        assert [one.start for one in store.damage.ranges] == [files[2].start]


@pytest.mark.parametrize("beyond", [0, 1, 30, 200])
async def test_records_of_the_newest_file_are_read_up_to_the_confirmed_offset(
    store: MessageStore, beyond: int
) -> None:
    """The confirmed offset may lie within a record, which is not damage."""
    while store.log.files.files[-1].wrote > LOG_FILE // 2:
        put_all(store, [Message(body=b"x" * 700)])
    newest = store.log.files.files[-1]
    confirmed = store.max_phy_offset
    put_all(store, [Message(body=b"y" * 100) for _ in range(2)])
    assert store.log.files.files[-1] is newest
    flip(store, newest.start + record_layout.PHYSICAL_OFFSET_AT)
    flip(store, confirmed + record_layout.HEAD_BYTES + 50)
    async with running(store, settings(), lambda: confirmed + beyond) as scrub:
        await until(passes(scrub))
        assert [one.start for one in store.damage.ranges] == [newest.start]


async def test_the_last_record_before_the_end_of_the_log_is_read(store: MessageStore) -> None:
    start = store.max_phy_offset
    put_all(store, [Message(body=b"y" * 100)])
    flip(store, start + record_layout.HEAD_BYTES + 50)
    async with running(store, settings()) as scrub:
        await until(passes(scrub))
        assert [(one.start, one.end) for one in store.damage.ranges] == [(start, store.max_phy_offset)]


async def test_the_key_switches_the_scrub_off_and_on(store: MessageStore) -> None:
    live = settings(scrubBytesPerSecond="0")
    flip(store, record_layout.PHYSICAL_OFFSET_AT)
    async with running(store, live) as scrub:
        await asyncio.sleep(0)
        assert scrub.metric_values()["broker_scrubbed_bytes_total"] == 0
        assert scrub.passes == 0
        live.update({"scrubBytesPerSecond": str(1 << 30)})
        await until(passes(scrub))
        assert store.damage


async def test_the_scrub_reads_no_faster_than_the_settings_say(store: MessageStore) -> None:
    size = store.log.files.files[-1].start
    async with running(store, settings(scrubBytesPerSecond=str(size * 2))) as scrub:
        began = asyncio.get_running_loop().time()
        await until(passes(scrub, 1))
        assert asyncio.get_running_loop().time() - began > 0.4


async def test_damage_is_forgotten_when_its_file_expires(store: MessageStore) -> None:
    flip(store, record_layout.PHYSICAL_OFFSET_AT)
    async with running(store, settings()) as scrub:
        await until(lambda: bool(store.damage))
        store.log.files.files.pop(0).delete()
        for listener in store.on_expire:
            listener(store.min_phy_offset)
        await until(passes(scrub))
        assert not store.damage
