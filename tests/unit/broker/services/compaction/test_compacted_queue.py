"""A compaction keeps the newest message of each key, and is complete or not done at all after a crash."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.services.compaction.compacted_queue import CompactionOutcome
from epochmq_broker.services.compaction.file_pairs import FilePairs
from epochmq_broker.services.compaction.newest_offsets import ENTRIES_MIN
from epochmq_store.statuses import GetStatus
from tests.unit.broker.services.compaction.made_records import (
    LIMITS,
    TABLE_BYTES,
    compacted_queue,
    keyed,
    messages_of,
)

PER_PAIR = 9


def test_a_compaction_keeps_the_newest_message_of_each_key(tmp_path: Path) -> None:
    queue = compacted_queue(tmp_path)
    made = random.Random(3)
    keys = [f"key{made.randrange(8)}" for _ in range(100)]
    bodies = [b"" if made.random() < 0.1 else b"body%d" % number for number in range(100)]
    queue.append(keyed(number, keys[number], bodies[number]) for number in range(100))
    complete = 100 // PER_PAIR * PER_PAIR
    newest = {key: number for number, key in enumerate(keys[:complete])}
    kept = sorted(number for number in newest.values() if bodies[number])
    expected = [(number, bodies[number]) for number in [*kept, *range(complete, 100)]]
    assert queue.compact(TABLE_BYTES) == CompactionOutcome(complete, len(kept))
    assert messages_of(queue) == expected
    assert (queue.min_offset, queue.max_offset) == (kept[0], 100)
    assert queue.compact(TABLE_BYTES) is None
    again = compacted_queue(tmp_path, trusted=False)
    assert messages_of(again) == expected
    assert again.compact(TABLE_BYTES) is None
    again.append(keyed(number, f"key{number % 2}") for number in range(100, 150))
    assert again.compact(TABLE_BYTES) is not None
    complete = [offset for offset, _ in messages_of(again)]
    assert complete == sorted(set(complete))
    assert complete[-1] == 149


def test_one_pair_is_not_compacted(tmp_path: Path) -> None:
    queue = compacted_queue(tmp_path)
    queue.append(keyed(number) for number in range(PER_PAIR))
    assert queue.compact(TABLE_BYTES) is None
    assert len(messages_of(queue)) == PER_PAIR


def test_a_compaction_that_would_leave_nothing_changes_nothing(tmp_path: Path) -> None:
    queue = compacted_queue(tmp_path)
    queue.append(keyed(number, body=b"") for number in range(12))
    assert queue.compact(TABLE_BYTES) is None
    assert [offset for offset, _ in messages_of(queue)] == list(range(12))


def test_a_full_table_ends_a_compaction_and_the_next_one_continues(tmp_path: Path) -> None:
    queue = compacted_queue(tmp_path)
    count = ENTRIES_MIN * 3
    queue.append(keyed(number, f"key{number % (count // 2)}") for number in range(count))
    rounds = 0
    while queue.compact(1) is not None:
        rounds += 1
    assert rounds > 2
    offsets = [offset for offset, _ in messages_of(queue)]
    complete = count // PER_PAIR * PER_PAIR
    assert offsets == [
        number for number in range(count) if number >= complete or number + count // 2 >= complete
    ]


def test_gets_find_what_rocketmq_finds(tmp_path: Path) -> None:
    queue = compacted_queue(tmp_path)
    assert queue.get(0, LIMITS).status is GetStatus.NO_MESSAGE_IN_QUEUE
    queue.append(keyed(number, f"key{number % 3}") for number in range(40))
    queue.compact(TABLE_BYTES)
    first = queue.get(0, LIMITS)
    assert (first.status, first.next_offset, first.min_offset, first.max_offset) == (
        GetStatus.FOUND, 36, 33, 40,
    )  # fmt: skip
    found = queue.get(34, LIMITS._replace(messages=1))
    assert (found.next_offset, found.count) == (35, 1)
    assert queue.get(36, LIMITS._replace(memory_messages=2)).count == 2
    assert queue.get(36, LIMITS._replace(memory_bytes=0, disk_messages=3)).count == 3
    assert queue.get(36, LIMITS._replace(bytes=1)).count == 1
    assert (queue.get(40, LIMITS).status, queue.get(40, LIMITS).next_offset) == (
        GetStatus.OFFSET_OVERFLOW_ONE, 40,
    )  # fmt: skip
    badly = queue.get(41, LIMITS)
    assert (badly.status, badly.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 40)


def test_a_truncation_during_a_compaction_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = compacted_queue(tmp_path)
    queue.append(keyed(number, f"key{number % 3}") for number in range(40))
    write = queue._write_newest

    def truncate_meanwhile(*arguments: Any) -> None:
        write(*arguments)
        queue.truncate_to(20)

    monkeypatch.setattr(queue, "_write_newest", truncate_meanwhile)
    assert queue.compact(TABLE_BYTES) is None
    monkeypatch.undo()
    assert [offset for offset, _ in messages_of(queue)] == list(range(20))
    assert queue.compact(TABLE_BYTES) is not None
    assert [offset for offset, _ in messages_of(queue)] == [15, 16, 17, 18, 19]


def test_a_deleted_queue_leaves_no_files(tmp_path: Path) -> None:
    queue = compacted_queue(tmp_path)
    queue.append(keyed(number) for number in range(20))
    queue.compact(TABLE_BYTES)
    queue.delete()
    queue.append([keyed(50)])
    assert queue.compact(TABLE_BYTES) is None
    assert not [path for path in (tmp_path / "compactionLog").rglob("*") if path.is_file()]
    assert not [path for path in (tmp_path / "compactionCq").rglob("*") if path.is_file()]


class KilledError(Exception):
    """The process was killed here."""


class KillAt:
    """Ends the process at the n-th change of a directory entry."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self.steps = 0
        self._step = step
        for owner, name in ((os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, change: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any, **options: Any) -> None:
            if self.steps == self._step:
                raise KilledError
            self.steps += 1
            change(*arguments, **options)

        return run


def kills(directory: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[Path], None]) -> Iterator[Path]:
    """Directories in which `work` was killed at each of its steps in turn; the last one is complete."""
    for step in range(1000):
        copy = directory.with_name(f"{directory.name}-{step}")
        shutil.copytree(directory, copy)
        with monkeypatch.context() as patches:
            kill = KillAt(patches, step)
            try:
                work(copy)
            except KilledError:
                killed = True
            else:
                killed = False
        yield copy
        if not killed:
            assert kill.steps > 6
            return
    raise AssertionError("it never ends")


