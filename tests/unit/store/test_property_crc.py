"""The property `__CRC32#`: the checksum of a whole record, at its end."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_store.appending.appender import BatchMessage
from epochmq_store.message_store import MessageStore
from epochmq_store.statuses import PutStatus
from tests.unit.store.support import (
    HOST,
    Message,
    adopt_abort_file,
    copy_after_crash,
    open_store,
    put,
    put_all,
    random_messages,
    receive,
)

APPENDS = {"enabled_append_prop_crc": True}
CHECKS = {"force_verify_prop_crc": True}


def stored(store: MessageStore) -> list[tuple[int, bytes]]:
    """The physical offset and the bytes of every record."""
    found, at = [], 0
    while at < store.max_phy_offset:
        data = store.read(at)
        if data is None:
            at = store.log.roll_next_file(at)
            continue
        found.append((at, data))
        at += len(data)
    return found


def copied(root: Path, to: Path) -> Path:
    """A second copy of a directory that was copied after a crash."""
    shutil.copytree(root, to)
    adopt_abort_file(to)
    return to


def test_every_record_ends_with_the_checksum_of_what_is_before_it(tmp_path: Path) -> None:
    store = open_store(tmp_path, **APPENDS)
    put_all(store, random_messages(1, 60))
    batch = [BatchMessage(b"one", b"a\x01b\x02"), BatchMessage(b"two", b"")]
    assert (
        store.append_batch(store.queue("t", 0), batch, born_timestamp=1, born_host=HOST)[0]
        is PutStatus.PUT_OK
    )
    found = stored(store)
    assert len(found) == 62
    for _, data in found:
        digits = f"{zlib.crc32(data[:-20]) & 0x7FFFFFFF:010d}"[::-1]
        assert data[-20:] == f"__CRC32#\x01{digits}\x02".encode()
        assert records.parse_properties(records.decode_record(data).properties)["__CRC32#"] == digits
    store.stop()


def test_a_separator_is_added_before_the_checksum(tmp_path: Path) -> None:
    store = open_store(tmp_path, **APPENDS)
    store.append(store.queue("t", 0), body=b"", properties=b"a\x01b", born_timestamp=1, born_host=HOST)
    assert b"\x00\x1da\x01b\x02" not in stored(store)[0][1]
    assert stored(store)[0][1][-24:-20] == b"a\x01b\x02"
    store.stop()


def test_the_checksum_counts_for_the_limit_of_properties(tmp_path: Path) -> None:
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20, **APPENDS)
    longest = 32767 - 20 - len("n\x01\x02")
    assert put(store, Message(properties={"n": "x" * longest}))[0] is PutStatus.PUT_OK
    too_long = put(store, Message(properties={"n": "x" * (longest + 1)}))
    assert too_long[0] is PutStatus.PROPERTIES_SIZE_EXCEEDED
    store.stop()


@pytest.mark.parametrize("damage", ["a flipped bit in the properties", "zeros at the end"])
def test_recovery_ends_the_log_at_a_record_that_does_not_match(tmp_path: Path, damage: str) -> None:
    store = open_store(tmp_path / "a", **APPENDS)
    put_all(store, [Message(properties={"name": "value"})] * 10)
    at, data = stored(store)[6]
    copy = copy_after_crash(store, tmp_path / "b")
    store.stop()
    end = at + len(data)
    with (copy / "commitlog" / f"{0:020}").open("r+b") as file:
        if damage.startswith("a flipped"):
            file.seek(end - 25)
            file.write(bytes((data[-25] ^ 1,)))
        else:
            file.seek(end - 30)
            file.write(bytes(30))
    unchecked = open_store(copied(copy, tmp_path / "c"), **APPENDS)
    assert len(stored(unchecked)) == 10
    unchecked.stop()
    checked = open_store(copy, **APPENDS, **CHECKS)
    assert len(stored(checked)) == 6
    assert checked.queue("orders", 0).max_offset == 6
    checked.stop()


def test_records_from_before_the_key_are_checked_by_their_bodies(tmp_path: Path) -> None:
    store = open_store(tmp_path / "a")
    put_all(store, [Message()] * 5)
    store.stop()
    store = open_store(tmp_path / "a", **APPENDS, **CHECKS)
    put_all(store, [Message()] * 5)
    copy = copy_after_crash(store, tmp_path / "b")
    store.stop()
    again = open_store(copy, **APPENDS, **CHECKS)
    assert len(stored(again)) == 10
    again.stop()


def test_a_replica_has_the_masters_bytes_and_checks_them(tmp_path: Path) -> None:
    master = open_store(tmp_path / "a", **APPENDS)
    replica = open_store(tmp_path / "b", **CHECKS)
    put_all(master, [Message(properties={"name": "value"})] * 3)
    data = bytearray(master.log.read(0, master.max_phy_offset) or b"")
    first = stored(master)[1][0]
    data[len(data) - 25] ^= 1
    receive(replica, 0, bytes(data))
    assert stored(replica)[:2] == stored(master)[:2]
    third = stored(master)[2][0]
    assert replica.replica_log.scan_valid_records(first, 10) == (third, True)
    master.stop()
    replica.stop()
