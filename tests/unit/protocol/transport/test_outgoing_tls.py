"""A process connects to other members by TLS: mutually verified, with certificates that are replaced while it
runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_protocol.errors import ConfigError, ConnectError, RetryableError
from epochmq_protocol.frame import request
from epochmq_protocol.transport import ClientAuth, RemotingClient, TlsMode, TlsSettings
from epochmq_protocol.transport.outgoing_tls import (
    ClientCertificates,
    outgoing_from_properties,
    outgoing_metric_values,
    tls_of_environment,
)
from epochmq_protocol.transport.server_certificates import CHECK_PERIOD_MS
from tests.support.certificates import Authority
from tests.unit.protocol.transport.peers import ECHO, address_of, echo, serving


def member(directory: Path, authority: Authority, trusted: Authority | None = None) -> TlsSettings:
    """The files of a member, written anew: certificate and key of `authority`, which trusts `trusted`."""
    authority.issue(directory, "member")
    (directory / "ca.crt").write_bytes((trusted or authority).pem)
    return TlsSettings(
        cert_path=str(directory / "tls.crt"),
        key_path=str(directory / "tls.key"),
        trust_path=str(directory / "ca.crt"),
        auth_server=True,
    )


def demanding(directory: Path, authority: Authority) -> TlsSettings:
    """The port of a member that demands certificates of `authority`."""
    one = member(directory, authority)
    return TlsSettings(
        mode=TlsMode.ENFORCING,
        cert_path=one.cert_path,
        key_path=one.key_path,
        trust_path=one.trust_path,
        client_auth=ClientAuth.REQUIRE,
    )


async def ask(address: str, client: RemotingClient) -> bytes:
    return (await client.call(address, request(ECHO, body=b"x"), 30_000)).body


async def test_members_verify_each_other(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    async with serving({ECHO: echo}, tls=demanding(tmp_path / "server", ours)) as server:
        address = address_of(server)
        async with RemotingClient(tls=member(tmp_path / "one", ours)) as client:
            assert await ask(address, client) == b"x"
        async with RemotingClient(tls=member(tmp_path / "two", ours, trusted=others)) as client:
            with pytest.raises(ConnectError, match="verify failed"):
                await ask(address, client)
        stranger = ClientCertificates(member(tmp_path / "three", others, trusted=ours))
        for tls in (stranger, None):
            async with RemotingClient(tls=tls) as client:
                # With TLS 1.3 a server rejects a certificate after the client's handshake.
                with pytest.raises(RetryableError):
                    await ask(address, client)


async def test_new_connections_use_replaced_files_and_open_ones_stay(tmp_path: Path) -> None:
    first, second = Authority("first"), Authority("second")
    now_ms = 0
    certificates = ClientCertificates(member(tmp_path / "client", first), lambda: now_ms * 1_000_000)
    before = certificates.context
    async with (
        serving({ECHO: echo}, tls=demanding(tmp_path / "old", first)) as old,
        serving({ECHO: echo}, tls=demanding(tmp_path / "new", second)) as new,
        RemotingClient(tls=certificates) as client,
    ):
        assert await ask(address_of(old), client) == b"x"
        with pytest.raises(ConnectError, match="verify failed"):
            await ask(address_of(new), client)
        member(tmp_path / "client", second)
        now_ms += CHECK_PERIOD_MS
        assert await ask(address_of(new), client) == b"x"
        assert await ask(address_of(old), client) == b"x"
    assert certificates.context is not before


def test_unusable_new_files_leave_the_former_ones_in_use_and_metrics_say_so(tmp_path: Path) -> None:
    now_ms = 0
    certificates = ClientCertificates(member(tmp_path, Authority("one")), lambda: now_ms * 1_000_000)
    before = certificates.context
    (tmp_path / "tls.key").write_text("no key")
    now_ms += CHECK_PERIOD_MS
    assert certificates.context is before
    found = outgoing_metric_values(certificates, "broker")
    assert found["tls_files_rejected:broker-client"] == 1
    assert found["tls_certificate_expiry_time_seconds:broker-client"] > 0
    assert outgoing_metric_values(None, "broker") == {}


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tls.enable": "on"}, "tls.enable=on: expected true or false"),
        ({"useTLS": "1"}, "useTLS=1: expected true or false"),
        ({"useTLS": "true", "tls.client.certPath": "/c"}, "tls.client.keyPath"),
        ({"useTLS": "true", "tlsClientKeyPath": "/k"}, "tls.client.certPath"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        outgoing_from_properties(values, TlsMode.PERMISSIVE)
    assert str(caught.value).startswith(error)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.client\.certPath=.*missing"):
        ClientCertificates(TlsSettings(cert_path=str(tmp_path / "missing"), key_path=str(tmp_path / "k")))


def test_a_command_takes_its_tls_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EPOCHMQ_TLS_CONFIG", raising=False)
    assert tls_of_environment() is None
    files = member(tmp_path, Authority("one"))
    (tmp_path / "tls.properties").write_text(
        f"tls.client.certPath={files.cert_path}\ntls.client.keyPath={files.key_path}\n"
        f"tls.client.trustCertPath={files.trust_path}\n"
    )
    monkeypatch.setenv("EPOCHMQ_TLS_CONFIG", str(tmp_path / "tls.properties"))
    found = tls_of_environment()
    assert found is not None
    assert found.settings == files