@pytest.mark.long
def test_a_compaction_that_was_killed_is_complete_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    queue = compacted_queue(first)
    queue.append(keyed(number, f"key{number % 12}") for number in range(100))
    queue.sync()
    before = messages_of(queue)
    after: list[list[tuple[int, bytes]]] = []

    def compact(directory: Path) -> None:
        compacted_queue(directory).compact(TABLE_BYTES)

    for directory in kills(first, monkeypatch, compact):
        again = compacted_queue(directory, trusted=False)
        after.append(messages_of(again))
        assert sorted(path.name for path in directory.rglob("compacting")) == []
        again.append([keyed(100)])
        again.compact(TABLE_BYTES)
        assert messages_of(again) == [*after_compaction(before), (100, b"body")]
    assert after[0] == before
    assert after[-1] == after_compaction(before)
    assert {tuple(found) for found in after} == {tuple(before), tuple(after_compaction(before))}


def after_compaction(before: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """What a compaction of the 100 messages leaves."""
    return [message for message in before if message[0] >= 99 - 12]


def rocketmq_replaces(directory: Path) -> None:
    """The changes that RocketMQ makes (CompactionLog.replaceFiles, replaceCqFiles), in its order."""
    queue = compacted_queue(directory)
    files = queue._files
    compacting = FilePairs(
        files.log_directory / "compacting", files.queue_directory / "compacting", files.sizes
    )
    complete = queue._files.pairs[:-1]
    compacting.append(record for record in (keyed(offset, f"key{offset % 12}") for offset in range(87, 99)))
    for folder in (queue._files.log_directory, queue._files.queue_directory):
        for pair in complete:
            (folder / pair.name).rename(folder / f"{pair.name}.delete")
        for pair in compacting.pairs:
            (folder / "compacting" / pair.name).rename(folder / pair.name)
        for pair in complete:
            (folder / f"{pair.name}.delete").unlink()


@pytest.mark.long
def test_a_compaction_of_rocketmq_that_was_killed_is_complete_or_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "first"
    queue = compacted_queue(first)
    queue.append(keyed(number, f"key{number % 12}") for number in range(100))
    queue.sync()
    before = messages_of(queue)
    found = []
    for directory in kills(first, monkeypatch, rocketmq_replaces):
        again = compacted_queue(directory, trusted=False)
        found.append(messages_of(again))
        assert list(directory.rglob("*.delete")) == []
    assert found[0] == before
    assert found[-1] == after_compaction(before)
    assert {tuple(one) for one in found} == {tuple(before), tuple(after_compaction(before))}
