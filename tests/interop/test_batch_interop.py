"""A topic of type BatchCQ in one directory, used by EpochMQ's and RocketMQ's store in turn: each reads the
other's batch consume queue, gives the same results, and continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.message import BatchElement, encode_batch
from epochmq_store.message_store import MessageStore
from epochmq_store.queues.batch_consume_queue import BatchConsumeQueue
from epochmq_store.record import tags_code_of
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig
from tests.interop.java_env import compile_java, run_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

LOG_FILE, QUEUE_FILE = 1 << 16, 46 * 100
COUNT = 450
TOPIC = "batches"
HOST = records.encode_host("127.0.0.2", 40000)
STORE_HOST = records.encode_host("127.0.0.1", 10911)


def java(root: Path, *steps: str) -> None:
    """Runs BatchTool on the directory."""
    classes = compile_java("BatchTool.java", "LocalStore.java", "ToolProcess.java")
    arguments = [str(root), str(LOG_FILE), str(QUEUE_FILE), *steps]
    run_java("BatchTool", arguments, home=root.parent / "home", classes=classes)


def opened(root: Path) -> MessageStore:
    store = MessageStore(
        StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=LOG_FILE,
            mapper_file_size_batch_consume_queue=QUEUE_FILE,
            max_hash_slot_num=100,
            max_index_num=4000,
        ),
        STORE_HOST,
        is_batch_topic=lambda topic: topic == TOPIC,
    )
    store.load()
    return store


def queue_of(store: MessageStore) -> BatchConsumeQueue:
    queue = store.queue(TOPIC, 0)
    assert isinstance(queue, BatchConsumeQueue)
    return queue


def write(store: MessageStore, first: int, count: int) -> None:
    """The messages that BatchTool makes."""
    queue = queue_of(store)
    for number in range(first, first + count):
        properties = {"UNIQ_KEY": f"{number:032X}", "TAGS": f"tag{number % 3}"}
        flags, body = 0, bytes(number % 50)
        if number % 17 != 11:
            body = encode_batch([BatchElement(bytes(number % 40 + 1), b"", 0)] * (number % 5 + 1))
            properties |= {"INNER_NUM": str(number % 5 + 1), "INNER_BASE": str(queue.max_offset)}
            flags = records.INNER_BATCH_FLAG | records.NEED_UNWRAP_FLAG
        stored = records.format_properties(properties)
        status, *_ = store.append(
            queue,
            body=body,
            properties=stored,
            born_timestamp=1_700_000_000_000 + number,
            born_host=HOST,
            sys_flag=flags,
            tags_code=tags_code_of(stored),
            uniq_key=properties["UNIQ_KEY"],
        )
        assert status is PutStatus.PUT_OK


def dump(store: MessageStore) -> list[str]:
    """Our units in the words of BatchTool."""
    queue = queue_of(store)
    lines = [f"{queue.min_offset} {queue.max_offset}"]
    offset = queue.min_offset
    while 0 <= offset < queue.max_offset:
        for unit in queue.batch_units(offset):
            lines.append(f"{unit.base} {unit.messages} {unit.physical} {unit.size} {unit.tags_code}")
            offset = unit.end
    return lines


def gets(store: MessageStore) -> list[str]:
    """Our gets in the words of BatchTool."""
    queue = queue_of(store)
    lines = []
    for offset in range(queue.max_offset + 2):
        for count in (1, 4, 32, 1000):
            found = store.get(queue, offset, count)
            bases = [str(record.queue_offset) for record in records.decode_records(found.body)]
            lines.append(
                " ".join(
                    (
                        f"{offset} {count} {found.status.value} {found.next_offset} {found.min_offset}",
                        f"{found.max_offset} {found.count}",
                        *bases,
                    )
                )
            )
    return lines


def tree(root: Path) -> dict[str, bytes]:
    """Path → content of the files of the batch consume queue."""
    folder = root / "batchconsumequeue"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("0*") if path.is_file()}


def test_both_stores_continue_the_queue_of_the_other(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path
    store = opened(root)
    write(store, 0, COUNT)
    first = dump(store)
    store.stop()
    java(
        root,
        f"dump:{out / 'one'}", f"gets:{out / 'gets'}",
        f"write:{COUNT}:{COUNT}", f"dump:{out / 'two'}",
    )  # fmt: skip
    assert (out / "one").read_text().splitlines() == first
    second = (out / "two").read_text().splitlines()
    store = opened(root)
    assert dump(store) == second
    assert second[1 : len(first)] == first[1:]
    write(store, 2 * COUNT, COUNT)
    third = dump(store)
    times = times_of(store)
    (out / "times").write_text("\n".join(map(str, times)) + "\n")
    store.stop()
    java(
        root,
        f"dump:{out / 'three'}", f"gets:{out / 'gets-3'}", f"times:{out / 'times'}:{out / 'times.out'}",
    )  # fmt: skip
    assert (out / "three").read_text().splitlines() == third
    store = opened(root)
    assert (out / "gets-3").read_text().splitlines() == gets(store)
    queue = queue_of(store)
    ours = [
        f"{store.reader.offset_by_time(queue, time)} {store.reader.offset_by_time(queue, time, upper=True)}"
        for time in times
    ]
    assert (out / "times.out").read_text().splitlines() == ours
    assert len({line.split()[1] for line in ours}) > 20
    store.stop()
    assert len(tree(root)) > 10


def times_of(store: MessageStore) -> list[int]:
    """Store times of units, and times between them."""
    stored = sorted(set(stored_times(store)))
    return sorted({time + step for time in stored for step in (-1, 0, 1)} | {stored[0] - 1000})


def stored_times(store: MessageStore) -> list[int]:
    queue = queue_of(store)
    return [queue.unit_at(number).store_timestamp for number in range(queue.first_number, queue.end_number)]


def test_java_builds_the_same_files_from_the_log(tmp_path: Path) -> None:
    root, again = tmp_path / "store", tmp_path / "again"
    store = opened(root)
    write(store, 0, COUNT)
    store.stop()
    again.mkdir()
    shutil.copytree(root / "commitlog", again / "commitlog")
    (again / "abort").write_text("1")
    java(again, f"dump:{tmp_path / 'dump'}")
    assert tree(again) == tree(root)
    assert len(tree(root)) > 3


@pytest.mark.parametrize("by", ["java", "us"])
def test_a_killed_store_is_recovered_by_the_other(tmp_path: Path, by: str) -> None:
    root, left = tmp_path / "store", tmp_path / "left"
    if by == "java":
        java(root, f"write:0:{COUNT}", f"dump:{tmp_path / 'dump'}", "halt")
        expected = (tmp_path / "dump").read_text().splitlines()
        store = opened(root)
        assert dump(store) == expected
        store.stop()
    else:
        store = opened(root)
        write(store, 0, COUNT)
        expected = dump(store)
        shutil.copytree(root, left)
        store.stop()
        java(left, f"dump:{tmp_path / 'dump'}")
        assert (tmp_path / "dump").read_text().splitlines() == expected


def test_both_stores_truncate_alike(tmp_path: Path) -> None:
    root, other = tmp_path / "store", tmp_path / "other"
    store = opened(root)
    write(store, 0, COUNT)
    lines = dump(store)
    places = [int(lines[at].split()[2]) for at in (350, 201, 200, 199, 30, 1)]
    store.stop()
    shutil.copytree(root, other)
    for place in places:
        store = opened(root)
        store.truncate(place)
        ours = dump(store)
        store.stop()
        java(other, f"truncate:{place}", f"dump:{tmp_path / 'dump'}")
        assert (tmp_path / "dump").read_text().splitlines() == ours, place
