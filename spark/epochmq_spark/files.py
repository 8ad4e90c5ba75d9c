"""Files of a broker's directory, on this machine or in any file system that Arrow knows.

A plain path, or `file:` URI, is read by memory map. `http://HOST:PORT` is a volume of another node, which a
reader shows (`epochmq_spark.volume_client`). Another URI (`hdfs://`, `viewfs://`, `s3://`, `gs://` …)
goes through `pyarrow.fs`, whose Hadoop driver reaches whatever the Hadoop client on the machine is configured
for; ranges of such files are read into memory."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np

from epochmq_spark import volume_client

Array = Any


@dataclass(frozen=True, order=True)
class DirectoryEntry:
    """A name in a directory."""

    name: str
    is_file: bool
    size: int


def local(place: str) -> Path | None:
    """The path on this machine, None for another file system."""
    parsed = urlparse(place)
    if "://" not in place and parsed.scheme != "file":
        return Path(place)
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def join(place: str, *names: str) -> str:
    """A place below another one."""
    return "/".join((place.rstrip("/"), *names))


def _remote(place: str) -> tuple[Any, str]:
    from pyarrow import fs

    system, path = fs.FileSystem.from_uri(place)
    return system, path


def entries(place: str) -> list[DirectoryEntry]:
    """What is in a directory, by name. Raises OSError."""
    path = local(place)
    if path is not None:
        found = []
        for child in path.iterdir():
            status = child.stat()
            found.append(DirectoryEntry(child.name, child.is_file(), status.st_size))
        return sorted(found)
    if volume_client.is_remote(place):
        return sorted(DirectoryEntry(*one) for one in volume_client.entries(place))
    from pyarrow import fs

    system, folder = _remote(place)
    return sorted(
        DirectoryEntry(info.base_name, info.type == fs.FileType.File, info.size or 0)
        for info in system.get_file_info(fs.FileSelector(folder))
    )


def read(place: str, bytes_max: int = 64 * 1024 * 1024) -> bytes:
    """A small file's bytes. Raises OSError, also when it is larger than `bytes_max`."""
    path = local(place)
    if path is not None:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    elif volume_client.is_remote(place):
        data = volume_client.read(place)
    else:
        system, name = _remote(place)
        with system.open_input_file(name) as file:
            data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(f"{place}: larger than {bytes_max} bytes")
    return data


def read_into(place: str, start: int, end: int, buffer: Array) -> Array:
    """Bytes [start, end) of a file, in the beginning of a uint8 array that is large enough. For one pass from
    front to end this takes two thirds of the time that a new memory map does, whose pages come one by one.
    Raises OSError."""
    if volume_client.is_remote(place):
        return volume_client.read_into(place, start, end, buffer)
    path = local(place)
    if path is None:
        data = window(place, start, end)
        buffer[: len(data)] = data
        return buffer[: len(data)]
    filled = 0
    with path.open("rb") as file:
        while start + filled < end:
            count = os.preadv(file.fileno(), [buffer[filled : end - start]], start + filled)
            if count == 0:
                break
            filled += count
    return buffer[:filled]


def window(place: str, start: int, end: int) -> Array:
    """Bytes [start, end) of a file as a uint8 array, not more than there are. Raises OSError."""
    path = local(place)
    if path is not None:
        with path.open("rb") as file:
            size = min(end, os.fstat(file.fileno()).st_size) - start
            if size <= 0:
                return np.zeros(0, np.uint8)
            skip = start % mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(file.fileno(), skip + size, prot=mmap.PROT_READ, offset=start - skip)
        return np.frombuffer(mapped, np.uint8)[skip:]
    if volume_client.is_remote(place):
        return volume_client.window(place, start, end)
    system, name = _remote(place)
    with system.open_input_file(name) as file:
        file.seek(start)
        return np.frombuffer(file.read(max(end - start, 0)), np.uint8)
