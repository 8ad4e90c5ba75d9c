"""Reads files and directories at a location: on this machine, of a volume reader, of HDFS, or in a file
system of Arrow.

A location is a path or a URI. Paths and `file:` URIs are read by memory map, `http://HOST:PORT` through a
volume reader (`epochmq_spark.volume_client`), `webhdfs://` and `swebhdfs://` over HTTP
(`epochmq_spark.webhdfs_client`). All other URIs (`hdfs://`, `viewfs://`, `s3://`, `gs://` …) go through
`pyarrow.fs`, whose Hadoop driver uses the configuration of the Hadoop client on this machine; ranges of such
files are read into memory. In URIs names are escaped as usual, `%25` for a percent sign; the part after `?`
has options of the file system, such as `endpoint_override` of S3."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlparse

import numpy as np

from epochmq_spark import volume_client, webhdfs_client

Array = Any
OPEN_FILES_MAX = 64  # of Arrow, in each process
MATCHES_MAX = 10_000  # locations that one pattern may match
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, order=True)
class DirectoryEntry:
    """One entry of a directory."""

    name: str
    is_file: bool
    size: int


def local_path(location: str) -> Path | None:
    """The path on this machine; None for another file system."""
    parsed = urlparse(location)
    if "://" not in location and parsed.scheme != "file":
        return Path(location)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def join(location: str, *names: str) -> str:
    """The location of a file or directory below another one. In a URI of Arrow or HDFS the names are escaped:
    topics of retries have a percent sign."""
    if not _has_escapes(location):
        return "/".join((location.rstrip("/"), *names))
    base, mark, query = location.partition("?")
    return "/".join((base.rstrip("/"), *(quote(name, safe="") for name in names))) + mark + query


def name_of(location: str) -> str:
    """The last name of a location, without escapes."""
    if not _has_escapes(location):
        return location.rstrip("/").rsplit("/", 1)[-1]
    return unquote(location.partition("?")[0].rstrip("/").rsplit("/", 1)[-1])


def _has_escapes(location: str) -> bool:
    return "://" in location and not location.startswith("file:") and not volume_client.is_remote(location)


def is_arrow(location: str) -> bool:
    """Whether a location is read through `pyarrow.fs`."""
    return _has_escapes(location) and not webhdfs_client.is_webhdfs(location)


@lru_cache(maxsize=64)
def _file_system(root: str, query: str) -> tuple[Any, str]:
    """The file system of a URI's scheme and host, and the path there that the host stands for: the bucket of
    S3. Raises OSError."""
    from pyarrow import fs

    try:
        system, path = fs.FileSystem.from_uri(f"{root}/{'?' if query else ''}{query}")
    except (ValueError, ImportError) as error:
        raise OSError(f"{root}: {error}") from None
    return system, path.rstrip("/")


def _arrow_file_system(location: str) -> tuple[Any, str]:
    base, _, query = location.partition("?")
    scheme, _, rest = base.partition("://")
    host, slash, path = rest.partition("/")
    system, root = _file_system(f"{scheme}://{host}", query)
    return system, root + slash + unquote(path)


@lru_cache(maxsize=OPEN_FILES_MAX)
def _opened(location: str) -> tuple[Any, int]:
    """An open file of Arrow, and its size. Opening one takes a request of its own. Raises OSError."""
    system, name = _arrow_file_system(location)
    file = system.open_input_file(name)
    return file, file.size()


def forget_opened() -> None:
    """Closes files that are kept open: another audit may find them changed."""
    _opened.cache_clear()


class Listing:
    """The entries of the directories of a store. In a file system of Arrow they come from one listing of the
    whole store, which takes one request for each 1,000 files of an object storage."""

    def __init__(self, location: str) -> None:
        self._root = location
        self._folders: dict[str, list[DirectoryEntry]] | None = None

    def entries(self, location: str) -> list[DirectoryEntry]:
        """The entries of a directory, by name. Raises OSError."""
        if not is_arrow(location):
            return entries(location)
        if self._folders is None:
            self._folders = self._list_all()
        _, folder = _arrow_file_system(location)
        _, root = _arrow_file_system(self._root)
        if not (folder == root or folder.startswith(root.rstrip("/") + "/")):
            return entries(location)
        if folder not in self._folders:
            raise FileNotFoundError(2, "no such directory", location)
        return self._folders[folder]

    def _list_all(self) -> dict[str, list[DirectoryEntry]]:
        from pyarrow import fs

        system, root = _arrow_file_system(self._root)
        root = root.rstrip("/")
        folders: dict[str, dict[str, DirectoryEntry]] = {root: {}}
        for info in system.get_file_info(fs.FileSelector(root, recursive=True)):
            is_file = info.type == fs.FileType.File
            path = info.path.rstrip("/")
            if not is_file:
                folders.setdefault(path, {})
            _add_entry(folders, root, path, DirectoryEntry(info.base_name, is_file, info.size or 0))
        return {folder: sorted(found.values()) for folder, found in folders.items()}


def _add_entry(
    folders: dict[str, dict[str, DirectoryEntry]], root: str, path: str, entry: DirectoryEntry
) -> None:
    """Adds a file or directory to the one that contains it, and those above it. A listing of an object
    storage may have no entries for directories."""
    while path != root:
        parent, _, name = path.rpartition("/")
        folders.setdefault(parent, {}).setdefault(name, entry)
        path, entry = parent, DirectoryEntry(parent.rpartition("/")[2], False, 0)


def entries(location: str) -> list[DirectoryEntry]:
    """The entries of a directory, by name. Raises OSError."""
    path = local_path(location)
    if path is not None:
        listed = []
        for child in path.iterdir():
            try:
                status = child.stat()
            except FileNotFoundError:
                if child.is_symlink():
                    listed.append(DirectoryEntry(child.name, False, 0))
                continue  # a broker that runs has removed it meanwhile, or given it another name
            listed.append(DirectoryEntry(child.name, stat.S_ISREG(status.st_mode), status.st_size))
        return sorted(listed)
    if volume_client.is_remote(location):
        return sorted(DirectoryEntry(*one) for one in volume_client.entries(location))
    if webhdfs_client.is_webhdfs(location):
        return sorted(DirectoryEntry(*one) for one in webhdfs_client.entries(location))
    from pyarrow import fs

    system, folder = _arrow_file_system(location)
    return sorted(
        DirectoryEntry(info.base_name, info.type == fs.FileType.File, info.size or 0)
        for info in system.get_file_info(fs.FileSelector(folder))
    )


def expand(pattern: str) -> list[str]:
    """The locations that a pattern matches, in the order of their names, at most `MATCHES_MAX`. `*`, `?` and
    `[…]` match within one name, as in Spark. Without any of them it is the location itself, which need not
    exist. Raises OSError, also if there are more."""
    scheme, separator, path = pattern.partition("://")
    if not separator:
        scheme, path = "", pattern
    if not _MAGIC.search(path):
        return [pattern]
    names = path.rstrip("/").split("/")
    first = next(number for number, name in enumerate(names) if _MAGIC.search(name))
    found = [scheme + separator + "/".join(names[:first])]
    for name in names[first:]:
        found = [match for location in found for match in _matches(location, name)]
        if len(found) > MATCHES_MAX:
            raise OSError(f"{pattern} matches more than {MATCHES_MAX} directories")
    return found


def _matches(location: str, name: str) -> list[str]:
    """The entries of a directory that match a name; none if there is no such directory."""
    try:
        listed = entries(location or ".")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        join(location, one.name) if location else one.name for one in listed if fnmatchcase(one.name, name)
    ]


def read(location: str, bytes_max: int = 64 * 1024 * 1024) -> bytes:
    """The bytes of a small file. Raises OSError, also if it is larger than `bytes_max`."""
    path = local_path(location)
    if path is not None:
        with os.fdopen(open_regular(path), "rb") as file:
            data = file.read(bytes_max + 1)
    elif volume_client.is_remote(location):
        data = volume_client.read(location)
    elif webhdfs_client.is_webhdfs(location):
        data = webhdfs_client.read(location, bytes_max + 1)
    else:
        system, name = _arrow_file_system(location)
        with system.open_input_file(name) as file:
            data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(f"{location}: larger than {bytes_max} bytes")
    return data


def open_regular(path: Path, flags: int = 0) -> int:
    """A descriptor to read a file of this machine. Raises OSError, also for what is no file: to open a named
    pipe would wait for its other end for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "expected a file, and it is a pipe, a socket or a device", str(path))


