"""Bad input over real sockets: neither nameserver nor broker crashes or grows, no descriptor leaks, and
the next valid client is served. An invalid configuration file is rejected with key, value and expectation."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from epochmq_protocol.transport.freed_memory import KEPT_BYTES_MAX
from tests.support.bad_frames import BROKER_CODES, NAMESERVER_CODES, BadFrame, BadFrames, Fate, bomb
from tests.support.cluster import Cluster, OurCluster, Value
from tests.support.process import ManagedProcess, wait_until
from tests.support.records import parse_records
from tests.support.remoting import call, frame, split_address

OCTET = 57
SEED = int(os.environ.get("EPOCHMQ_SEED", "20260812"))
CONNECTIONS = 24
BATCH_MAX = 20
ANSWER_TIMEOUT_S = 120
GROWTH_MAX_KB = 24 * 1024
NO_SUCH_REQUEST = 99_999
MARKER = 0x7EADBEEF

ANY_RATE: dict[str, Value] = {"maxNewConnectionsPerAddress": 0}
"""A bad frame ends its connection; on a fast machine they are more than a thousand a second."""
SETTINGS: dict[str, Value] = {
    "mappedFileSizeCommitLog": 8 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 1000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("bad")
    with OurCluster(directory, broker={**SETTINGS, **ANY_RATE}, nameserver=ANY_RATE, octet=OCTET) as running:
        yield running


# ---- measuring a process


def anonymous_kb(process: ManagedProcess) -> int:
    """Resident memory in KiB, without pages of mapped files."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1])
    raise AssertionError("no RssAnon")


def sockets(process: ManagedProcess) -> int:
    """The number of the process's sockets."""
    count = 0
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


