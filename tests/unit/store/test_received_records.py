"""Tests that damaged records of another broker's log are found before they are acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol import record_layout as layout
from epochmq_store.appending.received_records import DamagedRecordError, ReceivedRecords
from epochmq_store.log.record_checks import check_records
from epochmq_store.message_store import MessageStore
from epochmq_store.record import DispatchRequest
from tests.unit.store.support import HOST_V6, LOG_FILE, Message, open_store, put_all, random_messages


@pytest.fixture
def source(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "source")
    put_all(store, random_messages(3, 120))
    put_all(store, [Message(topic="t" * 140, body=b"", born_host=HOST_V6), Message(body=b"last")])
    yield store
    store.stop()


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path / "replica")
    yield store
    store.stop()


def bytes_of(store: MessageStore) -> bytes:
    return b"".join(file.map[: file.wrote] for file in store.log.files.files)


def append(store: MessageStore, data: bytes) -> None:
    """Appends bytes that may cross the end of a file."""
    while data:
        end = store.replica_log.end
        size = min(len(data), LOG_FILE - end % LOG_FILE)
        store.replica_log.write(end, memoryview(data[:size]))
        data = data[size:]


def record_ends(store: MessageStore) -> set[int]:
    ends, position = {0}, 0
    while position < store.max_phy_offset:
        found = store.log.parse(position, (), check_crc=True)
        if isinstance(found, DispatchRequest):
            position += found.size
        else:
            position = store.log.roll_next_file(position)
        ends.add(position)
    return ends


@pytest.mark.parametrize("seed", range(6))
def test_whole_records_are_counted_however_the_bytes_arrive(
    source: MessageStore, replica: MessageStore, seed: int
) -> None:
    rng = random.Random(seed)
    data, ends = bytes_of(source), record_ends(source)
    checked = ReceivedRecords(replica.log, 0)
    at = 0
    while at < len(data):
        size = rng.choice([1, 7, 8, 87, 88, 300, 5000])
        append(replica, data[at : at + size])
        at = min(at + size, len(data))
        while checked.advance(rng.choice([1, 2, 1000])):
            pass
        reached = max(end for end in ends if end <= at)
        blank = next((end for end in ends if at < end and end % LOG_FILE == 0 and end - at < LOG_FILE), None)
        assert checked.position in (reached, at if blank is not None else reached)
    assert checked.position == len(data) == source.max_phy_offset
    assert replica.dispatcher.catch_up() == 122
    assert replica.dispatcher.position == checked.position


CHECKED = {
    "size": 3,
    "magic": layout.MAGIC_AT,
    "body checksum": layout.BODY_CRC_AT + 3,
    "physical offset": layout.PHYSICAL_OFFSET_AT + 7,
    "hosts": layout.SYS_FLAG_AT + 3,
    "body length": layout.BODY_SIZE_AT + 3,
    "body": layout.HEAD_BYTES + 2,
    "topic length": layout.HEAD_BYTES + 5,
    "properties length": layout.HEAD_BYTES + 5 + 1 + 6 + 1,
}


@pytest.mark.parametrize("field", CHECKED)
@pytest.mark.parametrize("bit", [0x10, 0x20])
def test_a_flipped_bit_is_found(source: MessageStore, replica: MessageStore, field: str, bit: int) -> None:
    """What is before the record is counted, and nothing behind it."""
    at = source.max_phy_offset
    put_all(source, [Message(), Message(), Message()])
    data = bytearray(bytes_of(source))
    assert at // LOG_FILE == len(data) // LOG_FILE
    data[at + CHECKED[field]] ^= bit
    append(replica, bytes(data))
    checked = ReceivedRecords(replica.log, 0)
    with pytest.raises(DamagedRecordError) as damaged:
        checked.advance(1000, complete_until=len(data))
    assert damaged.value.offset == at


def test_a_record_that_never_becomes_whole_is_found_when_the_master_has_sent_all(
    source: MessageStore, replica: MessageStore
) -> None:
    data = bytes_of(source)
    append(replica, data[:-1])
    checked = ReceivedRecords(replica.log, 0)
    while checked.advance(1000):
        pass
    assert not checked.advance(1000, complete_until=checked.position)
    with pytest.raises(DamagedRecordError, match="longer than the log"):
        checked.advance(1000, complete_until=len(data) - 1)
    append(replica, data[-1:])
    checked.advance(1000, complete_until=len(data))
    assert checked.position == len(data)


def test_a_truncated_log_is_checked_again(source: MessageStore, replica: MessageStore) -> None:
    data = bytes_of(source)
    append(replica, data)
    checked = ReceivedRecords(replica.log, 0)
    while checked.advance(1000):
        pass
    replica.dispatcher.catch_up()
    replica.note_replicated_bytes()
    ends = sorted(record_ends(source))
    replica.truncate(ends[3])
    checked.truncate(ends[3])
    assert checked.position == ends[3]
    append(replica, data[ends[3] :])
    while checked.advance(1000):
        pass
    assert checked.position == len(data)


def test_a_part_of_a_record_is_no_damage(source: MessageStore, replica: MessageStore) -> None:
    put_all(source, [Message()])
    start = source.max_phy_offset
    put_all(source, [Message(body=b"y" * 300)])
    data = bytearray(bytes_of(source))
    for size in (1, 8, 36, 100):
        append(replica, bytes(data[replica.max_phy_offset : start + size]))
        assert not replica.replica_log.is_damaged_at(start)
        replica.dispatcher.catch_up()
        assert not replica.replica_log.is_damaged_before(1 << 40)
    append(replica, bytes(data[replica.max_phy_offset :]))
    assert not replica.replica_log.is_damaged_before(1 << 40)
    file = replica.log.files.find(start)
    assert file is not None
    file.map[start - file.start + layout.PHYSICAL_OFFSET_AT + 7] ^= 1
    assert replica.replica_log.is_damaged_before(1 << 40)
    assert not replica.replica_log.is_damaged_before(start)


def test_each_flipped_bit_is_judged_as_the_check_of_single_records_does(tmp_path: Path) -> None:
    """Most records are skipped by a shorter check: it must accept nothing that the whole one rejects."""
    store = open_store(tmp_path)
    put_all(store, [Message(topic="t", body=b"body" * 5, properties={"k": "v"}) for _ in range(3)])
    file = store.log.files.files[0]
    whole = file.map[: file.wrote]
    size = len(whole) // 3
    for position in range(size, 2 * size):
        for bit in range(8):
            changed = bytearray(whole)
            changed[position] ^= 1 << bit
            file.map[: len(changed)] = bytes(changed)
            checked = ReceivedRecords(store.log, 0)
            try:
                while checked.advance(2, complete_until=len(changed)):
                    pass
                accepted = True
            except DamagedRecordError:
                accepted = False
            assert accepted == (not check_records(bytes(changed), 0, file.size)), (position, bit)
            assert checked.position in ((len(changed),) if accepted else (0, size)), (position, bit)
    file.map[: len(whole)] = whole
    store.stop()
