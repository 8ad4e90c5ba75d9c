"""A sidecar with mutual TLS whose token and certificates are replaced while it runs. No process is behind its
socket, so a request that is authorized gets 503."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.certificates import Authority
from tests.support.net import free_port, loopback
from tests.support.process import wait_until
from tests.support.sidecar import TOKEN, Sidecar

OCTET = 75
SILENT = 503
"""The status for a process that does not answer: the request was authorized."""


class TlsSidecar:
    """A sidecar with its own credential files, and clients of it."""

    def __init__(self, directory: Path, *, client_auth: str) -> None:
        self.directory = directory
        self.authority = Authority("first")
        self.host = loopback(OCTET)
        self.cert, self.key = self.authority.issue(directory / "server", "sidecar", address=self.host)
        self.ca = directory / "ca.crt"
        self.ca.write_bytes(self.authority.pem)
        self.port = free_port(self.host)
        self.sidecar = Sidecar(
            directory / "admin",
            octet=OCTET,
            bindAddress=self.host,
            listenPort=self.port,
            adminTlsCertFile=str(self.cert),
            adminTlsKeyFile=str(self.key),
            adminTlsCaFile=str(self.ca),
            adminTlsClientAuth=client_auth,
        )
        self.sidecar.host, self.sidecar.port = self.host, self.port

    def client(self, authority: Authority, certificate: tuple[Path, Path] | None = None) -> httpx.Client:
        """A client that trusts this authority."""
        context = ssl.create_default_context(cadata=authority.pem.decode())
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return httpx.Client(base_url=f"https://{self.host}:{self.port}", verify=context, timeout=120)

    def status(self, authority: Authority, certificate: tuple[Path, Path] | None, token: str = "") -> int:
        """The status of a request that changes something, over a new connection; 0 without a connection."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with self.client(authority, certificate) as client:
            try:
                return client.post("/v1/fence", headers=headers).status_code
            except httpx.TransportError:
                return 0


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], TlsSidecar]]:
    made: list[TlsSidecar] = []

    def start(client_auth: str) -> TlsSidecar:
        guarded = TlsSidecar(tmp_path, client_auth=client_auth)
        made.append(guarded)
        guarded.sidecar.start()
        return guarded

    yield start
    for guarded in made:
        print(guarded.sidecar.process.output())
        guarded.sidecar.kill()


def replace(path: Path, content: bytes) -> None:
    """Replaces a file atomically, as Kubernetes does."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.rename(path)


def test_a_certificate_or_a_token_is_needed_to_change_anything(make: Callable[[str], TlsSidecar]) -> None:
    guarded = make("optional")
    first = guarded.authority
    known = first.issue(guarded.directory / "known", "operator")
    stranger = Authority("stranger").issue(guarded.directory / "stranger", "operator")
    assert guarded.status(first, known) == SILENT
    assert guarded.status(first, None, TOKEN) == SILENT
    assert guarded.status(first, None) == 401
    assert guarded.status(first, None, "not-the-token-of-here") == 401
    assert guarded.status(first, stranger) == 0
    assert guarded.status(first, stranger, TOKEN) == 0
    with guarded.client(first) as client:  # a probe
        assert client.get("/live").status_code == SILENT
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{guarded.host}:{guarded.port}/live", timeout=60)


def test_without_a_certificate_there_is_no_connection_when_one_is_required(
    make: Callable[[str], TlsSidecar],
) -> None:
    guarded = make("require")
    known = guarded.authority.issue(guarded.directory / "known", "operator")
    assert guarded.status(guarded.authority, known) == SILENT
    assert guarded.status(guarded.authority, None, TOKEN) == 0


def test_certificates_and_authorities_are_replaced_at_run_time(make: Callable[[str], TlsSidecar]) -> None:
    guarded = make("require")
    first, second = guarded.authority, Authority("second")
    old = first.issue(guarded.directory / "old", "operator")
    new = second.issue(guarded.directory / "new", "operator")
    pid = guarded.sidecar.process.pid
    with guarded.client(first, old) as staying:
        assert staying.get("/live").status_code == SILENT

        def until(status: int, authority: Authority, certificate: tuple[Path, Path], what: str) -> None:
            """Waits for that status, and uses the open connection meanwhile: an idle one is closed."""

            def reached() -> bool:
                assert staying.get("/live").status_code == SILENT, "an open connection stays open"
                return guarded.status(authority, certificate) == status

            wait_until(reached, what=what)

        replace(guarded.ca, first.pem + second.pem)  # both authorities, while clients change over
        until(SILENT, first, new, "the new client is let in")
        assert guarded.status(first, old) == SILENT

        cert, key = second.issue(guarded.directory / "next", "sidecar", address=guarded.host)
        replace(guarded.cert, cert.read_bytes())
        replace(guarded.key, key.read_bytes())
        until(SILENT, second, new, "the new certificate is shown")
        assert guarded.status(first, new) == 0

        replace(guarded.ca, second.pem)
        until(0, second, old, "the old client is out")
        assert guarded.status(second, new) == SILENT
        assert staying.get("/live").status_code == SILENT, "an open connection stays open"

    assert (guarded.sidecar.process.pid, guarded.sidecar.process.alive) == (pid, True)


def test_a_token_is_replaced_at_run_time(make: Callable[[str], TlsSidecar]) -> None:
    guarded = make("optional")
    first, later = guarded.authority, "the-token-of-tomorrow"
    assert guarded.status(first, None, later) == 401
    replace(guarded.sidecar.token_file, f"{TOKEN}\n{later}\n".encode())
    wait_until(lambda: guarded.status(first, None, later) == SILENT, what="the new token is accepted")
    assert guarded.status(first, None, TOKEN) == SILENT
    replace(guarded.sidecar.token_file, later.encode())
    wait_until(lambda: guarded.status(first, None, TOKEN) == 401, what="the old token is rejected")
    assert guarded.status(first, None, later) == SILENT
    guarded.sidecar.token_file.unlink()
    assert guarded.status(first, None, later) == SILENT
