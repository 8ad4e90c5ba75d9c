"""Tests the index: its files equal those of single puts byte for byte, and a failing index delays no
message."""

from __future__ import annotations

import asyncio
import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_protocol import javahash
from epochmq_store.appending import appender as append_module
from epochmq_store.index import key_index as index_module
from epochmq_store.index.index_file import IndexFile
from epochmq_store.index.key_index import BUILD_THRESHOLD, KeyIndex, UnindexedMessage, index_file_name
from epochmq_store.reading import message_reader
from epochmq_store.record import DispatchRequest
from epochmq_store.running import maintenance as maintenance_module
from epochmq_store.statuses import PutStatus
from tests.unit.store.support import (
    INDEX_CAPACITY,
    INDEX_SLOTS,
    Message,
    file_contents,
    open_store,
    put,
    put_all,
)


class PlainIndexFile:
    """A plain implementation of RocketMQ's IndexFile.putKey, one key at a time."""

    def __init__(self, previous: PlainIndexFile | None) -> None:
        self.data = bytearray(40 + 4 * INDEX_SLOTS + 20 * INDEX_CAPACITY)
        self.begin = self.end = self.begin_physical = self.end_physical = 0
        if previous:
            self.begin = self.end = previous.end
            self.begin_physical = self.end_physical = previous.end_physical
        self.used, self.count = 0, 1

    def put(self, hashed: int, physical: int, stored: int) -> bool:
        if self.count >= INDEX_CAPACITY:
            return False
        slot = 40 + hashed % INDEX_SLOTS * 4
        (before,) = struct.unpack_from(">i", self.data, slot)
        seconds = max((stored - self.begin) // 1000, 0) if self.begin > 0 else 0
        at = 40 + 4 * INDEX_SLOTS + 20 * self.count
        struct.pack_into(">iqii", self.data, at, hashed, physical, seconds, before)
        struct.pack_into(">i", self.data, slot, self.count)
        if self.count <= 1:
            self.begin, self.begin_physical = stored, physical
        self.used += before == 0
        self.count += 1
        self.end, self.end_physical = stored, physical
        return True

    def finished(self) -> bytes:
        header = (self.begin, self.end, self.begin_physical, self.end_physical, self.used, self.count)
        struct.pack_into(">qqqqii", self.data, 0, *header)
        return bytes(self.data).rstrip(b"\0")


messages = st.lists(
    st.tuples(
        st.sampled_from(["orders", "payments"]),
        st.one_of(st.none(), st.text("0123456789ABCDEF", min_size=32, max_size=32)),
        st.one_of(st.none(), st.sampled_from(["a", "a b", "  x  y ", " ", "schlüssel", "order-1234567890"])),
        st.integers(0, 5000),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(sent=messages, parsed=st.booleans())
def test_batches_write_the_same_files_as_single_puts(
    tmp_path_factory: object, sent: list[tuple[str, str | None, str | None, int]], parsed: bool
) -> None:
    directory = tmp_path_factory.mktemp("index")  # type: ignore[attr-defined]
    index = KeyIndex(directory / "index", INDEX_SLOTS, INDEX_CAPACITY)
    plain: list[PlainIndexFile] = []
    stored = 1_000_000
    for number, (topic, uniq_key, keys, step) in enumerate(sent):
        physical, stored = number * 100, stored + step
        if parsed:
            index.dispatch(DispatchRequest(topic, 0, 0, physical, 100, 0, stored, 0, uniq_key, keys))
        elif uniq_key or keys:
            index.backlog.append((index.hasher(topic), uniq_key, keys, physical, stored))
        for key in ([uniq_key] if uniq_key else []) + [key for key in (keys or "").split(" ") if key]:
            hashed = javahash.key_hash(topic, key)
            if not plain or not plain[-1].put(hashed, physical, stored):
                plain.append(PlainIndexFile(plain[-1] if plain else None))
                plain[-1].put(hashed, physical, stored)
    index.close()
    assert list(file_contents(directory, "index").values()) == [file.finished() for file in plain]


def test_a_file_opens_as_it_was_closed(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "1", INDEX_SLOTS, INDEX_CAPACITY)
    assert file.put([(5, 100, 1_000_000), (12, 200, 1_002_000), (5, 300, 1_003_000)], 0) == 3
    file.close()
    again = IndexFile(tmp_path / "1", INDEX_SLOTS, INDEX_CAPACITY)
    found: list[int] = []
    again.find(5, 0, 1 << 60, found, 10)
    assert found == [300, 100]
    assert (again.count, again.slots_used, again.begin_timestamp) == (4, 1, 1_000_000)
    again.close()


def test_a_damaged_chain_ends_a_search(tmp_path: Path) -> None:
    file = IndexFile(tmp_path / "1", INDEX_SLOTS, INDEX_CAPACITY)
    file.put([(5, 100, 1_000_000), (5, 200, 1_000_000)], 0)
    struct.pack_into(">i", file._file.map, 40 + 4 * INDEX_SLOTS + 20 * 2 + 16, 2)  # entry 2 points to itself
    found: list[int] = []
    file.find(5, 0, 1 << 60, found, 10)
    assert found == [200]
    file.close()


def test_two_files_of_one_millisecond_get_two_names(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", INDEX_SLOTS, INDEX_CAPACITY)
    for number in range(100):
        index.backlog.append((index.hasher("t"), f"{number:032X}", None, number, 1_000_000))
    index.build()
    assert len(index.files) == -(-100 // (INDEX_CAPACITY - 1))
    assert len({file.path for file in index.files}) == len(index.files)
    assert index.find("t", f"{3:032X}", 10, 0, 1 << 60) == [3]
    index.close()


def test_files_without_a_message_in_the_log_expire_except_the_last(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", INDEX_SLOTS, 100)
    for number in range(1, 400):
        index.dispatch(
            DispatchRequest("t", 0, number, number * 100, 100, 0, 1_000_000, 0, f"{number:032X}", None)
        )
    index.build()
    files = list(index.files)
    assert len(files) >= 4
    assert index.expire(files[1].end_physical) == files[:1]
    assert index.expire(files[1].end_physical + 1) == files[1:2]
    assert index.files == files[2:]
    assert index.expire(1 << 60) == files[2:-1]
    assert index.files == files[-1:]
    index.close()


def test_file_names_are_local_times(monkeypatch: object) -> None:
    assert len(index_file_name(1_700_000_000_123)) == 17
    assert index_file_name(1_700_000_000_123).endswith("123")


def test_messages_in_the_files_are_not_entered_again(tmp_path: Path) -> None:
    index = KeyIndex(tmp_path / "index", INDEX_SLOTS, 1000)
    sent = [
        DispatchRequest("t", 0, n, n * 100, 100, 0, 1_000_000, 0, f"{n:032X}", None)
        for n in range(BUILD_THRESHOLD)
    ]
    for message in sent:
        index.dispatch(message)
    assert not index.backlog
    for message in sent[:-1]:
        index.dispatch(message)
    assert not index.backlog
    index.close()


class BrokenDisk:
    """Fails the creation of index files while `error` is set, and counts the hashed messages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, index: KeyIndex) -> None:
        self.error: OSError | None = OSError(errno.EIO, "injected")
        self.hashed = 0
        add_file, build = KeyIndex._add_file, KeyIndex._build

        def next_file(index: KeyIndex, full: IndexFile | None) -> IndexFile:
            if self.error is not None:
                raise self.error
            return add_file(index, full)

        def counted(index: KeyIndex, part: list[UnindexedMessage]) -> None:
            self.hashed += len(part)
            build(index, part)

        monkeypatch.setattr(KeyIndex, "_add_file", next_file)
        monkeypatch.setattr(KeyIndex, "_build", counted)


def test_single_messages_do_not_retry_a_failing_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only ticks retry, in bounded steps, and afterwards every key is found."""
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    disk = BrokenDisk(monkeypatch, store.index)
    keyed = [Message(properties={"KEYS": f"key{number}"}, body=b"") for number in range(3 * BUILD_THRESHOLD)]
    put_all(store, keyed)
    assert disk.hashed == BUILD_THRESHOLD, "only the first failure has hashed messages"
    store.appender.build_index(retry=True)
    assert disk.hashed == BUILD_THRESHOLD + len(keyed)
    assert len(store.index.backlog) == len(keyed)
    disk.error = None
    store.appender.build_index(retry=True)
    assert not store.index.backlog
    put_all(store, keyed[:BUILD_THRESHOLD])
    assert not store.index.backlog, "messages are entered at once again"
    for number in (0, 1, BUILD_THRESHOLD, len(keyed) - 1):
        assert store.reader.query("orders", f"key{number}", 9, 0, 1 << 60).count == 1 + (
            number < BUILD_THRESHOLD
        )
    store.stop()


async def test_puts_are_rejected_while_the_index_backlog_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (index_module, append_module, maintenance_module):
        monkeypatch.setattr(module, "INDEX_BACKLOG_MAX", 2 * BUILD_THRESHOLD)
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20, flush_interval_commit_log=1)
    disk = BrokenDisk(monkeypatch, store.index)
    store.start()
    messages = [
        Message(properties={"KEYS": f"key{number}"}, body=b"") for number in range(3 * BUILD_THRESHOLD)
    ]
    statuses = [put(store, message)[0] for message in messages]
    assert statuses.count(PutStatus.PUT_OK) == 2 * BUILD_THRESHOLD
    assert len(store.index.backlog) == 2 * BUILD_THRESHOLD
    disk.error = None
    async with asyncio.timeout(60):
        while not store.state.writable:  # noqa: ASYNC110  # a tick of the store ends it
            await asyncio.sleep(0.001)
    assert put(store, messages[-1])[0] is PutStatus.PUT_OK
    found = [
        store.reader.query("orders", f"key{number}", 9, 0, 1 << 60).count
        for number in range(3 * BUILD_THRESHOLD)
    ]
    assert found == [1] * (2 * BUILD_THRESHOLD) + [0] * (BUILD_THRESHOLD - 1) + [1]
    store.stop()


def test_a_query_returns_what_a_client_can_receive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest messages up to the largest frame, and at least one."""
    store = open_store(tmp_path)
    put_all(store, [Message(properties={"KEYS": "k"}, body=bytes(1000))] * 5)
    size = len(store.reader.query("orders", "k", 1, 0, 1 << 60).body)
    for limit, count in ((1, 1), (3 * size - 1, 2), (3 * size, 3), (100 * size, 5)):
        monkeypatch.setattr(message_reader, "QUERY_BYTES_MAX", limit)
        found = store.reader.query("orders", "k", 64, 0, 1 << 60)
        assert (found.count, len(found.body)) == (count, count * size)
    store.stop()
