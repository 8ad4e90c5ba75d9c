"""TLS and plain peers share a port as the TLS mode allows, and exchange the same contents."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from epochmq_protocol.errors import ConfigError, ConnectError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.transport import (
    ClientAuth,
    RemotingClient,
    RemotingConnection,
    ServerSettings,
    TlsMode,
    TlsSettings,
)
from epochmq_protocol.transport.tls import client_context, server_context, tls_from_properties
from tests.unit.protocol.transport.peers import (
    ECHO,
    Peer,
    address_of,
    ask,
    echo,
    eventually,
    peer_of,
    serving,
)

PASSWORD = "s3cret"


def make_certificate(directory: Path, name: str, *, password: str | None = None) -> TlsSettings:
    """A self-signed certificate and its key as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    protection = (
        serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    )
    cert_path, key_path = directory / f"{name}.pem", directory / f"{name}.key"
    cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
    )
    return TlsSettings(cert_path=str(cert_path), key_path=str(key_path), key_password=password)


@pytest.fixture
def tls(tmp_path: Path) -> TlsSettings:
    return make_certificate(tmp_path, "server")


def with_mode(tls: TlsSettings, mode: TlsMode) -> TlsSettings:
    return TlsSettings(mode=mode, cert_path=tls.cert_path, key_path=tls.key_path)


async def call_once(address: str, tls: TlsSettings | None, body: bytes = b"x") -> bytes:
    async with RemotingClient(tls=tls) as client:
        return (await client.call(address, request(ECHO, body=body), 5000)).body


async def test_a_permissive_port_serves_plain_and_tls(tls: TlsSettings) -> None:
    async with serving({ECHO: echo}, tls=tls) as server:
        assert await call_once(address_of(server), None) == b"x"
        assert await call_once(address_of(server), TlsSettings()) == b"x"


async def test_an_enforcing_port_rejects_plain_connections(tls: TlsSettings) -> None:
    async with serving({ECHO: echo}, tls=with_mode(tls, TlsMode.ENFORCING)) as server:
        assert await call_once(address_of(server), TlsSettings()) == b"x"
        async with peer_of(server) as peer:
            await peer.send(ask())
            assert await peer.receive_all() == b""


@pytest.mark.parametrize("mode", [TlsMode.DISABLED, TlsMode.PERMISSIVE])
async def test_a_port_without_tls_rejects_a_handshake_and_serves_plain_connections(mode: TlsMode) -> None:
    async with serving({ECHO: echo}, tls=TlsSettings(mode=mode)) as server:
        with pytest.raises(ConnectError):
            await call_once(address_of(server), TlsSettings())
        assert await call_once(address_of(server), None) == b"x"


async def test_large_bodies_and_many_calls_pass_through_tls_unchanged(tls: TlsSettings) -> None:
    async with serving({ECHO: echo}, tls=tls) as server:
        bodies = [bytes([n]) * (n * 50_000) for n in range(20)]
        async with RemotingClient(tls=TlsSettings()) as client:
            responses = await asyncio.gather(
                *(client.call(address_of(server), request(ECHO, body=body), 60_000) for body in bodies)
            )
        assert [received.body for received in responses] == bodies


async def test_a_tls_peer_that_does_not_read_is_paused_and_later_gets_every_byte(tls: TlsSettings) -> None:
    def big(connection: RemotingConnection, command: Command) -> Command:
        return response(command, 0, body=bytes(20_000))

    settings = ServerSettings(write_high_water_bytes=65_536, write_low_water_bytes=16_384)
    async with serving({ECHO: big}, tls=tls, settings=settings) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        peer = Peer(*await asyncio.open_connection(server.host, server.port, ssl=context, limit=1000))
        await peer.send(b"".join(ask(opaque=n) for n in range(500)))
        opaques = [(await peer.receive()).opaque for _ in range(500)]
        assert opaques == list(range(500))
        await peer.close()


async def test_a_proxy_header_may_precede_the_handshake(tls: TlsSettings) -> None:
    async with serving({ECHO: echo}, tls=tls) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"PROXY TCP4 10.1.2.3 10.9.9.9 40000 9876\r\n")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        engine = context.wrap_bio(incoming, outgoing)
        while True:
            try:
                engine.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        writer.write(outgoing.read())
        await eventually(lambda: bool(server.connections), "the handshake is done there, too")
        assert [connection.remote for connection in server.connections] == ["10.1.2.3:40000"]
        writer.close()


async def test_a_handshake_that_does_not_end_times_out(tls: TlsSettings) -> None:
    settings = ServerSettings(handshake_timeout_ms=50)
    async with serving({ECHO: echo}, tls=tls, settings=settings) as server, peer_of(server) as peer:
        await peer.send(b"\x16\x03\x01")
        assert await peer.receive_all() == b""


async def test_garbage_after_a_handshake_byte_closes_only_that_connection(tls: TlsSettings) -> None:
    async with serving({ECHO: echo}, tls=tls) as server:
        async with peer_of(server) as peer:
            await peer.send(b"\x16" + bytes(200))
            await peer.receive_all()
        assert await call_once(address_of(server), TlsSettings()) == b"x"


async def test_a_client_that_verifies_servers_accepts_only_trusted_ones(
    tls: TlsSettings, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "other")
    async with serving({ECHO: echo}, tls=tls) as server:
        trusting = TlsSettings(auth_server=True, trust_path=tls.cert_path)
        assert await call_once(address_of(server), trusting) == b"x"
        with pytest.raises(ConnectError, match="verify failed"):
            await call_once(address_of(server), TlsSettings(auth_server=True, trust_path=other.cert_path))


async def test_a_server_that_requires_client_certificates_rejects_clients_without_one(
    tls: TlsSettings, tmp_path: Path
) -> None:
    client = make_certificate(tmp_path, "client", password=PASSWORD)
    strict = TlsSettings(
        cert_path=tls.cert_path,
        key_path=tls.key_path,
        client_auth=ClientAuth.REQUIRE,
        trust_path=client.cert_path,
    )
    async with serving({ECHO: echo}, tls=strict) as server:
        assert await call_once(address_of(server), client) == b"x"
        with pytest.raises(Exception, match=r"lost|TLS"):
            await call_once(address_of(server), TlsSettings())


def test_old_versions_of_tls_are_refused(tls: TlsSettings) -> None:
    server = server_context(tls)
    assert server is not None
    for context in (server, client_context(TlsSettings())):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_keys_without_dots_are_the_same_keys() -> None:
    values = {"tlsServerMode": "enforcing", "tlsServerCertPath": "/c", "tlsServerNeedClientAuth": "require"}
    dotted = {"tls.server.mode": "enforcing", "tls.server.certPath": "/c"}
    dotted["tls.server.need.client.auth"] = "require"
    found, rest = tls_from_properties({**values, "listenPort": "1"})
    assert (found, rest) == (tls_from_properties(dotted)[0], {"listenPort": "1"})
    assert found.client_auth is ClientAuth.REQUIRE


def test_unusable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath=.*missing\.pem"):
        server_context(TlsSettings(cert_path=str(tmp_path / "missing.pem")))
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
        server_context(TlsSettings(mode=TlsMode.ENFORCING))
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath"):
        client_context(TlsSettings(auth_server=True))
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath=.*none"):
        client_context(TlsSettings(trust_path=str(tmp_path / "none")))
