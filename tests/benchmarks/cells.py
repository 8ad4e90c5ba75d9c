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
from tests.interop.java_env import compile_java, java_classpath
from tests.support.process import wait_until

BODY_BYTES = 1024
PULL_BATCH = 32
SEND_TOPIC = "bench-send"
PULL_TOPIC = "bench-pull"
JAVA_SOURCE = Path(__file__).resolve().parent / "java" / "SendLoad.java"
MARGIN_S = 60
JAVA_CLIENT_HEAP_MB = 512

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One row of the table. `depth` is the number of requests in flight on each connection (for the Java
    client: threads), `goal` the wanted ratio of our throughput to Java's."""

    name: str
    kind: Literal["send", "pull", "client", "transaction"]
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
)


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


def fill(program: Path, peer: Peer, topic: str, count: int) -> None:
    """Sends `count` messages to the queues of the topic in turn."""
    run_load(
        [str(program), *_load_arguments(peer, "send", topic, 1, 64), f"count={count}"],
        MARGIN_S + count / 1000,
    )
    # RocketMQ dispatches a message to its consume queue after its response.
    wait_until(lambda: peer.messages(topic) >= count, what=f"{peer.name} dispatched {count} messages")


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
    else:
        assert program is not None, "a cell in C needs the load program"
        topic = PULL_TOPIC if cell.kind == "pull" else SEND_TOPIC
        arguments = _load_arguments(peer, cell.kind, topic, cell.connections, cell.depth)
        times = [f"warmup={span.warmup_s}", f"seconds={span.measured_s}"]
        result = run_load([str(program), *arguments, *times], span.warmup_s + span.measured_s + MARGIN_S)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    load = after.ru_utime + after.ru_stime - own.ru_utime - own.ru_stime
    foreign = busy_s() - busy - (peer.cpu_s() - broker) - load
    result["foreign_cpu_share"] = round(foreign / (time.monotonic() - started), 3)
    return result
