"""Kills a process that appends at full speed, again and again in the same directory, and checks that no
acknowledged message is lost."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.store.support import open_store

SENDER = """
import asyncio, os, sys
from pathlib import Path
from epochmq_store.running import queue_flusher
from tests.unit.store.support import open_store, put, random_messages

queue_flusher.UNRECORDED_LOG_BYTES = 20_000

async def main():
    store = open_store(Path(sys.argv[1]), flush_disk_type="SYNC_FLUSH", flush_interval_consume_queue=5,
                   flush_consume_queue_thorough_interval=20, mapped_file_size_commit_log=1 << 16)
    store.start()
    def safe(end, status):
        os.write(1, b"%d\\n" % end)
    for round in range(1_000_000):
        for message in random_messages(round % 50, 20):
            _, place, _, size = put(store, message)
            store.when_flushed(place + size, lambda status, end=place + size: safe(end, status))
        await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.fsync
def test_acknowledged_messages_survive_repeated_kills(tmp_path: Path) -> None:
    rng = random.Random(1)
    acknowledged = 0
    for _ in range(5):
        sender = subprocess.Popen(
            [sys.executable, "-c", SENDER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        assert sender.stdout is not None
        try:
            for _ in range(rng.randrange(1, 3000)):
                acknowledged = int(sender.stdout.readline())
        finally:
            sender.kill()
        for line in sender.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
        sender.stdout.close()
        sender.wait()
    store = open_store(tmp_path / "store", mapped_file_size_commit_log=1 << 16)
    assert store.max_phy_offset >= acknowledged
    offsets: dict[tuple[str, int], int] = {}
    at = store.min_phy_offset
    while at < store.max_phy_offset:
        found = store.log.parse(at, store.config.delays_ms, check_crc=True)
        if isinstance(found, str):
            at = store.log.roll_next_file(at)
            continue
        assert found is not None
        if found.in_consume_queue:
            key = found.topic, found.queue_id
            assert found.queue_offset == offsets.get(key, 0)
            offsets[key] = found.queue_offset + 1
            assert store.queue(*key).unit(found.queue_offset) == (at, found.size, found.tags_code)
        at += found.size
    assert {key: queue.max_offset for key, queue in store.queues.items() if queue.max_offset} == offsets
    store.stop()
