"""The extension of a consume queue keeps a unit for each message, in RocketMQ's format, and agrees with the
queue after every restart."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from epochmq_formats.extension_unit import ExtensionUnit, is_address
from epochmq_store.files.queue_files import MappingCache
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.pending_units import PendingUnits
from epochmq_store.queues.queue_extension import QueueExtension
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig

FILE = 4096
HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"


def extension(directory: Path, *, load: bool = False, pending: PendingUnits | None = None) -> QueueExtension:
    return QueueExtension(directory, FILE, pending or PendingUnits(), MappingCache(), load=load)


def test_a_unit_has_rocketmqs_format_and_address(tmp_path: Path) -> None:
    made = extension(tmp_path)
    first = made.put(7, 1000, b"\x01\x02")
    second = made.put(-8, 2000, b"")
    assert (first, second) == (-(1 << 63), -(1 << 63) + 22)
    assert is_address(first)
    assert not is_address(-8)
    made.pending.write_all()
    data = (tmp_path / f"{0:020d}").read_bytes()
    assert len(data) == FILE
    assert data[:22] == struct.pack(">hqqh", 22, 7, 1000, 2) + b"\x01\x02"
    assert data[22:42] == struct.pack(">hqqh", 20, -8, 2000, 0)
    assert not any(data[42:])


def test_units_are_found_in_memory_and_in_files(tmp_path: Path) -> None:
    made = extension(tmp_path)
    addresses = [made.put(code, code, bytes([code % 256]) * (code % 40)) for code in range(500)]
    expected = [ExtensionUnit(code, code, bytes([code % 256]) * (code % 40)) for code in range(500)]
    assert [made.get(address) for address in addresses] == expected
    made.pending.write_all()
    assert made.pending.memory_used_bytes == 0
    assert [made.get(address) for address in addresses] == expected
    assert made.get(made.end - (1 << 63)) is None


def test_a_unit_that_does_not_fit_starts_a_new_file(tmp_path: Path) -> None:
    made = extension(tmp_path)
    for _ in range(FILE // 34):
        last = made.put(1, 1, bytes(14))
    following = made.put(2, 2, bytes(14))
    made.pending.write_all()
    assert following == -(1 << 63) + FILE
    end = last + (1 << 63) + 34
    first = (tmp_path / f"{0:020d}").read_bytes()
    assert first[end : end + 2] == b"\xff\xff"
    assert made.get(following) == ExtensionUnit(2, 2, bytes(14))


def test_recovery_ends_behind_the_newest_address_of_the_queue(tmp_path: Path) -> None:
    made = extension(tmp_path)
    addresses = [made.put(code, code, b"x") for code in range(5)]
    made.pending.write_all()
    again = extension(tmp_path, load=True)
    again.recover(addresses[2])
    assert again.put(9, 9, b"y") == addresses[3]
    assert again.get(addresses[2]) == ExtensionUnit(2, 2, b"x")
    again.pending.write_all()
    assert again.get(addresses[3]) == ExtensionUnit(9, 9, b"y")
    assert again.get(addresses[4]) is None


def test_a_lost_unit_is_missing_and_its_address_is_not_used_again(tmp_path: Path) -> None:
    made = extension(tmp_path, load=True)
    lost = -(1 << 63) + 3 * FILE + 40
    made.recover(lost)
    assert made.get(lost) is None
    assert made.put(1, 1, b"") > lost


@pytest.mark.parametrize("written", [False, True])
def test_truncation_removes_later_units(tmp_path: Path, written: bool) -> None:
    made = extension(tmp_path)
    addresses = [made.put(code, code, b"x") for code in range(5)]
    if written:
        made.pending.write_all()
    made.truncate(addresses[1])
    assert made.get(addresses[1]) == ExtensionUnit(1, 1, b"x")
    assert made.get(addresses[2]) is None
    assert made.put(9, 9, b"z") == addresses[2]
    made.pending.write_all()
    assert made.pending.memory_used_bytes == 0
    made.truncate(None)
    assert made.end == 0


def store(directory: Path, *, extended: bool = True) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(directory),
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=20 * 100,
        max_hash_slot_num=100,
        max_index_num=400,
        enable_consume_queue_ext=extended,
        mapped_file_size_consume_queue_ext=65_536,
    )
    made = MessageStore(config, HOST, bit_map=lambda topic, properties: topic.encode() + properties)
    made.load()
    return made


def put(made: MessageStore, code: int, properties: bytes = b"a\x011\x02") -> None:
    result = made.append(
        made.queues["T", 0],
        body=b"body",
        properties=properties,
        born_timestamp=1,
        born_host=HOST,
        tags_code=code,
    )
    assert result[0] is PutStatus.PUT_OK


def units(made: MessageStore) -> list[tuple[int, bytes]]:
    queue = made.queues["T", 0]
    found = [queue.extension_unit(code) for _, _, code in queue.units(0, 1000)]
    return [(unit.tags_code, unit.bit_map) for unit in found if unit is not None]


def test_a_store_keeps_tag_codes_and_bit_maps_in_extensions(tmp_path: Path) -> None:
    made = store(tmp_path)
    for code in range(10):
        put(made, code)
    expected = [(code, b"Ta\x011\x02") for code in range(10)]
    assert units(made) == expected
    made.stop()
    made = store(tmp_path)
    put(made, 10)
    assert units(made) == [*expected, (10, b"Ta\x011\x02")]
    made.stop()


def test_tags_are_compared_with_those_of_the_extension(tmp_path: Path) -> None:
    made = store(tmp_path)
    for code in (5, 6, 5):
        put(made, code)
    found = made.get(made.queues["T", 0], 0, 32, tags=frozenset({5}))
    assert (found.count, found.next_offset) == (2, 3)
    made.stop()


def test_a_bit_map_excludes_a_message_without_a_read_of_the_log(tmp_path: Path) -> None:
    made = store(tmp_path)
    for code in range(4):
        put(made, code)
    seen = []

    def select(properties: bytes) -> bool:
        seen.append(properties)
        return True

    found = made.reader.get_selected(
        made.queues["T", 0], 0, 32, select, examine_max=64, excludes=lambda unit: unit.tags_code != 2
    )
    assert (found.count, found.next_offset, len(seen)) == (1, 4, 1)
    made.stop()


def test_units_that_a_crash_lost_are_built_again_from_the_log(tmp_path: Path) -> None:
    made = store(tmp_path)
    for _ in range(3):
        put(made, 0)
    made._close_files()  # as if the process was killed: nothing of the queue was written
    made = store(tmp_path)
    assert [bit_map for _, bit_map in units(made)] == [b"Ta\x011\x02"] * 3
    made.stop()


def test_a_deleted_topic_loses_its_extension(tmp_path: Path) -> None:
    made = store(tmp_path)
    put(made, 1)
    made.stop()
    assert (tmp_path / "consumequeue_ext" / "T" / "0").is_dir()
    made = store(tmp_path)
    made.delete_topic("T")
    made.stop()
    assert not (tmp_path / "consumequeue_ext" / "T").exists()


def test_extensions_can_be_switched_on_and_off(tmp_path: Path) -> None:
    made = store(tmp_path, extended=False)
    put(made, 5)
    made.stop()
    made = store(tmp_path)
    put(made, 6)
    put(made, 5)
    queue = made.queues["T", 0]
    assert [is_address(code) for _, _, code in queue.units(0, 9)] == [False, True, True]
    assert made.get(queue, 0, 32, tags=frozenset({5})).count == 2
    made.stop()
    made = store(tmp_path, extended=False)
    put(made, 6)
    # Without its extension the tag of a message is unknown: the client compares it.
    assert made.get(made.queues["T", 0], 0, 32, tags=frozenset({5})).count == 3
    made.stop()
    made = store(tmp_path)
    put(made, 5)
    assert units(made) == [(6, b"Ta\x011\x02"), (5, b"Ta\x011\x02"), (5, b"Ta\x011\x02")]
    assert made.get(made.queues["T", 0], 0, 32, tags=frozenset({5})).count == 3
    made.stop()


def test_expired_messages_lose_their_units(tmp_path: Path) -> None:
    made = store(tmp_path)
    for code in range(4000):
        put(made, code)
    made.queues.pending.write_all()
    queue = made.queues["T", 0]
    extension = queue.extension
    assert extension is not None
    before = len(extension.files.files)
    assert before > 1
    keep = queue.unit(3500)
    assert keep is not None
    taken = queue.expire(queue.find_expired(keep[0]), keep[0])
    for file in taken:
        file.delete()
    assert queue.min_offset == 3500
    assert len(extension.files.files) < before
    assert made.get(queue, 3500, 32, tags=frozenset({3501})).count == 1
    made.stop()
