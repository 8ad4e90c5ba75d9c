"""After a kill, recovery starts at the message that the abort file names: before it, queues and index have
everything. So a start after a kill reads seconds' worth of messages, and not gigabytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from epochmq_formats import abort_file
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_store.files.queue_files import QueueFiles
from epochmq_store.message_store import MessageStore
from epochmq_store.recovering.recovery import RecoveryResult
from epochmq_store.running import queue_flusher
from tests.unit.store.flush_gate import Gate
from tests.unit.store.recovery_checks import check_recovered
from tests.unit.store.started_stores import started_store, wait_until
from tests.unit.store.support import (
    Message,
    adopt_abort_file,
    open_store,
    put_all,
    random_messages,
    small_config,
)

FAST: dict[str, Any] = {
    "flush_interval_consume_queue": 1,
    "flush_interval_commit_log": 1,
    # No round of all queues: only the growth of the log makes the flusher write them.
    "flush_consume_queue_thorough_interval": 3_600_000,
}


@pytest.fixture(autouse=True)
def record_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_flusher, "UNRECORDED_LOG_BYTES", 2000)
    monkeypatch.setattr(queue_flusher, "UNRECORDED_LOG_BYTES_PER_QUEUE", 1)


def recorded(root: Path) -> int:
    """What the abort file says, -1 for nothing."""
    return abort_file.decode((root / "abort").read_bytes()).dispatched_until


def checkpoint_time(root: Path) -> int:
    """What the checkpoint file says about the log, epoch ms, 0 before the first flush. Recovery ignores the
    abort file's message while it is 0."""
    return int.from_bytes((root / "checkpoint").read_bytes()[:8], "big")


def kill(store: MessageStore, copy_to: Path, **changes: Any) -> Path:
    """Copies the directory as a kill would leave it: units that are only in memory are lost."""
    shutil.copytree(store.config.root, copy_to)
    adopt_abort_file(copy_to, **changes)
    return copy_to


def start(root: Path) -> tuple[MessageStore, RecoveryResult]:
    store = MessageStore(small_config(root, **FAST))
    return store, store.load()


async def recorded_store(store: MessageStore, count: int = 60) -> None:
    """Puts messages, and waits until the abort file names one of the last, and the checkpoint file has the
    flush of all."""
    last = put_all(store, random_messages(11, count))[-1][1]
    root = store.config.root
    await wait_until(
        lambda: (
            recorded(root) > last - 4000 and store.log_flusher.flushed > last and checkpoint_time(root) > 0
        )
    )


