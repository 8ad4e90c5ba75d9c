"""The brokers of a DLedger group talk to each other, and to the nameserver, by mutual TLS only."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

from tests.integration.test_member_tls import ENFORCING, with_settings
from tests.support.certificates import Authority
from tests.support.dledger_group import OurDLedgerGroup
from tests.support.group_processes import our_broker, our_nameserver
from tests.support.process import wait_until
from tests.support.remoting import frame, read_frame, split_address, use_tls_to

UNKNOWN_CODE = 32_000


def files_of(authority: Authority, directory: Path) -> dict[str, str]:
    """The keys of a member with a certificate of this authority."""
    cert, key = authority.issue(directory, "member")
    trusted = directory / "ca.crt"
    trusted.write_bytes(authority.pem)
    found: dict[str, str] = {}
    for side in ("server", "client"):
        found |= {f"tls.{side}.certPath": str(cert), f"tls.{side}.keyPath": str(key)}
        found[f"tls.{side}.trustCertPath"] = str(trusted)
    return found


def client_context(authority: Authority, directory: Path, trusted: Authority) -> ssl.SSLContext:
    """The TLS of a client with a certificate of this authority."""
    context = ssl.create_default_context(cadata=trusted.pem.decode())
    context.check_hostname = False  # the addresses are not in the certificate
    context.load_cert_chain(*authority.issue(directory, "client"))
    return context


def is_served(address: str, context: ssl.SSLContext | None) -> bool:
    """Whether a process answers a request over a connection of this kind."""
    try:
        with socket.create_connection(split_address(address), timeout=30) as plain:
            connection = plain if context is None else context.wrap_socket(plain)
            with connection:
                connection.sendall(frame(UNKNOWN_CODE))
                return bool(read_frame(connection))
    except OSError:
        return False


def test_a_dledger_group_elects_and_serves_by_mutual_tls(tmp_path: Path) -> None:
    ours, others = Authority("ours"), Authority("others")
    tls = {**ENFORCING, **files_of(ours, tmp_path / "files")}
    group = OurDLedgerGroup(
        tmp_path, [our_broker] * 3, broker=tls, nameserver=with_settings(tls, our_nameserver), octet=89
    )
    context = client_context(ours, tmp_path / "client", ours)
    foreign = client_context(others, tmp_path / "foreign", ours)
    for member in group.members:
        use_tls_to(member.address, context)
    with group:
        master = group.wait_master()
        assert group.send(master, b"before")
        peers = re.findall(r"n\d-([^;\s]+)", group.brokers[0].config.read_text())
        assert len(peers) == 3
        for address in peers:
            assert is_served(address, context)
            assert not is_served(address, None)
            assert not is_served(address, foreign)
        master.process.kill()
        second = group.wait_master(other_than=master)
        wait_until(lambda: group.send(second, b"after"), what="the new master stores a message")
        master.start()
        group.wait_in_sync(3)
        group.wait_caught_up()
        assert {b"before", b"after"} <= set(group.wait_equal(group.brokers, 0))
