"""The sidecar reloads changed tokens and certificates while it runs, and never half of them."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from epochmq_protocol.errors import ConfigError
from epochmq_protocol.transport.file_backed_value import FileBackedValue
from epochmq_sidecar.config import SidecarConfig
from epochmq_sidecar.credentials import Tokens, server_context
from tests.support.certificates import Authority

FIRST, SECOND = "first-token-0123456789", "second-token-0123456789"


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms * 1_000_000


def replace(path: Path, text: str) -> None:
    """Replaces a file as Kubernetes does: another file gets its name."""
    new = path.with_name("new")
    new.write_text(text)
    new.rename(path)


def number_of(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError("file", str(path), f"a number ({error})") from None


def test_a_changed_file_is_read_at_the_next_check(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", Clock()
    path.write_text("1")
    watched = FileBackedValue([str(path)], lambda: number_of(path), 100, clock)
    replace(path, "2")
    assert watched.current == 1
    clock.ms = 100
    assert watched.current == 2


def test_unusable_files_leave_the_previous_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, clock = tmp_path / "f", Clock()
    path.write_text("1")
    watched = FileBackedValue([str(path)], lambda: number_of(path), 100, clock)
    path.unlink()
    for clock.ms in (100, 200, 300):
        assert watched.current == 1
    assert len(caplog.records) == 1
    path.write_text("x")
    clock.ms = 400
    assert watched.current == 1
    path.write_text("3")
    clock.ms = 500
    assert watched.current == 3


def test_a_file_that_kept_its_name_and_size_is_noticed(tmp_path: Path) -> None:
    path, clock = tmp_path / "f", Clock()
    path.write_text("1")
    os.utime(path, ns=(1, 1))
    watched = FileBackedValue([str(path)], lambda: number_of(path), 100, clock)
    path.write_text("2")
    clock.ms = 100
    assert watched.current == 2


def test_every_token_of_the_file_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{FIRST}\n\n  {SECOND}  \n")
    tokens = Tokens(SidecarConfig(admin_token_file=str(path)))
    assert [tokens.accepts(one) for one in (FIRST, SECOND, FIRST[:-1], "", FIRST + "\n", "é" * 20)] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "\n \n", "short\n", "".join(f"{FIRST}-{n}\n" for n in range(9))])
def test_a_file_without_usable_tokens_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(ConfigError, match="adminTokenFile="):
        Tokens(SidecarConfig(admin_token_file=str(path)))


def test_without_a_file_no_token_is_accepted() -> None:
    assert not Tokens(SidecarConfig()).accepts("")


def test_certificates_that_do_not_match_are_rejected(tmp_path: Path) -> None:
    authority = Authority("one")
    cert, key = authority.issue(tmp_path / "a", "server")
    _, other_key = authority.issue(tmp_path / "b", "server")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.pem)
    good = SidecarConfig(
        admin_tls_cert_file=str(cert), admin_tls_key_file=str(key), admin_tls_ca_file=str(ca)
    )
    context = server_context(good)
    assert context is not None
    assert (context.verify_mode, context.minimum_version) == (ssl.CERT_OPTIONAL, ssl.TLSVersion.TLSv1_3)
    with pytest.raises(ConfigError, match="adminTlsCertFile="):
        server_context(SidecarConfig(admin_tls_cert_file=str(cert), admin_tls_key_file=str(other_key)))
    ca.write_text("none")
    with pytest.raises(ConfigError, match="adminTlsCaFile="):
        server_context(good)


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> bytes | None:
    """Does a TLS handshake in memory. Returns the server's certificate. Raises SSLError if one side rejects
    the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = server.wrap_bio(to_server, to_client, server_side=True)
    here = client.wrap_bio(to_client, to_server)
    done = {here: False, there: False}
    for _ in range(10):
        for side in (here, there):
            if not done[side]:
                try:
                    side.do_handshake()
                    done[side] = True
                except ssl.SSLWantReadError:
                    pass
    assert all(done.values())
    return here.getpeercert(binary_form=True)


def client(ca: bytes, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=ca.decode())
    context.check_hostname = False
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def test_a_handshake_uses_the_current_certificates(tmp_path: Path) -> None:
    """Both the server's certificate and the clients' authority are replaced; clients of the former authority
    are rejected."""
    one, two = Authority("one"), Authority("two")
    cert, key = one.issue(tmp_path / "server", "server")
    old = one.issue(tmp_path / "old", "client")
    new = two.issue(tmp_path / "new", "client")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(one.pem)
    config = SidecarConfig(
        admin_tls_cert_file=str(cert),
        admin_tls_key_file=str(key),
        admin_tls_ca_file=str(ca),
        admin_tls_client_auth="require",
        credentials_period_ms=100,
    )
    clock = Clock()
    context = server_context(config, clock)
    assert context is not None
    first = shake(context, client(one.pem, old))
    with pytest.raises(ssl.SSLError):
        shake(context, client(one.pem, new))
    with pytest.raises(ssl.SSLError):
        shake(context, client(one.pem))

    new_cert, new_key = two.issue(tmp_path / "next", "server")
    replace(cert, new_cert.read_text())
    clock.ms = 100
    assert shake(context, client(one.pem, old)) == first, "half of a pair is not used"
    replace(key, new_key.read_text())
    ca.write_bytes(two.pem)
    clock.ms = 200
    second = shake(context, client(two.pem, new))
    assert second != first
    with pytest.raises(ssl.SSLError):
        shake(context, client(two.pem, old))
