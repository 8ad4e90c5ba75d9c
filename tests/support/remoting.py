"""Sends remoting requests over a bare socket, without the product's protocol code: a test that judges the
product must not depend on it."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_opaques = itertools.count(1)
Sign = Callable[[dict[str, str], bytes], dict[str, str]]
_signing: dict[str, Sign] = {}
"""How `call` signs its requests, by their address."""
_tls: dict[str, ssl.SSLContext] = {}
"""The TLS of `call`, by the address of the request."""
VERSION = 479


@dataclass(frozen=True)
class Response:
    """A response: `code` 0 is success, `ext` its header fields, `body` its bytes."""

    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes


def split_address(address: str) -> tuple[str, int]:
    """`ip:port` as a pair."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def _read_exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError(f"peer closed after {len(data)} of {count} bytes")
        data += chunk
    return bytes(data)


def read_frame(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """One frame with a JSON header: (header, body)."""
    (length,) = struct.unpack(">I", _read_exactly(connection, 4))
    frame = _read_exactly(connection, length)
    header_length = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
    return json.loads(frame[4 : 4 + header_length]), frame[4 + header_length :]


def frame(code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, opaque: int = 0) -> bytes:
    """A request frame with a JSON header, as a Java client writes it."""
    fields = {
        "code": code,
        "extFields": ext or {},
        "flag": 0,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION,
    }
    header = json.dumps(fields, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def sign_requests_to(address: str, sign: Sign) -> None:
    """Lets `call` sign its requests to this address, unless they are already signed. `sign` returns the ext
    fields of a request with a signature."""
    _signing[address] = sign


def use_tls_to(address: str, context: ssl.SSLContext) -> None:
    """Lets `call` connect to this address by TLS."""
    _tls[address] = context


def _connect(address: str, timeout_s: float) -> socket.socket:
    plain = socket.create_connection(split_address(address), timeout=timeout_s)
    if (context := _tls.get(address)) is None:
        return plain
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def call(
    address: str, code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, timeout_s: float = 30
) -> Response:
    """Sends one request over a connection of its own, and returns the response. `OSError` if no process
    listens at the address or no response arrives."""
    opaque = next(_opaques)
    if (sign := _signing.get(address)) is not None and "AccessKey" not in (ext or {}):
        ext = sign(ext or {}, body)
    with _connect(address, timeout_s) as connection:
        connection.sendall(frame(code, ext, body, opaque=opaque))
        while True:
            header, response = read_frame(connection)
            if header["opaque"] == opaque and header["flag"] & 1:
                return Response(header["code"], header.get("remark"), header.get("extFields") or {}, response)
