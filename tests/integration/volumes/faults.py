"""What may happen to the volume of a process that has ended: an older copy takes its place, or an
empty one, or the copy of another replica's, or one bit of one of its files flips."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.group_processes import Member

OLDER, EMPTY, CLONE = "an older copy", "an empty one", "a copy of another replica's"
BIT = "one bit of "
CONSUME_QUEUES = "the consume queues"
"""The scrub repairs them, so they are compared after a while."""
CONTROLLER = "of a controller: "
"""Before the faults of a controller's volume."""
FILES: dict[str, Sequence[str]] = {
    "the log": ["commitlog/*"],
    "the epoch file": ["epochFileCheckpoint"],
    "the checkpoint": ["checkpoint"],
    "a table": ["config/*.json"],
    "the index": ["index/*"],
    CONSUME_QUEUES: ["consumequeue/*/*/*"],
    "the log's extent": ["logExtent.json"],
    "the abort file": ["abort"],
}
"""The files of a broker's store, as patterns."""
RAFT_FILES: dict[str, Sequence[str]] = {
    "the entries": ["dledger-*/data/*"],
    "the index of entries": ["dledger-*/index/*"],
    "the vote": ["dledger-*/currterm"],
    "the peer's state": ["dledger-*/*"],
}
"""The files of a peer that only Raft has."""


@dataclass(frozen=True)
class VolumeFault:
    """One drawn fault. `kind` is OLDER, EMPTY, CLONE, or BIT and a name of FILES or RAFT_FILES; perhaps with
    CONTROLLER before it."""

    kind: str
    victim: Member
    killed: bool
    """Whether the process is killed, not stopped."""

    @property
    def what(self) -> str:
        """The kind without CONTROLLER."""
        return self.kind.removeprefix(CONTROLLER)

    def __str__(self) -> str:
        end = "killed" if self.killed else "stopped"
        what = f"{self.what} flips" if self.what.startswith(BIT) else f"its volume is replaced by {self.what}"
        return f"{self.victim.name} is {end}, {what}"


def store_of(member: Member) -> Path:
    """The directory that stands for the member's volume."""
    return member.config.parent / "store"


def end(member: Member, *, killed: bool) -> None:
    """Ends a process."""
    if killed:
        member.process.kill()
    else:
        status = member.process.stop()
        assert status == 0, f"{member.name} stopped with {status}\n{member.process.output()}"


def copy_of(member: Member, target: Path) -> Path:
    """A copy of the member's volume as it is at one moment. A running process is suspended meanwhile."""
    shutil.rmtree(target, ignore_errors=True)
    member.process.signal(signal.SIGSTOP)
    try:
        shutil.copytree(store_of(member), target)
    finally:
        member.process.signal(signal.SIGCONT)
    return target


def replace_by(member: Member, copy: Path | None) -> None:
    """Replaces the volume of a process that has ended by a copy, None: by an empty one."""
    shutil.rmtree(store_of(member), ignore_errors=True)
    if copy is None:
        store_of(member).mkdir()
    else:
        shutil.move(copy, store_of(member))


def files_for(kind: str, store: Path) -> list[Path]:
    """The files of a kind that have bytes, in the order of their names."""
    patterns = {**FILES, **RAFT_FILES}[kind.removeprefix(BIT)]
    found = [path for pattern in patterns for path in store.glob(pattern)]
    return sorted(path for path in found if path.is_file() and used_bytes(path))


def used_bytes(path: Path) -> int:
    """The size of a file without the zeros at its end, which were never written."""
    return len(path.read_bytes().rstrip(b"\0"))


def queues_of(store: Path) -> dict[str, bytes]:
    """The units in the files of all consume queues, by the files' names below the store."""
    return {
        str(path.relative_to(store)): path.read_bytes().rstrip(b"\0")
        for path in files_for(BIT + CONSUME_QUEUES, store)
    }


def flip_bit(kind: str, store: Path, chance: random.Random) -> str:
    """Flips one bit of one file; returns which, as text. Empty if there is no such file."""
    paths = files_for(kind, store)
    if not paths:
        return ""
    path = chance.choice(paths)
    position, bit = chance.randrange(used_bytes(path)), chance.randrange(8)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))
    return f"bit {bit} of byte {position} of {path.relative_to(store)}"
