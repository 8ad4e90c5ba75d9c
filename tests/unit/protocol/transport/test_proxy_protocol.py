"""A PROXY protocol header names the client; anything else in its place is rejected and never crashes."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_protocol.errors import ConfigError, RemoteProtocolError
from epochmq_protocol.transport.peer_warnings import PEER_WARNINGS
from epochmq_protocol.transport.proxy_protocol import (
    V2_SIGNATURE,
    ProxyHeader,
    may_start_proxy_header,
    parse_proxy_header,
)
from epochmq_protocol.transport.settings import ServerSettings
from epochmq_protocol.transport.trusted_proxies import parse_trusted_proxies
from tests.unit.protocol.transport.peers import ECHO, ask, echo, peer_of, serving

V1 = b"PROXY TCP4 10.1.2.3 10.9.9.9 40000 9876\r\n"


def v2(command: int, family: int, payload: bytes) -> bytes:
    return V2_SIGNATURE + bytes([command, family]) + len(payload).to_bytes(2, "big") + payload


V4_ADDRESSES = bytes([10, 1, 2, 3, 10, 9, 9, 9]) + (40000).to_bytes(2, "big") + (9876).to_bytes(2, "big")


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (V1, ("10.1.2.3", 40000)),
        (b"PROXY TCP6 ::1 ::2 1 2\r\n", ("::1", 1)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN a b c d\r\n", None),
        (v2(0x21, 0x11, V4_ADDRESSES), ("10.1.2.3", 40000)),
        (v2(0x21, 0x11, V4_ADDRESSES + b"\x04\x00\x01x"), ("10.1.2.3", 40000)),
        (v2(0x21, 0x21, bytes(15) + b"\x01" + bytes(15) + b"\x02\x00\x05\x00\x06"), ("::1", 5)),
        (v2(0x20, 0x00, b""), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
)
def test_every_form_of_header_is_parsed_with_its_size(data: bytes, source: tuple[str, int] | None) -> None:
    assert parse_proxy_header(data + b"more") == ProxyHeader(len(data), source)


@pytest.mark.parametrize("whole", [V1, v2(0x21, 0x11, V4_ADDRESSES)])
def test_an_incomplete_header_gives_none(whole: bytes) -> None:
    for size in range(1, len(whole)):
        assert may_start_proxy_header(whole[:size])
        assert parse_proxy_header(whole[:size]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 10.1.2.3\r\n",
        b"PROXY TCP4 ::1 ::2 1 2\r\n",
        b"PROXY TCP4 10.1.2.3 10.9.9.9 99999 1\r\n",
        b"PROXY " + b"x" * 200,
        v2(0x11, 0x11, V4_ADDRESSES),
        v2(0x21, 0x11, V4_ADDRESSES[:5]),
    ],
)
def test_a_malformed_header_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_proxy_header(data)


@given(
    st.one_of(
        st.binary(), st.binary().map(lambda b: b"PROXY " + b), st.binary().map(lambda b: V2_SIGNATURE + b)
    )
)
def test_any_bytes_give_a_header_none_or_a_protocol_error(data: bytes) -> None:
    try:
        found = parse_proxy_header(data)
    except RemoteProtocolError:
        return
    if found is not None:
        assert 0 < found.size <= len(data)
        if found.source is not None:
            ipaddress.ip_address(found.source[0])


@pytest.mark.parametrize("header", [V1, v2(0x21, 0x11, V4_ADDRESSES)])
@pytest.mark.parametrize("split", [True, False])
async def test_the_connection_has_the_address_from_the_header(header: bytes, split: bool) -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        if split:
            await peer.send(header[:20])
            await peer.send(header[20:])
            await peer.send(ask(opaque=3))
        else:
            await peer.send(header + ask(opaque=3))
        assert (await peer.receive()).opaque == 3
        (connection,) = server.connections
        assert connection.remote == "10.1.2.3:40000"
        assert connection.remote_host == bytes([10, 1, 2, 3]) + (40000).to_bytes(4, "big")


async def test_a_connection_with_a_malformed_header_is_closed() -> None:
    async with serving({ECHO: echo}) as server, peer_of(server) as peer:
        await peer.send(b"PROXY nonsense\r\n" + ask())
        assert await peer.receive_all() == b""


@pytest.mark.parametrize(
    ("trusted", "address", "is_trusted"),
    [
        ("", "10.1.2.3", False),
        ("*", "10.1.2.3", True),
        ("10.0.0.0/8, 192.168.1.7", "10.1.2.3", True),
        ("10.0.0.0/8, 192.168.1.7", "192.168.1.7", True),
        ("10.0.0.0/8, 192.168.1.7", "192.168.1.8", False),
        ("10.1.2.3/8", "10.9.9.9", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("fe80::/10", "fe80::1%eth0", True),
        ("10.0.0.0/8", "", False),
    ],
)
def test_a_header_counts_only_from_the_addresses_in_the_key(
    trusted: str, address: str, is_trusted: bool
) -> None:
    assert parse_trusted_proxies(trusted).includes(address) is is_trusted


@pytest.mark.parametrize("text", ["10.0.0.0/40", "balancer", "10.0.0.1;10.0.0.2", "*,10.0.0.1"])
def test_an_address_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="proxyProtocolFrom"):
        parse_trusted_proxies(text)


async def test_a_client_that_is_no_load_balancer_cannot_name_another_address(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PEER_WARNINGS, "clock", lambda: 0.0)  # a second without other lines
    settings = ServerSettings(trusted_proxies=parse_trusted_proxies("10.0.0.0/8"))
    async with serving({ECHO: echo}, settings=settings) as server, peer_of(server) as peer:
        await peer.send(V1 + ask())
        assert await peer.receive_all() == b""
    async with serving({ECHO: echo}, settings=settings) as server, peer_of(server) as peer:
        await peer.send(ask(opaque=5))
        assert (await peer.receive()).opaque == 5, "without a header it is served"
    assert "is not in proxyProtocolFrom" in caplog.text
