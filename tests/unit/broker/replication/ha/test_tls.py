"""Master and replica replicate by mutual TLS, and a stranger gets nothing."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from epochmq_broker.replication.ha.tls import ARRIVALS_MAX
from epochmq_protocol.errors import ConfigError
from epochmq_protocol.ha_frames import ReplicaHandshake, encode_replica_handshake
from tests.support.certificates import Authority
from tests.support.member_secrets import secret_file
from tests.unit.broker.replication.ha.broker_node import BrokerNode, until
from tests.unit.broker.replication.ha.test_strangers import Stranger, follow, joined, lead, node

MODES = pytest.mark.parametrize("controlled", [True, False], ids=["controlled", "plain"])


def sealed(
    tmp_path: Path, authority: Authority, mode: str = "enforcing", name: str = "files"
) -> dict[str, str]:
    """The settings of a broker with a certificate of this authority."""
    folder = tmp_path / name
    if not folder.exists():
        authority.issue(folder, "member")
        (folder / "ca.crt").write_bytes(authority.pem)
    names = {"certPath": "tls.crt", "keyPath": "tls.key"}
    files = {
        f"tls.{side}.{key}": str(folder / file)
        for side in ("server", "client")
        for key, file in names.items()
    }
    return {"haTlsMode": mode, "tls.client.trustCertPath": str(folder / "ca.crt"), **files}


@MODES
async def test_the_log_is_replicated_inside_of_tls(tmp_path: Path, controlled: bool) -> None:
    """Small blocks, and a catch-up of many files."""
    authority = Authority("members")
    settings = sealed(tmp_path, authority) | {"memberSecretPath": secret_file(tmp_path / "secret")}
    settings["haTransferBatchSize"] = str(1 << 20)
    async with (
        node(tmp_path, 1, settings, controlled=controlled) as master,
        node(tmp_path, 2, settings, controlled=controlled) as replica,
    ):
        await lead(master)
        master.put(3000)
        await joined(master, replica)
        for _ in range(5):
            master.put(10)
            await until(lambda: replica.end == master.end, "the replica has the new messages")
        received = replica.log_bytes()  # without controllers an empty slave gets the last file only
        assert received == master.log_bytes()[-len(received) :]
        assert len(received) > 10_000
        assert master.ha.server is not None
        assert [one.remote.partition(":")[0] for one in master.ha.server.transferring] == ["127.0.0.1"]


async def test_an_enforcing_master_serves_neither_plain_replicas_nor_those_of_another_authority(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours, others = Authority("ours"), Authority("others")
    async with node(tmp_path, 1, sealed(tmp_path, ours)) as master:
        await lead(master)
        master.put(10)
        before = master.ha.confirm_offset
        plain = await Stranger.connect(master)
        plain.writer.write(encode_replica_handshake(ReplicaHandshake(2)))
        assert await plain.until_closed() == b""
        assert await _read_by_tls(master, others, tmp_path) == b""
        async with node(tmp_path, 2, sealed(tmp_path, others, name="others")) as replica:
            await follow(replica, master.address)
            await until(lambda: "TLS with the master failed" in caplog.text, "the replica has tried")
            assert replica.end == 0
        assert master.ha.server is not None
        assert master.ha.server.connections == []
        assert master.ha.confirm_offset == before


async def _read_by_tls(master: BrokerNode, authority: Authority, tmp_path: Path) -> bytes:
    """What a client with a certificate of this authority reads, which verifies nothing."""
    cert, key = authority.issue(tmp_path / "stranger", "stranger")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(cert, key)
    host, _, port = master.address.rpartition(":")
    async with asyncio.timeout(60):
        try:
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            writer.write(encode_replica_handshake(ReplicaHandshake(2)))
            return await reader.read()
        except OSError:
            return b""


async def test_a_group_changes_over_by_permissive_brokers(tmp_path: Path) -> None:
    """A permissive master serves plain replicas; a permissive replica follows a plain master."""
    permissive = sealed(tmp_path, Authority("members"), "permissive")
    for first, second in (({}, permissive), (permissive, {}), (permissive, permissive)):
        directory = tmp_path / f"{len(first)}-{len(second)}"
        async with node(directory, 1, first) as master, node(directory, 2, second) as replica:
            await lead(master)
            master.put(10)
            await joined(master, replica)
            assert replica.log_bytes() == master.log_bytes()


async def test_silent_connections_take_no_place_of_a_replica(tmp_path: Path) -> None:
    settings = sealed(tmp_path, Authority("members"))
    async with node(tmp_path, 1, settings) as master, node(tmp_path, 2, settings) as replica:
        await lead(master)
        master.put(10)
        await joined(master, replica)
        strangers = [await Stranger.connect(master) for _ in range(ARRIVALS_MAX + 4)]
        for stranger in strangers[:4]:
            assert await stranger.until_closed() == b""
        master.put(1)
        await until(lambda: replica.end == master.end, "the replica is served")
        for stranger in strangers:
            stranger.close()


async def test_new_connections_use_replaced_certificates(tmp_path: Path) -> None:
    """Both brokers get a certificate of another authority while they run."""
    second = Authority("second")
    settings = sealed(tmp_path, Authority("first"))
    async with node(tmp_path, 1, settings) as master, node(tmp_path, 2, settings) as replica:
        await lead(master)
        master.put(10)
        await joined(master, replica)
        assert replica.ha.tls is not None
        assert master.ha.tls is not None
        old = (replica.ha.tls.connecting, master.ha.tls.accepting)
        second.issue(tmp_path / "files", "member")
        (tmp_path / "files" / "ca.crt").write_bytes(second.pem)
        await until(lambda: replica.ha.tls and replica.ha.tls.connecting is not old[0])
        await until(lambda: master.ha.tls and master.ha.tls.accepting is not old[1])
        assert replica.ha.client is not None
        replica.ha.client.reconnect()
        master.put(10)
        await until(lambda: replica.end == master.end, "the replica follows with the new certificate")
        assert await _read_by_tls(master, Authority("third"), tmp_path) == b""


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    settings = sealed(tmp_path, Authority("members"))
    (tmp_path / "files" / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match=r"tls\.client\.trustCertPath=.*ca\.crt"):
        BrokerNode(tmp_path / "broker", 1, settings)
