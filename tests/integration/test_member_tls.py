"""A group of three brokers under three controllers whose members talk to each other by mutual TLS only."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from epochmq_protocol.ha_frames import ReplicaHandshake, encode_replica_handshake
from tests.support.certificates import Authority
from tests.support.group_processes import Factory, Member, our_broker, our_controller, our_nameserver
from tests.support.group_traffic import check_equal, deliver_to, read_queue, wait_confirmed
from tests.support.process import PATIENCE_S, ManagedProcess, wait_until
from tests.support.remoting import frame, read_frame, split_address, use_tls_to
from tests.support.replica_group import ReplicaGroup

GET_BROKER_RUNTIME_INFO = 28
ENFORCING = {"tls.server.mode": "enforcing", "tls.server.need.client.auth": "require"}
SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2}


class MutualTlsGroup(ReplicaGroup):
    """Every process has the same `tls.properties`. `call` connects with a certificate of the authority."""

    def __init__(self, directory: Path) -> None:
        self.files = directory / "certificates"
        self.authority = Authority("first")
        self.issue(self.authority)
        tls = {**ENFORCING, "tls.config.file": str(self._properties())}
        super().__init__(
            directory,
            [our_controller] * 3,
            [our_broker] * 3,
            controller=tls,
            broker={**tls, **SAFE, "haTlsMode": "enforcing"},
            nameserver=with_settings(tls, our_nameserver),
            octet=88,
        )
        self.use_certificate(self.authority)

    def _properties(self) -> Path:
        path = self.files / "tls.properties"
        names = {"certPath": "tls.crt", "keyPath": "tls.key", "trustCertPath": "ca.crt"}
        lines = [
            f"tls.{side}.{key}={self.files / name}\n"
            for side in ("server", "client")
            for key, name in names.items()
        ]
        path.write_text("".join(lines))
        return path

    def issue(self, authority: Authority) -> None:
        """Replaces the certificate of all members."""
        authority.issue(self.files, "member")
        if not (self.files / "ca.crt").exists():
            self.trust(authority)

    def trust(self, *authorities: Authority) -> None:
        """Replaces the authorities that all members trust."""
        (self.files / "ca.crt").write_bytes(b"".join(one.pem for one in authorities))

    def context(self, authority: Authority, *, trusted: Authority | None = None) -> ssl.SSLContext:
        """The TLS of a client with a certificate of this authority."""
        cert, key = authority.issue(self.directory / "client", "client")
        context = ssl.create_default_context(cadata=(trusted or authority).pem.decode())
        context.check_hostname = False  # the addresses are not in the certificate
        context.load_cert_chain(cert, key)
        return context

    def use_certificate(self, authority: Authority) -> None:
        """Lets `call` connect with a certificate of this authority."""
        context = self.context(authority)
        for member in self.members:
            use_tls_to(member.address, context)


def with_settings(settings: dict[str, str], make: Factory) -> Factory:
    """A process with these settings besides those of its file."""

    def made(config: Path) -> ManagedProcess:
        with config.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in settings.items())
        return make(config)

    return made


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutualTlsGroup]:
    with MutualTlsGroup(tmp_path_factory.mktemp("group")) as made:
        yield made


def stored(group: ReplicaGroup) -> list[bytes]:
    """The bodies in queue 0 of the master, each once."""
    return list(dict.fromkeys(record.body for record in read_queue(wait_confirmed(group))))


def bring_back(group: ReplicaGroup, member: Member) -> None:
    member.start()
    group.wait_in_sync(3)


def is_served(address: str, context: ssl.SSLContext | None) -> bool:
    """Whether a process answers a request over a connection of this kind."""
    try:
        with socket.create_connection(split_address(address), timeout=30) as plain:
            connection = plain if context is None else context.wrap_socket(plain)
            with connection:
                connection.sendall(frame(GET_BROKER_RUNTIME_INFO))
                return bool(read_frame(connection))
    except OSError:
        return False


def is_read(master: Member, context: ssl.SSLContext | None) -> bool:
    """Whether the master answers the handshake of a replica over a connection of this kind."""
    host, port = split_address(master.address)
    try:
        with socket.create_connection((host, port + 1), timeout=30) as plain:
            connection = plain if context is None else context.wrap_socket(plain)
            with connection:
                connection.sendall(encode_replica_handshake(ReplicaHandshake(99)))
                return bool(connection.recv(1))
    except OSError:
        return False


def wait_served(group: MutualTlsGroup, context: ssl.SSLContext, what: str, *, expected: bool = True) -> None:
    """Waits until every member serves this client, or none does."""
    for member in group.members:
        wait_until(partial(_serves, member.address, context, expected), what=f"{member.name} {what}")


def _serves(address: str, context: ssl.SSLContext, expected: bool) -> bool:
    return is_served(address, context) is expected


def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(group: MutualTlsGroup) -> None:
    kept = [b"failover-%d" % number for number in range(20)]
    for body in kept:
        master = deliver_to(group, body)
    master.process.kill()
    assert deliver_to(group, b"failover-after") is not master
    bring_back(group, master)
    assert set(stored(group)) >= {*kept, b"failover-after"}
    check_equal(group)


def test_strangers_are_served_by_no_member_and_change_nothing(group: MutualTlsGroup) -> None:
    deliver_to(group, b"before strangers")
    epoch, in_sync = group.epoch(), group.in_sync()
    other = Authority("other")
    foreign = group.context(other, trusted=group.authority)
    for member in group.members:
        assert is_served(member.address, group.context(group.authority))
        assert not is_served(member.address, None), member.name
        assert not is_served(member.address, foreign), member.name
    master = group.wait_master()
    for context in (None, foreign):
        assert not is_read(master, context)
    assert is_read(master, group.context(group.authority))
    assert (group.epoch(), group.in_sync()) == (epoch, in_sync)
    deliver_to(group, b"after strangers")


def test_certificates_and_authority_are_replaced_without_a_lost_acknowledgement(
    group: MutualTlsGroup,
) -> None:
    """First all trust both authorities, then all have a certificate of the new one, then only that one is
    trusted. Afterwards every member is restarted once, so that all connections are made anew."""
    first, second = group.authority, Authority("second")
    kept: list[bytes] = []

    def deliver_some(step: str) -> None:
        for number in range(10):
            kept.append(b"%s-%d" % (step.encode(), number))
            deliver_to(group, kept[-1])

    deliver_some("before")
    group.trust(first, second)
    wait_served(group, group.context(second, trusted=first), "trusts both")
    deliver_some("trusted")
    group.issue(second)
    wait_served(group, group.context(second), "has the new certificate")
    group.authority = second
    group.use_certificate(second)
    deliver_some("issued")
    group.trust(second)
    former = group.context(first, trusted=second)
    wait_served(group, former, "trusts the new authority only", expected=False)
    deliver_some("alone")
    for member in group.brokers:
        member.process.kill()
        deliver_some(f"without {member.name}")
        bring_back(group, member)
    leader = group.wait_leader()
    leader.process.kill()
    group.wait_leader(other_than=leader)
    leader.start()
    deliver_some("after")
    assert set(stored(group)) >= set(kept)
    check_equal(group)


def test_commands_for_members_connect_with_a_certificate(group: MutualTlsGroup) -> None:
    leader = group.wait_leader()
    command = [sys.executable, "-m", "epochmq", "controller", "members", leader.address]
    tls = {"EPOCHMQ_TLS_CONFIG": str(group.files / "tls.properties")}
    certified, plain = (
        subprocess.run(
            command, env=os.environ | more, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        for more in (tls, {})
    )
    assert certified.returncode == 0, certified.stderr
    assert all(member.address in certified.stdout for member in group.controllers)
    assert (plain.returncode, plain.stdout) == (1, "")
