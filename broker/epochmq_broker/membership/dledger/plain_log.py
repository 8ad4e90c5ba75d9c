"""Reads a plain commit log without changing it, and says whether it can become the old part of a DLedger log.

Only the last file is read as a whole: each earlier one was closed when the next one began.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.membership.dledger.log_folders import data_folder, log_files, peer_folder
from epochmq_dledger.store.state_files import load_committed
from epochmq_formats.abort_file import TailState
from epochmq_protocol import message_const as const
from epochmq_protocol import record_layout
from epochmq_protocol.checksum import crc32
from epochmq_protocol.durable_files import backup_of
from epochmq_protocol.epoch_entries import EpochEntry, parse_epoch_file
from epochmq_protocol.errors import EpochMQError
from epochmq_store import record
from epochmq_store.files.mapped_file import data_ranges
from epochmq_store.state_files.abort_file import AbortFile
from epochmq_store.state_files.tail_state import CLEAN_TAIL
from epochmq_store.store_config import RECORD_OVERHEAD_BYTES, StoreConfig

_READ_BYTES = 8 << 20


class UpgradeRejectedError(EpochMQError):
    """The directory cannot be upgraded, or the upgrade cannot be undone. Nothing was changed."""


class LastFile(Struct, frozen=True):
    """The last plain file that has records."""

    path: Path
    start: int  # the offset of its first byte
    end: int  # the offset after its last whole record
    is_closed: bool  # a blank record marks the rest of the file as unused
    checksum: int  # CRC-32 of its records
    rest_is_zero: bool  # nothing follows the records and the blank record


class PlainLog(Struct, frozen=True):
    """A plain commit log that can be upgraded."""

    root: Path
    begin: int  # the offset of its first byte
    files: int
    last: LastFile
    file_size: int
    was_killed: bool  # the broker that used it last did not stop cleanly
    epochs: tuple[EpochEntry, ...]  # of a group with controllers, otherwise empty

    @property
    def divided_offset(self) -> int:
        """Where the DLedger log begins."""
        return self.last.start + self.file_size


def has_entries(config: BrokerConfig) -> bool:
    """Whether anything was appended to the DLedger log, as far as the directory tells. Raises OSError."""
    folder = peer_folder(config)
    committed = load_committed(folder)
    if committed is not None and committed >= 0:
        return True
    files = log_files([data_folder(config), folder / "index"])
    return not all(is_blank(path) for _, path in files)


def is_blank(path: Path) -> bool:
    """Whether a file holds only zeros. Raises OSError."""
    with path.open("rb") as file:
        for start, end in data_ranges(file.fileno(), 0, path.stat().st_size):
            at = start
            while at < end:
                piece = os.pread(file.fileno(), min(end - at, _READ_BYTES), at)
                if piece.strip(b"\0"):
                    return False
                at += len(piece)
    return True


def inspect(config: BrokerConfig) -> PlainLog | None:
    """Inspects the plain commit log in the directory of this broker, None if the directory has none or is
    upgraded. Raises UpgradeRejectedError or OSError."""
    settings = StoreConfig.of(config)
    root = settings.root
    reject_if_in_use(root)
    if has_entries(config):
        return None
    files = log_files((*settings.commit_log_dirs, *settings.read_only_log_dirs))
    if not files:
        return None
    file_size = settings.mapped_file_size_commit_log
    _check_files(files, file_size)
    tail = AbortFile(root / "abort").read_tail()
    last = read_last_file(files, settings)
    if tail is CLEAN_TAIL and not last.rest_is_zero:
        raise UpgradeRejectedError(
            f"{last.path} is damaged: there is no whole record at {last.end}, but the broker stopped cleanly "
            "and other bytes follow. Restore the file from a backup or another replica"
        )
    epochs = _read_epochs(config, root)
    if epochs and epochs[-1].start_offset > last.end:
        raise UpgradeRejectedError(
            f"{root}: epoch {epochs[-1].epoch} begins at {epochs[-1].start_offset}, but the log ends at "
            f"{last.end}: this replica lacks messages of its group. Let it catch up with its master first"
        )
    if epochs and (tail.state is not TailState.INTACT or (root / "logDoubt.json").exists()):
        raise UpgradeRejectedError(
            f"{root}: the end of the log may lack acknowledged messages, because the machine or the disk "
            "failed. Let the replica catch up with its group first, and stop it"
        )
    plain = PlainLog(root, files[0][0], len(files), last, file_size, tail is not CLEAN_TAIL, epochs)
    _check_space(plain, config)
    return plain


def reject_if_in_use(root: Path) -> None:
    """Raises UpgradeRejectedError if a broker uses the directory, and OSError."""
    if not root.is_dir():
        raise UpgradeRejectedError(f"{root} is no directory, expected the storePathRootDir of a broker")
    path = root / "lock"
    if not path.exists():
        return
    with path.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)
        except OSError:
            raise UpgradeRejectedError(f"{root} is in use by a broker. Stop the broker first") from None


def _check_files(files: Sequence[tuple[int, Path]], file_size: int) -> None:
    """Raises UpgradeRejectedError if a file has another size, or one is missing."""
    expected = files[0][0]
    for start, path in files:
        size = path.stat().st_size
        if size != file_size:
            raise UpgradeRejectedError(
                f"{path} has {size} bytes, but mappedFileSizeCommitLog is {file_size}. Use the value with "
                "which the files were created"
            )
        if start != expected:
            raise UpgradeRejectedError(
                f"{path} begins at {start}, but the file before it ends at {expected}: files are missing in "
                "between. Restore them from a backup or another replica"
            )
        expected = start + file_size


def read_last_file(files: Sequence[tuple[int, Path]], settings: StoreConfig) -> LastFile:
    """Reads the last file with a record, the first file without any. Raises OSError."""
    for start, path in reversed(files):
        with path.open("rb") as file:
            if start == files[0][0] or any(os.pread(file.fileno(), record_layout.SIZE_AND_MAGIC.size, 0)):
                return _read_file(path, file.fileno(), start, settings)
    raise AssertionError("there is a first file")


def _read_file(path: Path, fd: int, start: int, settings: StoreConfig) -> LastFile:
    size = settings.mapped_file_size_commit_log
    window = max(_READ_BYTES, settings.max_message_size + RECORD_OVERHEAD_BYTES)
    at = checksum = 0
    while True:
        piece = os.pread(fd, min(window, size - at), at)
        used = 0
        found: record.DispatchRequest | str | None
        while True:
            found = record.parse(piece, used, len(piece), start + at + used, (), check_crc=True)
            if not isinstance(found, record.DispatchRequest):
                break
            used += found.size
        checksum = crc32(piece[:used], checksum)
        at += used
        if not used or found == record.BLANK:
            break
    is_closed = found == record.BLANK
    header = os.pread(fd, record_layout.BLANK_BYTES, at)
    blank = record_layout.SIZE_AND_MAGIC.pack(size - at, const.BLANK_MAGIC)
    # A kill may have torn the blank record of an earlier upgrade.
    is_torn_blank = all(byte in (0, expected) for byte, expected in zip(header, blank, strict=False))
    rest = at + record_layout.BLANK_BYTES if is_closed or is_torn_blank else at
    return LastFile(path, start, start + at, is_closed, checksum, _is_zero(fd, rest, size))


def _is_zero(fd: int, start: int, end: int) -> bool:
    for at, stop in data_ranges(fd, start, end):
        while at < stop:
            piece = os.pread(fd, min(stop - at, _READ_BYTES), at)
            if piece.strip(b"\0"):
                return False
            at += len(piece)
    return True


def _read_epochs(config: BrokerConfig, root: Path) -> tuple[EpochEntry, ...]:
    """The epochs of a group with controllers. Raises UpgradeRejectedError if they cannot be read."""
    path = Path(config.store_path_epoch_file or str(root / "epochFileCheckpoint")).expanduser()
    for candidate in (path, backup_of(path)):
        text = candidate.read_text(encoding="utf-8", errors="replace") if candidate.exists() else ""
        if not text.strip():
            continue
        try:
            return tuple(parse_epoch_file(text))
        except EpochMQError as error:
            raise UpgradeRejectedError(
                f"{candidate} is damaged ({error}). Restore it from a backup or another replica"
            ) from error
    return ()


def _check_space(plain: PlainLog, config: BrokerConfig) -> None:
    """Raises UpgradeRejectedError if the disk has no space for the first data file."""
    folder = data_folder(config)
    while not folder.exists():
        folder = folder.parent
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < plain.file_size:
        raise UpgradeRejectedError(
            f"the disk of {folder} has {free} bytes left, but the first data file of the DLedger log needs "
            f"{plain.file_size}. Free some space"
        )


def check_equal(logs: Sequence[PlainLog]) -> None:
    """Checks that the replicas of a group have the same log. Raises UpgradeRejectedError."""
    first = logs[0]
    for other in logs[1:]:
        if other.epochs[-1:] != first.epochs[-1:]:
            raise UpgradeRejectedError(
                f"the replicas have diverged: the last epoch of {first.root} is {_last_epoch(first)}, that "
                f"of {other.root} is {_last_epoch(other)}. Let them catch up with one master, and stop them"
            )
        if (other.last.end, other.last.checksum) != (first.last.end, first.last.checksum):
            raise UpgradeRejectedError(
                f"the replicas have different logs: that of {first.root} ends at {first.last.end} (checksum "
                f"of its last file {first.last.checksum:08x}), that of {other.root} at {other.last.end} "
                f"({other.last.checksum:08x}). Let them catch up with one master, and stop them"
            )


def _last_epoch(plain: PlainLog) -> str:
    last = plain.epochs[-1] if plain.epochs else None
    return "missing" if last is None else f"{last.epoch} from {last.start_offset}"
