"""Batch consume queues: a unit for each inner batch, found by the queue offsets of its messages. They have
RocketMQ's format, and are the same after every restart, truncation and replication."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_store.appending.appender import BatchMessage
from epochmq_store.files.mapped_file import QueueMemoryFullError
from epochmq_store.files.page_residency import NotResidentError, PageResidency, warm
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.queues.batch_queue_end import read_unit
from epochmq_store.statuses import GetResult, GetStatus, PutStatus
from tests.unit.store.support import HOST, LOG_FILE, copy_after_crash, file_contents, log_bytes, small_config

PER_FILE = 10
FILE = 46 * PER_FILE
INNER_BATCH = records.INNER_BATCH_FLAG | records.NEED_UNWRAP_FLAG
BATCHES = "batches"


def is_batch(topic: str) -> bool | None:
    return {BATCHES: True, "orders": False}.get(topic)


def unknown(topic: str) -> bool | None:
    return None


def opened(root: Path, known: Callable[[str], bool | None] = is_batch, **changes: object) -> MessageStore:
    """A loaded store with small files, in which the topic `batches` has batch consume queues."""
    config = small_config(root, mapper_file_size_batch_consume_queue=FILE, **changes)
    store = MessageStore(config, is_batch_topic=known)
    store.load()
    return store


def queue_of(store: MessageStore, queue_id: int = 0) -> BatchConsumeQueue:
    queue = store.queue(BATCHES, queue_id)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


@dataclass
class Model:
    """What was stored: (base, count, physical offset, size, store time) of each inner batch."""

    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)

    def put(self, store: MessageStore, count: int, size: int = 30, tags: str = "") -> None:
        """Stores an inner batch of `count` messages."""
        queue = queue_of(store)
        properties = {"UNIQ_KEY": "K" * 32, "INNER_NUM": str(count), "INNER_BASE": str(queue.max_offset)}
        status, physical, offset, stored = store.append(
            queue,
            body=bytes(size),
            properties=records.format_properties(properties | ({"TAGS": tags} if tags else {})),
            born_timestamp=0,
            born_host=HOST,
            sys_flag=INNER_BATCH,
            tags_code=len(tags),
        )
        assert (status, offset) == (PutStatus.PUT_OK, self.end)
        self.batches.append((offset, count, physical, stored, store.appender.last_timestamp))

    def put_single(self, store: MessageStore) -> None:
        """Stores a message that is no inner batch."""
        status, physical, offset, stored = store.append(
            queue_of(store), body=b"single", properties=b"", born_timestamp=0, born_host=HOST
        )
        assert (status, offset) == (PutStatus.PUT_OK, self.end)
        self.batches.append((offset, 1, physical, stored, store.appender.last_timestamp))

    @property
    def end(self) -> int:
        return sum(self.batches[-1][:2]) if self.batches else 0

    def check(self, store: MessageStore) -> None:
        """Asserts that the queue has these batches and nothing else."""
        queue = queue_of(store)
        first = self.batches[0][0] if self.batches else -1
        assert (queue.min_offset, queue.max_offset) == (first, self.end)
        for base, count, physical, size, _ in self.batches:
            for offset in {base, base + count // 2, base + count - 1}:
                assert queue.unit(offset) == (physical, size, 0)
        assert queue.unit(self.end) is None


def read_all(store: MessageStore, offset: int, count: int = 32) -> list[GetResult]:
    """The results of the gets of a consumer that starts at this offset."""
    queue = queue_of(store)
    found = [store.get(queue, offset, count)]
    while found[-1].status is GetStatus.FOUND:
        found.append(store.get(queue, found[-1].next_offset, count))
    return found


def test_a_unit_has_rocketmqs_format(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    model.put(store, 3, tags="ab")
    model.put(store, 5)
    store.queues.pending.write_all()
    data = (tmp_path / "batchconsumequeue" / BATCHES / "0" / f"{0:020d}").read_bytes()
    assert len(data) == FILE
    (_, _, first, size, stored), (_, _, second, other_size, other_stored) = model.batches
    assert data[:46] == struct.pack(">qiqqqhii", first, size, 2, stored, 0, 3, -1, 0)
    assert data[46:92] == struct.pack(">qiqqqhii", second, other_size, 0, other_stored, 3, 5, -1, 0)
    assert not any(data[92:])
    assert not (tmp_path / "consumequeue" / BATCHES).exists()
    store.stop()


def test_a_record_of_an_inner_batch_carries_its_first_offset(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    model.put(store, 3)
    model.put(store, 4)
    first, second = records.decode_records(store.get(queue_of(store), 0, 32).body)
    assert (first.queue_offset, second.queue_offset) == (0, 3)
    assert first.sys_flag == second.sys_flag == INNER_BATCH
    store.stop()


def test_every_offset_of_a_batch_returns_the_whole_batch(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    for count in (3, 1, 4):
        model.put(store, count)
    queue = queue_of(store)
    for offset in (0, 1, 2):
        found = store.get(queue, offset, 1)
        assert (found.status, found.count, found.next_offset) == (GetStatus.FOUND, 3, 3)
    found = store.get(queue, 1, 32)
    assert (found.count, found.next_offset, found.min_offset, found.max_offset) == (8, 8, 0, 8)
    assert store.get(queue, 8, 32).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert store.get(queue, 9, 32).status is GetStatus.OFFSET_OVERFLOW_BADLY
    store.stop()


def test_limits_count_messages_and_the_first_batch_always_fits(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    for _ in range(6):
        model.put(store, 10)
    queue = queue_of(store)
    assert store.get(queue, 0, 5).next_offset == 10
    assert store.get(queue, 0, 29).next_offset == 20
    assert store.get(queue, 0, 30).next_offset == 30
    # More than the 32 messages of one transfer: one batch is added while there are fewer than 32.
    assert store.get(queue, 0, 1000).next_offset == 40
    assert store.get(queue, 0, 1000, 150).next_offset == 10
    store.stop()


def test_an_empty_queue_has_the_offsets_of_rocketmqs(tmp_path: Path) -> None:
    store = opened(tmp_path)
    queue = queue_of(store)
    assert (queue.min_offset, queue.max_offset) == (-1, 0)
    found = store.get(queue, 0, 32)
    assert (found.status, found.min_offset, found.max_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, -1, 0)
    assert store.reader.offset_by_time(queue, 1) == 0
    assert store.lookup.min_offset(BATCHES, 5) == -1
    assert store.lookup.min_offset("orders", 5) == 0
    store.stop()


def test_a_get_ends_at_the_end_of_a_file_and_consumers_read_everything(tmp_path: Path) -> None:
    store = opened(tmp_path, mapped_file_size_commit_log=LOG_FILE * 8)
    model = Model()
    for number in range(5 * PER_FILE + 3):
        model.put(store, number % 3 + 1)
    for written in (False, True):
        if written:
            store.queues.pending.write_all()
            assert store.queues.pending.memory_used_bytes == 0
        for offset in range(model.end):
            results = read_all(store, offset)
            assert results[-1].status is GetStatus.OFFSET_OVERFLOW_ONE
            read = [one.physical_offset for found in results for one in records.decode_records(found.body)]
            assert read == [physical for base, count, physical, *_ in model.batches if base + count > offset]
    assert len(queue_of(store).files.files) == 6
    model.check(store)
    store.stop()


def test_a_tag_selects_whole_batches(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    for tags in ("a", "bb", "a", "bb", "bb"):
        model.put(store, 2, tags=tags)
    queue = queue_of(store)
    found = store.get(queue, 0, 32, tags=frozenset({1}))
    assert (found.count, found.next_offset) == (4, 10)
    found = store.get(queue, 6, 32, tags=frozenset({1}))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 10)
    store.stop()


def test_a_get_without_a_match_ends_after_the_units_that_a_scan_may_read(tmp_path: Path) -> None:
    store = opened(tmp_path, max_filter_message_size=3 * 46)
    model = Model()
    for _ in range(6):
        model.put(store, 1, tags="bb")
    found = store.get(queue_of(store), 0, 1, tags=frozenset({1}))
    assert (found.status, found.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 3)
    store.stop()


def test_an_expression_selects_whole_batches_by_their_properties(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    for tags in ("a", "bb", "a", "bb", "bb"):
        model.put(store, 2, tags=tags)
    queue, select = queue_of(store), lambda properties: b"TAGS\x01bb" in properties
    found = store.reader.get_selected(queue, 0, 32, select, examine_max=100, resident=False)
    assert (found.count, found.next_offset) == (6, 10)
    found = store.reader.get_selected(queue, 0, 32, select, examine_max=3, resident=False)
    assert (found.count, found.next_offset) == (2, 4)
    found = store.reader.get_selected(queue, 0, 4, select, examine_max=100, had=(3, 100), resident=False)
    assert (found.status, found.count) == (GetStatus.NO_MATCHED_MESSAGE, 0)
    store.stop()


def test_other_messages_are_units_of_one_message(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    model.put_single(store)
    model.put(store, 2)
    model.put_single(store)
    element = BatchMessage(b"single", b"")
    status, places, first, _ = store.append_batch(
        queue_of(store), [element] * 3, born_timestamp=0, born_host=HOST
    )
    assert (status, first) == (PutStatus.PUT_OK, 4)
    found = store.get(queue_of(store), 1, 32)
    assert (found.count, found.next_offset) == (6, 7)
    assert [queue_of(store).unit(offset) for offset in (4, 5, 6)] == [
        (place, places[1] - places[0], 0) for place in places
    ]
    store.stop()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_random_batches_survive_restarts_kills_and_truncations(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    root = tmp_path / "0"
    store = opened(root)
    model = Model()
    for step in range(1, 40):
        match rng.choice(["put", "put", "put", "single", "write", "stop", "kill", "truncate"]):
            case "put":
                for _ in range(rng.randrange(1, 2 * PER_FILE)):
                    model.put(store, rng.choice([1, 1, 2, 7, 300]), rng.randrange(200))
            case "single":
                model.put_single(store)
            case "write":
                store.queues.pending.write_all()
            case "stop":
                store.stop()
                store = opened(root, rng.choice([is_batch, unknown]))
            case "kill":
                killed, root = root, tmp_path / str(step)
                copy_after_crash(store, root)
                if rng.random() < 0.5:
                    _tear(rng, root)
                store.stop()
                shutil.rmtree(killed)
                store = opened(root, rng.choice([is_batch, unknown]))
            case "truncate" if model.batches:
                kept = rng.randrange(len(model.batches))
                store.truncate(model.batches[kept][2])
                del model.batches[kept:]
        store.queues.is_batch_topic = is_batch
        model.check(store)
    store.stop()
    assert store.queues.pending.memory_used_bytes == 0


def _tear(rng: random.Random, root: Path) -> None:
    """Overwrites the end of the newest queue file by zeros, from any byte on."""
    paths = sorted((root / "batchconsumequeue").glob("*/*/*"))
    if not paths:
        return
    data = paths[-1].read_bytes()
    used = len(data.rstrip(b"\0"))
    paths[-1].write_bytes(data[: rng.randrange(used + 1)].ljust(len(data), b"\0"))
    (root / "abort").write_text("")  # nothing says where to start: the whole log is read


@pytest.mark.parametrize("known", [is_batch, unknown])
def test_recovery_builds_the_same_files_from_the_log(tmp_path: Path, known: object) -> None:
    root, again = tmp_path / "store", tmp_path / "again"
    store = opened(root)
    model = Model()
    for number in range(3 * PER_FILE):
        model.put(store, number % 5 + 1)
    store.stop()
    again.mkdir()
    shutil.copytree(root / "commitlog", again / "commitlog")
    (again / "abort").write_text("")
    store = opened(again, known)
    store.stop()
    assert file_contents(again, "batchconsumequeue") == file_contents(root, "batchconsumequeue")
    assert not list((again / "consumequeue").iterdir())


def test_a_replica_gets_the_same_queue_before_it_knows_the_topic(tmp_path: Path) -> None:
    master, replica = opened(tmp_path / "master"), opened(tmp_path / "replica", unknown)
    model = Model()
    model.put_single(master)
    for number in range(2 * PER_FILE):
        model.put(master, number % 5 + 1)
    arrived: list[tuple[str, int]] = []
    replica.on_arrival.append(lambda queue, offset, code: arrived.append((queue.topic, offset)))
    end = master.max_phy_offset
    data = log_bytes(tmp_path / "master")[:end]
    replica.replica_log.write(0, memoryview(data[:LOG_FILE]))
    replica.dispatcher.catch_up()
    queue = replica.queue(BATCHES, 0)
    assert isinstance(queue, BatchConsumeQueue)
    assert queue.max_offset == model.end
    assert arrived == [(BATCHES, base) for base, *_ in model.batches]
    for store in (master, replica):
        store.stop()
    ours, theirs = (file_contents(tmp_path / name, "batchconsumequeue") for name in ("replica", "master"))
    assert ours == theirs
    assert not list((tmp_path / "replica" / "consumequeue").glob(f"{BATCHES}/*/*"))


def test_an_inner_batch_of_a_deleted_topic_is_not_taken_for_one_of_a_later_topic(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root)
    Model().put(store, 3)
    store.delete_topic(BATCHES)
    store.queues.is_batch_topic = lambda topic: False
    status, *_ = store.append(
        store.queue(BATCHES, 0), body=b"plain", properties=b"", born_timestamp=0, born_host=HOST
    )
    assert status is PutStatus.PUT_OK
    left = copy_after_crash(store, tmp_path / "left")
    (left / "abort").write_text("")
    store.stop()
    store = opened(left, lambda topic: False)
    queue = store.queue(BATCHES, 0)
    assert not isinstance(queue, BatchConsumeQueue)
    assert queue.max_offset > 0
    store.stop()


def test_a_topic_that_is_deleted_leaves_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    Model().put(store, 3)
    store.queues.pending.write_all()
    assert store.delete_topic(BATCHES) == 1
    assert not list((tmp_path / "batchconsumequeue").iterdir())
    Model().put(store, 2)
    assert (queue_of(store).min_offset, queue_of(store).max_offset) == (0, 2)
    store.stop()


def test_units_of_lost_messages_expire(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    while len(store.log.files.files) < 3 or len(model.batches) < 3 * PER_FILE:
        model.put(store, len(model.batches) % 3 + 1, 100)
    queue = queue_of(store)
    store.queues.pending.write_all()
    written = read_unit(queue.files, len(model.batches) - 1)
    while len(model.batches) % PER_FILE != 4:
        model.put(store, 2, 100)  # some units stay in memory
    for _ in range(len(store.log.files.files) - 1):
        store.log.files.files.pop(0).delete()
        start = store.log.min_offset
        found = queue.find_expired(start)
        for file in queue.expire(found, start):
            file.delete()
        kept = [batch for batch in model.batches if batch[2] >= start]
        assert queue.min_offset == kept[0][0]
        in_file = kept[0][2] <= written.physical
        assert found.first_physical_offset == (kept[0][2] if in_file else -1)
        assert store.get(queue, queue.min_offset, 1).status is GetStatus.FOUND
        assert store.get(queue, queue.min_offset - 1, 1).status is GetStatus.OFFSET_TOO_SMALL
    assert queue.files.files[0].start > 0
    expected = queue.min_offset, queue.max_offset
    store.stop()
    store = opened(tmp_path)
    assert (queue_of(store).min_offset, queue_of(store).max_offset) == expected
    model.put(store, 3)
    store.stop()


def test_a_queue_without_messages_in_the_log_starts_again_at_0(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    model.put(store, 3)
    queue = queue_of(store)
    assert store.queues.drop_expired(queue.max_physical) == 1
    assert (queue.min_offset, queue.max_offset) == (-1, 0)
    Model().put(store, 2)
    assert (queue.min_offset, queue.max_offset) == (0, 2)
    store.stop()


def number_for(times: list[int], time: int) -> int:
    """The batch that RocketMQ finds: the first one at or after the time, among those of one file; the last
    one of the file for its time and for later times, up to the first time of the next file."""
    starts = range(0, len(times), PER_FILE)
    start = max((start for start in starts if times[start] <= time), default=0)
    in_file = times[start : start + PER_FILE]
    if time >= in_file[-1]:
        return start + len(in_file) - 1
    return start + next(number for number, stored in enumerate(in_file) if stored >= time)


def test_the_offset_for_a_time_is_that_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    model, now = Model(), 1_000_000.0
    monkeypatch.setattr(store.appender, "_clock", lambda: now / 1000)
    for _ in range(2 * PER_FILE):
        for _ in range(2):
            model.put(store, 3)
        now += 10
    queue = queue_of(store)
    for written in (False, True):
        if written:
            store.queues.pending.write_all()
        times = [batch[4] for batch in model.batches]
        for time in range(times[0] - 5, times[-1] + 15, 5):
            found = store.reader.offset_by_time(queue, time)
            assert found == model.batches[number_for(times, time)][0], time
            if time in times:
                found = store.reader.offset_by_time(queue, time, upper=True)
                assert found in [batch[0] for batch in model.batches if batch[4] == time]
    store.stop()


def test_readers_see_a_batch_once_all_of_it_is_replicated(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    for _ in range(4):
        model.put(store, 3)
    queue = queue_of(store)
    for written in (False, True):
        if written:
            store.queues.pending.write_all()
        for number, (base, _, physical, size, _) in enumerate(model.batches):
            store.visibility.set_confirm_offset(physical + size - 1)
            assert store.max_offset(queue) == (base if number else queue.min_offset)
            store.visibility.set_confirm_offset(physical + size)
            assert store.max_offset(queue) == base + 3
            assert store.get(queue, base, 32).next_offset == base + 3
    store.stop()


def test_a_get_on_the_event_loop_does_not_read_from_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    for _ in range(3 * PER_FILE):
        model.put(store, 2)
    store.stop()
    store = opened(tmp_path)
    store.reader.residency = PageResidency()
    queue = queue_of(store)
    tries = 0
    while True:
        tries += 1
        try:
            found = store.reader.get_resident(queue, model.batches[PER_FILE + 3][0], 4)
            break
        except NotResidentError as missing:
            warm(missing)
    assert (found.status, found.next_offset) == (GetStatus.FOUND, model.batches[PER_FILE + 5][0])
    assert 1 < tries <= 6  # as many reads as a pull may need
    store.stop()


def test_a_batch_is_rejected_unchanged_while_units_fill_the_memory(tmp_path: Path) -> None:
    store = opened(tmp_path)
    model = Model()
    model.put(store, 2)
    pending = store.queues.pending
    pending.early_write_bytes, pending.max_bytes = 0, pending.memory_used_bytes
    pending.write_on_worker(lambda: None)
    queue, end = queue_of(store), store.max_phy_offset
    properties = records.format_properties({"INNER_NUM": "3", "INNER_BASE": "2"})
    with pytest.raises(QueueMemoryFullError):
        queue.put_record(properties, 2, end, 100, 0, 0)
    status, *_ = store.append(
        queue, body=b"x", properties=properties, born_timestamp=0, born_host=HOST, sys_flag=INNER_BATCH
    )
    assert status is PutStatus.SERVICE_NOT_AVAILABLE
    assert store.max_phy_offset == end
    model.check(store)
    store.stop()


def test_a_queue_of_the_wrong_type_is_replaced_when_its_topic_is_known(tmp_path: Path) -> None:
    store = opened(tmp_path, unknown)
    plain = store.queue(BATCHES, 0)
    store.append(plain, body=b"x", properties=b"", born_timestamp=0, born_host=HOST)
    store.stop()
    store = opened(tmp_path, is_batch)
    stored = store.reader.store_timestamp(queue_of(store), 0)
    assert queue_of(store).unit_at(0) == (0, store.max_phy_offset, 0, stored, 0, 1, -1, 0)
    assert not list((tmp_path / "consumequeue").glob("*/*/*"))
    store.queues.is_batch_topic = unknown
    other = store.queue("later", 1)
    assert not isinstance(other, BatchConsumeQueue)
    store.queues.replace_by_batch_queues("later")
    assert isinstance(store.queue("later", 1), BatchConsumeQueue)
    store.stop()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_queue_whose_last_file_became_zeros_is_built_again(
    tmp_path: Path, is_clean: bool, lost: int
) -> None:
    store, model = opened(tmp_path / "a"), Model()
    for _ in range(PER_FILE * (lost + 1) - 3):
        model.put(store, 3)
    for _ in range(5):
        store.append(store.queue("orders", 0), body=b"", properties=b"", born_timestamp=0, born_host=HOST)
    left = tmp_path / "a" if is_clean else copy_after_crash(store, tmp_path / "b")
    store.stop()
    file = sorted((left / "batchconsumequeue" / BATCHES / "0").iterdir())[lost]
    file.write_bytes(bytes(FILE))
    again = opened(left)
    model.check(again)
    model.put(again, 2)
    model.check(again)
    again.stop()
