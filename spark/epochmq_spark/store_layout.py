"""Lists the files of a replica's store directory, and the faults of the listing."""

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
    """A replica to audit: the name of its group, its own name, and the location of its store."""

    group: str
    name: str
    location: str


@dataclass(frozen=True)
class DataFile:
    """A file whose name is the offset of its first byte."""

    location: str
    start: int
    size: int


@dataclass(frozen=True)
class ConsumeQueueFiles:
    """The files of one consume queue."""

    topic: str
    queue_id: int
    files: tuple[DataFile, ...]


@dataclass(frozen=True)
class StoreFault:
    """A file or directory that is missing, unreadable or unexpected. `kind` is the kind of the finding."""

    kind: str
    location: str
    detail: str


@dataclass
class StoreContents:
    """The files of a store. If it cannot be read at all, only `faults` is filled."""

    log: list[DataFile] = field(default_factory=list)
    queues: list[ConsumeQueueFiles] = field(default_factory=list)
    index: list[DataFile] = field(default_factory=list)
    has_epochs: bool = False
    has_queues: bool = False
    aborted: bool = False  # the file `abort` exists: the broker runs, or did not stop cleanly
    faults: list[StoreFault] = field(default_factory=list)


def encode_replicas(replicas: Sequence[AuditedReplica]) -> str:
    """Formats replicas for the option `replicas` of the data sources."""
    return json.dumps([[one.group, one.name, one.location] for one in replicas])


def decode_replicas(text: str) -> list[AuditedReplica]:
    """Parses the option `replicas`. Raises ValueError."""
    try:
        return [
            AuditedReplica(str(group), str(name), str(location)) for group, name, location in json.loads(text)
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(f"option replicas: {error}, expected a JSON list of [group, name, place]") from None


def scan_store(location: str) -> StoreContents:
    """Lists a store directory. Everything that cannot be read is in `faults`."""
    contents = StoreContents()
    names = _list(location, contents)
    if names is None:
        return contents
    here = {entry.name: entry for entry in names}
    if not here:
        contents.faults.append(StoreFault("directory.empty", location, "it contains no file"))
        return contents
    if "commitlog" not in here or here["commitlog"].is_file:
        detail = "it contains no directory commitlog, only " + ", ".join(sorted(here)[:5])
        contents.faults.append(StoreFault("directory.foreign", location, detail))
        return contents
    contents.has_epochs = EPOCH_FILE in here or f"{EPOCH_FILE}.bak" in here
    contents.aborted = "abort" in here
    log = _list(files.join(location, "commitlog"), contents)
    if log is None:
        return contents
    contents.log = _data_files(files.join(location, "commitlog"), log, contents, _OFFSET_NAME)
    _check_segments(files.join(location, "commitlog"), contents)
    contents.has_queues = "consumequeue" in here
    if contents.has_queues:
        _list_queues(files.join(location, "consumequeue"), contents)
    if "index" in here:
        index = _list(files.join(location, "index"), contents)
        contents.index = _data_files(files.join(location, "index"), index or [], contents, _INDEX_NAME)
    return contents


def _list(location: str, contents: StoreContents) -> list[files.DirectoryEntry] | None:
    try:
        return files.entries(location)
    except (OSError, ValueError) as error:
        kind = "directory.missing" if isinstance(error, FileNotFoundError) else "directory.unreadable"
        contents.faults.append(StoreFault(kind, location, str(error)))
        return None


def _data_files(
    folder: str, entries: list[files.DirectoryEntry], contents: StoreContents, pattern: re.Pattern[str]
) -> list[DataFile]:
    data_files = []
    for entry in entries:
        location = files.join(folder, entry.name)
        if entry.is_file and pattern.fullmatch(entry.name):
            data_files.append(DataFile(location, int(entry.name), entry.size))
        else:
            detail = "no broker creates a file of this name here"
            contents.faults.append(StoreFault("file.foreign", location, detail))
    return data_files


def _check_segments(folder: str, contents: StoreContents) -> None:
    """Segments must be contiguous and of equal size."""
    if not contents.log:
        contents.faults.append(StoreFault("directory.empty", folder, "it contains no segment"))
        return
    size = max(file.size for file in contents.log)
    for file in contents.log:
        if file.size < size:
            detail = f"{file.size} bytes, expected {size} like the others: copied in part, or truncated"
            contents.faults.append(StoreFault("file.short", file.location, detail))
    for before, after in zip(contents.log, contents.log[1:], strict=False):
        if before.start + size < after.start:
            detail = f"no segment contains [{before.start + size}, {after.start})"
            contents.faults.append(StoreFault("log.missing-segment", after.location, detail))


def _list_queues(folder: str, contents: StoreContents) -> None:
    for topic in _list(folder, contents) or []:
        if topic.is_file:
            location = files.join(folder, topic.name)
            detail = "a file, expected the directory of a topic"
            contents.faults.append(StoreFault("file.foreign", location, detail))
            continue
        for queue in _list(files.join(folder, topic.name), contents) or []:
            location = files.join(folder, topic.name, queue.name)
            if queue.is_file or not queue.name.isdecimal():
                detail = "expected a directory named after a queue id"
                contents.faults.append(StoreFault("file.foreign", location, detail))
                continue
            parts = _data_files(location, _list(location, contents) or [], contents, _OFFSET_NAME)
            contents.queues.append(ConsumeQueueFiles(topic.name, int(queue.name), tuple(parts)))


def read_identity(location: str) -> tuple[str, str, int] | None:
    """(cluster, brokerName, brokerId) of the file `brokerIdentity`; None if there is no valid one."""
    try:
        data = files.read(files.join(location, "brokerIdentity"), 4096)
        cluster, name, broker_id = data.decode().split("#")
        return cluster, name, int(broker_id)
    except (OSError, ValueError):
        return None
