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

from tests.interop.conftest import CLIENT_KINDS
from tests.interop.java_env import compile_java, run_java
from tests.interop.secured_cluster import MutualTlsCluster, SecuredCluster
from tests.support.process import PATIENCE_S, wait_until
from tests.support.remoting import call, frame, read_frame, split_address

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]


UNKNOWN_CODE = 32_000
"""A request code that every process answers."""


@pytest.fixture(params=[kind for kind in CLIENT_KINDS if kind.values[0] in ("ours", "secured")])
def external(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MutualTlsCluster]:
    """A cluster whose brokers and nameserver have an external port."""
    kind = SecuredCluster if request.param == "secured" else MutualTlsCluster
    with kind(tmp_path) as made:
        yield made


def wait_served(external: MutualTlsCluster) -> None:
    """Waits until both external ports serve a client with the present certificate. (The servers look at the
    files when a client connects, at most once in a period.)"""
    for address in (external.external_nameserver, external.external_broker):
        context = client_context(external)
        wait_until(partial(_is_served, address, context), what=f"{address} has the new certificates")


def client_context(external: MutualTlsCluster, *, has_certificate: bool = True) -> ssl.SSLContext:
    """The TLS of a client that trusts the cluster's authority, with a certificate or without."""
    context = ssl.create_default_context(cadata=external.certificates.authority.pem.decode())
    context.check_hostname = False  # the addresses are not in the certificate
    if has_certificate:
        context.load_cert_chain(external.client_directory / "tls.crt", external.client_directory / "tls.key")
    return context


def _is_served(address: str, context: ssl.SSLContext) -> bool:
    with (
        socket.create_connection(split_address(address), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(frame(UNKNOWN_CODE))
        # With TLS 1.3 a server rejects a client's certificate after the handshake.
        return bool(read_frame(connection))


def round_trip(external: MutualTlsCluster, topic: str, home: Path) -> tuple[int, str]:
    """(exit status, output) of a client that sends and receives messages."""
    classes = compile_java("RoundTrip.java", "ToolProcess.java")
    access = external.access
    args = [access.nameserver, topic]
    done = run_java("RoundTrip", args, home=home, classes=classes, jvm=access.jvm, check=False, timeout_s=240)
    return done.returncode, done.stdout + done.stderr


def test_java_clients_use_the_external_ports_by_mutual_tls_while_certificates_are_replaced(
    external: MutualTlsCluster, tmp_path: Path
) -> None:
    status, output = round_trip(external, "T_before", tmp_path / "home-1")
    assert (status, re.findall(r"^broker .*$", output, re.M)) == (
        0,
        [f"broker {external.external_broker} received 20 equal true"],
    ), output[-3000:]

    external.certificates.issue("second")
    external.replace_client_certificate()
    wait_served(external)
    status, output = round_trip(external, "T_after", tmp_path / "home-2")
    assert (status, re.findall(r"^broker .*$", output, re.M)) == (
        0,
        [f"broker {external.external_broker} received 20 equal true"],
    ), output[-3000:]

    for process in (external.nameserver_process, external.broker_process):
        assert "reloaded" in process.output(100_000)
    wait_until(external.broker_registered, what="the broker is registered")


def test_external_ports_serve_nobody_without_a_certificate(external: MutualTlsCluster) -> None:
    anonymous = client_context(external, has_certificate=False)
    for address in (external.external_nameserver, external.external_broker):
        assert _is_served(address, client_context(external))
        with pytest.raises(OSError, match=r"certificate required|reset by peer|closed after"):
            _is_served(address, anonymous)
        with pytest.raises(OSError, match=r"reset by peer|closed after"):
            call(address, UNKNOWN_CODE)
