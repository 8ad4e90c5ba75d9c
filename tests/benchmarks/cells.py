"""Defines the cells of the benchmark table, and measures one cell."""

from __future__ import annotations

import json
import resource
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.benchmarks.machine import busy_s, flush_dirty_pages
from tests.benchmarks.peers import QUEUES, Peer
from tests.benchmarks.timer_delivery import measure_delivery
from tests.interop.java_env import compile_java, java_classpath
from tests.support.process import wait_until

BODY_BYTES = 1024
PULL_BATCH = 32
SEND_TOPIC = "bench-send"
PULL_TOPIC = "bench-pull"
SQL_TOPIC = "bench-sql"
SQL_DIGIT = 2
"""The SQL92 expression selects the messages whose property `a`, a digit, is at most this one: 30 %."""
TIMER_DELAY_MS = 24 * 3_600_000
"""The delay of the messages that only test how many timers a broker accepts: none falls due meanwhile."""
JAVA_SOURCE = Path(__file__).resolve().parent / "java" / "SendLoad.java"
MARGIN_S = 60
JAVA_CLIENT_HEAP_MB = 512

Result = dict[str, Any]
Kind = Literal["send", "pull", "client", "transaction", "timer", "delivery", "pop", "sql"]


@dataclass(frozen=True)
class Cell:
    """One row of the table. `depth` is the number of requests in flight on each connection (for the Java
    client: threads), `goal` the wanted ratio of our throughput to Java's.

    Kinds: `send` and `pull` plain messages; `client` and `transaction`: RocketMQ's Java client sends, or
    sends and commits in transactions; `timer`: sends of messages with a delivery time; `delivery`: 100,000
    of them fall due within one second; `pop`: consumers pop messages and acknowledge each of them; `sql`:
    pulls with an SQL92 expression."""

    name: str
    kind: Kind
    connections: int
    depth: int
    goal: float

    @property
    def needs_java(self) -> bool:
        """Whether RocketMQ's Java client makes the load: it sends, or sends and commits in transactions."""
        return self.kind in ("client", "transaction")


@dataclass(frozen=True)
class MeasuredSpan:
    """The seconds of load before the measured window, and in it."""

    warmup_s: float
    measured_s: float


CELLS = (
    Cell("send 1x1", "send", 1, 1, 2.0),
    Cell("send 1x64", "send", 1, 64, 2.0),
    Cell("send 16x1", "send", 16, 1, 2.0),
    Cell("send 64x1", "send", 64, 1, 2.0),
    Cell("send 16x16", "send", 16, 16, 2.0),
    Cell("Java client 64 threads", "client", 1, 64, 1.4),
    Cell("Java client 64 threads, transactions", "transaction", 1, 64, 1.5),
    Cell("pull 1x1", "pull", 1, 1, 2.0),
    Cell("pull 1x8", "pull", 1, 8, 2.0),
    Cell("pull 4x1", "pull", 4, 1, 2.0),
    Cell("SQL92 pull 1x8", "sql", 1, 8, 1.5),
    Cell("POP and ack, 1 consumer", "pop", 1, 1, 1.5),
    Cell("POP and ack, 16 consumers", "pop", 16, 1, 1.5),
    Cell("POP and ack, 64 consumers", "pop", 64, 1, 1.5),
    Cell("timer send 16x16", "timer", 16, 16, 1.5),
    Cell("timers due in one second", "delivery", 16, 16, 1.5),
)


_MODES: dict[Kind, tuple[str, ...]] = {
    "send": ("send", SEND_TOPIC),
    "pull": ("pull", PULL_TOPIC),
    "sql": ("pull", SQL_TOPIC, f"sql={SQL_DIGIT}"),
    "pop": ("pop", PULL_TOPIC),
    "timer": ("send", SEND_TOPIC, f"timer={TIMER_DELAY_MS}"),
}
"""The mode of the load program, the topic, and more options."""


class LoadFailedError(Exception):
    """The load program failed or received wrong responses. The message contains its output."""


