"""The format of the file `abort`, which exists while a store runs (DefaultMessageStore.createTempFile).

The first line is the process id, as in RocketMQ. Lines of our own follow: the boot of the machine, and what
the next start must know about this run."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct

RECORD_BYTES: Final = 512  # one sector, which the disk writes atomically


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


class StoragePlace(Struct, frozen=True):
    """Where a store is; empty: unknown. A snapshot of a volume that is restored has another place, although
    its files have the same identities."""

    machine: str = ""  # the machine's id
    volume: str = ""  # the serial number, or another unique name, of the volume

    def differs_from(self, other: StoragePlace) -> bool:
        """Whether these are surely two places. A volume that was attached to another machine is the same."""
        if self.volume and other.volume:
            return self.volume != other.volume
        return bool(self.machine and other.machine) and self.machine != other.machine


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
    place: StoragePlace = StoragePlace()


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
    if record.place.machine:
        lines.append(f"machine={record.place.machine}")
    if record.place.volume:
        lines.append(f"volume={record.place.volume}")
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
        place=StoragePlace(fields.get("machine", ""), fields.get("volume", "")),
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
