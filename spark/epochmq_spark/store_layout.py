"""Lists the files of a replica's store directory, and the faults of the listing."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from epochmq_spark import files

_OFFSET_NAME = re.compile(r"\d{20}")
_INDEX_NAME = re.compile(r"\d{17}")
_COMPACTION_FOLDERS = frozenset({"compacting", "replicating"})
"""Where a broker collects new files of a compacted queue."""
EPOCH_FILE = "epochFileCheckpoint"
IDENTITY_FILE = "brokerIdentity"
LOG_PATHS_FILE = "logPaths.json"
"""Names the directories of the log, if the broker has several (`storePathCommitLog`); those below the store's
directory relative to it."""


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
    batch_queues: list[ConsumeQueueFiles] = field(default_factory=list)
    compaction_logs: list[ConsumeQueueFiles] = field(default_factory=list)
    compaction_queues: list[ConsumeQueueFiles] = field(default_factory=list)
    index: list[DataFile] = field(default_factory=list)
    extensions: list[ConsumeQueueFiles] = field(default_factory=list)
    timer_log: list[DataFile] = field(default_factory=list)
    timer_wheel: DataFile | None = None
    has_epochs: bool = False
    has_queues: bool = False
    aborted: bool = False  # the file `abort` exists: the broker runs, or did not stop cleanly
    faults: list[StoreFault] = field(default_factory=list)

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics with batch consume queues."""
        return frozenset(queue.topic for queue in self.batch_queues)


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
    listing = files.Listing(location)
    names = _list(listing, location, contents)
    if names is None:
        return contents
    here = {entry.name: entry for entry in names}
    if not here:
        contents.faults.append(StoreFault("directory.empty", location, "it contains no file"))
        return contents
    if LOG_PATHS_FILE not in here and ("commitlog" not in here or here["commitlog"].is_file):
        detail = "it contains no directory commitlog, only " + ", ".join(sorted(here)[:5])
        contents.faults.append(StoreFault("directory.foreign", location, detail))
        return contents
    contents.has_epochs = EPOCH_FILE in here or f"{EPOCH_FILE}.bak" in here
    contents.aborted = "abort" in here
    for folder in _log_folders(location, here, contents):
        log = _list(listing, folder, contents)
        if log is None:
            return contents
        contents.log += _data_files(folder, log, contents, _OFFSET_NAME)
    contents.log.sort(key=lambda file: file.start)
    _check_segments(files.join(location, "commitlog"), contents)
    contents.has_queues = "consumequeue" in here
    if contents.has_queues:
        contents.queues = _list_queues(listing, files.join(location, "consumequeue"), contents)
    if "batchconsumequeue" in here:
        contents.batch_queues = _list_queues(listing, files.join(location, "batchconsumequeue"), contents)
    if "compaction" in here:
        _list_compaction(listing, files.join(location, "compaction"), contents)
    if "consumequeue_ext" in here:
        contents.extensions = _list_queues(listing, files.join(location, "consumequeue_ext"), contents)
    if "timerlog" in here:
        folder = files.join(location, "timerlog")
        contents.timer_log = _data_files(
            folder, _list(listing, folder, contents) or [], contents, _OFFSET_NAME
        )
    if "timerwheel" in here:
        wheel = files.join(location, "timerwheel")
        contents.timer_wheel = DataFile(wheel, 0, here["timerwheel"].size)
    if "index" in here:
        index = _list(listing, files.join(location, "index"), contents)
        contents.index = _data_files(files.join(location, "index"), index or [], contents, _INDEX_NAME)
        if contents.aborted and contents.index and contents.index[-1].size == 0:
            contents.index.pop()  # the broker was creating it; its start deletes an empty one
    return contents


def _log_folders(location: str, here: dict[str, files.DirectoryEntry], contents: StoreContents) -> list[str]:
    """The directories of the log: `commitlog`, or those that a broker with several of them has recorded."""
    if LOG_PATHS_FILE not in here:
        return [files.join(location, "commitlog")]
    path = files.join(location, LOG_PATHS_FILE)
    try:
        found = msgspec.json.decode(files.read(path), type=list[str])
    except (OSError, ValueError) as error:
        contents.faults.append(StoreFault("directory.unreadable", path, str(error)))
        return []
    return [name if name.startswith("/") else files.join(location, name) for name in found]


def _list(
    listing: files.Listing, location: str, contents: StoreContents
) -> list[files.DirectoryEntry] | None:
    try:
        return listing.entries(location)
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


def _list_compaction(listing: files.Listing, folder: str, contents: StoreContents) -> None:
    names = {entry.name for entry in _list(listing, folder, contents) or []}
    if "compactionLog" in names:
        contents.compaction_logs = _list_queues(listing, files.join(folder, "compactionLog"), contents)
    if "compactionCq" in names:
        contents.compaction_queues = _list_queues(listing, files.join(folder, "compactionCq"), contents)


def _list_queues(listing: files.Listing, folder: str, contents: StoreContents) -> list[ConsumeQueueFiles]:
    """The files of consume queues, or of their extensions, by topic and queue."""
    queues = []
    for topic in _list(listing, folder, contents) or []:
        if topic.is_file:
            location = files.join(folder, topic.name)
            detail = "a file, expected the directory of a topic"
            contents.faults.append(StoreFault("file.foreign", location, detail))
            continue
        for queue in _list(listing, files.join(folder, topic.name), contents) or []:
            location = files.join(folder, topic.name, queue.name)
            if queue.is_file or not queue.name.isdecimal():
                detail = "expected a directory named after a queue id"
                contents.faults.append(StoreFault("file.foreign", location, detail))
                continue
            entries = _list(listing, location, contents) or []
            kept = [one for one in entries if one.is_file or one.name not in _COMPACTION_FOLDERS]
            parts = _data_files(location, kept, contents, _OFFSET_NAME)
            queues.append(ConsumeQueueFiles(topic.name, int(queue.name), tuple(parts)))
    return queues


def store_directory(location: str) -> str:
    """The location itself, or its directory `store` if that is the store, as in a volume of a pod."""
    try:
        here = {entry.name for entry in files.entries(location)}
    except OSError:
        return location
    return files.join(location, "store") if "commitlog" not in here and "store" in here else location


def check_is_store(location: str) -> None:
    """Raises FileNotFoundError if the directory does not exist, and OSError if it cannot be read or is not a
    broker's store."""
    here = {entry.name for entry in files.entries(location)}
    if "commitlog" not in here and LOG_PATHS_FILE not in here:
        found = ", ".join(sorted(here)[:5]) or "nothing"
        raise OSError(f"{location} is not a broker's store: no directory commitlog, but {found}")


def read_identity(location: str) -> tuple[str, str, int] | None:
    """(cluster, brokerName, brokerId) of the file `brokerIdentity`; None if there is no valid one."""
    try:
        return parse_identity(location)
    except ValueError:
        return None


def parse_identity(location: str) -> tuple[str, str, int] | None:
    """(cluster, brokerName, brokerId) of the file `brokerIdentity`; None if there is no such file. Raises
    ValueError if it is empty, cannot be read, or is not `cluster#brokerName#brokerId`."""
    try:
        text = files.read(files.join(location, IDENTITY_FILE), 4096).decode()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{IDENTITY_FILE}: {error}") from None
    parts = text.strip().split("#")
    if len(parts) != 3 or not parts[0] or not parts[1] or not parts[2].isdecimal():
        found = f"it is {text[:80]!r}" if text else "it is empty"
        raise ValueError(f"{IDENTITY_FILE}: {found}, expected cluster#brokerName#brokerId")
    return parts[0], parts[1], int(parts[2])
