"""A power loss takes away no directory that a process created at its first start: each new directory is
synced into its parent, so that no synced file is lost with a directory above it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from epochmq_broker.replication.ha.epoch_file import EpochFile
from epochmq_broker.replication.ha.epochs import EpochEntry
from epochmq_controller.controller.server import DirectoryLock
from epochmq_controller.text_files import write_text
from epochmq_dledger.store.segments import Segments
from epochmq_store.state_files.pending_file import PendingFile
from epochmq_store.state_files.state_file_io import write_state_file
from tests.support.directory_syncs import DirectorySyncs
from tests.unit.store.support import Message, open_store, put


def store_a_message(folder: Path) -> None:
    store = open_store(folder)
    put(store, Message())
    store.stop()


def lock_controller(folder: Path) -> None:
    lock = DirectoryLock(folder)
    lock.acquire()
    lock.release()


def open_segments(folder: Path) -> None:
    segments = Segments(folder, 4096)
    segments.open()
    segments.close()


FIRST_WRITES: dict[str, Callable[[Path], object]] = {
    "store": store_a_message,
    "controller": lock_controller,
    "DLedger log": open_segments,
    "epoch file": lambda folder: EpochFile(folder / "epochs").append(EpochEntry(1, 0)),
    "state file": lambda folder: write_state_file(folder / "topics.json", b"{}"),
    "pending file": lambda folder: PendingFile(folder / "topics.json").close(),
    "nameserver's file": lambda folder: write_text(folder / "kvConfig.json", "{}"),
}


@pytest.mark.parametrize("first_write", FIRST_WRITES.values(), ids=FIRST_WRITES)
def test_new_directories_are_durable(
    first_write: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = DirectorySyncs(monkeypatch)
    first_write(tmp_path / "volume" / "data")
    assert tmp_path / "volume" / "data" in syncs.created
    assert not syncs.unsynced
