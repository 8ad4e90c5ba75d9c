"""Bytes that are not in memory are read on worker threads, while the event loop runs."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.services.cold_reads import ColdReadPool
from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.headers_client import (
    BoundaryType,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from epochmq_store.files import page_residency
from epochmq_store.files.mapped_file import MappedFile
from epochmq_store.files.page_residency import NotResidentError, PageResidency, warm
from epochmq_store.statuses import StoreReadError
from tests.unit.broker.kit import UNIQ_KEY, Bench, command, pull_command, running, send_command, until
from tests.unit.broker.pull_requests import SUBSCRIPTION, TOPIC, fill

DEADLINE_S = 60


class Disk:
    """Everything is on the disk only until it has been read; a read waits for `free`."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cold = True
        self.warm: set[Any] = set()
        self.free = threading.Event()
        self.error: Exception | None = None
        self.reads = 0
        self.threads: set[int] = set()
        monkeypatch.setattr(PageResidency, "_is_resident", self._is_resident)
        bench.broker.store.queues.pending.write_all()
        self._store = bench.broker.store
        self.forget()
        bench.broker.cold_reads._read = self.read

    def _is_resident(self, mapping: Any, start: int, stop: int) -> bool:
        return not self.cold or mapping in self.warm

    def forget(self) -> None:
        """Evicts everything from memory."""
        self.warm.clear()
        assert self._store.reader.residency is not None
        self._store.reader.residency.clear()

    def read(self, missing: NotResidentError) -> None:
        """Replaces `warm`."""
        self.reads += 1
        self.threads.add(threading.get_ident())
        assert self.free.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        warm(missing)
        self.warm.add(missing.file.map)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture
async def disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Disk:
    fill(bench.peer(), "", "", "")
    return Disk(bench, monkeypatch)


def pulling(offset: int = 0, **fields: Any) -> Command:
    return pull_command(TOPIC, offset, sys_flag=SUBSCRIPTION, subscription="*", **fields)


@pytest.mark.parametrize("ordinary", [False, True])
async def test_sends_are_served_while_a_pull_waits_for_the_disk(
    bench: Bench, disk: Disk, ordinary: bool
) -> None:
    consumer, producer = bench.peer(ordinary=ordinary), bench.peer(ordinary=ordinary)
    opaque = consumer.send(pulling())
    await until(lambda: disk.reads == 1)
    for _ in range(20):
        assert producer.call(send_command(TOPIC, b"x")).code == ResponseCode.SUCCESS
        await asyncio.sleep(0)
    consumer.collect()
    assert not consumer.answers
    disk.free.set()
    answer = await consumer.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    found = list(records.decode_records(answer.body))
    assert [one.body for one in found[:3]] == [b"0", b"1", b"2"]
    assert threading.get_ident() not in disk.threads


async def test_a_pull_by_an_expression_waits_for_the_disk_on_worker_threads(bench: Bench, disk: Disk) -> None:
    consumer, producer = bench.peer(), bench.peer()
    bench.broker.live.update({"enablePropertyFilter": "true"})
    opaque = consumer.send(pull_command(TOPIC, subscription="UNIQ_KEY IS NOT NULL", expression_type="SQL92"))
    await until(lambda: disk.reads == 1)
    assert producer.call(send_command(TOPIC, b"x")).code == ResponseCode.SUCCESS
    consumer.collect()
    assert not consumer.answers
    disk.free.set()
    answer = await consumer.answer(opaque)
    assert [one.body for one in records.decode_records(answer.body)][:3] == [b"0", b"1", b"2"]
    assert threading.get_ident() not in disk.threads


async def test_an_unreadable_sector_fails_a_pull_by_an_expression(bench: Bench, disk: Disk) -> None:
    bench.broker.live.update({"enablePropertyFilter": "true"})
    disk.error = StoreReadError("sector 7 cannot be read")
    disk.free.set()
    consumer = bench.peer()
    pull = pull_command(TOPIC, subscription="a IS NULL", expression_type="SQL92")
    answer = await consumer.answer(consumer.send(pull))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "sector 7 cannot be read")


