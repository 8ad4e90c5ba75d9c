"""A compaction topic in one directory, used by EpochMQ's and RocketMQ's store in turn: both write the same
bytes, compact to the same bytes, and return the same messages."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.topics import TopicConfig
from epochmq_store.record import tags_code_of
from epochmq_store.statuses import PutStatus
from tests.interop.java_env import compile_java, run_java
from tests.unit.broker.kit import Bench, running, until

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

TOPIC, QUEUES = "compacted", 2
LOG_FILE, COMPACTED_LOG, COMPACTED_QUEUE = 1 << 20, 46_000, 4_650
COUNT = 1230  # the last messages of each writer have keys
BORN = records.encode_host("127.0.0.2", 40000)
SETTINGS = {
    "mappedFileSizeCommitLog": str(LOG_FILE),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "compactionMappedFileSize": str(COMPACTED_LOG),
    "compactionCqMappedFileSize": str(COMPACTED_QUEUE),
    "brokerIP1": "127.0.0.1",
    "maxMessageSize": str(1 << 16),
}


def java(root: Path, *steps: str) -> None:
    """Runs CompactionTool on the directory."""
    classes = compile_java("CompactionTool.java", "LocalStore.java", "ToolProcess.java")
    arguments = [str(root), str(LOG_FILE), str(COMPACTED_LOG), str(COMPACTED_QUEUE), *steps]
    run_java("CompactionTool", arguments, home=root.parent / "home", classes=classes)


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Bench]:
    """A broker on the directory, whose queues have caught up."""
    async with running(root, SETTINGS) as bench:
        topic = TopicConfig(
            topic_name=TOPIC,
            read_queue_nums=QUEUES,
            write_queue_nums=QUEUES,
            attributes={"cleanup.policy": "COMPACTION"},
        )
        bench.broker.topics.put(topic)
        await caught_up(bench)
        yield bench


async def caught_up(bench: Bench) -> None:
    """Waits until everything stored is in the compacted queues. The last message of each queue has a key."""
    for queue_id in range(QUEUES):
        queue = bench.broker.compaction.queue_of(TOPIC, queue_id)
        source = bench.broker.store.queue(TOPIC, queue_id)
        await until(lambda queue=queue, source=source: queue.max_offset == source.max_offset)  # type: ignore[misc]


async def write(bench: Bench, first: int, count: int) -> None:
    """The messages that CompactionTool makes."""
    store = bench.broker.store
    for number in range(first, first + count):
        properties = {"UNIQ_KEY": f"{number:032X}"}
        if number % 29 != 3:
            properties["KEYS"] = f"schlüssel{number * 7 % 60}"
        if number % 4:
            properties["TAGS"] = f"tag{number % 3}"
        stored = records.format_properties(properties)
        status, *_ = store.append(
            store.queue(TOPIC, number % QUEUES),
            body=bytes(0 if number % 13 == 5 else number * 37 % 300 + 1),
            properties=stored,
            born_timestamp=1_700_000_000_000 + number,
            born_host=BORN,
            tags_code=tags_code_of(stored),
            uniq_key=properties["UNIQ_KEY"],
        )
        assert status is PutStatus.PUT_OK
    await caught_up(bench)


async def compact(bench: Bench) -> None:
    for queue_id in range(QUEUES):
        queue = bench.broker.compaction.queue_of(TOPIC, queue_id)
        assert queue is not None
        await bench.broker.compaction.compact(queue)


def gets(bench: Bench) -> list[str]:
    """Our gets in the words of CompactionTool."""
    lines = []
    for queue_id in range(QUEUES):
        queue = bench.broker.compaction.queue_of(TOPIC, queue_id)
        assert queue is not None
        for offset in range(queue.max_offset + 2):
            for count in (1, 5, 32):
                result = queue.get(offset, bench.broker.compaction.limits(count))
                found = [
                    f"{one.queue_offset}@{one.physical_offset}" for one in records.decode_records(result.body)
                ]
                head = f"{queue_id} {offset} {count} {result.status.value} {result.next_offset}"
                lines.append(" ".join((f"{head} {result.min_offset} {result.max_offset}", *found)))
    return lines


def tree(root: Path) -> dict[str, bytes]:
    """Path → content of the log files and queue files of compaction."""
    folder = root / "compaction"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("0*") if path.is_file()}


def positions(root: Path) -> object:
    """The content of the position file; RocketMQ writes its entries in the order of their hashes."""
    return json.loads((root / "compaction" / "position-checkpoint").read_bytes())


async def test_both_write_and_compact_to_the_same_bytes(tmp_path: Path) -> None:
    theirs, ours, out = tmp_path / "theirs", tmp_path / "ours", tmp_path
    java(theirs, f"write:0:{COUNT}", f"gets:{out / 'gets'}")
    shutil.copytree(theirs, ours)
    shutil.rmtree(ours / "compaction")
    async with opened(ours) as bench:
        assert gets(bench) == (out / "gets").read_text().splitlines()
    written = tree(theirs)
    assert len(written) > 12
    assert tree(ours) == written
    assert positions(ours) == positions(theirs)
    java(theirs, "compact", f"gets:{out / 'gets'}")
    async with opened(ours) as bench:
        await compact(bench)
        assert gets(bench) == (out / "gets").read_text().splitlines()
    assert tree(theirs) != written
    assert tree(ours) == tree(theirs)
    assert positions(ours) == positions(theirs)


async def test_each_continues_the_directory_of_the_other(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path
    async with opened(root) as bench:
        await write(bench, 0, COUNT)
        await compact(bench)
        first = gets(bench)
    java(root, f"gets:{out / 'one'}", f"write:{COUNT}:{COUNT}", "compact", f"gets:{out / 'two'}")
    assert (out / "one").read_text().splitlines() == first
    async with opened(root) as bench:
        assert gets(bench) == (out / "two").read_text().splitlines()
        await write(bench, 2 * COUNT, COUNT)
        await compact(bench)
        third = gets(bench)
    java(root, f"gets:{out / 'three'}", "compact", f"gets:{out / 'four'}")
    assert (out / "three").read_text().splitlines() == third
    assert (out / "four").read_text().splitlines() == third


async def test_a_directory_of_a_killed_rocketmq_is_continued(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path
    java(root, f"write:0:{COUNT}", "compact", f"write:{COUNT}:{COUNT}", f"gets:{out / 'one'}", "halt")
    async with opened(root) as bench:
        assert gets(bench) == (out / "one").read_text().splitlines()
