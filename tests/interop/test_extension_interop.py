"""Consume queue extensions in one directory, used by EpochMQ's and RocketMQ's store in turn: each reads the
other's units and filter bit maps, and continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from epochmq_broker.tables.filters.bloom import BloomFilter
from epochmq_broker.tables.filters.consumer_filters import ConsumerFilterTable
from epochmq_broker.tables.filters.message_filter import bit_map_of
from epochmq_protocol import message as records
from epochmq_protocol.bodies import SubscriptionData
from epochmq_store.message_store import MessageStore
from epochmq_store.record import tags_code_of
from epochmq_store.statuses import PutStatus
from epochmq_store.store_config import StoreConfig
from tests.interop.java_env import compile_java, run_java

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

LOG_FILE, QUEUE_FILE, EXTENSION_FILE = 1 << 20, 20 * 100, 4096
COUNT = 150
HOST = records.encode_host("127.0.0.2", 40000)
STORE_HOST = records.encode_host("127.0.0.1", 10911)


def java(root: Path, *steps: str) -> None:
    """Runs ExtensionTool on the directory."""
    sizes = [str(size) for size in (LOG_FILE, QUEUE_FILE, EXTENSION_FILE)]
    classes = compile_java("ExtensionTool.java", "LocalStore.java", "ToolProcess.java")
    run_java("ExtensionTool", [str(root), *sizes, *steps], home=root.parent / "home", classes=classes)


def opened(root: Path) -> MessageStore:
    """Our store with the filters that ExtensionTool registers, and with its bloom filter."""
    filters = ConsumerFilterTable(BloomFilter(20, 64))
    for group, text in (("small", "a < 50"), ("round", "a ENDSWITH '0'")):
        subscription = SubscriptionData(topic="T", sub_string=text, expression_type="SQL92", sub_version=1)
        filters.register(group, [subscription], 1)
    store = MessageStore(
        StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=LOG_FILE,
            mapped_file_size_consume_queue=QUEUE_FILE,
            max_hash_slot_num=100,
            max_index_num=4000,
            enable_consume_queue_ext=True,
            mapped_file_size_consume_queue_ext=EXTENSION_FILE,
        ),
        STORE_HOST,
        bit_map=lambda topic, stored: bit_map_of(filters, topic, stored),
    )
    store.load()
    return store


def write(store: MessageStore, first: int) -> None:
    for number in range(first, first + COUNT):
        stored = records.format_properties({"TAGS": f"tag{number % 3}", "a": str(number)})
        result = store.append(
            store.queue("T", 0),
            body=bytes(10),
            properties=stored,
            born_timestamp=0,
            born_host=HOST,
            tags_code=tags_code_of(stored),
        )
        assert result[0] is PutStatus.PUT_OK


def units(store: MessageStore) -> list[str]:
    """Our units in the words of ExtensionTool."""
    queue = store.queue("T", 0)
    lines = []
    for offset in range(queue.max_offset):
        unit = queue.unit(offset)
        assert unit is not None
        extended = queue.extension_unit(unit[2])
        assert extended is not None
        bits = extended.bit_map.hex() or "-"
        lines.append(f"{unit[0]} {extended.tags_code} {extended.store_timestamp} {bits}")
    return lines


def files(root: Path) -> dict[str, bytes]:
    """The content of all files of consume queues and their extensions."""
    found = [*(root / "consumequeue").rglob("0*"), *(root / "consumequeue_ext").rglob("0*")]
    return {str(path.relative_to(root)): path.read_bytes() for path in found if path.is_file()}


def test_both_stores_continue_the_extension_of_the_other(tmp_path: Path) -> None:
    root = tmp_path / "store"
    dump = tmp_path / "dump"
    store = opened(root)
    write(store, 0)
    expected = units(store)
    store.stop()
    assert len({line.split()[3] for line in expected}) == 4  # no group, each of both, both
    java(root, f"dump:{dump}", f"write:{COUNT}:{COUNT}", f"dump:{dump}-2")
    assert dump.read_text().splitlines() == expected
    more = Path(f"{dump}-2").read_text().splitlines()
    assert (more[:COUNT], len(more)) == (expected, 2 * COUNT)
    store = opened(root)
    assert units(store) == more
    write(store, 2 * COUNT)
    expected = units(store)
    store.stop()
    java(root, f"dump:{dump}-3")
    assert Path(f"{dump}-3").read_text().splitlines() == expected


@pytest.mark.soak
def test_java_builds_the_same_files_from_the_log(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root)
    write(store, 0)
    store.stop()
    ours = files(root)
    assert sum(name.startswith("consumequeue_ext") for name in ours) > 1
    for name in ("consumequeue", "consumequeue_ext", "index"):
        shutil.rmtree(root / name)
    (root / "checkpoint").unlink()
    java(root, f"dump:{tmp_path / 'dump'}")
    assert files(root) == ours
