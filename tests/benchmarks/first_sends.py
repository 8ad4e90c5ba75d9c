"""First messages to many queues: to 5,000 queues of one topic, and the second message of each of 1,000 topics
that the first one has made, ours and RocketMQ's; and meanwhile the latencies of another producer.

    python -m tests.benchmarks.first_sends [--peer ours|java] [--queues N] [--topics N] [--data DIR]

Prints a JSON object for each load: messages a second with 64 in flight on one connection, and p50 and p99 in
ms of single sends to a queue that exists already.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.peers import UPDATE_AND_CREATE_TOPIC, Peer
from tests.support.remoting import call

NAME = ""
"""The broker; its name does not matter."""
DEPTH = 64
DEADLINE_S = 600
BODY = bytes(1024)
_CODE = b'"code":'


def frame(opaque: int, topic: str, queue_id: int, queues: int) -> bytes:
    """One SEND_MESSAGE_V2."""
    fields = {
        "a": "first",
        "b": topic,
        "c": "TBW102",
        "d": str(queues),
        "e": str(queue_id),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "i": f"UNIQ_KEY\x017F000001{opaque:024X}\x02WAIT\x01true",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": NAME,
    }
    header = json.dumps(
        {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 479}
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(BODY), len(header)) + header + BODY


def answers(sock: socket.socket) -> Iterator[int]:
    """The response codes, as they come."""
    data = b""
    while True:
        more = sock.recv(1 << 16)
        if not more:
            raise ConnectionError("the broker has closed the connection")
        data += more
        at = 0
        while len(data) - at >= 4 and len(data) - at >= 4 + int.from_bytes(data[at : at + 4], "big"):
            size = int.from_bytes(data[at : at + 4], "big")
            code = data.index(_CODE, at) + len(_CODE)
            yield int(data[code : data.index(b",", code)])
            at += 4 + size
        data = data[at:]


def connect(address: str) -> socket.socket:
    """A connection to a broker."""
    host, port = address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)), timeout=DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def send_all(address: str, frames: list[bytes]) -> tuple[float, dict[int, int]]:
    """Sends with DEPTH in flight: seconds it took, and how many answers of each code there were."""
    codes: dict[int, int] = {}
    with connect(address) as sock:
        begun = time.monotonic()
        sock.sendall(b"".join(frames[:DEPTH]))
        sent = min(DEPTH, len(frames))
        for done, code in enumerate(answers(sock), 1):
            codes[code] = codes.get(code, 0) + 1
            if done == len(frames):
                break
            if sent < len(frames):
                sock.sendall(frames[sent])
                sent += 1
        return time.monotonic() - begun, codes


class Other:
    """Another producer, one message at a time, 200 a second."""

    def __init__(self, address: str, topic: str) -> None:
        self.times_ms: list[float] = []
        self._address = address
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with connect(self._address) as sock:
            codes = answers(sock)
            number = 1 << 20
            while not self._over.wait(0.005):
                number += 1
                begun = time.monotonic()
                sock.sendall(frame(number, self._topic, 0, 8))
                next(codes)
                self.times_ms.append((time.monotonic() - begun) * 1000)

    def stop(self) -> dict[str, float]:
        """p50, p99 and the longest, in ms."""
        self._over.set()
        self._thread.join()
        times = sorted(self.times_ms) or [0.0]
        return {
            "p50": round(times[len(times) // 2], 2),
            "p99": round(times[len(times) * 99 // 100], 2),
            "max": round(times[-1], 2),
        }


def measure(name: str, peer: Peer, frames: list[bytes]) -> None:
    """One load beside another producer, printed."""
    other = Other(peer.cluster.broker_address, "Other")
    seconds, codes = send_all(peer.cluster.broker_address, frames)
    result = {
        "load": name,
        "peer": peer.name,
        "per_second": round(len(frames) / seconds),
        "codes": codes,
        "other_ms": other.stop(),
    }
    print(json.dumps(result), flush=True)


def run(peer: Peer, queues: int, topics: int) -> None:
    """All loads on one broker."""
    address = peer.cluster.broker_address
    peer.create_topic("Other")
    measure("warm up", peer, [frame(number, "Other", number % 8, 8) for number in range(1, 20_001)])
    header = {
        "topic": "Many",
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert call(address, UPDATE_AND_CREATE_TOPIC, header).code == 0
    measure(
        f"first sends to {queues} queues",
        peer,
        [frame(number, "Many", number - 1, queues) for number in range(1, queues + 1)],
    )
    measure(
        f"second sends to {queues} queues",
        peer,
        [frame(number, "Many", number - 1, queues) for number in range(1, queues + 1)],
    )
    for turn, word in enumerate(("first", "second", "third")):
        frames = [frame(1 + number, f"New{number}", turn, 8) for number in range(topics)]
        measure(f"{word} messages of {topics} new topics", peer, frames)


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--peer", choices=("ours", "java"), default="ours")
    parser.add_argument("--queues", type=int, default=5000)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--data", type=Path, default=Path(".cache/first_sends"))
    options = parser.parse_args()
    directory = options.data.absolute()
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    peer = Peer(options.peer, directory)
    peer.cluster.start()
    try:
        run(peer, options.queues, options.topics)
    finally:
        peer.cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
