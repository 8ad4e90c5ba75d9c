"""Lists the files of a replica's store directory, and the faults of the listing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec

from epochmq_formats.batch_unit import UNIT_BYTES as BATCH_UNIT_BYTES
from epochmq_formats.dledger_log import ENTRY_HEADER_SIZE
from epochmq_formats.queue_unit import UNIT_BYTES
from epochmq_protocol.integers import INT_MAX, LONG_MAX
from epochmq_spark import files

_OFFSET_NAME = re.compile(r"\d{20}")
_QUEUE_ID = re.compile(r"\d{1,10}")
_INDEX_NAME = re.compile(r"\d{17}")
_COMPACTION_FOLDERS = frozenset({"compacting", "replicating"})
"""Where a broker collects new files of a compacted queue."""
_PEER_FOLDER = re.compile(r"dledger-.+")
"""The directory of a DLedger peer in the store of its broker (`DLedgerConfig`)."""
STRAYS_MIN = 3
"""Files of a log among which one that begins at another place is noticed."""
STORE_NAMES = frozenset({"abort", "checkpoint", "config", "consumequeue", "index", "lock", "store"})
"""Names in a store besides the log's, by which a store that has lost its log is known."""
EPOCH_FILE = "epochFileCheckpoint"
IDENTITY_FILE = "brokerIdentity"
LOG_PATHS_FILE = "logPaths.json"
DATA_PATHS_FILE = "dataPaths.json"
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
    header_bytes: int = 0
    """The size of what precedes each record: the header of its entry in a data file of DLedger."""

    def holds(self, offset: int) -> bool:
        """Whether the byte at this offset is in the file."""
        return self.start <= offset < self.start + self.size


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
    """The files of a store. If it cannot be read at all, only `faults` is filled. `log` are the segments of
    the commit log; with DLedger its data files, behind the segments of a plain log that was upgraded.
    `peer_folder` and `entry_index` are the directory of the DLedger peer and the files of its index. `names`
    are those in the store, `config` those in its directory `config`."""

    log: list[DataFile] = field(default_factory=list)
    peer_folder: str | None = None
    entry_index: list[DataFile] = field(default_factory=list)
    queues: list[ConsumeQueueFiles] = field(default_factory=list)
    batch_queues: list[ConsumeQueueFiles] = field(default_factory=list)
    compaction_logs: list[ConsumeQueueFiles] = field(default_factory=list)
    compaction_queues: list[ConsumeQueueFiles] = field(default_factory=list)
    index: list[DataFile] = field(default_factory=list)
    extensions: list[ConsumeQueueFiles] = field(default_factory=list)
    timer_log: list[DataFile] = field(default_factory=list)
    timer_wheel: DataFile | None = None
    names: frozenset[str] = frozenset()
    config: frozenset[str] = frozenset()
    has_epochs: bool = False
    has_queues: bool = False
    aborted: bool = False  # the file `abort` exists: the broker runs, or did not stop cleanly
    faults: list[StoreFault] = field(default_factory=list)

    @property
    def batch_topics(self) -> frozenset[str]:
        """The topics with batch consume queues."""
        return frozenset(queue.topic for queue in self.batch_queues)


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
    peers = peer_folders(here.values())
    if LOG_PATHS_FILE not in here and not peers and ("commitlog" not in here or here["commitlog"].is_file):
        detail = "it contains no directory commitlog, only " + ", ".join(sorted(here)[:5])
        contents.faults.append(StoreFault("directory.foreign", location, detail))
        return contents
    if len(peers) > 1:
        detail = f"it contains the directories of several DLedger peers: {', '.join(peers)}"
        contents.faults.append(StoreFault("directory.foreign", location, detail))
        return contents
    contents.names = frozenset(here)
    contents.has_epochs = EPOCH_FILE in here or f"{EPOCH_FILE}.bak" in here
    contents.aborted = "abort" in here
    if peers:
        _list_peer(listing, location, peers[0], here, contents)
    entries, contents.log = contents.log, []
    plain = [files.join(location, "commitlog")] if not peers or "commitlog" in here else []
    if LOG_PATHS_FILE in here:
        plain = _recorded_folders(location, LOG_PATHS_FILE, contents)
    for folder in plain:
        log = _list(listing, folder, contents)
        if log is None:
            return contents
        contents.log += _data_files(folder, log, contents, _OFFSET_NAME)
    contents.log.sort(key=lambda file: file.start)
    if entries:  # brokers create plain files in advance, which an upgrade leaves behind
        contents.log = [file for file in contents.log if file.start < entries[0].start]
    contents.log = _without_strays(contents.log, contents)
    entries = _without_strays(entries, contents)
    _check_segments(contents.log, contents)
    _check_segments(entries, contents)
    contents.log += entries
    _check_start_of_entries(contents)
    if not contents.log:
        folder = files.join(location, *(peers or ["commitlog"]))
        contents.faults.append(StoreFault("directory.empty", folder, "it contains no segment"))
    if "config" in here:
        of_config = _list(listing, files.join(location, "config"), contents) or []
        contents.config = frozenset(entry.name for entry in of_config)
    contents.has_queues = "consumequeue" in here
    if contents.has_queues:
        contents.queues = _list_queues(listing, files.join(location, "consumequeue"), contents)
        _check_sizes_of_units(contents.queues, UNIT_BYTES, contents)
    if "batchconsumequeue" in here:
        contents.batch_queues = _list_queues(listing, files.join(location, "batchconsumequeue"), contents)
        _check_sizes_of_units(contents.batch_queues, BATCH_UNIT_BYTES, contents)
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


