"""Reads files of a frozen volume from its volume reader over HTTP, for locations `http://HOST:PORT/…`
(`epochmq_spark.volume_reader` is the server)."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any
from urllib.parse import quote

import numpy as np

from epochmq_spark.files_at_cut import VolumeCut

Array = Any
TIMEOUT_S = 120
TRIES = 3
_SCHEME = "http://"
_thread_state = threading.local()


def is_remote(location: str) -> bool:
    """Whether a volume reader serves the location."""
    return location.startswith(_SCHEME)


def entries(location: str) -> list[tuple[str, bool, int]]:
    """The entries of a directory: (name, is a file, size). Raises OSError."""
    return [
        (str(name), bool(is_file), int(size)) for name, is_file, size in json.loads(_get(location, "list"))
    ]


def read(location: str) -> bytes:
    """The bytes of a small file. Raises OSError."""
    return _get(location, "files")


def freeze(location: str, cut: VolumeCut) -> None:
    """Freezes the volume at a cut. Raises OSError, also if it is frozen at another one."""
    body = json.dumps(cut.document()).encode()
    _call(
        location, "POST", "/cut", {"Content-Type": "application/json"}, body, lambda response: response.read()
    )


def read_range_into(location: str, start: int, end: int, buffer: Array) -> Array:
    """Reads bytes [start, end) of a file into the beginning of a uint8 array. Raises OSError."""
    if end <= start:
        return buffer[:0]

    def receive(response: http.client.HTTPResponse) -> Array:
        size = int(response.headers["X-Size"])
        wanted = max(min(end, size) - start, 0)
        filled, length = 0, int(response.headers["Content-Length"])
        view = memoryview(buffer)
        while filled < length and (count := response.readinto(view[filled:length])):
            filled += count
        if filled < length:
            raise http.client.IncompleteRead(b"", length - filled)
        buffer[length:wanted] = 0
        return buffer[:wanted]

    headers = {"Range": f"bytes={start}-{end - 1}"}
    return _call(location, "GET", _path(location, "files"), headers, None, receive)


def read_range(location: str, start: int, end: int) -> Array:
    """Bytes [start, end) of a file, or fewer at its end, as a new array. Zeros at the end are not
    transferred. Raises OSError."""
    if end <= start:
        return np.zeros(0, np.uint8)

    def receive(response: http.client.HTTPResponse) -> Array:
        wanted = max(min(end, int(response.headers["X-Size"])) - start, 0)
        array = np.zeros(wanted, np.uint8)
        data = response.read()
        array[: len(data)] = np.frombuffer(data, np.uint8)
        return array

    headers = {"Range": f"bytes={start}-{end - 1}"}
    return _call(location, "GET", _path(location, "files"), headers, None, receive)


def close_connections() -> None:
    """Closes this thread's connections."""
    for connection in _thread_state.__dict__.pop("connections", {}).values():
        connection.close()


def _path(location: str, kind: str) -> str:
    _, _, path = location.removeprefix(_SCHEME).partition("/")
    return f"/{kind}/{quote(path)}"


def _get(location: str, kind: str) -> bytes:
    data: bytes = _call(location, "GET", _path(location, kind), {}, None, lambda response: response.read())
    return data


def _connection(host: str, *, new: bool) -> http.client.HTTPConnection:
    known: dict[str, http.client.HTTPConnection] = _thread_state.__dict__.setdefault("connections", {})
    if new and host in known:
        known.pop(host).close()
    if host not in known:
        known[host] = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    return known[host]


def _call(
    location: str, method: str, path: str, headers: dict[str, str], body: bytes | None, receive: Any
) -> Any:
    """What `receive` returns for the response. A broken connection is retried: all requests are
    idempotent."""
    host = location.removeprefix(_SCHEME).partition("/")[0]
    for attempt in range(TRIES):
        connection = _connection(host, new=attempt > 0)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            if response.status < 300:
                return receive(response)
            reason = response.read(2000).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES - 1:
                raise OSError(f"{location}: {type(error).__name__}: {error}") from None
            continue
        if response.status == http.HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(2, reason, location)
        raise OSError(f"{location}: {response.status}: {reason}")
    raise AssertionError("the last attempt returns or raises")
