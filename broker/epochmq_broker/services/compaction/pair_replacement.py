"""Exchanges complete pairs of a compacted queue for the pairs in its directories `compacting`, as one step
that a crash cannot leave half done.

RocketMQ renames the old files to `NAME.delete`, moves the new files up, and deletes the old ones
(CompactionLog.replaceFiles). This module writes the plan first, into a file beside the new ones. From then
on the exchange is completed, by the next start if need be; before, it is dropped. What a crash of RocketMQ
has left is completed if all new log files were moved up, and taken back otherwise.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

import msgspec

from epochmq_protocol.durable_files import replace_file, sync_directory

log = logging.getLogger(__name__)

COMPACTING: Final = "compacting"
"""Name of the directories for new files, below those of the log files and the queue files."""
REPLICATING: Final = "replicating"
"""The directories in which RocketMQ's slaves collect messages of their master."""
_PLAN: Final = "replacement.json"
_DELETED_SUFFIX: Final = ".delete"


class Replacement(msgspec.Struct):
    """The names of the old and of the new pairs."""

    old: list[str]
    new: list[str]


def replace_files(log_directory: Path, queue_directory: Path, plan: Replacement) -> None:
    """Exchanges the files. The new ones are durable already. Raises OSError; then `finish_replacement`
    completes or drops the exchange."""
    replace_file(log_directory / COMPACTING / _PLAN, msgspec.json.encode(plan))
    _carry_out(log_directory, queue_directory, plan)


def _carry_out(log_directory: Path, queue_directory: Path, plan: Replacement) -> None:
    for directory in (log_directory, queue_directory):
        for name in plan.new:
            source = directory / COMPACTING / name
            if source.exists():
                source.replace(directory / name)
        for name in plan.old:
            if name not in plan.new:
                (directory / name).unlink(missing_ok=True)
        if directory.is_dir():
            sync_directory(directory)
    _remove(queue_directory / COMPACTING)
    _remove(log_directory / COMPACTING)


def discard_new_files(log_directory: Path, queue_directory: Path) -> None:
    """Removes the directories `compacting` of a compaction that was given up. Raises OSError."""
    for directory in (queue_directory, log_directory):
        _remove(directory / COMPACTING)


def finish_replacement(log_directory: Path, queue_directory: Path) -> None:
    """Completes or drops what an earlier process has not finished. Raises OSError."""
    _finish_of_rocketmq(log_directory, queue_directory)
    try:
        plan = msgspec.json.decode((log_directory / COMPACTING / _PLAN).read_bytes(), type=Replacement)
    except (FileNotFoundError, msgspec.DecodeError):
        plan = None
    if plan is not None:
        log.warning("the compaction in %s is completed", log_directory)
        _carry_out(log_directory, queue_directory, plan)
    discard_new_files(log_directory, queue_directory)
    for directory in (log_directory, queue_directory):
        _remove(directory / REPLICATING)


def _finish_of_rocketmq(log_directory: Path, queue_directory: Path) -> None:
    old = _deleted(log_directory)
    waiting = bool(_files(log_directory / COMPACTING))
    only_queues_wait = bool(_files(queue_directory / COMPACTING)) and not waiting
    if not old and not _deleted(queue_directory) and not only_queues_wait:
        return
    undone = bool(old) and waiting
    log.warning(
        "RocketMQ's compaction in %s was interrupted and is %s",
        log_directory,
        "taken back" if undone else "completed",
    )
    for path in old:
        if undone:
            path.replace(path.with_suffix(""))
        else:
            path.unlink()
    # Queue files may belong to either state. They are built again from the log files.
    for path in (*_files(queue_directory / COMPACTING), *_files(queue_directory)):
        path.unlink()


def _files(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_file()] if directory.is_dir() else []


def _deleted(directory: Path) -> list[Path]:
    return sorted(directory.glob(f"*{_DELETED_SUFFIX}")) if directory.is_dir() else []


def _remove(directory: Path) -> None:
    if directory.is_dir():
        shutil.rmtree(directory)
        sync_directory(directory.parent)
