"""What lies in a replica's directory: segments, queues, index files, epoch file, and what of it is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from epochmq_spark import files

_OFFSET_NAME = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{17}")
EPOCH_FILE = "epochFileCheckpoint"


@dataclass(frozen=True)
class AuditedReplica:
    """A replica to look at: the name of its group, its own, and where its files are."""

    group: str
    name: str
    place: str


@dataclass(frozen=True)
class DataFile:
    """A file that is named after the offset of its first byte."""

    place: str
    start: int
    size: int


@dataclass(frozen=True)
class ConsumeQueueFiles:
    """One consume queue's files."""

    topic: str
    queue_id: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class StoreFault:
    """A file or directory that is not what it should be."""

    kind: str
    place: str
    detail: str


@dataclass
class StoreContents:
    """What is there. Only `faults` is filled when nothing can be read."""

    log: list[DataFile] = field(default_factory=list)
    queues: list[ConsumeQueueFiles] = field(default_factory=list)
    index: list[DataFile] = field(default_factory=list)
    has_epochs: bool = False
    has_queues: bool = False
    aborted: bool = False
    faults: list[StoreFault] = field(default_factory=list)


def encode(replicas: Sequence[AuditedReplica]) -> str:
    """Replicas as the option `replicas` of the data sources carries them."""
    return json.dumps([[one.group, one.name, one.place] for one in replicas])


def decode(text: str) -> list[AuditedReplica]:
    """The replicas of an option. Raises ValueError."""
    try:
        return [AuditedReplica(str(group), str(name), str(place)) for group, name, place in json.loads(text)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"option replicas: {error}, expected a JSON list of [group, name, place]") from None


def contents(place: str) -> StoreContents:
    """Looks into a replica's directory; what cannot be read is among the faults."""
    found = StoreContents()
    names = _list(place, found)
    if names is None:
        return found
    here = {entry.name: entry for entry in names}
    if not here:
        found.faults.append(StoreFault("directory.empty", place, "nothing is in it"))
        return found
    if "commitlog" not in here or here["commitlog"].is_file:
        said = "no commitlog in it, only " + ", ".join(sorted(here)[:5])
        found.faults.append(StoreFault("directory.foreign", place, said))
        return found
    found.has_epochs = EPOCH_FILE in here or f"{EPOCH_FILE}.bak" in here
    found.aborted = "abort" in here
    log = _list(files.join(place, "commitlog"), found)
    if log is None:
        return found
    found.log = _numbered(files.join(place, "commitlog"), log, found, _OFFSET_NAME)
    _check_segments(files.join(place, "commitlog"), found)
    found.has_queues = "consumequeue" in here
    if found.has_queues:
        _queues(files.join(place, "consumequeue"), found)
    if "index" in here:
        index = _list(files.join(place, "index"), found)
        found.index = _numbered(files.join(place, "index"), index or [], found, _INDEX_NAME)
    return found


def _list(place: str, found: StoreContents) -> list[files.DirectoryEntry] | None:
    try:
        return files.entries(place)
    except (OSError, ValueError) as error:
        kind = "directory.missing" if isinstance(error, FileNotFoundError) else "directory.unreadable"
        found.faults.append(StoreFault(kind, place, str(error)))
        return None


def _numbered(
    folder: str, entries: list[files.DirectoryEntry], found: StoreContents, pattern: re.Pattern[str]
) -> list[DataFile]:
    numbered = []
    for entry in entries:
        place = files.join(folder, entry.name)
        if entry.is_file and pattern.fullmatch(entry.name):
            numbered.append(DataFile(place, int(entry.name), entry.size))
        else:
            found.faults.append(StoreFault("file.foreign", place, "a name that no broker gives here"))
    return numbered


def _check_segments(folder: str, found: StoreContents) -> None:
    """Segments must follow each other, and have one size."""
    if not found.log:
        found.faults.append(StoreFault("directory.empty", folder, "no segment in it"))
        return
    size = max(file.size for file in found.log)
    for file in found.log:
        if file.size < size:
            said = f"{file.size} bytes, expected {size} like the others: copied in part, or cut"
            found.faults.append(StoreFault("file.short", file.place, said))
    for before, after in zip(found.log, found.log[1:], strict=False):
        if before.start + size < after.start:
            said = f"no segment holds [{before.start + size}, {after.start})"
            found.faults.append(StoreFault("log.missing-segment", after.place, said))


def _queues(folder: str, found: StoreContents) -> None:
    for topic in _list(folder, found) or []:
        if topic.is_file:
            found.faults.append(
                StoreFault("file.foreign", files.join(folder, topic.name), "a file among topics")
            )
            continue
        for queue in _list(files.join(folder, topic.name), found) or []:
            place = files.join(folder, topic.name, queue.name)
            if queue.is_file or not queue.name.isdecimal():
                found.faults.append(StoreFault("file.foreign", place, "expected a queue's number"))
                continue
            parts = _numbered(place, _list(place, found) or [], found, _OFFSET_NAME)
            found.queues.append(ConsumeQueueFiles(topic.name, int(queue.name), tuple(parts)))


def identity(place: str) -> tuple[str, str, int] | None:
    """(cluster, brokerName, brokerId) of the file `brokerIdentity`, None when there is no sound one."""
    try:
        cluster, name, number = files.read(files.join(place, "brokerIdentity"), 4096).decode().split("#")
        return cluster, name, int(number)
    except (OSError, ValueError):
        return None
