"""Files of a volume that a reader on another node shows (`epochmq_spark.volume_reader`): places `http://HOST:PORT/…`."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any
from urllib.parse import quote

import numpy as np

from epochmq_spark.cut import VolumeCut

Array = Any
TIMEOUT_S = 120
TRIES = 3
_SCHEME = "http://"
_kept = threading.local()


def is_remote(place: str) -> bool:
    """Whether a reader shows it."""
    return place.startswith(_SCHEME)


def entries(place: str) -> list[tuple[str, bool, int]]:
    """(name, whether it is a file, size) of what is in a directory. Raises OSError."""
    return [(str(name), bool(is_file), int(size)) for name, is_file, size in json.loads(_get(place, "list"))]


def read(place: str) -> bytes:
    """A small file. Raises OSError."""
    return _get(place, "files")


def hold(place: str, cut: VolumeCut) -> None:
    """Has the reader show its volume as it was at a cut. Raises OSError, also when it does so for another."""
    body = json.dumps(cut.document()).encode()
    _call(place, "POST", "/cut", {"Content-Type": "application/json"}, body, lambda answer: answer.read())


def read_into(place: str, start: int, end: int, buffer: Array) -> Array:
    """Bytes [start, end) of a file, in the beginning of a uint8 array. Raises OSError."""
    if end <= start:
        return buffer[:0]

    def take(answer: http.client.HTTPResponse) -> Array:
        size = int(answer.headers["X-Size"])
        wanted = max(min(end, size) - start, 0)
        filled, length = 0, int(answer.headers["Content-Length"])
        view = memoryview(buffer)
        while filled < length and (count := answer.readinto(view[filled:length])):
            filled += count
        if filled < length:
            raise http.client.IncompleteRead(b"", length - filled)
        buffer[length:wanted] = 0
        return buffer[:wanted]

    return _call(place, "GET", _path(place, "files"), {"Range": f"bytes={start}-{end - 1}"}, None, take)


def window(place: str, start: int, end: int) -> Array:
    """Bytes [start, end) of a file, not more than there are, as a new array. Zeros at the end cost nothing.
    Raises OSError."""
    if end <= start:
        return np.zeros(0, np.uint8)

    def take(answer: http.client.HTTPResponse) -> Array:
        wanted = max(min(end, int(answer.headers["X-Size"])) - start, 0)
        made = np.zeros(wanted, np.uint8)
        data = answer.read()
        made[: len(data)] = np.frombuffer(data, np.uint8)
        return made

    return _call(place, "GET", _path(place, "files"), {"Range": f"bytes={start}-{end - 1}"}, None, take)


def forget() -> None:
    """Closes this thread's connections."""
    for connection in _kept.__dict__.pop("connections", {}).values():
        connection.close()


def _path(place: str, kind: str) -> str:
    _, _, path = place.removeprefix(_SCHEME).partition("/")
    return f"/{kind}/{quote(path)}"


def _get(place: str, kind: str) -> bytes:
    data: bytes = _call(place, "GET", _path(place, kind), {}, None, lambda answer: answer.read())
    return data


def _connection(host: str, *, new: bool) -> http.client.HTTPConnection:
    known: dict[str, http.client.HTTPConnection] = _kept.__dict__.setdefault("connections", {})
    if new and host in known:
        known.pop(host).close()
    if host not in known:
        known[host] = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
    return known[host]


def _call(place: str, method: str, path: str, headers: dict[str, str], body: bytes | None, take: Any) -> Any:
    """What `take` makes of the answer. A connection that breaks is tried again; all of it only reads."""
    host = place.removeprefix(_SCHEME).partition("/")[0]
    for attempt in range(TRIES):
        connection = _connection(host, new=attempt > 0)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.status < 300:
                return take(answer)
            said = answer.read(2000).decode("utf-8", "replace").strip()
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES - 1:
                raise OSError(f"{place}: {type(error).__name__}: {error}") from None
            continue
        if answer.status == http.HTTPStatus.NOT_FOUND:
            raise FileNotFoundError(2, said, place)
        raise OSError(f"{place}: {answer.status}: {said}")
    raise AssertionError("the last attempt returns or raises")
