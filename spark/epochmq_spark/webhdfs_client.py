"""Reads files and directories of HDFS over HTTP (WebHDFS), for locations `webhdfs://HOST:PORT/…` and, over
TLS, `swebhdfs://HOST:PORT/…`. Needs neither Hadoop nor its native library.

`HOST:PORT` is the HTTP address of the NameNode. Names in a location are escaped, `%25` for a percent sign.
What follows `?` are parameters of each request, such as `user.name=NAME`. A listing of a directory takes one
request, and a range of a file two: the NameNode names a DataNode, which sends the bytes. Kerberos is not
supported."""

from __future__ import annotations

import http.client
import json
import threading
from typing import Any
from urllib.parse import urlsplit

import numpy as np

Array = Any
SCHEMES = {"webhdfs": http.client.HTTPConnection, "swebhdfs": http.client.HTTPSConnection}
TIMEOUT_S = 120
TRIES = 3
CONNECTIONS_MAX = 32  # that a thread keeps open
REASON_BYTES_MAX = 4096
_thread_state = threading.local()


class RangeBeyondEndError(OSError):
    """A range of a file starts at its end or behind it."""


def is_webhdfs(location: str) -> bool:
    """Whether a location is read over WebHDFS."""
    return location.partition("://")[0] in SCHEMES


def entries(location: str) -> list[tuple[str, bool, int]]:
    """The entries of a directory: (name, is a file, size). Raises OSError."""
    listed = json.loads(_get(location, "op=LISTSTATUS"))["FileStatuses"]["FileStatus"]
    if len(listed) == 1 and not listed[0]["pathSuffix"]:  # of a file, HDFS lists the file itself
        raise NotADirectoryError(20, "not a directory", location)
    return [(one["pathSuffix"], one["type"] == "FILE", one["length"]) for one in listed]


def read(location: str, bytes_max: int) -> bytes:
    """The first bytes of a file, at most `bytes_max`. Raises OSError."""
    return _read(location, 0, bytes_max)


def read_range(location: str, start: int, end: int) -> Array:
    """Bytes [start, end) of a file, or fewer at its end, as a uint8 array. Raises OSError."""
    return np.frombuffer(_read(location, start, max(end, start)), np.uint8)


def close_connections() -> None:
    """Closes the connections that this thread keeps open."""
    for connection in _thread_state.__dict__.pop("connections", {}).values():
        connection.close()


def _read(location: str, start: int, end: int) -> bytes:
    if end == start:
        return b""
    try:
        return _get(location, f"op=OPEN&offset={start}&length={end - start}")
    except RangeBeyondEndError:
        return b""


def _get(location: str, operation: str) -> bytes:
    """The body of the response to a request, with one redirection. A broken connection is retried: no request
    changes anything."""
    base, _, query = location.partition("?")
    scheme, _, rest = base.partition("://")
    host, _, path = rest.partition("/")
    parameters = f"{operation}&{query}" if query else operation
    target = f"/webhdfs/v1/{path}?{parameters}"
    for attempt in range(TRIES):
        try:
            status, headers, body = _exchange(scheme, host, target, new=attempt > 0)
            if status == http.HTTPStatus.TEMPORARY_REDIRECT:
                node = urlsplit(headers["Location"])
                scheme_of_node = "swebhdfs" if node.scheme == "https" else "webhdfs"
                path_of_node = f"{node.path}?{node.query}"
                status, headers, body = _exchange(scheme_of_node, node.netloc, path_of_node, new=attempt > 0)
        except (OSError, http.client.HTTPException) as error:
            if attempt == TRIES - 1:
                raise OSError(f"{location}: {type(error).__name__}: {error}") from None
            continue
        if status == http.HTTPStatus.OK:
            return body
        raise _error_of(location, status, body)
    raise AssertionError("the last attempt returns or raises")


def _exchange(scheme: str, host: str, target: str, *, new: bool) -> tuple[int, Any, bytes]:
    """The status, headers and body of one response."""
    connection = _connection(scheme, host, new=new)
    connection.request("GET", target)
    response = connection.getresponse()
    return response.status, response.headers, response.read()


def _connection(scheme: str, host: str, *, new: bool) -> http.client.HTTPConnection:
    known: dict[tuple[str, str], http.client.HTTPConnection]
    known = _thread_state.__dict__.setdefault("connections", {})
    key = scheme, host
    if key in known and (new or known[key].sock is None):
        known.pop(key).close()
    if key not in known:
        if len(known) >= CONNECTIONS_MAX:
            known.pop(next(iter(known))).close()
        known[key] = SCHEMES[scheme](host, timeout=TIMEOUT_S)
    return known[key]


def _error_of(location: str, status: int, body: bytes) -> OSError:
    """The error that a response describes: {"RemoteException": {"exception": …, "message": …}}."""
    try:
        remote = json.loads(body)["RemoteException"]
        name, message = str(remote["exception"]), str(remote["message"]).partition("\n")[0]
    except (ValueError, LookupError, TypeError):
        name, message = "", body[:REASON_BYTES_MAX].decode("utf-8", "replace").strip().partition("\n")[0]
    if name == "FileNotFoundException":
        return FileNotFoundError(2, message, location)
    if name == "AccessControlException":
        return PermissionError(13, f"{message}; name a user with ?user.name=NAME", location)
    if "out of the range" in message.lower() or "out of range" in message.lower():
        return RangeBeyondEndError(f"{location}: {message}")
    return OSError(f"{location}: {status}: {name or http.HTTPStatus(status).phrase}: {message}")
