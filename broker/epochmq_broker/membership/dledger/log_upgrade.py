"""Makes a plain commit log the old part of a DLedger log (`DLedgerCommitLog.setRecoverPosition`).

The upgrade has three steps:

1. The plain log is recovered, as a broker with a plain log does at its start.
2. A blank record closes the last plain file.
3. The first data file of the DLedger log is created, empty, where the last plain file ends.

Each step leaves a directory on which the upgrade can run again, and on which a plain broker can start. After
the first entry there is no way back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.membership.dledger.log_folders import data_folder, end_of_files, log_files, peer_folder
from epochmq_broker.membership.dledger.plain_log import (
    UpgradeRejectedError,
    has_entries,
    read_last_file,
    reject_if_in_use,
)
from epochmq_protocol import record_layout
from epochmq_protocol.durable_files import make_directory, sync_directory
from epochmq_store.files.lock_file import LockFile
from epochmq_store.files.mapped_file import StoreDamagedError, file_name
from epochmq_store.message_store import LOOPBACK_HOST, MessageStore
from epochmq_store.state_files import clean_queues_marker
from epochmq_store.store_config import StoreConfig

log = logging.getLogger(__name__)


def needs_upgrade(config: BrokerConfig) -> bool:
    """Whether the directory has a plain commit log, and no entry of a DLedger log. Raises OSError."""
    settings = StoreConfig.of(config)
    plain = log_files((*settings.commit_log_dirs, *settings.read_only_log_dirs))
    return bool(plain) and not has_entries(config)


def upgrade(
    config: BrokerConfig,
    store_host: bytes = LOOPBACK_HOST,
    *,
    is_batch_topic: Callable[[str], bool | None] = lambda _: False,
    on_step: Callable[[str], None] = log.info,
) -> None:
    """Upgrades the directory of this broker. `is_batch_topic` says whether a topic has batch consume queues.
    `on_step` gets a sentence after each step. Raises StoreLockedError, StoreDamagedError, DiskFullError or
    OSError; the upgrade can then be repeated."""
    store = MessageStore(StoreConfig.of(config), store_host, is_batch_topic=is_batch_topic)
    found = store.load()
    try:
        on_step(f"the plain commit log ends at {found.end}")
        divided = store.log.close_last_file()
        on_step(f"the last plain file is closed: the DLedger log begins at {divided}")
        path = _create_first_data_file(data_folder(config), divided, store.log.files.file_size)
        on_step(f"{path} is created")
    finally:
        store.stop()


def _create_first_data_file(folder: Path, start: int, size: int) -> Path:
    """Creates the empty file durably. Removes what an earlier upgrade has left, which has no entries."""
    make_directory(folder)
    path = folder / file_name(start)
    for other in folder.iterdir():
        if other != path and other.name.isdecimal():
            other.unlink()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)
    for directory in (folder, folder.parent, folder.parent.parent):
        sync_directory(directory)
    return path


def undo(config: BrokerConfig, *, on_step: Callable[[str], None] = log.info) -> bool:
    """Makes the directory that of a plain broker again; False if it is one. Raises UpgradeRejectedError if
    the DLedger log has entries, StoreLockedError or OSError; the call can then be repeated."""
    settings = StoreConfig.of(config)
    root = settings.root
    reject_if_in_use(root)
    zeroed = clean_queues_marker.queues_are_zeroed(root)
    lock = LockFile(root / "lock")
    try:
        return _undo(config, settings, on_step)
    finally:
        if zeroed:
            clean_queues_marker.write_marker(root)
        lock.release()


def _undo(config: BrokerConfig, settings: StoreConfig, on_step: Callable[[str], None]) -> bool:
    if has_entries(config):
        raise UpgradeRejectedError(
            f"{data_folder(config)} has entries: a broker has stored messages in the DLedger log, and there "
            "is no way back"
        )
    changed = False
    for folder in (data_folder(config), peer_folder(config) / "index"):
        for _, path in log_files([folder]):
            path.unlink()
            sync_directory(folder)
            on_step(f"{path} is removed")
            changed = True
    files = log_files((*settings.commit_log_dirs, *settings.read_only_log_dirs))
    if not files:
        return changed
    last = read_last_file(files, settings)
    if last.is_closed and last.start == files[-1][0]:
        _erase_blank_record(last.path, last.end - last.start)
        on_step(f"{last.path} is open again: the plain commit log ends at {last.end}")
        changed = True
    return changed


def _erase_blank_record(path: Path, at: int) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.pwrite(fd, bytes(record_layout.BLANK_BYTES), at)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def reject_divided_log(settings: StoreConfig) -> None:
    """A broker with a plain log must not append to the old part of a DLedger log, whose offsets would then
    name two messages each. Raises StoreDamagedError or OSError."""
    end = end_of_files(settings.commit_log_dirs, settings.mapped_file_size_commit_log)
    if not end:
        return
    for folder in sorted(settings.root.glob("dledger-*/data")):
        for start, path in log_files([folder]):
            if 0 < start <= end and _begins_with_entry(path):
                raise StoreDamagedError(
                    f"{settings.root} has a DLedger log: {path} continues the plain files. Start the broker "
                    "with enableDLegerCommitLog=true"
                )


def _begins_with_entry(path: Path) -> bool:
    with path.open("rb") as file:
        return any(file.read(record_layout.SIZE_AND_MAGIC.size))
