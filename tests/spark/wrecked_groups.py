"""Makes groups of which one log is damaged in half of its records."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from tests.spark import damage
from tests.spark.damage_kit import overwrite
from tests.unit.store.support import Message, open_store, put

SEGMENT = 4 << 20
REPLICAS = 3


def healthy_stores(root: Path, count: int, queues: int = 8, body_bytes: int = 40) -> list[Path]:
    """Three equal stores with this many messages."""
    store = open_store(
        root / "r1",
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=20 * max(count // queues, 100),
        max_hash_slot_num=2 * count,
        max_index_num=8 * count,
    )
    for number in range(count):
        properties = {"UNIQ_KEY": f"7F0000010A1E18B4AAC2{number:012X}"}
        put(store, Message(body=bytes(body_bytes), queue_id=number % queues, properties=properties))
    store.stop()
    for number in range(2, REPLICAS + 1):
        shutil.copytree(root / "r1", root / f"r{number}")
    return [root / f"r{number + 1}" for number in range(REPLICAS)]


def wreck(replica: Path, seed: int = 1) -> tuple[int, int]:
    """Damages half of the records of a log, either the magic number or the body: how many of each."""
    rng = random.Random(seed)
    magic = body = 0
    for record in damage.records(replica):
        chance = rng.random()
        if chance < 0.25:
            overwrite(record.path, record.at + 4, b"\xdb")
            magic += 1
        elif chance < 0.5:
            overwrite(record.path, record.at + 88, b"\xff")
            body += 1
    return magic, body
