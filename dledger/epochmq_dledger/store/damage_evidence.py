"""Copies damaged files as evidence before recovery changes a peer's directory, and keeps the marks `rejoin`
and `accept-loss`.

`damaged-1` to `damaged-3` hold copies of the data file with the first unreadable byte and of all later ones,
copies of the state files, and `REPORT` with a description. A peer that has three of them and finds further
damage does not start: its disk cannot be trusted.

The file `rejoin` exists, over restarts, while this peer may not vote because it has not caught up yet. In it,
`voteLost` says whether the saved vote of the present term is lost, too, `newDirectory` whether the peer
began with an empty directory, and `onlyUnflushed` whether it can have lost only what it had not flushed. An
administrator creates the file `accept-loss` to let a peer start without the lost entries and with the right
to vote.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.state_files import STATE_FILE_NAMES
from epochmq_protocol import properties
from epochmq_protocol.durable_files import replace_file, sync_directory, write_fully

log = logging.getLogger(__name__)

EVIDENCE_FOLDERS_MAX = 3
ACCEPT_LOSS = "accept-loss"
REJOIN = "rejoin"
_CHUNK_BYTES = 1 << 20


class DamagedFolderError(ValueError):
    """A peer's directory has lost entries that the peer had acknowledged. It does not start until an
    administrator has decided or has made room for the evidence."""


@dataclass(frozen=True)
class RejoinMark:
    """Why a peer may not vote. `vote_lost`: its saved vote is lost, too. `is_new_directory`: it began with an
    empty directory, because its group is new, or because it has lost everything. `only_unflushed`: it can
    have lost only what it had acknowledged before the flush."""

    vote_lost: bool
    is_new_directory: bool = False
    only_unflushed: bool = False


def load_rejoin_mark(folder: Path) -> RejoinMark | None:
    """None if this peer may vote. An unreadable file means that its vote is lost."""
    path = folder / REJOIN
    if not path.exists():
        return None
    found = properties.parse(path.read_text(encoding="utf-8", errors="replace"))
    return RejoinMark(
        found.get("voteLost") != "false",
        found.get("newDirectory") == "true",
        found.get("onlyUnflushed") == "true",
    )


def save_rejoin_mark(folder: Path, mark: RejoinMark) -> None:
    """Records durably that this peer may not vote, and why."""
    text = f"voteLost={str(mark.vote_lost).lower()}\n"
    if mark.is_new_directory:
        text += "newDirectory=true\n"
    if mark.only_unflushed:
        text += "onlyUnflushed=true\n"
    replace_file(folder / REJOIN, text.encode())


def remove_rejoin_mark(folder: Path) -> None:
    """Records durably that this peer has caught up and may vote."""
    (folder / REJOIN).unlink(missing_ok=True)
    sync_directory(folder)


def take_accept_loss_mark(folder: Path) -> bool:
    """Whether an administrator accepts the loss. Removes the file `accept-loss`, so it has an effect once."""
    path = folder / ACCEPT_LOSS
    if not path.exists():
        return False
    path.unlink()
    remove_rejoin_mark(folder)
    log.warning("%s: the loss of entries is accepted, because %s exists", folder, path)
    return True


def preserve_evidence(folder: Path, entries: FileLog, report: str) -> Path:
    """Copies the evidence. Returns the directory that holds it. DamagedFolderError if it cannot be copied."""
    for number in range(1, EVIDENCE_FOLDERS_MAX + 1):
        target = folder / f"damaged-{number}"
        if not target.exists():
            try:
                _copy_evidence(folder, target, entries, report)
            except OSError as error:
                raise DamagedFolderError(
                    f"{report}. The evidence cannot be copied to {target} ({error}): free some space there, "
                    "then start again"
                ) from error
            return target
    raise DamagedFolderError(
        f"{report}. {folder} holds {EVIDENCE_FOLDERS_MAX} folders damaged-N of earlier times already: check "
        "the disk, then move them away and start again"
    )


def _copy_evidence(folder: Path, target: Path, entries: FileLog, report: str) -> None:
    partial = target.with_name(target.name + ".tmp")
    partial.mkdir(exist_ok=True)
    for path in entries.files_after_end():
        _copy_sparsely(path, partial / path.name)
    for name in STATE_FILE_NAMES:
        if (folder / name).exists():
            _copy_sparsely(folder / name, partial / name)
    replace_file(partial / "REPORT", (report + "\n").encode())
    partial.rename(target)
    sync_directory(folder)


def _copy_sparsely(path: Path, copy: Path) -> None:
    """Copies a file; the copy has holes where the file has them (POSIX sparse files)."""
    copy.unlink(missing_ok=True)
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(source).st_size
            os.ftruncate(target, size)
            at = 0
            while at < size:
                with contextlib.suppress(_NoMoreDataError):
                    at = _next_data(source, at)
                    data = os.pread(source, _CHUNK_BYTES, at)
                    os.lseek(target, at, os.SEEK_SET)
                    write_fully(target, data)
                    at += len(data)
                    continue
                break
            os.fsync(target)
        finally:
            os.close(target)
    finally:
        os.close(source)


class _NoMoreDataError(Exception):
    """The rest of a file is a hole."""


def _next_data(fd: int, at: int) -> int:
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _NoMoreDataError from None
        raise
