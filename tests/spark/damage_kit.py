"""What the kinds of damage are made with: the messages of a log, ways to change bytes, and what was done."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from epochmq_protocol import message
from epochmq_protocol.epochs import EpochEntry, format_file, parse_file


@dataclass(frozen=True)
class InjectedDamage:
    """What was done, and must be found: `expected` (all of them), `where` columns that one of the expected
    findings has, `allowed` what else may be."""

    replica: str
    expected: frozenset[str]
    where: dict[str, Any] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    metadata: Any = None


def injected(
    replica: Path, *expected: str, allowed: tuple[str, ...] = (), metadata: Any = None, **where: Any
) -> InjectedDamage:
    """Short for `Done`."""
    return InjectedDamage(replica.name, frozenset(expected), where, frozenset(allowed), metadata)


@dataclass(frozen=True)
class Record:
    """A message of the log, and where it is."""

    path: Path
    at: int  # in the file
    offset: int
    size: int
    message: message.MessageExt


def segments(replica: Path) -> list[Path]:
    """The log's files."""
    return sorted((replica / "commitlog").iterdir())


def records(replica: Path) -> list[Record]:
    """The messages of the log, in order."""
    found: list[Record] = []
    for path in segments(replica):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in (0xDAA320A7, 0xDAA320AB):
                break
            decoded = message.decode_record(data[at : at + size])
            found.append(Record(path, at, int(path.name) + at, size, decoded))
            at += size
    return found


def poke(path: Path, at: int, data: bytes) -> None:
    """Overwrites bytes of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int, rng: random.Random) -> None:
    """Turns one bit of a byte round."""
    byte = path.read_bytes()[at]
    poke(path, at, bytes([byte ^ 1 << rng.randrange(8)]))


def rewrite(record: Record, changed: message.MessageExt) -> None:
    """Another message of the same size in the record's place."""
    data = message.encode_record(changed)
    assert len(data) == record.size
    poke(record.path, record.at, data)


def epochs(replica: Path) -> list[EpochEntry]:
    """The entries of the epoch file."""
    return parse_file((replica / "epochFileCheckpoint").read_text())


def write_epochs(replica: Path, entries: list[tuple[int, int]]) -> None:
    """An epoch file with these entries, sound in itself."""
    made = [EpochEntry(*entry) for entry in entries]
    (replica / "epochFileCheckpoint").write_text(format_file(made))


def written(replica: Path) -> list[tuple[int, int]]:
    """Entries with bytes behind them."""
    end = records(replica)[-1].offset + records(replica)[-1].size
    return [(entry.epoch, entry.start_offset) for entry in epochs(replica) if entry.start_offset < end]


def named(record: Record) -> dict[str, Any]:
    """The columns that name a message."""
    one = record.message
    return {"start_offset": record.offset, "queue_offset": one.queue_offset, "topic": one.topic}


def inner(replica: Path, rng: random.Random) -> Record:
    """Any record but the last."""
    return rng.choice(records(replica)[:-1])


Injector = Callable[[list[Path], random.Random], InjectedDamage]
KINDS: dict[str, Injector] = {}


def kind(one: Injector) -> Injector:
    """Registers an injector."""
    KINDS[one.__name__] = one
    return one
