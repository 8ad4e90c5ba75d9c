"""More clients than a broker has descriptors for: it rejects connections, and its store keeps working."""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import OurCluster
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import frame, read_frame, split_address

OCTET = 57
LIMIT = 256
FLOOD = 2 * LIMIT
SUCCESS, SYSTEM_ERROR = 0, 1


class FewDescriptors(OurCluster):
    """A broker that may open at most `LIMIT` descriptors."""

    def _broker(self, config: Path) -> ManagedProcess:
        process = super()._broker(config)
        process._command[:0] = ["prlimit", f"--nofile={LIMIT}:{LIMIT}"]
        return process


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FewDescriptors]:
    if shutil.which("prlimit") is None:
        pytest.skip("missing: prlimit (util-linux), to lower the limit of a process")
    running = FewDescriptors(
        tmp_path,
        broker={
            "flushDiskType": "SYNC_FLUSH",
            "mappedFileSizeCommitLog": 4 * 1024 * 1024,
            "maxMessageSize": 256 * 1024,
            "flushIntervalConsumeQueue": 100,
            "flushConsumeQueueThoroughInterval": 100,
        },
        octet=OCTET,
    )
    try:
        running.start()
        yield running
    finally:
        running.stop()


def send(connection: socket.socket, number: int, topic: int) -> int:
    """Sends to one of the topics, each of which needs a queue file and an entry in topics.json; the response
    code."""
    header = {"a": "few", "b": f"topic{topic}", "c": "TBW102", "d": "1", "e": "0", "f": "0"}
    header |= {"g": "1700000000000", "h": "0", "i": f"UNIQ_KEY\x01{number:032X}\x02"}
    connection.sendall(frame(310, header, bytes(20_000), opaque=number))
    response, _ = read_frame(connection)
    return int(response["code"])


def rejected(peer: socket.socket) -> bool:
    """Whether the broker has closed this connection."""
    with contextlib.suppress(BlockingIOError):
        try:
            return peer.recv(1) == b""
        except ConnectionError:
            return True
    return False


def test_more_clients_than_descriptors_cost_connections_and_not_the_store(cluster: FewDescriptors) -> None:
    address = split_address(cluster.broker_address)
    early = socket.create_connection(address, timeout=120)
    with early, contextlib.ExitStack() as flood:
        assert send(early, 0, 0) == SUCCESS
        peers = []
        for _ in range(FLOOD):
            peer = flood.enter_context(socket.create_connection(address, timeout=60))
            peer.setblocking(False)
            peers.append(peer)
        wait_until(lambda: sum(map(rejected, peers)) > FLOOD - LIMIT, what="connections are rejected")
        # New queues, new log files, flushes and tables: all of them need descriptors.
        for number in range(1, 101):
            assert send(early, number, number % 20) == SUCCESS
        assert sum(map(rejected, peers)) < FLOOD - LIMIT // 4, "some connections are served"

    def served() -> bool:
        with socket.create_connection(address, timeout=120) as late:
            return send(late, 200, 0) == SUCCESS

    wait_until(served, what="a new client is served")

    with socket.create_connection(address, timeout=120) as late:
        # A queue file may hold a descriptor. Too many are open: new queues are rejected, the others keep
        # working.
        codes = [send(late, number, number) for number in range(1000, 1000 + 2 * LIMIT)]
        if SUCCESS not in codes[-10:]:
            assert codes[0] == SUCCESS
            assert set(codes) == {SUCCESS, SYSTEM_ERROR}
        for number in range(2000, 2100):
            assert send(late, number, number % 20) == SUCCESS
    assert cluster.stop_broker() == 0
    assert not (cluster.store / "abort").exists(), "the stop was clean: no flush has failed"
    log = cluster.broker_process.output_path.read_text()
    assert "fsync failed" not in log
    assert "rejected" in log
