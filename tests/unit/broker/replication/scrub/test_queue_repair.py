"""The scrub finds units of consume queues that differ from the log, and rewrites them, and no others."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from epochmq_formats.extension_unit import is_address
from epochmq_formats.queue_unit import UNIT, UNIT_BYTES
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.consume_queue import ConsumeQueue
from tests.unit.broker.replication.ha.broker_node import until
from tests.unit.broker.replication.scrub.test_log_scrub import passes, running, settings
from tests.unit.store.support import Message, open_store, put_all, random_messages, receive
from tests.unit.store.test_light_queues import LIGHT, fill

METRIC = "broker_queue_units_repaired_total"


def filled(directory: Path, messages: list[Message] | None = None, **changes: Any) -> MessageStore:
    """A store whose queues' units are in their files."""
    store = open_store(directory, **changes)
    put_all(store, messages or [Message(body=b"%04d" % number * 20) for number in range(40)])
    store.log_flusher.flush_now()
    store.queues.pending.write_all()
    return store


def bytes_of(store: MessageStore) -> dict[Path, bytes]:
    """The content of the files of all queues."""
    return {path: path.read_bytes() for path in store.queues.directory.rglob("*") if path.is_file()}


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


def overwrite(queue: ConsumeQueue, offset: int, *unit: int) -> None:
    """Puts another unit into a queue's file."""
    file = queue.files.find(offset * UNIT_BYTES)
    assert file is not None
    file.overwrite(offset * UNIT_BYTES - file.start, UNIT.pack(*unit))


async def scrubbed(store: MessageStore) -> float:
    """The number of units that two passes rewrite."""
    async with running(store, settings()) as scrub:
        await until(passes(scrub))
        return scrub.metric_values()[METRIC]


async def test_after_a_bit_of_a_queue_has_flipped_a_pull_gets_the_message_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    found = store.get(store.queue("orders", 0), 5, 1)
    expected = found.status, found.body
    store.stop()
    flip(tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}", 5 * UNIT_BYTES + 7, 3)
    store = open_store(tmp_path)
    before = store.get(store.queue("orders", 0), 5, 1)
    assert (before.status, before.body) != expected
    with caplog.at_level(logging.WARNING):
        assert await scrubbed(store) == 1
    after = store.get(store.queue("orders", 0), 5, 1)
    assert (after.status, after.body) == expected
    (named,) = [one.getMessage() for one in caplog.records if "is not what the log says" in one.getMessage()]
    assert "offset 5 of the queue orders-0" in named
    store.stop()


