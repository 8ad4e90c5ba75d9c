# pure: decides from the abort record of the store's previous run what the end of the log may lack
"""Decides whether the end of the log may lack bytes that the previous run of the store wrote.

The evidence is the previous run's `abort` file (`abort_file.py`), which a clean stop removes. The rules for
an abort file that exists:

| its record | state |
|---|---|
| a flush failed in that run | UNKNOWN |
| it describes another file (this one is a copy), or another device in the same boot | UNKNOWN |
| the same boot of the machine | INTACT: the page cache keeps the writes of a killed process |
| another boot, or none | UNFLUSHED_LOST |

The previous run may itself have started with a state that was not cleared since. Then the worse of the two
counts.
"""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct


class TailState(IntEnum):
    """What may be missing at the end of the log. A greater value is worse."""

    INTACT = 0  # nothing is missing
    UNFLUSHED_LOST = 1  # bytes that were not flushed may be missing
    UNKNOWN = 2  # flushed bytes may be missing, too


class FileIdentity(Struct, frozen=True):
    """Identifies a file; a copy has another identity. Inode and generation are unique in the file system.
    Device numbers are stable within one boot only."""

    inode: int
    generation: int  # of the inode, 0 when the file system reports none
    device: int


class AbortRecord(Struct, frozen=True):
    """The content of an abort file, about one run of the store."""

    boot_id: str
    identity: FileIdentity | None  # None: written by RocketMQ or by an older version
    acknowledged_unflushed: bool  # some messages were acknowledged before they were flushed (ASYNC_FLUSH)
    flush_failed: bool = False
    inherited: TailState = TailState.INTACT  # the state this run started with
    recovering: bool = False  # the repair after a crash of the machine has not finished
    dispatched_until: int = -1
    """Physical offset of a message. The files of queues and index have everything before it, in the page
    cache at least. -1: unknown."""


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


def assess_tail(left: AbortRecord | None, boot_id: str, present: FileIdentity | None) -> LogTail:
    """The state of the log's end, from the record that was `left` (None after a clean stop), the present
    boot, and the present identity of the abort file."""
    if left is None:
        return CLEAN_TAIL
    same_boot = left.boot_id == boot_id
    own = _state(left, same_boot, present)
    state = max(own, left.inherited)
    only_killed = own is TailState.INTACT and not left.recovering
    return LogTail(
        state=state,
        acknowledged_unflushed=left.acknowledged_unflushed,
        only_killed=only_killed,
        cache_suspect=left.flush_failed and same_boot,
        dispatched_until=left.dispatched_until if only_killed and state is TailState.INTACT else -1,
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
    """The file's content. The first line is the process id, which RocketMQ writes and never reads."""
    lines = [str(pid), record.boot_id]
    if record.identity is not None:
        identity = record.identity
        lines.append(f"file={identity.inode}:{identity.generation}:{identity.device}")
    lines.append(f"acknowledged={'before-flush' if record.acknowledged_unflushed else 'after-flush'}")
    lines.append(f"flush={'failed' if record.flush_failed else 'ok'}")
    lines.append(f"tail={record.inherited.name}")
    lines.append(f"recovery={'unfinished' if record.recovering else 'finished'}")
    lines.append(f"dispatched={record.dispatched_until}")
    return "\n".join([*lines, ""]).encode()


def decode(data: bytes) -> AbortRecord:
    """Decodes the content of `encode`, of RocketMQ's file (a process id) or of an older version's (a process
    id and a boot id). A missing or unreadable field counts as the worse case."""
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
        dispatched_until=_offset(fields.get("dispatched")),
    )


def _identity(text: str | None) -> FileIdentity | None:
    try:
        inode, generation, device = map(int, (text or "").split(":"))
    except ValueError:
        return None
    return FileIdentity(inode, generation, device)


def _offset(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else -1


def _inherited(name: str | None) -> TailState:
    if name is None:
        return TailState.INTACT
    return TailState.__members__.get(name, TailState.UNKNOWN)
