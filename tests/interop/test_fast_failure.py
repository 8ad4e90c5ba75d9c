"""A send that has waited at a blocked broker for longer than waitTimeMillsInSendQueue: the Java client gets
RocketMQ's rejection. The producer pauses while the broker is stopped, so that no send is in progress then."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from tests.interop.java_env import JavaProcess, compile_java
from tests.support.cluster import OurCluster
from tests.support.freeze import freeze
from tests.support.process import ManagedProcess, wait_until
from tests.support.remoting import call

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

LIMIT_MS = 300
SUCCESS, GET_BROKER_RUNTIME_INFO = 0, 28
ESTABLISHED = "01"
REMARK = re.compile(
    r"CODE: 2 +DESC: \[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, "
    r"period in queue: (\d+)ms, size of queue: \d+"
)


def waiting_bytes(address: str) -> int:
    """The bytes that the kernel holds, unread, for connections to this IPv4 address."""
    host, port = address.split(":")
    local = f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{int(port):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(row[4].partition(":")[2], 16) for row in rows if row[1] == local and row[3] == ESTABLISHED)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_send_that_waited_too_long_is_rejected(tmp_path: Path, *, enabled: bool) -> None:
    cluster = OurCluster(
        tmp_path / "cluster",
        broker={"waitTimeMillsInSendQueue": LIMIT_MS, "brokerFastFailureEnable": enabled},
    )
    cluster.start()
    producer = JavaProcess(
        "PatientProducer",
        [cluster.nameserver_address, "0"],
        home=tmp_path / "producer",
        classes=compile_java("PatientProducer.java"),
        heap_mb=128,
    )

    def outcomes() -> list[str]:
        output = ManagedProcess.output(producer, 10_000_000)
        return [line for line in output.splitlines() if line.startswith("sent ")]

    def accepted(first: int) -> int:
        return sum(line.endswith("SEND_OK") for line in outcomes()[first:])

    try:
        producer.start()
        wait_until(lambda: accepted(0) > 200, what="messages are sent")
        freeze([producer])
        wait_until(lambda: waiting_bytes(cluster.broker_address) == 0, what="the broker has read every send")
        # The broker answers in the order in which it has read: it has no send in hand.
        assert call(cluster.broker_address, GET_BROKER_RUNTIME_INFO).code == SUCCESS
        freeze([cluster.broker_process])
        before = len(outcomes())
        producer.signal(signal.SIGCONT)
        wait_until(lambda: waiting_bytes(cluster.broker_address) > 0, what="a send waits")
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began > 2 * LIMIT_MS / 1000, what="the send has waited too long"
        )
        cluster.broker_process.signal(signal.SIGCONT)
        wait_until(lambda: accepted(before) > 200, what="sends continue")
    finally:
        producer.kill()
        cluster.stop()
    # The first may be the one whose answer waited for the producer.
    late = outcomes()[before : before + 2]
    rejected = [found for line in late if (found := REMARK.search(line))]
    if enabled:
        assert rejected, late
        assert all(int(found.group(1)) >= LIMIT_MS for found in rejected), late
    else:
        assert all(line.endswith("SEND_OK") for line in late), late