@contextmanager
def descriptor_of(location: str) -> Iterator[int | None]:
    """An open descriptor of a file of this machine; None for other locations. Raises OSError."""
    path = local_path(location)
    if path is None:
        yield None
        return
    descriptor = open_regular(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_range_into(
    location: str, start: int, end: int, buffer: Array, descriptor: int | None = None
) -> Array:
    """Reads bytes [start, end) of a file into the beginning of a uint8 array that is large enough. A file of
    this machine needs its descriptor; there one pass from front to end takes two thirds of the time of a new
    memory map, which faults its pages in one by one. Raises OSError."""
    if descriptor is None:
        if volume_client.is_remote(location):
            return volume_client.read_range_into(location, start, end, buffer)
        data = read_range(location, start, end)
        buffer[: len(data)] = data
        return buffer[: len(data)]
    filled = 0
    while start + filled < end:
        count = os.preadv(descriptor, [buffer[filled : end - start]], start + filled)
        if count == 0:
            break
        filled += count
    return buffer[:filled]


def read_range(location: str, start: int, end: int) -> Array:
    """Bytes [start, end) of a file, or fewer at its end, as a uint8 array. Raises OSError."""
    path = local_path(location)
    if path is not None:
        with os.fdopen(open_regular(path), "rb") as file:
            size = min(end, os.fstat(file.fileno()).st_size) - start
            if size <= 0:
                return np.zeros(0, np.uint8)
            skip = start % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(file.fileno(), skip + size, prot=mmap.PROT_READ, offset=start - skip)
        return np.frombuffer(mapped, np.uint8)[skip:]
    if volume_client.is_remote(location):
        return volume_client.read_range(location, start, end)
    if webhdfs_client.is_webhdfs(location):
        return webhdfs_client.read_range(location, start, end)
    file, size = _opened(location)
    return np.frombuffer(file.read_at(max(min(end, size) - start, 0), start), np.uint8)
