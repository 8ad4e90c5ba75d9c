"""Checks a store after its recovery."""

from __future__ import annotations

import shutil
from pathlib import Path

from epochmq_store.message_store import MessageStore
from tests.unit.store.support import (
    LOG_FILE,
    Message,
    file_contents,
    open_store,
    put_all,
    read_log,
)


def rebuilt(directory: Path, to: Path) -> Path:
    """Copies the log, lets a store rebuild everything else from it, and stops that store."""
    (to / "commitlog").parent.mkdir(parents=True)
    shutil.copytree(directory / "commitlog", to / "commitlog")
    (to / "abort").write_text("1")
    store = open_store(to)
    store.stop()
    return to


def check_recovered(store: MessageStore, work: Path) -> int:
    """Checks a store that was just loaded, stops it, and returns its number of records."""
    root = store.config.root
    kept = list(read_log(root))
    end = kept[-1].physical_offset + kept[-1].store_size if kept else max(store.min_phy_offset, 0)
    assert store.max_phy_offset in (end, end - end % LOG_FILE + LOG_FILE)
    seen: dict[tuple[str, int], int] = {}
    for found in kept:
        if found.sys_flag & 4:
            continue
        key = found.topic, found.queue_id
        assert found.queue_offset == seen.get(key, 0), "queue offsets are dense"
        seen[key] = found.queue_offset + 1
        unit = store.queue(*key).unit(found.queue_offset)
        assert unit is not None
        assert unit[:2] == (found.physical_offset, found.store_size)
    assert {key: queue.max_offset for key, queue in store.queues.items() if queue.max_offset} == seen
    # New messages continue the offsets, also after the next start.
    before = {key: queue.max_offset for key, queue in store.queues.items()}
    put_all(store, [Message(topic="orders", body=bytes(50))])
    assert store.queue("orders", 0).max_offset == before.get(("orders", 0), 0) + 1
    store.stop()
    again = rebuilt(root, work / "rebuilt")
    ours, theirs = file_contents(root, "consumequeue"), file_contents(again, "consumequeue")
    assert {name: data for name, data in ours.items() if data} == theirs
    return len(kept)
