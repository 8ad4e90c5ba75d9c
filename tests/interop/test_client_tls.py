"""RocketMQ's Java client reaches nameserver and broker by their external ports, which accept TLS with
certificates on both sides only; the certificates are replaced while the processes run."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.interop.java_env import compile_java, run_java
from tests.support.certificates import Authority
from tests.support.cluster import OurCluster, Value
from tests.support.net import free_port
from tests.support.process import PATIENCE_S, wait_until
from tests.support.remoting import frame, read_frame, split_address

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


UNKNOWN_CODE = 32_000
"""A request code that every process answers."""


class Certificates:
    """The files of the servers: `tls.crt`, `tls.key` and `ca.crt`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority("none")

    def issue(self, name: str) -> Authority:
        """Replaces the files; a new authority signs, and is the only one trusted."""
        self.authority = Authority(name)
        self.authority.issue(self.directory, "server")
        (self.directory / "ca.crt").write_bytes(self.authority.pem)
        return self.authority

    def settings(self) -> dict[str, Value]:
        return {
            "tls.server.mode": "disabled",
            "tls.server.certPath": str(self.directory / "tls.crt"),
            "tls.server.keyPath": str(self.directory / "tls.key"),
            "tls.server.trustCertPath": str(self.directory / "ca.crt"),
            "tls.server.need.client.auth": "require",
            "externalTlsMode": "enforcing",
        }


class ExternalCluster:
    """A cluster whose brokers and nameserver have an external port."""

    def __init__(self, directory: Path) -> None:
        self.certificates = Certificates(directory / "server")
        self.first = self.certificates.issue("first")
        self.nameserver_port, self.broker_port = free_port("0.0.0.0"), free_port("0.0.0.0")
        tls = self.certificates.settings()
        self.cluster = OurCluster(
            directory,
            broker={**tls, "externalListenPort": self.broker_port},
            nameserver={**tls, "externalListenPort": self.nameserver_port},
            octet=58,
        )

    @property
    def nameserver(self) -> str:
        return f"{self.cluster.nameserver_address.partition(':')[0]}:{self.nameserver_port}"

    @property
    def broker(self) -> str:
        return f"{self.cluster.broker_address.partition(':')[0]}:{self.broker_port}"


@pytest.fixture
def external(tmp_path: Path) -> Iterator[ExternalCluster]:
    made = ExternalCluster(tmp_path)
    with made.cluster:
        yield made


def client_properties(authority: Authority, directory: Path) -> list[str]:
    """The properties of a client that trusts this authority and has its certificate."""
    crt, key = authority.issue(directory, "client")
    ca = directory / "ca.crt"
    ca.write_bytes(authority.pem)
    return [
        "-Dtls.enable=true",
        # A handshake takes seconds on a busy machine.
        f"-Dcom.rocketmq.remoting.client.connect.timeout={PATIENCE_S * 1000}",
        "-Dtls.test.mode.enable=false",
        "-Dtls.client.authServer=true",
        f"-Dtls.client.trustCertPath={ca}",
        f"-Dtls.client.certPath={crt}",
        f"-Dtls.client.keyPath={key}",
    ]


def wait_served(external: ExternalCluster, authority: Authority, directory: Path) -> None:
    """Waits until both external ports serve a client of this authority. (The servers look at the files when a
    client connects, at most once in a period.)"""
    context = ssl.create_default_context(cadata=authority.pem.decode())
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    context.check_hostname = False  # the addresses are not in the certificate
    for address in (external.nameserver, external.broker):
        wait_until(partial(_is_served, address, context), what=f"{address} has the new certificates")


def _is_served(address: str, context: ssl.SSLContext) -> bool:
    with (
        socket.create_connection(split_address(address), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(frame(UNKNOWN_CODE))
        # With TLS 1.3 a server rejects a client's certificate after the handshake.
        return bool(read_frame(connection))


def round_trip(external: ExternalCluster, topic: str, jvm: list[str], home: Path) -> tuple[int, str]:
    """(exit status, output) of a client that sends and receives messages."""
    classes = compile_java("RoundTrip.java", "ToolProcess.java")
    args = [external.nameserver, topic]
    done = run_java("RoundTrip", args, home=home, classes=classes, jvm=jvm, check=False, timeout_s=240)
    return done.returncode, done.stdout + done.stderr


def test_java_clients_use_the_external_ports_by_mutual_tls_while_certificates_are_replaced(
    external: ExternalCluster, tmp_path: Path
) -> None:
    jvm = client_properties(external.first, tmp_path / "client-1")
    status, output = round_trip(external, "before", jvm, tmp_path / "home-1")
    assert (status, re.findall(r"^broker .*$", output, re.M)) == (
        0,
        [f"broker {external.broker} received 20 equal true"],
    ), output[-3000:]

    second = external.certificates.issue("second")
    jvm_2 = client_properties(second, tmp_path / "client-2")
    wait_served(external, second, tmp_path / "client-2")
    status, output = round_trip(external, "after", jvm_2, tmp_path / "home-2")
    assert (status, re.findall(r"^broker .*$", output, re.M)) == (
        0,
        [f"broker {external.broker} received 20 equal true"],
    ), output[-3000:]

    for process in (external.cluster.nameserver_process, external.cluster.broker_process):
        assert "reloaded" in process.output(100_000)
    wait_until(external.cluster.broker_registered, what="the broker is registered")
