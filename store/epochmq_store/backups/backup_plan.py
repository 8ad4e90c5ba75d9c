# pure: which objects a backup takes over, which a deletion frees, which a restore needs
"""Decides what a backup takes over from an earlier one, what may be deleted, and what a restore reads.

The rules of a deletion: an object is deleted if a deleted backup needed it and no remaining one does. Each
object belongs to the backup that wrote it, whose id is in its key. Objects of a backup without a manifest are
what an aborted backup has left; they are deleted after a day, because a backup may be writing them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from epochmq_store.backups.backup_errors import BackupError
from epochmq_store.backups.manifest import BackupManifest, LogPiece, StoredFile

ABANDONED_S: Final = 24 * 3600.0
"""The age after which objects without a manifest are deleted."""

CONSUMER_OFFSETS: Final = "config/consumerOffset.json"
DELAY_OFFSETS: Final = "config/delayOffset.json"
TIMER_CHECKPOINT: Final = "config/timercheck"
TIMER_LOG: Final = "timerlog/"
COMPACTION: Final = "compaction/"
PROGRESS: Final = frozenset(
    {
        CONSUMER_OFFSETS,
        DELAY_OFFSETS,
        TIMER_CHECKPOINT,
        "config/consumerOrderInfo.json",
        "config/lmqConsumerOffset.json",
        "config/timermetrics",
    }
)


def is_progress(path: str) -> bool:
    """Whether a state file says how far messages were processed. Such a file is read before the cut: it must
    not name what happened to a message after the cut, because the restored log lacks what came of it."""
    return path in PROGRESS or path.startswith((TIMER_LOG, COMPACTION))


def common_pieces(
    parent: BackupManifest,
    segment_bytes: int,
    log_start: int,
    log_end: int,
    epochs: Sequence[tuple[int, int]],
) -> tuple[LogPiece, ...]:
    """The pieces of an earlier backup that are also pieces of a log with these bounds and epochs; none if it
    has another history. The caller compares the bytes of the last one."""
    if parent.segment_bytes != segment_bytes or not log_start <= parent.log_end <= log_end:
        return ()
    kept = tuple(piece for piece in parent.pieces if piece.end > log_start)
    if not kept or kept[0].start != log_start:
        return ()
    first = max(log_start, parent.log_start)
    if _between(parent.epochs, first, parent.log_end) != _between(epochs, first, parent.log_end):
        return ()
    return kept


def _between(epochs: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """The epochs with bytes between two offsets, each with the first of them."""
    found = []
    for at, (epoch, begins) in enumerate(epochs):
        ends = epochs[at + 1][1] if at + 1 < len(epochs) else end
        if max(begins, start) < min(ends, end):
            found.append((epoch, max(begins, start)))
    return found


def newest(manifests: Iterable[BackupManifest]) -> BackupManifest | None:
    """The backup that was taken last."""
    return max(manifests, key=lambda one: (one.taken_ms, one.id), default=None)


def expired(manifests: Sequence[BackupManifest], keep: int) -> list[BackupManifest]:
    """The backups to delete so that the `keep` newest remain, the oldest first."""
    ordered = sorted(manifests, key=lambda one: (one.taken_ms, one.id))
    return ordered[: max(len(ordered) - keep, 0)]


def freed_keys(deleted: Iterable[BackupManifest], kept: Iterable[BackupManifest]) -> list[str]:
    """The objects that the deleted backups needed, and that no remaining one needs."""
    needed = {key for one in kept for key in one.keys}
    return sorted({key for one in deleted for key in one.keys} - needed)


def abandoned_keys(
    objects: Mapping[str, float], manifests: Iterable[BackupManifest], now_s: float
) -> list[str]:
    """The objects that no manifest names, and that have not changed for a day. `objects`: the time of the
    last change of each key, in seconds since 1970."""
    needed = {key for one in manifests for key in one.keys}
    return sorted(key for key, at in objects.items() if key not in needed and now_s - at > ABANDONED_S)


class RestorePoint(Struct, frozen=True):
    """Up to where to restore: an offset of the log, or a store time in ms since 1970; neither: everything."""

    offset: int | None = None
    time_ms: int | None = None


def log_for(
    manifests: Sequence[BackupManifest], chosen: BackupManifest, point: RestorePoint
) -> BackupManifest:
    """The backup whose log has a point: the first one that reaches it, of the history to which the `chosen`
    backup belongs; the chosen one without a point. Raises BackupError if no backup has the point."""
    if point.offset is None and point.time_ms is None:
        return chosen
    history = history_of(manifests, chosen)
    found = next((one for one in history if _reaches(one, point)), None)
    if found is None:
        last = history[-1]
        raise BackupError(
            f"no backup of this history reaches {_named(point)}: the last one, {last.id}, ends at offset "
            f"{last.log_end}, and was taken at {last.taken_ms} ms since 1970"
        )
    if point.offset is not None and point.offset < found.log_start:
        raise BackupError(
            f"offset {point.offset} is before the start of the log in backup {found.id}, {found.log_start}"
        )
    return found


def progress_for(manifests: Sequence[BackupManifest], log: BackupManifest, end: int) -> BackupManifest | None:
    """The backup whose progress fits a log that ends at `end`: the last one that ends there or before. A
    later one would count messages as processed whose results the log lacks. None if there is none."""
    found = [one for one in history_of(manifests, log) if one.log_end <= end]
    return found[-1] if found else None


def history_of(manifests: Sequence[BackupManifest], one: BackupManifest) -> list[BackupManifest]:
    """The backups of the same history of the log, the oldest first."""
    same = [other for other in manifests if other.lineage == one.lineage]
    return sorted(same, key=lambda other: (other.taken_ms, other.id))


def files_to_restore(log: BackupManifest, progress: BackupManifest | None) -> list[StoredFile]:
    """The state files of a restored store: definitions from `log`, and what was processed from `progress`.
    Without it only the offsets of consumer groups are restored; brokers lower those that are beyond the end
    of a queue."""
    definitions = [one for one in log.files if not is_progress(one.path)]
    if progress is None:
        return definitions + [one for one in log.files if one.path == CONSUMER_OFFSETS]
    return definitions + [one for one in progress.files if is_progress(one.path)]


def _reaches(one: BackupManifest, point: RestorePoint) -> bool:
    if point.offset is not None:
        return one.log_end >= point.offset
    return point.time_ms is not None and one.taken_ms >= point.time_ms


def _named(point: RestorePoint) -> str:
    return f"offset {point.offset}" if point.offset is not None else f"time {point.time_ms} ms since 1970"