async def test_a_pull_of_resident_messages_is_served_at_once(bench: Bench, disk: Disk) -> None:
    disk.cold = False
    consumer = bench.peer()
    disk.free.set()
    assert (await consumer.answer(consumer.send(pulling()))).code == ResponseCode.SUCCESS
    reads = disk.reads  # the queue's file had to be mapped
    assert consumer.call(pulling()).code == ResponseCode.SUCCESS
    assert disk.reads == reads


async def test_an_unreadable_sector_fails_only_the_requests_that_read_it(bench: Bench, disk: Disk) -> None:
    disk.error = StoreReadError("sector 7 cannot be read")
    disk.free.set()
    consumer, producer = bench.peer(), bench.peer()
    answer = await consumer.answer(consumer.send(pulling()))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "sector 7 cannot be read")
    assert bench.broker.cold_reads.failures == 1
    assert producer.call(send_command(TOPIC, b"x")).code == ResponseCode.SUCCESS
    assert consumer.call(pulling(4)).code == ResponseCode.PULL_NOT_FOUND
    disk.error = None
    assert (await consumer.answer(consumer.send(pulling()))).code == ResponseCode.SUCCESS


async def test_searches_and_views_wait_for_the_disk_on_worker_threads(bench: Bench, disk: Disk) -> None:
    stored = bench.record(TOPIC, 0, 1)
    producer, asking = bench.peer(), bench.peer()
    requests = [
        command(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            SearchOffsetRequestHeader(topic=TOPIC, queue_id=0, timestamp=0, boundary_type=BoundaryType.LOWER),
        ),
        command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=stored.physical_offset)),
        command(
            RequestCode.QUERY_MESSAGE,
            QueryMessageRequestHeader(
                topic=TOPIC,
                key=UNIQ_KEY,
                max_num=3,
                begin_timestamp=0,
                end_timestamp=1 << 60,
            ),
        ),
    ]
    for one in requests:
        disk.cold = True
        disk.forget()
        disk.free.clear()
        before = disk.reads
        opaque = asking.send(one)
        await until(lambda before=before: disk.reads > before)  # type: ignore[misc]
        assert producer.call(send_command(TOPIC, b"x")).code == ResponseCode.SUCCESS
        disk.free.set()
        answer = await asking.answer(opaque)
        assert answer.code == ResponseCode.SUCCESS
    assert threading.get_ident() not in disk.threads


async def test_a_stopping_broker_does_not_wait_for_cold_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as bench:
        fill(bench.peer(), "", "")
        disk = Disk(bench, monkeypatch)
        consumers = [bench.peer() for _ in range(10)]
        opaques = [consumer.send(pulling()) for consumer in consumers]
        await until(lambda: disk.reads == 1)
        bench.broker.cold_reads.stop()
        answers = [
            await consumer.answer(opaque) for consumer, opaque in zip(consumers[1:], opaques[1:], strict=True)
        ]
        assert {answer.code for answer in answers} == {ResponseCode.SYSTEM_ERROR}
        disk.free.set()


# the worker threads


class Missing(str):
    """Missing bytes in blocks of these letters."""

    def blocks(self) -> set[str]:
        return set(self.split("+"))


class Turns:
    """A pool whose reads wait until the test releases them, one by one."""

    def __init__(self, **limits: int) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.reads = ColdReadPool(read=self._read, **limits)
        self.reads.start()

    def _read(self, missing: Any) -> None:
        self.begun.append(str(missing))
        assert self.gates[missing].wait(DEADLINE_S)

    def submit(self, client: str, name: str) -> None:
        self.gates.setdefault(name, threading.Event())
        missing: Any = Missing(name)
        self.reads.submit(client, missing, lambda error: self.ended.append(name))