def run_load(command: list[str], timeout_s: float) -> Result:
    """The last line that the load program prints. Raises LoadFailedError if it fails or receives a wrong
    response."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        output = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        raise LoadFailedError(f"{' '.join(command[:2])} ended with {done.returncode}: {output}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def _load_arguments(peer: Peer, mode: str, topic: str, connections: int, depth: int) -> list[str]:
    host, _, port = peer.cluster.broker_address.rpartition(":")
    return [
        mode,
        f"host={host}",
        f"port={port}",
        f"topic={topic}",
        f"broker={peer.cluster.broker_name}",
        f"queues={QUEUES}",
        f"connections={connections}",
        f"depth={depth}",
        f"body={BODY_BYTES}",
        f"batch={PULL_BATCH}",
        f"pid={peer.broker_pid}",
    ]


def fill(program: Path, peer: Peer, topic: str, count: int, *options: str) -> None:
    """Sends `count` messages to the queues of the topic in turn."""
    run_load(
        [str(program), *_load_arguments(peer, "send", topic, 1, 64), f"count={count}", *options],
        MARGIN_S + count / 1000,
    )
    # RocketMQ dispatches a message to its consume queue after its response.
    wait_until(lambda: peer.messages(topic) >= count, what=f"{peer.name} dispatched {count} messages")


def fill_in_parallel(
    program: Path, peer: Peer, topic: str, connections: int, depth: int, *options: str
) -> None:
    """Sends messages over several connections. The options give their number."""
    arguments = _load_arguments(peer, "send", topic, connections, depth)
    run_load([str(program), *arguments, *options], MARGIN_S)


def check_pull(program: Path, peer: Peer, topic: str, seconds: float) -> None:
    """Pulls messages and checks the CRC of every record."""
    arguments = _load_arguments(peer, "pull", topic, 1, QUEUES)
    run_load([str(program), *arguments, "crc=1", "warmup=0", f"seconds={seconds}"], MARGIN_S + seconds)


def _run_client(cell: Cell, peer: Peer, home: Path, span: MeasuredSpan) -> Result:
    before = peer.messages(SEND_TOPIC)
    command = [
        "java",
        f"-Xms{JAVA_CLIENT_HEAP_MB}m",
        f"-Xmx{JAVA_CLIENT_HEAP_MB}m",
        "-XX:+UseG1GC",
        "-Djava.net.preferIPv4Stack=true",
        f"-Duser.home={home}",
        f"-Drocketmq.client.logRoot={home}/logs",
        "-cp",
        f"{compile_java(JAVA_SOURCE)}:{java_classpath()}",
        "SendLoad",
        peer.cluster.nameserver_address,
        SEND_TOPIC,
        "64",
        str(BODY_BYTES),
        str(span.warmup_s),
        str(span.measured_s),
        str(peer.broker_pid),
        cell.kind,
    ]
    result = run_load(command, span.warmup_s + span.measured_s + MARGIN_S)
    wait_until(
        lambda: peer.messages(SEND_TOPIC) - before >= int(result["requests"]),
        what=f"{peer.name} has every message that the Java client counts as sent",
    )
    return result


def measure(cell: Cell, peer: Peer, program: Path | None, home: Path, span: MeasuredSpan) -> Result:
    """Runs one measurement, after a flush of all dirty pages. Adds `foreign_cpu_share` to the output of the
    load: the CPU time of other processes and kernel threads, as a share of one core."""
    flush_dirty_pages()
    started, busy, broker = time.monotonic(), busy_s(), peer.cpu_s()
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    if cell.needs_java:
        result = _run_client(cell, peer, home, span)
    elif cell.kind == "delivery":
        assert program is not None, "a cell in C needs the load program"
        result = measure_delivery(
            peer,
            lambda topic, *options: fill_in_parallel(
                program, peer, topic, cell.connections, cell.depth, *options
            ),
        )
    else:
        assert program is not None, "a cell in C needs the load program"
        mode, topic, *options = _MODES[cell.kind]
        arguments = _load_arguments(peer, mode, topic, cell.connections, cell.depth)
        times = [f"warmup={span.warmup_s}", f"seconds={span.measured_s}"]
        command = [str(program), *arguments, *times, *options]
        result = run_load(command, span.warmup_s + span.measured_s + MARGIN_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    load = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    foreign = busy_s() - busy - (peer.cpu_s() - broker) - load
    result["foreign_cpu_share"] = round(foreign / (time.monotonic() - started), 3)
    return result
