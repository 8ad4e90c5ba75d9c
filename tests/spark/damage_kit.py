"""The toolkit of the damage injectors: the records of a log, ways to change bytes, and the description of a
damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE
from epochmq_protocol import message
from epochmq_protocol.epoch_entries import EpochEntry, format_epoch_file, parse_epoch_file


@dataclass(frozen=True)
class InjectedDamage:
    """An injected damage. The audit must report all kinds in `expected`, one of them with the columns
    `where`, and may report the kinds in `allowed`. `replica` is its replica, `*` for all."""

    replica: str
    expected: frozenset[str]
    where: dict[str, Any] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    metadata: Any = None


def damage(
    replica: Path, *expected: str, allowed: tuple[str, ...] = (), metadata: Any = None, **where: Any
) -> InjectedDamage:
    """Creates an `InjectedDamage`."""
    return InjectedDamage(replica.name, frozenset(expected), where, frozenset(allowed), metadata)


@dataclass(frozen=True)
class Record:
    """A message of the log, and its position. In a DLedger log `header` bytes precede it, the header of its
    entry."""

    path: Path
    at: int  # position in the file
    offset: int
    size: int
    message: message.MessageExt
    header: int = 0

    @property
    def start(self) -> int:
        """The offset at which its entry starts; without entries its own."""
        return self.offset - self.header

    def erase(self) -> None:
        """Overwrites it, and the header of its entry, with zeros."""
        overwrite(self.path, self.at - self.header, bytes(self.size + self.header))


def log_folder(replica: Path) -> Path:
    """The directory of the log's files: `commitlog`, or the data files of a DLedger peer."""
    return next(replica.glob("dledger-*/data"), replica / "commitlog")


def segments(replica: Path) -> list[Path]:
    """The segments of the log."""
    return sorted(log_folder(replica).iterdir())


def records(replica: Path) -> list[Record]:
    """The messages of the log, in order."""
    found: list[Record] = []
    for path in segments(replica):
        data, at = path.read_bytes(), 0
        header = 0 if path.parent.name == "commitlog" else ENTRY_HEADER_SIZE
        while at + header + 8 <= len(data):
            at += header
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                break
            decoded = message.decode_record(data[at : at + size])
            found.append(Record(path, at, int(path.name) + at, size, decoded, header))
            at += size
    return found


def messages(replica: Path) -> list[Record]:
    """The records that are in a consume queue."""
    return [one for one in records(replica) if not one.message.sys_flag & 4]


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Overwrites bytes of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip_bit(path: Path, at: int, rng: random.Random) -> None:
    """Flips a random bit of a byte."""
    byte = path.read_bytes()[at]
    overwrite(path, at, bytes([byte ^ 1 << rng.randrange(8)]))


def replace_record(record: Record, changed: message.MessageExt) -> None:
    """Replaces a record by a message of the same size."""
    data = message.encode_record(changed)
    assert len(data) == record.size
    overwrite(record.path, record.at, data)


def set_times_of_index(replica: Path) -> None:
    """Gives headers and entries of the index the times that a broker would have written: the seconds from the
    first message on, and 0 for what was stored before it."""
    times = {one.offset: one.message.store_timestamp for one in records(replica)}
    for path in (replica / "index").iterdir():
        _, _, first, last, _, count = struct.unpack_from(">qqqqii", path.read_bytes())
        overwrite(path, 0, struct.pack(">qq", times[first], times[last]))
        for number in range(1, count):
            at = 40 + 100 * 4 + number * 20
            (physical,) = struct.unpack_from(">q", path.read_bytes(), at + 4)
            seconds = max((times[physical] - times[first]) // 1000, 0)
            overwrite(path, at + 12, struct.pack(">i", seconds))


def epochs(replica: Path) -> list[EpochEntry]:
    """The entries of the epoch file."""
    return parse_epoch_file((replica / "epochFileCheckpoint").read_text())


def write_epochs(replica: Path, entries: list[tuple[int, int]]) -> None:
    """Writes a valid epoch file with these entries."""
    made = [EpochEntry(*entry) for entry in entries]
    (replica / "epochFileCheckpoint").write_text(format_epoch_file(made))


def epochs_with_bytes(replica: Path) -> list[tuple[int, int]]:
    """The entries of epochs that contain at least one byte."""
    end = records(replica)[-1].offset + records(replica)[-1].size
    return [(entry.epoch, entry.start_offset) for entry in epochs(replica) if entry.start_offset < end]


def columns_of(record: Record) -> dict[str, Any]:
    """The columns of a finding that identify a message."""
    one = record.message
    return {"start_offset": record.offset, "queue_offset": one.queue_offset, "topic": one.topic}


def any_record_but_the_last(replica: Path, rng: random.Random) -> Record:
    """A random message other than the last one of the log."""
    return rng.choice(messages(replica)[:-1])


Injector = Callable[[list[Path], random.Random], InjectedDamage]
KINDS: dict[str, Injector] = {}
"""The injectors for groups under controllers."""
DLEDGER_KINDS: dict[str, Injector] = {}
"""The injectors for groups with a DLedger log."""


def injector(one: Injector) -> Injector:
    """Registers an injector for both kinds of groups."""
    return epochs_injector(dledger_injector(one))


def epochs_injector(one: Injector) -> Injector:
    """Registers an injector for groups with epochs."""
    KINDS[one.__name__] = one
    return one


def dledger_injector(one: Injector) -> Injector:
    """Registers an injector for groups with a DLedger log."""
    DLEDGER_KINDS[one.__name__] = one
    return one
