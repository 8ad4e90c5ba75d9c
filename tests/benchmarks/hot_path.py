"""Measures the CPU time of the broker's own code for a send and for a pull, in microseconds, without the
kernel.

`python -m tests.benchmarks.hot_path` passes frames to a connection whose transport discards the responses. It
measures everything from the bytes of a read to the bytes of a write (frame, header, record, consume queue,
index, response), but neither the network nor, with the store on /dev/shm, the disk. It prints the fastest of
many short rounds."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epochmq_broker.broker import Broker
from epochmq_broker.config import from_properties
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_protocol.transport.loop import run
from epochmq_protocol.transport.settings import ServerSettings
from tests.support.net import free_port, loopback
from tests.support.remoting import frame

OCTET = 57
QUEUES = 8
BODY = bytes(range(256)) * 4
ROUNDS = 24
FRAMES = 3200  # in a round
PULLS = 480
PULL_BATCH = 32
SHARED_MEMORY = Path("/dev/shm")
SEND_MESSAGE_V2, PULL_MESSAGE, UPDATE_AND_CREATE_TOPIC = 310, 11, 17


class DiscardingTransport:
    """The transport of a connection; it discards all data."""

    def write(self, data: bytes) -> None:
        """asyncio.Transport.write."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """asyncio.Transport.get_extra_info."""
        return ("127.0.0.1", 40_000)

    def get_write_buffer_size(self) -> int:
        """The buffer is always empty."""
        return 0

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_arguments, **_options: None


def send(number: int) -> bytes:
    """The frame of a send, as RocketMQ's client encodes it."""
    properties = f"UNIQ_KEY\x017F00000112341234{number:016d}\x02WAIT\x01true\x02TAGS\x01TagA"
    header = {"a": "bench", "b": "hot", "c": "TBW102", "d": "8", "e": str(number % QUEUES), "f": "0"}
    header |= {
        "g": "1763720000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "b",
    }
    return frame(SEND_MESSAGE_V2, header, BODY, opaque=number)


def pull(number: int) -> bytes:
    """The frame of a pull of 32 messages."""
    header = {
        "consumerGroup": "bench",
        "topic": "hot",
        "queueId": str(number % QUEUES),
        "queueOffset": str(number * PULL_BATCH % (ROUNDS * FRAMES // QUEUES - PULL_BATCH)),
        "maxMsgNums": str(PULL_BATCH),
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    return frame(PULL_MESSAGE, header, opaque=number)


async def measure(
    connection: RemotingConnection, make: Callable[[int], bytes], frames: int, in_a_read: int
) -> float:
    """The CPU time for each frame in µs, with `in_a_read` frames in one read."""
    best = float("inf")
    for number in range(ROUNDS):
        first = number * frames
        reads = [
            b"".join(make(first + at + k) for k in range(in_a_read)) for at in range(0, frames, in_a_read)
        ]
        started = time.process_time()
        for data in reads:
            connection.data_received(data)
        best = min(best, (time.process_time() - started) / (len(reads) * in_a_read) * 1e6)
        await asyncio.sleep(0)  # lets the broker run its own tasks between rounds
    return best


async def main(directory: Path) -> None:
    """Prints the table."""
    host = loopback(OCTET)
    settings = {
        "storePathRootDir": str(directory),
        "bindAddress": host,
        "brokerIP1": host,
        "listenPort": str(free_port(host)),
        "mappedFileSizeCommitLog": str(256 << 20),
    }
    broker = Broker(from_properties(settings))
    await broker.start()
    try:
        connection = RemotingConnection(broker.ports.main.dispatcher, ServerSettings())
        connection.connection_made(DiscardingTransport())
        topic = {"topic": "hot", "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "perm": "6"}
        topic |= {
            "writeQueueNums": str(QUEUES),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        connection.data_received(frame(UPDATE_AND_CREATE_TOPIC, topic))
        for name, make, frames, in_a_read in (
            ("send, 16 in a read", send, FRAMES, 16),
            ("pull, 1 in a read", pull, PULLS, 1),
            ("pull, 8 in a read", pull, PULLS, 8),
        ):
            print(
                f"{name:20} {await measure(connection, make, frames, in_a_read):6.2f} µs for each request",
                flush=True,
            )
    finally:
        await broker.stop()


if __name__ == "__main__":
    parent = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="epochmq-hot-path-") as scratch:
        run(main(Path(scratch)))
