"""Creates healthy stores with names that object storage and HDFS must escape: topics of retries and dead
letters, each with many queues."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.spark import damage
from tests.spark.damage_kit import overwrite
from tests.unit.store.support import Message, open_store, put

TOPICS = ("orders", "%RETRY%readers", "%DLQ%readers")
REPLICAS = 3


def create(root: Path, queues: int, messages: int = 2) -> list[Path]:
    """Three equal stores: this number of queues of each topic, with this number of messages in each."""
    store = open_store(
        root / "r1",
        mapped_file_size_commit_log=256 * 1024,
        mapped_file_size_consume_queue=20 * 10,
        max_hash_slot_num=5000,
        max_index_num=20_000,
    )
    for number in range(messages):
        for topic in TOPICS:
            for queue_id in range(queues):
                key = f"{topic}-{queue_id}-{number}"
                put(store, Message(topic=topic, queue_id=queue_id, properties={"UNIQ_KEY": key}))
    store.stop()
    (root / "r1" / "timerwheel").unlink(missing_ok=True)
    for number in range(2, REPLICAS + 1):
        shutil.copytree(root / "r1", root / f"r{number}")
    return [root / f"r{number + 1}" for number in range(REPLICAS)]


def damage_a_retry(path: Path) -> int:
    """Damages the body of a message of a topic of retries; its offset."""
    retried = [one for one in damage.records(path) if one.message.topic == "%RETRY%readers"][7]
    overwrite(retried.path, retried.at + 88, b"\xff")
    return retried.offset
