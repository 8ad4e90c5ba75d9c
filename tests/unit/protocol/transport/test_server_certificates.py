"""A server uses new certificate files without a restart, and keeps the former ones while the new ones cannot
be used."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest

from epochmq_protocol.errors import ConfigError, ConnectError
from epochmq_protocol.frame import request
from epochmq_protocol.transport import ClientAuth, RemotingClient, TlsMode, TlsSettings
from epochmq_protocol.transport.server_certificates import CHECK_PERIOD_MS, ServerCertificates
from tests.support.certificates import Authority
from tests.unit.protocol.transport.peers import ECHO, address_of, echo, serving


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * 1_000_000

    def pass_a_check(self) -> None:
        self.ms += CHECK_PERIOD_MS


class SecretVolume:
    """A directory with the files of a Secret, as a kubelet mounts it: the names are links through `..data`,
    which is switched to another directory when the Secret changes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._count = 0

    def put(self, authority: Authority) -> None:
        self._count += 1
        contents = self.directory / f"..{self._count}"
        authority.issue(contents, "server")
        (contents / "ca.crt").write_bytes(authority.pem)
        switch = self.directory / "..data_tmp"
        switch.symlink_to(contents.name)
        switch.replace(self.directory / "..data")
        for name in ("tls.crt", "tls.key", "ca.crt"):
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")

    def settings(self, auth: ClientAuth = ClientAuth.NONE) -> TlsSettings:
        crt, key, ca = (str(self.directory / name) for name in ("tls.crt", "tls.key", "ca.crt"))
        return TlsSettings(
            mode=TlsMode.ENFORCING, cert_path=crt, key_path=key, trust_path=ca, client_auth=auth
        )


def trusting(authority: Authority, path: Path) -> TlsSettings:
    """A client that accepts only servers that this authority has signed."""
    path.write_bytes(authority.pem)
    return TlsSettings(auth_server=True, trust_path=str(path))


async def test_new_connections_get_the_new_certificate_and_open_ones_stay(tmp_path: Path) -> None:
    first, second = Authority("first"), Authority("second")
    volume, clock = SecretVolume(tmp_path / "secret"), Clock()
    volume.put(first)
    trusts_first = trusting(first, tmp_path / "first")
    trusts_second = trusting(second, tmp_path / "second")
    certificates = ServerCertificates(volume.settings(), clock)
    async with serving({ECHO: echo}, tls=certificates) as server, RemotingClient(tls=trusts_first) as early:
        address = address_of(server)
        assert (await early.call(address, request(ECHO, body=b"a"), 30_000)).body == b"a"
        async with RemotingClient(tls=trusts_second) as late:
            with pytest.raises(ConnectError, match="verify failed"):
                await late.call(address, request(ECHO, body=b"b"), 30_000)
            volume.put(second)
            clock.pass_a_check()
            assert (await late.call(address, request(ECHO, body=b"c"), 30_000)).body == b"c"
        assert (await early.call(address, request(ECHO, body=b"d"), 30_000)).body == b"d"
        async with RemotingClient(tls=trusts_first) as outdated:
            with pytest.raises(ConnectError, match="verify failed"):
                await outdated.call(address, request(ECHO, body=b"e"), 30_000)


async def test_clients_of_a_removed_authority_are_rejected(tmp_path: Path) -> None:
    first, second = Authority("first"), Authority("second")
    volume, clock = SecretVolume(tmp_path / "secret"), Clock()
    volume.put(first)
    crt, key = first.issue(tmp_path / "client", "client")
    client = TlsSettings(cert_path=str(crt), key_path=str(key))
    certificates = ServerCertificates(volume.settings(ClientAuth.REQUIRE), clock)
    async with serving({ECHO: echo}, tls=certificates) as server:
        async with RemotingClient(tls=client) as one:
            assert (await one.call(address_of(server), request(ECHO, body=b"a"), 30_000)).body == b"a"
        volume.put(second)
        clock.pass_a_check()
        async with RemotingClient(tls=client) as one:
            with pytest.raises(Exception, match=r"lost|TLS"):
                await one.call(address_of(server), request(ECHO, body=b"b"), 30_000)


def test_files_that_cannot_be_used_leave_the_former_ones_and_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, clock = Authority("authority"), Clock()
    crt, key = authority.issue(tmp_path, "server")
    certificates = ServerCertificates(TlsSettings(cert_path=str(crt), key_path=str(key)), clock)
    before = certificates.context
    rejected, expiry = "tls_files_rejected:broker", "tls_certificate_expiry_time_seconds:broker"
    assert certificates.metric_values("broker")[rejected] == 0
    old_key = key.read_bytes()
    new_crt, new_key = authority.issue(tmp_path / "new", "server")
    key.write_bytes(new_key.read_bytes())  # the certificate is still the former one
    for _ in range(3):
        clock.pass_a_check()
        assert certificates.context is before
    values = certificates.metric_values("broker")
    assert values[rejected] == 1
    assert values[expiry] > 0
    (logged,) = [record.getMessage() for record in caplog.records]
    assert str(crt) in logged
    assert "KEY_VALUES_MISMATCH" in logged.upper().replace(" ", "_")
    key.write_bytes(old_key)
    os.utime(key, ns=(1, 1))
    clock.pass_a_check()
    assert certificates.metric_values("broker")[rejected] == 0
    key.write_bytes(new_key.read_bytes())
    crt.write_bytes(new_crt.read_bytes())
    clock.pass_a_check()
    assert certificates.context is not before
    assert certificates.metric_values("broker")[rejected] == 0


def test_a_first_start_with_unusable_files_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
        ServerCertificates(TlsSettings(cert_path=str(tmp_path / "none"), key_path=str(tmp_path / "none")))


def test_without_a_certificate_there_are_no_metrics() -> None:
    assert ServerCertificates(None).context is None
    assert ServerCertificates(TlsSettings()).metric_values("broker") == {}


async def test_servers_may_share_their_certificates(tmp_path: Path) -> None:
    crt, key = Authority("authority").issue(tmp_path, "server")
    certificates = ServerCertificates(TlsSettings(cert_path=str(crt), key_path=str(key)))
    async with (
        serving({ECHO: echo}, tls=certificates) as one,
        serving({ECHO: echo}, tls=certificates) as two,
    ):
        assert isinstance(one.tls_context, ssl.SSLContext)
        assert one.tls_context is two.tls_context
        async with RemotingClient(tls=TlsSettings()) as client:
            calls = (client.call(address_of(s), request(ECHO, body=b"x"), 30_000) for s in (one, two))
            assert [found.body for found in await asyncio.gather(*calls)] == [b"x", b"x"]