def good_client_of_broker(cluster: Cluster) -> None:
    """Sends a message and reads it back."""
    topic, body = f"good-{time.monotonic_ns()}", b"hello"
    header = {
        "a": "good",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
    }
    sent = call(cluster.broker_address, 310, header, body)
    assert sent.code == 0, sent
    header = {
        "consumerGroup": "good-group",
        "topic": topic,
        "queueId": "0",
        "queueOffset": sent.ext["queueOffset"],
        "maxMsgNums": "1",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    pulled = call(cluster.broker_address, 11, header)
    assert pulled.code == 0, pulled
    (record,) = parse_records(pulled.body)
    assert (record.topic, record.body) == (topic, body)


def good_client_of_nameserver(cluster: Cluster) -> None:
    """Asks for the route of a topic and gets the broker."""
    response = call(cluster.nameserver_address, 105, {"topic": cluster.broker_name})
    assert response.code == 0, response
    assert cluster.broker_address.encode() in response.body


# ---- many bad frames


class BadFrameSender:
    """Sends frames over many connections and asserts that the peer treats each one as it should."""

    def __init__(self, address: str, frames: Iterator[BadFrame]) -> None:
        self.address = address
        self.frames = frames
        self.answers = 0

    def _batch(self) -> list[BadFrame]:
        """Frames for one write. A frame after which the connection may be closed comes last, so that the peer
        must process all of them."""
        batch: list[BadFrame] = []
        for item in itertools.islice(self.frames, BATCH_MAX):
            batch.append(item)
            if item.fate is not Fate.SERVED:
                break
        return batch

    async def _until_marker(self, reader: asyncio.StreamReader) -> bool:
        """Reads responses until that of the marker; False when the peer closes before."""
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                data = await reader.readexactly(length)
                self.answers += 1
                header_length = int.from_bytes(data[:4]) & 0xFFFFFF
                header = json.loads(data[4 : 4 + header_length])
                if header["flag"] & 1 and header["opaque"] == MARKER:
                    return True
        except (asyncio.IncompleteReadError, ConnectionError):
            return False

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, batch: list[BadFrame]
    ) -> bool:
        """Sends a batch and waits for its responses; returns whether the connection is still usable."""
        last = batch[-1].fate
        writer.write(b"".join(item.data for item in batch))
        if last is Fate.WAITED_FOR:
            return False
        writer.write(frame(NO_SUCH_REQUEST, opaque=MARKER))
        alive = await self._until_marker(reader)
        if last is Fate.SERVED:
            assert alive, "the peer closed a connection after a frame that it should serve"
        assert last is not Fate.CLOSED or not alive, (
            "the peer kept a connection after a frame that it cannot parse"
        )
        return alive

    async def _worker(self) -> None:
        while batch := self._batch():
            reader, writer = await asyncio.open_connection(*split_address(self.address))
            try:
                while batch:
                    async with asyncio.timeout(ANSWER_TIMEOUT_S):
                        if not await self._send(reader, writer, batch):
                            break
                    batch = self._batch()
            except (AssertionError, TimeoutError) as error:
                kinds = ", ".join(f"{item.kind} ({item.fate.name})" for item in batch)
                raise AssertionError(f"{error or 'no response in time'} after: {kinds}") from error
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):  # the peer may have closed it already
                    await writer.wait_closed()

    async def run(self) -> None:
        """Sends all frames."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(self._worker())


def _is_fault(line: str) -> bool:
    """Whether a log line reports an unexpected exception."""
    return '"level": "error"' in line or "Traceback" in line or " ERROR " in line


def send_bad_frames(process: ManagedProcess, address: str, frames: BadFrames, count: int) -> None:
    """Sends `count` frames, and asserts that memory has not grown since the first fifth and no socket is
    left."""
    source = iter(frames)
    before = sockets(process)
    asyncio.run(BadFrameSender(address, itertools.islice(source, count // 5)).run())
    warm = anonymous_kb(process)
    asyncio.run(BadFrameSender(address, itertools.islice(source, count - count // 5)).run())
    assert process.alive, f"{process.name} ended with {process.status}:\n{process.output()}"
    wait_until(lambda: sockets(process) <= before, what=f"sockets of {process.name} closed (had {before})")
    faults = [line for line in process.output_path.read_text().splitlines() if _is_fault(line)]
    assert not faults, f"{process.name} logged {len(faults)} unexpected exceptions: {faults[0][:2000]}"
    growth = anonymous_kb(process) - warm
    assert growth < GROWTH_MAX_KB, f"{process.name} grew by {growth} kB over {count} bad frames"


def test_a_broker_survives_20000_bad_frames(cluster: Cluster) -> None:
    send_bad_frames(cluster.broker_process, cluster.broker_address, BadFrames(SEED, BROKER_CODES), 20_000)
    good_client_of_broker(cluster)


def test_a_nameserver_survives_12000_bad_frames(cluster: Cluster) -> None:
    send_bad_frames(
        cluster.nameserver_process, cluster.nameserver_address, BadFrames(SEED, NAMESERVER_CODES), 12_000
    )
    good_client_of_nameserver(cluster)


@pytest.mark.soak
def test_both_survive_half_a_million_bad_frames_each(cluster: Cluster) -> None:
    seed = SEED if "EPOCHMQ_SEED" in os.environ else int(time.time())
    print(f"EPOCHMQ_SEED={seed}")
    send_bad_frames(cluster.broker_process, cluster.broker_address, BadFrames(seed, BROKER_CODES), 500_000)
    send_bad_frames(
        cluster.nameserver_process, cluster.nameserver_address, BadFrames(seed, NAMESERVER_CODES), 500_000
    )
    good_client_of_broker(cluster)
    good_client_of_nameserver(cluster)


def _both(cluster: Cluster) -> list[tuple[ManagedProcess, str]]:
    return [
        (cluster.broker_process, cluster.broker_address),
        (cluster.nameserver_process, cluster.nameserver_address),
    ]


def test_unfinished_frames_cost_no_memory_and_disturb_no_client(cluster: Cluster) -> None:
    """Two hundred connections each announce the largest allowed frame and send a little of it, byte by
    byte."""
    for process, address in _both(cluster):
        before, count = anonymous_kb(process), sockets(process)
        slow = [socket.create_connection(split_address(address)) for _ in range(200)]
        try:
            for step in range(20):
                for connection in slow:
                    connection.sendall(struct.pack(">II", 16_777_212, 16_000_000)[step : step + 1] or b"{")
            good_client_of_broker(cluster)
            good_client_of_nameserver(cluster)
            growth = anonymous_kb(process) - before
            assert growth < GROWTH_MAX_KB, f"{process.name} grew by {growth} kB for 200 half-sent headers"
        finally:
            for connection in slow:
                connection.close()
        wait_until(lambda p=process, n=count: sockets(p) <= n, what="the sockets are gone")  # type: ignore[misc]


def test_a_client_that_never_reads_responses_does_not_fill_the_peers_memory(cluster: Cluster) -> None:
    asks = {"broker": (28, cluster.broker_address), "nameserver": (206, cluster.nameserver_address)}
    for process, _ in _both(cluster):
        code, address = asks[process.name.split()[-1]]
        before = anonymous_kb(process)
        with socket.create_connection(split_address(address)) as greedy:
            greedy.settimeout(2)
            request = b"".join(frame(code, opaque=n) for n in range(1000))
            try:
                for _ in range(200):
                    greedy.sendall(request)
            except TimeoutError:
                pass  # the peer stopped reading, which is allowed
            good_client_of_broker(cluster)
            good_client_of_nameserver(cluster)
            growth = anonymous_kb(process) - before
            assert growth < 3 * GROWTH_MAX_KB, (
                f"{process.name} grew by {growth} kB for a client that does not read"
            )


def test_a_compressed_registration_is_decompressed_up_to_a_bound(cluster: Cluster) -> None:
    """The memory of the first ones is kept for the next ones."""
    process = cluster.nameserver_process
    for growth_max_kb in (KEPT_BYTES_MAX // 1024 + GROWTH_MAX_KB, GROWTH_MAX_KB):
        before = anonymous_kb(process)
        for _ in range(5):
            with socket.create_connection(
                split_address(cluster.nameserver_address), timeout=60
            ) as connection:
                connection.sendall(bomb())
                connection.recv(4096)
        good_client_of_nameserver(cluster)
        growth = anonymous_kb(process) - before
        assert growth < growth_max_kb, f"the nameserver grew by {growth} kB for five compression bombs"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("deleteWhen", "25"),
        ("fileReservedTime", "soon"),
        ("brokerPermission", "all"),
        ("defaultTopicQueueNums", "-3"),
    ],
)
def test_a_bad_configuration_update_is_rejected_as_a_whole(cluster: Cluster, key: str, value: str) -> None:
    before = call(cluster.broker_address, 26).body
    response = call(cluster.broker_address, 25, body=f"maxMessageSize=1000000\n{key}={value}\n".encode())
    assert response.code != 0
    assert key in (response.remark or ""), response
    assert value in (response.remark or ""), response
    assert call(cluster.broker_address, 26).body == before, "a rejected update changed something"


# ---- configuration files


def refuse(role: str, path: Path) -> str:
    """Starts a process that must reject its configuration at once, without a traceback; returns its
    output."""
    command = [sys.executable, "-m", "epochmq", role, "--config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    output = done.stdout + done.stderr
    assert done.returncode not in (0, None), f"it started: {output}"
    assert done.returncode > 0, f"a signal ended it: {output}"
    assert "Traceback" not in output, output
    return output


@pytest.mark.parametrize(
    ("role", "key", "value", "expected"),
    [
        ("broker", "listenPort", "many", "whole number"),
        ("broker", "listenPort", "70000", "65535"),
        ("broker", "flushDiskType", "MAYBE_FLUSH", "SYNC_FLUSH"),
        ("broker", "brokerRole", "KING", "MASTER"),
        ("broker", "mappedFileSizeCommitLog", "12", "4096"),
        ("broker", "deleteWhen", "25", "00 to 23"),
        ("broker", "namesrvAddr", "nowhere", "host:port"),
        ("broker", "autoCreateTopicEnable", "perhaps", "true"),
        ("nameserver", "listenPort", "-1", "1"),
        ("nameserver", "scanNotActiveBrokerInterval", "often", "whole number"),
        ("nameserver", "orderMessageEnable", "2", "true"),
    ],
)
def test_an_invalid_value_is_rejected_with_key_value_and_expectation(
    tmp_path: Path, role: str, key: str, value: str, expected: str
) -> None:
    path = tmp_path / f"{role}.conf"
    path.write_text(f"storePathRootDir={tmp_path / 'store'}\n{key}={value}\n")
    output = refuse(role, path)
    for part in (key, value, expected):
        assert part in output, f"{part!r} is not in: {output}"
    assert not (tmp_path / "store").exists(), "a broker that rejected its settings left files"


@pytest.mark.parametrize("role", ["broker", "nameserver"])
def test_an_unreadable_configuration_file_is_named(tmp_path: Path, role: str) -> None:
    assert "nothing.conf" in refuse(role, tmp_path / "nothing.conf")
    (tmp_path / "noise.conf").write_bytes(b"\xff\xfe\x00listenPort=1\n")
    assert "noise.conf" in refuse(role, tmp_path / "noise.conf")