@pytest.mark.parametrize("seed", range(5))
async def test_any_flipped_bits_are_repaired_bit_for_bit(tmp_path: Path, seed: int) -> None:
    store = filled(tmp_path, random_messages(seed, 200))
    chance = random.Random(seed)
    healthy = bytes_of(store)
    assert await scrubbed(store) == 0
    flipped = set()
    for queue in store.queues.values():
        last = len(queue.files.files) - 1
        for at, file in enumerate(queue.files.files):
            for number in range(0, file.wrote // UNIT_BYTES - (at == last), 3):
                # The delivery time of a delayed message is not compared.
                position = number * UNIT_BYTES + chance.randrange(12 if queue.is_schedule else UNIT_BYTES)
                flip(file.path, position, chance.randrange(8))
                flipped.add((file.path, number))
    assert bytes_of(store) != healthy
    assert await scrubbed(store) == len(flipped)
    assert bytes_of(store) == healthy
    store.stop()


async def test_the_last_unit_tells_the_end_of_the_queue_again(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue = store.queue("orders", 0)
    end, last = queue.max_physical, queue.unit(queue.max_offset - 1)
    assert last is not None
    store.stop()
    path = tmp_path / "consumequeue" / "orders" / "0" / f"{600:020d}"
    flip(path, 9 * UNIT_BYTES + 6, 3)  # to a lower position, which is in the log
    store = open_store(tmp_path)
    queue = store.queue("orders", 0)
    assert queue.max_physical < end
    assert await scrubbed(store) == 1
    assert queue.unit(queue.max_offset - 1) == last
    assert queue.max_physical == end
    store.stop()


async def test_a_first_unit_before_the_log_hides_no_message(tmp_path: Path) -> None:
    store = filled(tmp_path)
    first = store.queue("orders", 0).unit(0)
    store.stop()
    flip(tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}", 0, 7)
    store = open_store(tmp_path)
    assert await scrubbed(store) == 1
    assert store.queue("orders", 0).min_offset == 0
    assert store.queue("orders", 0).unit(0) == first
    store.stop()


async def test_units_of_a_topic_that_was_created_again_stay(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.queues.delete_topics({"orders"})
    put_all(store, [Message(body=b"new" * number) for number in range(30)])
    store.queues.pending.write_all()
    healthy = bytes_of(store)
    assert await scrubbed(store) == 0
    assert bytes_of(store) == healthy
    store.stop()


async def test_nothing_is_written_for_a_topic_that_is_gone(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.queues.delete_topics({"orders"})
    assert await scrubbed(store) == 0
    assert not store.queues
    assert not bytes_of(store)
    store.stop()


async def test_units_behind_a_closed_gap_stay(tmp_path: Path) -> None:
    """A replica whose master's log skips queue offsets has the later units before the offsets in their
    records."""
    master = filled(tmp_path / "master", [Message() for _ in range(10)])
    master.queues.delete_topics({"orders"})
    master.queue("orders", 0).begin_at(13)
    put_all(master, [Message() for _ in range(30)])
    data = b"".join(bytes(file.map[: file.wrote]) for file in master.log.files.files)
    master.stop()
    store = open_store(tmp_path / "replica")
    receive(store, 0, data)
    store.log_flusher.flush_now()
    store.queues.pending.write_all()
    assert store.queue("orders", 0).max_offset == 40
    healthy = bytes_of(store)
    assert await scrubbed(store) == 0
    assert bytes_of(store) == healthy
    store.stop()


async def test_the_unit_of_a_damaged_record_is_left_alone(tmp_path: Path) -> None:
    store = filled(tmp_path)
    queue = store.queue("orders", 0)
    unit = queue.unit(5)
    assert unit is not None
    file = store.log.files.find(unit[0])
    assert file is not None
    flip(file.path, unit[0] - file.start + 100, 0)
    overwrite(queue, 5, unit[0] + 4, *unit[1:])
    assert await scrubbed(store) == 0
    assert store.damage
    assert queue.unit(5) == (unit[0] + 4, *unit[1:])
    store.stop()


async def test_half_messages_have_no_unit(tmp_path: Path) -> None:
    """Their records say queue offset 0, which belongs to another message."""
    messages = [Message(sys_flag=flag) for flag in (0, 4, 12, 8, 0)]
    store = filled(tmp_path, messages)
    healthy = bytes_of(store)
    assert await scrubbed(store) == 0
    assert bytes_of(store) == healthy
    store.stop()


async def test_units_of_light_queues_are_repaired(tmp_path: Path) -> None:
    store = open_store(tmp_path, **LIGHT)
    fill(store)
    store.log_flusher.flush_now()
    store.queues.pending.write_all()
    healthy = bytes_of(store)
    assert await scrubbed(store) == 0
    for path in healthy:
        if path.parent.parent.name.startswith("%LMQ%"):
            flip(path, 3 * UNIT_BYTES + 6, 2)
    assert bytes_of(store) != healthy
    assert await scrubbed(store) > 0
    assert bytes_of(store) == healthy
    store.stop()


async def test_with_an_extension_addresses_stay_and_wrong_ones_become_tag_codes(tmp_path: Path) -> None:
    messages = [Message(properties={"TAGS": f"Tag{number}"}) for number in range(30)]
    store = filled(tmp_path, messages, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext=400)
    queue = store.queue("orders", 0)
    healthy = bytes_of(store)
    units = [unit for at in range(queue.max_offset) if (unit := queue.unit(at)) is not None]
    assert all(is_address(unit[2]) for unit in units)
    assert await scrubbed(store) == 0
    assert bytes_of(store) == healthy
    wrong = {2: units[3][2], 7: units[7][2] + 1, 12: units[12][2] ^ (1 << 40), 14: units[14][2] ^ -(1 << 63)}
    for offset, code in wrong.items():
        overwrite(queue, offset, *units[offset][:2], code)
    assert await scrubbed(store) == len(wrong)
    for offset, unit in enumerate(units):
        found = queue.unit(offset)
        assert found is not None
        if offset in wrong:
            extended = queue.extension_unit(unit[2])
            assert extended is not None
            assert found == (*unit[:2], extended.tags_code)
        else:
            assert found == unit
    store.stop()


async def test_a_queue_file_that_cannot_be_read_does_not_stop_the_scrub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = filled(tmp_path)
    queue = store.queue("orders", 0)
    path = queue.files.files[0].path
    path.rename(path.with_name("moved"))
    path.mkdir()
    assert await scrubbed(store) == 0
    assert f"{path} cannot be compared with the log" in caplog.text
    path.rmdir()
    path.with_name("moved").rename(path)
    store.stop()
