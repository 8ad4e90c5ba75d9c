"""Parses the PROXY protocol header, versions 1 and 2, that a load balancer may send first on a connection.

Rules (HAProxy's `proxy-protocol.txt`; RocketMQ reads it with Netty's `HAProxyMessageDecoder`):

- Version 1 is one line of at most 107 bytes:
  `PROXY TCP4|TCP6|UNKNOWN [source destination sport dport]\\r\\n`.
- Version 2 is a signature of 12 bytes, one byte version and command, one byte family, two bytes length, and
  addresses.
- With UNKNOWN, LOCAL, or a family other than TCP over IP, the client's address is that of the connection.

The functions are pure: they depend only on the bytes received so far.
"""

from __future__ import annotations

import ipaddress
import struct

import msgspec

from epochmq_protocol.errors import RemoteProtocolError

V1_START = b"PROXY "
V1_MAX_BYTES = 107
V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V2_HEADER_BYTES = 16
_V2_LOCAL, _V2_PROXY = 0x20, 0x21
_V2_TCP4, _V2_TCP6 = 0x11, 0x21
_PORTS = struct.Struct(">HH")


class ProxyHeader(msgspec.Struct, frozen=True):
    """A whole header: its size in bytes, and the client's address, None if the header names none."""

    size: int
    source: tuple[str, int] | None


def may_start_proxy_header(data: bytes) -> bool:
    """Whether a header can begin with these bytes. No frame and no TLS record begins with
    them."""
    head = data[:12]
    return V1_START.startswith(head[:6]) or V2_SIGNATURE.startswith(head)


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header at the start of `data`; None while it is incomplete. Raises RemoteProtocolError if it is
    malformed."""
    if V1_START.startswith(data[:6]):
        return _parse_v1(data)
    if V2_SIGNATURE.startswith(data[:12]):
        return _parse_v2(data)
    raise RemoteProtocolError("the connection begins with neither a frame nor a PROXY protocol header")


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, V1_MAX_BYTES)
    if end < 0:
        if len(data) >= V1_MAX_BYTES:
            raise RemoteProtocolError(f"PROXY line of more than {V1_MAX_BYTES} bytes")
        return None
    words = data[:end].split(b" ")
    size = end + 2
    if len(words) >= 2 and words[1] == b"UNKNOWN":
        return ProxyHeader(size, None)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise RemoteProtocolError(
            f"PROXY line {data[:end]!r}: expected TCP4, TCP6 or UNKNOWN with two addresses and ports"
        )
    try:
        host = ipaddress.ip_address(words[2].decode("ascii"))
        port = int(words[4])
    except ValueError as error:
        raise RemoteProtocolError(f"PROXY line {data[:end]!r}: {error}") from None
    if host.version != (4 if words[1] == b"TCP4" else 6) or not 0 <= port <= 65535:
        raise RemoteProtocolError(
            f"PROXY line {data[:end]!r}: the address is not of this family, or the port is above 65535"
        )
    return ProxyHeader(size, (str(host), port))


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < V2_HEADER_BYTES:
        return None
    command, family = data[12], data[13]
    if command not in (_V2_LOCAL, _V2_PROXY):
        raise RemoteProtocolError(
            f"PROXY version 2: version and command byte {command:#x}, expected 0x20 or 0x21"
        )
    size = V2_HEADER_BYTES + int.from_bytes(data[14:16], "big")
    if len(data) < size:
        return None
    address_bytes = {_V2_TCP4: 4, _V2_TCP6: 16}.get(family, 0)
    if command == _V2_LOCAL or address_bytes == 0:
        return ProxyHeader(size, None)
    if size < V2_HEADER_BYTES + 2 * address_bytes + 4:
        raise RemoteProtocolError(
            f"PROXY version 2: a header of {size} bytes is too short for its address family"
        )
    host = ipaddress.ip_address(data[V2_HEADER_BYTES : V2_HEADER_BYTES + address_bytes])
    port, _ = _PORTS.unpack_from(data, V2_HEADER_BYTES + 2 * address_bytes)
    return ProxyHeader(size, (str(host), port))