def _recorded_folders(location: str, name: str, contents: StoreContents) -> list[str]:
    """The directories that the broker has recorded in this file of its store."""
    path = files.join(location, name)
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
        if entry.is_file and pattern.fullmatch(entry.name) and int(entry.name) <= LONG_MAX:
            data_files.append(DataFile(location, int(entry.name), entry.size))
        else:
            detail = "no broker creates a file of this name here"
            if not entry.is_file and pattern.fullmatch(entry.name):
                detail = "expected a file, and it is a directory, or a link that leads nowhere"
            contents.faults.append(StoreFault("file.foreign", printable(location), detail))
    return data_files


def printable(name: str) -> str:
    """A name with a `\\x` escape for each byte that is not UTF-8, which no table can hold."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _is_text(name: str) -> bool:
    return name.isascii() or printable(name) == name


def peer_folders(entries: Iterable[files.DirectoryEntry]) -> list[str]:
    """The names of the directories of DLedger peers."""
    return sorted(one.name for one in entries if not one.is_file and _PEER_FOLDER.fullmatch(one.name))


def _list_peer(
    listing: files.Listing,
    location: str,
    name: str,
    here: dict[str, files.DirectoryEntry],
    contents: StoreContents,
) -> None:
    """Lists the data files and the index files of a DLedger peer. EpochMQ's broker records where the data
    files are, if they are elsewhere (`storePathDLedgerCommitLog`)."""
    folder = files.join(location, name)
    names = {entry.name for entry in _list(listing, folder, contents) or []}
    if "data" in names:
        folders = [files.join(folder, "data")]
    elif DATA_PATHS_FILE in here:
        folders = _recorded_folders(location, DATA_PATHS_FILE, contents)
    else:
        if "index" in names:
            detail = (
                "it contains no directory data: if the data files are elsewhere "
                "(storePathDLedgerCommitLog), link data to their directory"
            )
            contents.faults.append(StoreFault("directory.incomplete", folder, detail))
        return
    found = [
        file
        for data in folders
        for file in _data_files(data, _list(listing, data, contents) or [], contents, _OFFSET_NAME)
    ]
    contents.log = [replace(one, header_bytes=ENTRY_HEADER_SIZE) for one in found]
    contents.log.sort(key=lambda file: file.start)
    if not contents.log:
        return
    contents.peer_folder = folder
    if "index" not in names:
        detail = "it contains no directory index"
        contents.faults.append(StoreFault("directory.incomplete", folder, detail))
        return
    index = files.join(folder, "index")
    contents.entry_index = _data_files(index, _list(listing, index, contents) or [], contents, _OFFSET_NAME)
    contents.entry_index.sort(key=lambda file: file.start)


def _check_start_of_entries(contents: StoreContents) -> None:
    """The data files of DLedger must begin where the plain log before them ends."""
    for before, after in pairwise(contents.log):
        end = before.start + before.size
        if before.header_bytes != after.header_bytes and end != after.start:
            detail = f"the first data file begins at {after.start}, but the log before it ends at {end}"
            contents.faults.append(StoreFault("log.missing-segment", after.location, detail))


def usual_size(logs: Iterable[Sequence[DataFile]]) -> int:
    """The size that the files of equal logs have, each in the order of its files: the one that most files
    have, or most distances between the starts of two files in turn. The largest one of several."""
    votes: Counter[int] = Counter()
    for log in logs:
        votes.update(file.size for file in log if file.size)
        votes.update(after.start - before.start for before, after in pairwise(log))
    return max(votes, key=lambda size: (votes[size], size), default=0)


def _without_strays(log: list[DataFile], contents: StoreContents) -> list[DataFile]:
    """Removes files that begin where no segment does. The starts of segments are apart by multiples of their
    size."""
    size = usual_size([log])
    if len(log) < STRAYS_MIN or not size:
        return log
    (place, count), *_ = Counter(file.start % size for file in log).most_common()
    if 2 * count <= len(log):
        return log
    for file in log:
        if file.start % size != place:
            detail = f"no segment of {size} bytes begins at {file.start}: it was renamed, or is another log's"
            contents.faults.append(StoreFault("file.foreign", file.location, detail))
    return [file for file in log if file.start % size == place]


def _check_segments(log: Sequence[DataFile], contents: StoreContents) -> None:
    """Segments must be contiguous."""
    size = usual_size([log])
    for before, after in pairwise(log):
        if before.start + size < after.start:
            detail = f"no segment contains [{before.start + size}, {after.start})"
            contents.faults.append(StoreFault("log.missing-segment", after.location, detail))


def _check_sizes_of_units(
    queues: Sequence[ConsumeQueueFiles], unit_bytes: int, contents: StoreContents
) -> None:
    """A file of a consume queue has room for a number of whole units."""
    for queue in queues:
        for file in queue.files:
            if file.size % unit_bytes:
                detail = f"{file.size} bytes, expected a multiple of {unit_bytes}, the size of a unit"
                contents.faults.append(StoreFault("file.wrong-size", file.location, detail))


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
        if not _is_text(topic.name):
            location = files.join(folder, printable(topic.name))
            detail = "the name is not UTF-8, as that of a topic is"
            contents.faults.append(StoreFault("file.foreign", location, detail))
            continue
        for queue in _list(listing, files.join(folder, topic.name), contents) or []:
            location = files.join(folder, topic.name, queue.name)
            if queue.is_file or not _QUEUE_ID.fullmatch(queue.name) or int(queue.name) > INT_MAX:
                detail = "expected a directory named after a queue id"
                contents.faults.append(StoreFault("file.foreign", printable(location), detail))
                continue
            entries = _list(listing, location, contents) or []
            kept = [one for one in entries if one.is_file or one.name not in _COMPACTION_FOLDERS]
            parts = _data_files(location, kept, contents, _OFFSET_NAME)
            queues.append(ConsumeQueueFiles(topic.name, int(queue.name), tuple(parts)))
    return queues


def store_directory(location: str) -> str:
    """The location itself, or its directory `store` if that is the store, as in a volume of a pod."""
    try:
        here = files.entries(location)
    except OSError:
        return location
    names = {entry.name for entry in here}
    is_store = "commitlog" in names or peer_folders(here)
    return files.join(location, "store") if not is_store and "store" in names else location


def check_is_store(location: str) -> None:
    """Raises FileNotFoundError if the directory does not exist, and OSError if it cannot be read or is not a
    broker's store."""
    entries = files.entries(location)
    here = {entry.name for entry in entries}
    if not _holds_log(entries):
        found = ", ".join(sorted(here)[:5]) or "nothing"
        raise OSError(f"{location} is not a broker's store: no directory commitlog, but {found}")


def _holds_log(entries: Sequence[files.DirectoryEntry]) -> bool:
    here = {entry.name for entry in entries}
    return "commitlog" in here or LOG_PATHS_FILE in here or bool(peer_folders(entries))


def is_other_directory(location: str) -> bool:
    """Whether a directory has content, and none of it is that of a broker's store. Raises OSError if it
    cannot be read."""
    entries = files.entries(location)
    return bool(entries) and not _holds_log(entries) and not STORE_NAMES & {one.name for one in entries}


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
    if len(parts) != 3 or not parts[0] or not parts[1] or not _is_id(parts[2]):
        found = f"it is {text[:80]!r}" if text else "it is empty"
        raise ValueError(f"{IDENTITY_FILE}: {found}, expected cluster#brokerName#brokerId")
    return parts[0], parts[1], int(parts[2])


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= len(str(LONG_MAX)) and int(text) <= LONG_MAX
