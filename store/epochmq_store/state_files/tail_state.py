# pure: decides from the abort record of the store's previous run what the end of the log may lack
"""Decides whether the end of the log may lack bytes that the previous run of the store wrote.

The evidence is the previous run's `abort` file (`abort_file.py`), which a clean stop removes. The rules for
an abort file that exists:

| its record | state |
|---|---|
| a flush failed in that run | UNKNOWN |
| it describes another file (this one is a copy), or another device in the same boot | UNKNOWN |
| another boot, and another volume, or another machine if a volume has no name | UNKNOWN |
| the same boot of the machine | INTACT: the page cache keeps the writes of a killed process |
| another boot, or none | UNFLUSHED_LOST |

The previous run may itself have started with a state that was not cleared since. Then the worse of the two
counts.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from epochmq_formats.abort_file import AbortRecord, FileIdentity, StoragePlace, TailState


class LogTail(Struct, frozen=True):
    """The end of the log as a start finds it."""

    state: TailState
    acknowledged_unflushed: bool  # unflushed bytes may have been acknowledged
    only_killed: bool  # the process ended, the machine kept running: the page cache has all its writes
    cache_suspect: bool  # an fsync failed in this boot: the page cache may hold bytes that the disk lacks
    dispatched_until: int = -1  # after a kill: recovery may start at this message; -1: unknown

    @property
    def may_lack_acknowledged(self) -> bool:
        """Whether acknowledged bytes may be missing."""
        if self.state is TailState.UNKNOWN:
            return True
        return self.state is TailState.UNFLUSHED_LOST and self.acknowledged_unflushed


CLEAN_TAIL = LogTail(
    state=TailState.INTACT, acknowledged_unflushed=False, only_killed=False, cache_suspect=False
)


def assess_tail(
    left: AbortRecord | None,
    boot_id: str,
    present: FileIdentity | None,
    place: StoragePlace = StoragePlace(),  # noqa: B008  # frozen
) -> LogTail:
    """The state of the log's end, from the record that was `left` (None after a clean stop), the present
    boot, the present identity of the abort file, and the place of the store."""
    if left is None:
        return CLEAN_TAIL
    same_boot = left.boot_id == boot_id
    own = _state(left, same_boot, present)
    if not same_boot and place.differs_from(left.place):
        own = TailState.UNKNOWN
    state = max(own, left.inherited)
    only_killed = own is TailState.INTACT and not left.recovering
    return LogTail(
        state=state,
        acknowledged_unflushed=left.acknowledged_unflushed,
        only_killed=only_killed,
        cache_suspect=left.flush_failed and same_boot,
        dispatched_until=left.dispatched_until if only_killed and state is TailState.INTACT else -1,
    )


def without_files(tail: LogTail) -> LogTail:
    """The state of the log's end if files of the log, or the checkpoint beside it, are missing."""
    return msgspec.structs.replace(tail, state=TailState.UNKNOWN, dispatched_until=-1)


def _state(left: AbortRecord, same_boot: bool, present: FileIdentity | None) -> TailState:
    if left.flush_failed or _is_copy(left.identity, present, same_boot):
        return TailState.UNKNOWN
    return TailState.INTACT if same_boot else TailState.UNFLUSHED_LOST


def _is_copy(recorded: FileIdentity | None, present: FileIdentity | None, same_boot: bool) -> bool:
    if recorded is None or present is None:
        return False
    if (recorded.inode, recorded.generation) != (present.inode, present.generation):
        return True
    return same_boot and recorded.device != present.device
