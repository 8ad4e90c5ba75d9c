# pure: judges what the end of the log may lack from what the last life of the store left behind
"""Judges whether the end of the log may lack bytes that were written before the store was opened.

The evidence is the `abort` file of the life before (`abort_file.py`); a clean stop removes it. The rules, for
an abort file that exists:

| what it says | state |
|---|---|
| a flush of that life failed | UNKNOWN |
| another file was written (this is a copy or a backup), or in this boot another device | UNKNOWN |
| the same boot of the machine | INTACT: the page cache keeps what a killed process wrote |
| another boot, or none | UNFLUSHED_LOST |

A state that the life before had inherited, and that nobody has cleared, goes on: the worst one counts.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class TailState(IntEnum):
    """What may be missing at the end of the log; the greater, the worse."""

    INTACT = 0  # nothing: every byte that was written is there
    UNFLUSHED_LOST = 1  # bytes that were not flushed
    UNKNOWN = 2  # flushed bytes too


class FileIdentity(Struct, frozen=True):
    """Which file this is: a copy of it has another one. Inode and generation tell it from every other file of
    its file system; device numbers are stable within one boot only."""

    inode: int
    generation: int  # the inode's, 0 when the file system does not tell
    device: int


class AbortRecord(Struct, frozen=True):
    """What an abort file records of one life of the store."""

    boot_id: str
    identity: FileIdentity | None  # None: written by RocketMQ or by an older version
    acknowledged_unflushed: bool  # some messages were acknowledged before they were flushed (ASYNC_FLUSH)
    flush_failed: bool = False
    inherited: TailState = TailState.INTACT  # the state this life began with
    recovering: bool = False  # what a crash of the machine left is not repaired yet


class LogTail(Struct, frozen=True):
    """The end of the log at a start."""

    state: TailState
    acknowledged_unflushed: bool  # whether bytes that were not flushed may have been acknowledged
    # The process ended and the page cache outlived it: what it wrote is all there, flushed or not.
    only_killed: bool
    # An fsync failed in this boot: the page cache may hold bytes that the disk does not have.
    cache_suspect: bool

    @property
    def may_lack_acknowledged(self) -> bool:
        """Whether acknowledged bytes may be missing."""
        if self.state is TailState.UNKNOWN:
            return True
        return self.state is TailState.UNFLUSHED_LOST and self.acknowledged_unflushed


CLEAN_TAIL = LogTail(
    state=TailState.INTACT, acknowledged_unflushed=False, only_killed=False, cache_suspect=False
)


def assess_tail(left: AbortRecord | None, boot_id: str, present: FileIdentity | None) -> LogTail:
    """The end of the log, from what was `left` (None after a clean stop), this boot, and the identity that
    the abort file has now."""
    if left is None:
        return CLEAN_TAIL
    same_boot = left.boot_id == boot_id
    own = _state(left, same_boot, present)
    return LogTail(
        state=max(own, left.inherited),
        acknowledged_unflushed=left.acknowledged_unflushed,
        only_killed=own is TailState.INTACT and not left.recovering,
        cache_suspect=left.flush_failed and same_boot,
    )


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


def encode(pid: int, record: AbortRecord) -> bytes:
    """The file's content: the process id first, as RocketMQ writes it (and never reads it)."""
    lines = [str(pid), record.boot_id]
    if record.identity is not None:
        identity = record.identity
        lines.append(f"file={identity.inode}:{identity.generation}:{identity.device}")
    lines.append(f"acknowledged={'before-flush' if record.acknowledged_unflushed else 'after-flush'}")
    lines.append(f"flush={'failed' if record.flush_failed else 'ok'}")
    lines.append(f"tail={record.inherited.name}")
    lines.append(f"recovery={'unfinished' if record.recovering else 'finished'}")
    return "\n".join([*lines, ""]).encode()


def decode(data: bytes) -> AbortRecord:
    """Reads what `encode` wrote, or the file of RocketMQ (a process id) or of an older version (and a boot
    id). What is missing or unreadable counts as the worse case."""
    lines = data.decode(errors="replace").splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    plain = [line.strip() for line in lines[1:] if "=" not in line]
    return AbortRecord(
        boot_id=plain[0] if plain else "",
        identity=_identity(fields.get("file")),
        acknowledged_unflushed=fields.get("acknowledged") != "after-flush",
        flush_failed=fields.get("flush", "ok") != "ok",
        inherited=_inherited(fields.get("tail")),
        recovering=fields.get("recovery", "finished") != "finished",
    )


def _identity(text: str | None) -> FileIdentity | None:
    try:
        inode, generation, device = map(int, (text or "").split(":"))
    except ValueError:
        return None
    return FileIdentity(inode, generation, device)


def _inherited(name: str | None) -> TailState:
    if name is None:
        return TailState.INTACT
    return TailState.__members__.get(name, TailState.UNKNOWN)