async def test_recovery_starts_at_the_recorded_message(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        recorded_offset = recorded(tmp_path / "a")
        left = kill(store, tmp_path / "b")
    again, found = start(left)
    assert found.start == recorded_offset > 0
    assert 0 < found.records < 30
    assert check_recovered(again, tmp_path / "w") == 60


@pytest.mark.parametrize(("byte", "bit"), [(0, 6), (0, 7), (3, 0), (5, 3), (6, 7)])
async def test_a_flipped_bit_of_a_queue_loses_no_later_unit(tmp_path: Path, byte: int, bit: int) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        queue = max(store.queues.values(), key=lambda one: one.max_offset)
        topic, queue_id, count = queue.topic, queue.queue_id, queue.max_offset
        assert count > 3
        left = kill(store, tmp_path / "b")
    path = left / "consumequeue" / topic / str(queue_id) / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[2 * UNIT_BYTES + byte] ^= 1 << bit
    path.write_bytes(data)
    again, _ = start(left)
    assert again.queue(topic, queue_id).max_offset == count
    assert check_recovered(again, tmp_path / "w") == 60


@pytest.mark.parametrize(
    ("byte", "bit"), [(0, 6), (0, 7), (3, 0), (4, 1), (5, 3), (6, 2), (7, 0), (8, 7), (9, 2), (11, 0)]
)
async def test_a_flipped_bit_of_the_last_unit_of_a_queue_is_repaired(
    tmp_path: Path, byte: int, bit: int
) -> None:
    """The last unit says where the queue ends, and which records it has. No message of this queue is read
    again: all are before the one that the abort file names."""
    async with started_store(tmp_path / "a", **FAST) as store:
        put_all(store, [Message(topic="early", queue_id=0) for _ in range(4)])
        early = store.queue("early", 0)
        unit = early.unit(3)
        await recorded_store(store)
        assert early.written_end == 4 * UNIT_BYTES
        left = kill(store, tmp_path / "b")
    path = left / "consumequeue" / "early" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[3 * UNIT_BYTES + byte] ^= 1 << bit
    path.write_bytes(data)
    again, _ = start(left)
    assert again.queue("early", 0).max_offset == 4
    assert again.queue("early", 0).unit(3) == unit
    put_all(again, [Message(topic="early", queue_id=0)])
    assert again.queue("early", 0).max_offset == 5
    assert check_recovered(again, tmp_path / "w") == 65


@pytest.mark.parametrize(
    ("count", "file", "is_clean"),
    [
        *[(count, file, False) for count, file in [(4, 0), (25, 0), (25, 1), (25, 2), (20, 1)]],
        # After a clean stop only the last file is looked at: the scrub repairs the others.
        *[(count, file, True) for count, file in [(4, 0), (25, 2), (20, 1)]],
    ],
)
async def test_a_file_of_a_queue_that_became_zeros_is_rebuilt(
    tmp_path: Path, count: int, file: int, is_clean: bool
) -> None:
    """Otherwise the next message would get an offset that an earlier one has, and consumers that have read
    that one would never get it."""
    async with started_store(tmp_path / "a", **FAST) as store:
        put_all(store, [Message(topic="early", queue_id=0) for _ in range(count)])
        await recorded_store(store)
        left = kill(store, tmp_path / "b")
    left = tmp_path / "a" if is_clean else left
    path = sorted((left / "consumequeue" / "early" / "0").iterdir())[file]
    path.write_bytes(bytes(path.stat().st_size))
    again, _ = start(left)
    put_all(again, [Message(topic="early", queue_id=0)])
    assert again.queue("early", 0).max_offset == count + 1
    assert check_recovered(again, tmp_path / "w") == 60 + count + 1


async def test_units_in_memory_only_are_rebuilt(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        put_all(store, random_messages(12, 20))
        left = kill(store, tmp_path / "b")
    assert check_recovered(start(left)[0], tmp_path / "w") == 80


async def test_a_message_that_the_index_lacks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is built later than the queues are written: what waits for it holds the record back."""
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        monkeypatch.setattr(store.index, "build", lambda *args, **options: None)
        (first, *_) = put_all(store, [Message(properties={"UNIQ_KEY": f"{at:032X}"}) for at in range(50)])
        await wait_until(lambda: not store.queues.pending.waiting)
        store.when_queues_written(lambda: None)
        await wait_until(lambda: store.queue_flusher._unwritten is None)
        assert recorded(tmp_path / "a") <= first[1]
        left = kill(store, tmp_path / "b")
        monkeypatch.undo()
    again, _ = start(left)
    assert len(again.index.find("orders", f"{0:032X}", 10, 0, 1 << 62)) == 1
    again.stop()


async def test_nothing_is_recorded_when_a_queue_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        before = recorded(tmp_path / "a")
        gate = Gate(monkeypatch, QueueFiles, "write")
        gate.error = OSError(24, "too many open files")
        gate.free.set()
        put_all(store, random_messages(12, 40))
        await wait_until(lambda: gate.entered > 0 and not store.queue_flusher._running)
        assert recorded(tmp_path / "a") == before
        gate.error = None


async def test_a_truncation_withdraws_the_record(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        offsets = [place for _, place, _, _ in put_all(store, random_messages(11, 60))]
        await wait_until(lambda: recorded(tmp_path / "a") > offsets[30])
        store.truncate(offsets[30])
        assert recorded(tmp_path / "a") == -1
        put_all(store, random_messages(13, 3))
        left = kill(store, tmp_path / "b")
    assert check_recovered(start(left)[0], tmp_path / "w") == 33


async def test_a_truncation_behind_the_recorded_message_keeps_the_record(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        before = recorded(tmp_path / "a")
        last = put_all(store, [Message()])[0][1]
        store.truncate(last)
        assert recorded(tmp_path / "a") == before


async def test_the_next_run_keeps_the_record_until_it_has_a_newer_one(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        left = kill(store, tmp_path / "b")
    again, first = start(left)
    twice = kill(again, tmp_path / "c")
    again.stop()
    last, second = start(twice)
    assert second.start == first.start
    assert check_recovered(last, tmp_path / "w") == 60


@pytest.mark.parametrize(
    "changes",
    [{"boot_id": "another boot"}, {"recovering": True}, {"flush_failed": True}],
    ids=["the machine crashed", "a recovery was interrupted", "an fsync failed"],
)
async def test_the_record_counts_after_a_plain_kill_only(tmp_path: Path, changes: dict[str, Any]) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        before = recorded(tmp_path / "a")
        left = kill(store, tmp_path / "b", **changes)
    again, found = start(left)
    assert found.start < before
    assert check_recovered(again, tmp_path / "w") == 60


@pytest.mark.parametrize("lost", ["consumequeue", "index", "checkpoint"])
async def test_what_a_person_removed_after_the_kill_is_built_again(tmp_path: Path, lost: str) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        left = kill(store, tmp_path / "b")
    path = left / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    again, found = start(left)
    assert found.start == 0
    assert check_recovered(again, tmp_path / "w") == 60


async def test_a_record_of_no_message_is_ignored(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        left = kill(store, tmp_path / "b", dispatched_until=recorded(tmp_path / "a") + 1)
    again, found = start(left)
    assert found.start % 8192 == 0
    assert check_recovered(again, tmp_path / "w") == 60


async def test_a_start_without_the_log_withdraws_the_record(tmp_path: Path) -> None:
    """As in a DLedger log of which nothing is committed yet. The queues are then empty. When the log is
    committed again and the broker is killed a second time, only some of the queues may be written."""
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        left = kill(store, tmp_path / "b")
    shutil.copytree(left / "commitlog", tmp_path / "whole")
    shutil.rmtree(left / "commitlog")
    without, _ = start(left)
    again = kill(without, tmp_path / "c")
    without.stop()
    assert recorded(again) == -1
    shutil.rmtree(again / "commitlog", ignore_errors=True)
    shutil.copytree(tmp_path / "whole", again / "commitlog")
    last, found = start(again)
    assert found.start == 0
    assert check_recovered(last, tmp_path / "w") == 60


async def test_an_idle_store_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        written: list[int] = []
        monkeypatch.setattr(store.abort, "record_dispatched", written.append)
        for _ in range(5):
            await wait_until(lambda: store.queue_flusher._unwritten is None)
            store.when_queues_written(lambda: None)
        assert len(written) <= 1


def test_the_abort_file_of_an_older_version_records_nothing(tmp_path: Path) -> None:
    open_store(tmp_path).stop()
    assert abort_file.decode(b"1\nboot\nacknowledged=after-flush\n").dispatched_until == -1
    assert abort_file.decode(b"1\nboot\ndispatched=x\n").dispatched_until == -1
    assert abort_file.decode(b"1\nboot\ndispatched=-7\n").dispatched_until == -1


async def test_nothing_is_recorded_before_the_last_queue_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writing of many queues takes several jobs of the worker thread."""
    monkeypatch.setattr(queue_flusher, "QUEUES_PER_JOB", 3)
    async with started_store(tmp_path / "a", **FAST) as store:
        messages = [Message(queue_id=number % 20) for number in range(60)]
        stored: list[tuple[int, int]] = []  # (queue id, physical offset)
        missing: list[tuple[int, int, int]] = []
        record = store.abort.record_dispatched

        def check(offset: int) -> None:
            for queue_id in range(20):
                before = sum(1 for one, place in stored if one == queue_id and place < offset)
                written = store.queue("orders", queue_id).written_end // 20
                if written < before:
                    missing.append((queue_id, written, before))
            record(offset)

        monkeypatch.setattr(store.abort, "record_dispatched", check)
        places = [place for _, place, _, _ in put_all(store, messages)]
        stored += [(message.queue_id, place) for message, place in zip(messages, places, strict=True)]
        await wait_until(lambda: recorded(tmp_path / "a") == places[-1])
        assert not missing


async def test_a_start_after_a_clean_stop_records_the_last_message(tmp_path: Path) -> None:
    """Also in a store that is idle afterwards: a kill must not cost the reading of gigabytes."""
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        last = store.log.max_offset
    store, found = start(tmp_path / "a")
    assert found.clean
    left = kill(store, tmp_path / "b")
    store.stop()
    again, found = start(left)
    assert not found.clean
    assert 0 < last - found.start < 4000
    assert check_recovered(again, tmp_path / "w") == 60


async def test_a_start_that_knew_nothing_records_what_it_has_written(tmp_path: Path) -> None:
    async with started_store(tmp_path / "a", **FAST) as store:
        await recorded_store(store)
        put_all(store, random_messages(12, 20))
        left = kill(store, tmp_path / "b", dispatched_until=-1)
    shutil.rmtree(left / "consumequeue")
    async with started_store(left, **FAST) as store:
        last = store.log.max_offset
        assert store.recovery_start == 0
        await wait_until(lambda: 0 < last - recorded(left) < 4000 and checkpoint_time(left) > 0)
        twice = kill(store, tmp_path / "c")
    again, found = start(twice)
    assert 0 < last - found.start < 4000
    assert check_recovered(again, tmp_path / "w") == 80
