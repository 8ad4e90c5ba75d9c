"""Counts the instructions of a broker's process for a request, of this checkout and of others.

    python -m tests.benchmarks.instructions --beside before=../before

On a machine that others share, the times of one cell differ by a third from round to round, and a change of
a few per cent does not show. The number of instructions differs by 2 %, mostly because the reads of one turn
do. A broker runs in valgrind (callgrind) and serves requests over sockets; the count begins after it has
warmed up. Instructions of the kernel do not count."""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from epochmq_protocol import message as records
from tests.benchmarks import hot_path
from tests.support.cluster import NEVER_BUSY, properties
from tests.support.net import free_port, loopback
from tests.support.process import ManagedProcess
from tests.support.remoting import read_frame, split_address

ROOT: Final = Path(__file__).resolve().parents[2]
OCTET: Final = 58
REQUESTS: Final = 2048
FILL: Final = 130
POP_FILL: Final = 320
"""Messages in each queue, before pulls and before POPs."""
WARM_UP_ROUNDS: Final = 12
START_TIMEOUT_S: Final = 300.0
COLLECTED: Final = re.compile(r"Collected : (\d+)")


class Cell(NamedTuple):
    """`depth` requests are in flight on each connection."""

    kind: str
    connections: int
    depth: int


CELLS: Final = {
    "send 1x64": Cell("send", 1, 64),
    "send 64x1": Cell("send", 64, 1),
    "send 16x16": Cell("send", 16, 16),
    "pull 1x8": Cell("pull", 1, 8),
    "SQL92 1x8": Cell("sql", 1, 8),
    "POP 1x1": Cell("pop", 1, 1),
}
"""Of a POP of 32 messages with the acknowledgement of each of them, a request is the acknowledgement."""


class CountedBroker:
    """A broker of a checkout, run by callgrind."""

    def __init__(self, checkout: Path, directory: Path) -> None:
        host = loopback(OCTET)
        self.address = f"{host}:{free_port(host)}"
        settings = {
            **NEVER_BUSY,
            "brokerName": hot_path.BROKER_NAME,
            "storePathRootDir": str(directory / "store"),
            "bindAddress": host,
            "brokerIP1": host,
            "listenPort": self.address.rpartition(":")[2],
            "mappedFileSizeCommitLog": 268_435_456,
            "enablePropertyFilter": "true",
        }
        directory.mkdir()
        config = directory / "broker.conf"
        config.write_text(properties(settings), encoding="utf-8")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null"]
        python = sys.executable if checkout == ROOT else str(checkout / ".venv" / "bin" / "python")
        command += [python, "-m", "epochmq", "broker", "--config", str(config)]
        self.process = ManagedProcess(
            command,
            name="broker",
            directory=directory,
            env={"PYTHONHASHSEED": "0"} | ({} if checkout == ROOT else {"PYTHONPATH": ""}),
        )

    def accepts(self) -> bool:
        """Whether the broker listens."""
        try:
            socket.create_connection(split_address(self.address), timeout=5).close()
        except OSError:
            return False
        return True

    def count(self, is_on: bool) -> None:
        """Begins or ends the count."""
        state = "on" if is_on else "off"
        subprocess.run(
            ["callgrind_control", "-i", state, str(self.process.pid)], check=True, capture_output=True
        )

    def collected(self) -> int:
        """The instructions; the process must have ended."""
        return int(COLLECTED.findall(self.process.output_path.read_text(errors="replace"))[-1])


def instructions(checkout: Path, cell: Cell) -> float:
    """The instructions of one request."""
    directory = Path(tempfile.mkdtemp(prefix="instructions-"))
    broker = CountedBroker(checkout, directory / "broker")
    broker.process.start()
    try:
        broker.process.wait_until(broker.accepts, timeout_s=START_TIMEOUT_S)
        numbers = itertools.count()
        connections = [
            socket.create_connection(split_address(broker.address)) for _ in range(cell.connections)
        ]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        fill = Cell("send of a digit" if cell.kind == "sql" else "send", 1, hot_path.QUEUES)
        for _ in range(POP_FILL if cell.kind == "pop" else FILL):
            _exchange(connections[:1], fill, numbers)
        numbers = itertools.count()
        for _ in range(WARM_UP_ROUNDS):
            _exchange(connections, cell, numbers)
        rounds = REQUESTS // (cell.connections * cell.depth)
        if cell.kind == "pop":
            rounds //= hot_path.PULL_BATCH
        broker.count(is_on=True)
        for _ in range(rounds):
            _exchange(connections, cell, numbers)
        broker.count(is_on=False)
        broker.process.stop()
    finally:
        broker.process.kill()
        counted = broker.collected() if broker.process.status == 0 else None
        shutil.rmtree(directory)
    assert counted is not None, f"the broker of {checkout} ended with {broker.process.status}"
    requests = rounds * cell.connections * cell.depth
    return counted / (requests * hot_path.PULL_BATCH if cell.kind == "pop" else requests)


def _exchange(connections: list[socket.socket], cell: Cell, numbers: itertools.count[int]) -> None:
    """Sends `depth` requests on each connection, and reads all responses."""
    if cell.kind == "pop":
        for connection in connections:
            _pop_and_acknowledge(connection)
        return
    for connection in connections:
        frames = [_request(cell.kind, next(numbers)) for _ in range(cell.depth)]
        connection.sendall(b"".join(frames))
    for connection in connections:
        for _ in range(cell.depth):
            header, _ = read_frame(connection)
            assert header["code"] == 0, header


def _pop_and_acknowledge(connection: socket.socket) -> None:
    """Pops a batch of messages, and sends their acknowledgements in one write."""
    connection.sendall(hot_path.pop())
    header, body = read_frame(connection)
    assert header["code"] == 0, header
    found = records.decode_records(body)
    assert len(found) == hot_path.PULL_BATCH, len(found)
    connection.sendall(b"".join(hot_path.acks_of(header["extFields"], found)))
    for _ in found:
        header, _ = read_frame(connection)
        assert header["code"] == 0, header


def _request(kind: str, number: int) -> bytes:
    if kind == "send":
        return hot_path.send(number)
    if kind == "send of a digit":
        return hot_path.send_digit(number)
    if kind == "sql":
        return hot_path.sql_pull(number % 3, first=0)
    return hot_path.pull(number % 3)  # 32 messages of three queues in turn


def main() -> int:
    """Measures all cells in turn and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--beside", action="append", default=[], metavar="NAME=CHECKOUT")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells whose name starts with TEXT")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is missing")
        return 2
    checkouts = {"ours": ROOT}
    for text in options.beside:
        name, _, path = text.partition("=")
        checkouts[name] = Path(path).resolve()
    for title, cell in ((title, cell) for title, cell in CELLS.items() if title.startswith(options.only)):
        counts: dict[str, list[float]] = {name: [] for name in checkouts}
        for _ in range(options.rounds):
            for name, checkout in checkouts.items():
                counts[name].append(instructions(checkout, cell))
        medians = {name: statistics.median(found) for name, found in counts.items()}
        for name, found in counts.items():
            print(
                f"{title:<11} {name:<8} {medians[name]:>9,.0f} instructions a request"
                f" ({min(found):,.0f} to {max(found):,.0f}), ours {medians['ours'] / medians[name]:.3f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