async def test_one_client_cannot_occupy_all_threads_and_clients_take_turns() -> None:
    turns = Turns(threads=3, per_client=2)
    for number in range(6):
        turns.submit("a", f"a{number}")
    turns.submit("b", "b0")
    turns.submit("c", "c0")
    await until(lambda: len(turns.begun) == 3)
    assert set(turns.begun) == {"a0", "a1", "b0"}
    turns.gates["a0"].set()
    await until(lambda: len(turns.begun) == 4)
    assert turns.begun[3] == "a2"
    turns.gates["a1"].set()
    await until(lambda: len(turns.begun) == 5)
    assert turns.begun[4] == "c0"
    for gate in turns.gates.values():
        gate.set()
    await until(lambda: len(turns.ended) == 8)
    assert (turns.reads.waiting, turns.reads.running) == (0, 0)
    turns.reads.stop()


@pytest.mark.parametrize(("limits", "taken"), [({"waiting_per_client": 3}, 4), ({"waiting_max": 5}, 6)])
async def test_too_many_cold_reads_are_rejected(limits: dict[str, int], taken: int) -> None:
    turns = Turns(threads=1, per_client=1, **limits)
    for number in range(taken):
        turns.submit("a", f"a{number}")
    with pytest.raises(RequestError) as caught:
        turns.submit("a", "one more")
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    for gate in turns.gates.values():
        gate.set()
    await until(lambda: len(turns.ended) == taken)
    turns.reads.stop()


async def test_requests_for_blocks_that_are_being_read_wait_for_that_read() -> None:
    turns = Turns(threads=2, per_client=1, waiting_per_client=2)
    turns.submit("a", "x+y")
    turns.submit("b", "z")
    turns.submit("a", "x")
    turns.submit("c", "y+x")
    turns.submit("c", "x+w")
    await until(lambda: len(turns.begun) == 2)
    assert (turns.reads.waiting, turns.reads.running) == (3, 2)
    turns.gates["x+y"].set()
    await until(lambda: len(turns.ended) == 3)
    assert sorted(turns.ended) == ["x", "x+y", "y+x"]
    await until(lambda: turns.begun[2:] == ["x+w"])
    assert turns.reads.waiting == 0
    for _ in range(2):  # the number of followers is bounded like that of waiting reads
        turns.submit("d", "z")
    turns.submit("d", "z")
    assert turns.reads.waiting == 3
    for gate in turns.gates.values():
        gate.set()
    await until(lambda: len(turns.ended) == 8)
    assert turns.begun == ["x+y", "z", "x+w", "z"]
    assert (turns.reads.waiting, turns.reads.running) == (0, 0)
    turns.reads.stop()


async def test_a_failed_read_fails_all_requests_that_wait_for_it() -> None:
    def broken(_: Any) -> None:
        assert gate.wait(DEADLINE_S)
        raise StoreReadError("the disk is broken")

    gate, errors = threading.Event(), []
    reads = ColdReadPool(read=broken)
    reads.start()
    for _ in range(3):
        missing: Any = Missing("x")
        reads.submit("a", missing, errors.append)
    gate.set()
    await until(lambda: len(errors) == 3)
    assert {type(error) for error in errors} == {StoreReadError}
    assert reads.failures == 1
    reads.stop()


# the page cache


def evicted(path: Path, size: int) -> MappedFile:
    """A mapped file without any page in memory."""
    path.write_bytes(os.urandom(size))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    file = MappedFile(path, 0, size, keep_fd=True)
    file.wrote = size
    return file


def test_evicted_pages_are_detected_and_read_again(tmp_path: Path) -> None:
    size = 3 * page_residency.BLOCK_BYTES
    file = evicted(tmp_path / "0", size)
    known = PageResidency()
    if known._is_resident(file.map, size - 100, size):
        pytest.skip("the file system of the temporary directory keeps its files in memory")
    with pytest.raises(NotResidentError) as missing:
        known.require(file, size - 100, 50)
    assert (missing.value.at, missing.value.size) == (size - 100, 50)
    warm(missing.value)
    known.require(file, size - 100, 100)
    with pytest.raises(NotResidentError):
        known.require(file, 0, 10)
    with pytest.raises(NotResidentError):
        known.require(file, page_residency.BLOCK_BYTES - 1, size - 2 * page_residency.BLOCK_BYTES)
    file.close()


