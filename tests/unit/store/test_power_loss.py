"""Tests power losses: any page and any directory entry that was not synced may be lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from epochmq_store.message_store import MessageStore
from tests.unit.store.power_loss_disk import PowerLossDisk
from tests.unit.store.recovery_checks import check_recovered
from tests.unit.store.support import Message, open_store, put, put_all, random_messages, read_log


def flush(store: MessageStore, rng: random.Random) -> int:
    """Flushes log, queues or checkpoint at random, as maintenance may, and returns the flushed offset."""
    kind = rng.choice(["log", "queues", "checkpoint", "all"])
    if kind in ("log", "all"):
        store.log_flusher.flush_now()
    if kind in ("queues", "all"):
        store.queue_flusher.flush_now()
    if kind in ("checkpoint", "all"):
        store.checkpoint.store()
        store.checkpoint.flush()
    return store.flushed_where


@pytest.mark.long
@pytest.mark.parametrize("seed", range(40))
def test_flushed_messages_survive_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    disk = PowerLossDisk(monkeypatch)
    store = open_store(tmp_path / "a")
    clock = [1_000_000.0]
    store.appender._clock = lambda: clock[0]
    messages = random_messages(seed, 80)
    promised, stored = 0, []
    for message in messages:
        clock[0] += rng.choice([0.001, 0.1, 2.0, 6.0])
        stored.append(put(store, message))
        if rng.random() < 0.1:
            store.queues.pending.write_all()
        if rng.random() < 0.15:
            promised = flush(store, rng)
        if rng.random() < 0.02 and len(stored) > 5:
            cut = rng.randrange(len(stored))
            store.truncate(stored[cut][1])
            del stored[cut:]
            promised = min(promised, store.max_phy_offset)
    left = disk.lose_power(tmp_path / "a", tmp_path / "b", rng)
    whole = [found.physical_offset for found in read_log(tmp_path / "a")]
    store.stop()
    (left / "abort").touch()
    again = open_store(left)
    found = [one.physical_offset for one in read_log(left)]
    assert found == whole[: len(found)]
    assert again.max_phy_offset >= promised
    check_recovered(again, tmp_path / "w")


def test_a_power_loss_during_recovery_loses_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = PowerLossDisk(monkeypatch)
    rng = random.Random(7)
    store = open_store(tmp_path / "a")
    put_all(store, random_messages(7, 50))
    store.log_flusher.flush_now()
    end = store.flushed_where
    for name in ("b", "c", "d"):
        left = disk.lose_power(store.config.root, tmp_path / name, rng)
        store.stop()
        (left / "abort").touch()
        disk.adopt(left)
        store = open_store(left)
        assert store.max_phy_offset == end
    put_all(store, [Message()])
    check_recovered(store, tmp_path / "w")


def test_every_key_is_found_after_a_power_loss_of_the_newest_index_file(tmp_path: Path) -> None:
    """The newest index file is not trusted. Its entries belong to log files before the one at which recovery
    of the queues starts."""
    store = open_store(tmp_path / "a")
    clock = [1_000_000.0]
    store.appender._clock = lambda: clock[0]
    for number in range(60):
        clock[0] += 2
        put(store, Message(body=bytes(900), properties={"UNIQ_KEY": f"K{number}"}))
    store.queues.pending.write_all()
    store.appender.build_index()
    store.log_flusher.flush_now()
    store.queue_flusher.flush_now()
    for file in store.index.files[:2]:
        file.flush()
    store.checkpoint.index_msg_timestamp = store.index.files[1].end_timestamp
    store.checkpoint.store()
    store.checkpoint.flush()
    copy = shutil.copytree(tmp_path / "a", tmp_path / "b")
    store.stop()
    (copy / "abort").write_text("1\nanother-boot")
    again = open_store(copy)
    assert len(list(again.log.files.files)) > 3
    for number in range(60):
        assert again.reader.query("orders", f"K{number}", 8, 0, 1 << 60).count, number
    again.stop()