def test_blocks_known_to_be_in_memory_are_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 4 * page_residency.BLOCK_BYTES
    file = evicted(tmp_path / "0", size)
    known = PageResidency()
    resident = {0, 1, 3}
    checked: list[int] = []

    def is_resident(mapping: mmap, start: int, stop: int) -> bool:
        checked.append(start >> page_residency.BLOCK_BITS)
        return start >> page_residency.BLOCK_BITS in resident

    monkeypatch.setattr(known, "_is_resident", is_resident)
    block = page_residency.BLOCK_BYTES
    pieces = [(10, 20), (block - 10, 20), (3 * block, block)]
    known.require_all(file, pieces)
    assert checked == [0, 1, 3]
    known.require_all(file, pieces)
    assert known.knows(file, 5, 2 * block)
    assert checked == [0, 1, 3]
    assert not known.knows(file, 5, 2 * block + 1)
    for piece in ((2 * block, 10), (2 * block - 5, 10), (0, 3 * block)):
        with pytest.raises(NotResidentError):
            known.require_all(file, [*pieces, piece])
    known.clear()
    assert not known.knows(file, 5, 6)
    assert not known.knows(file, 0, (page_residency.SPAN_BLOCKS_MAX + 1) * block)
    file.close()


class CheckedBlocks:
    """Counts the blocks that are checked; all are in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(PageResidency, "_is_resident", self._is_resident)

    def _is_resident(self, *_: Any) -> bool:
        self.count += 1
        return True


def test_known_blocks_expire_when_pages_were_reclaimed_and_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, checked, reclaimed = evicted(tmp_path / "f", 4096), CheckedBlocks(monkeypatch), False
    known = PageResidency(lambda: reclaimed)

    def checks_after_expiry() -> int:
        before = checked.count
        known.expire()
        known.require(file, 0, 100)
        return checked.count - before

    known.require(file, 0, 100)
    assert [checks_after_expiry() for _ in range(page_residency.EXPIRIES_MAX)] == [
        *[0] * (page_residency.EXPIRIES_MAX - 1),
        1,
    ]
    reclaimed = True
    assert checks_after_expiry() == 1
    file.close()


def test_the_number_of_known_blocks_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_residency, "KNOWN_BLOCKS_MAX", 2)
    file, block = evicted(tmp_path / "f", 4 * page_residency.BLOCK_BYTES), page_residency.BLOCK_BYTES
    CheckedBlocks(monkeypatch)
    known = PageResidency()
    known.require(file, 0, 2 * block)
    assert known.knows(file, 0, 2 * block)
    known.require(file, 2 * block, block)
    assert known.knows(file, 2 * block, 3 * block)
    assert not known.knows(file, 0, block)
    file.close()


@pytest.mark.parametrize("read_ahead", [True, False])
def test_only_of_a_file_with_read_ahead_more_than_the_missing_pages_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, read_ahead: bool
) -> None:
    file = evicted(tmp_path / "0", page_residency.BLOCK_BYTES)
    file.set_read_ahead(read_ahead)
    read: list[tuple[int, int]] = []
    advice: list[int] = []
    pread = os.pread

    def watched(fd: int, size: int, at: int) -> bytes:
        read.append((at, size))
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", watched)
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, _at, _size, what: advice.append(what))
    warm(NotResidentError(file, 5000, 10))
    page = page_residency.PAGE_BYTES
    if read_ahead:
        assert (read, advice) == ([(0, page_residency.BLOCK_BYTES)], [])
    else:
        assert (read, advice) == ([(page, page)], [os.POSIX_FADV_RANDOM])
    monkeypatch.undo()
    file.close()


def test_a_failed_read_names_its_file_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = evicted(tmp_path / "0", 8192)

    def broken(fd: int, size: int, at: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    with pytest.raises(StoreReadError, match="cannot be read at 0"):
        warm(NotResidentError(file, 4096, 10))
    file.delete()
    warm(NotResidentError(file, 4096, 10))
