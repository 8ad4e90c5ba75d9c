"""A send that has waited at a blocked broker for longer than waitTimeMillsInSendQueue: the Java client gets
RocketMQ's rejection."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.interop.java_env import JavaProcess, compile_java
from tests.support.cluster import OurCluster
from tests.support.process import ManagedProcess, wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

LIMIT_MS = 300
REMARK = re.compile(
    r"CODE: 2 +DESC: \[TIMEOUT_CLEAN_QUEUE\]broker busy, start flow control for a while, "
    r"period in queue: (\d+)ms, size of queue: \d+"
)


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

    try:
        producer.start()
        wait_until(lambda: len(outcomes()) > 200, timeout_s=60, what="messages are sent")
        cluster.broker_process.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() - stopped > 3 * LIMIT_MS / 1000, what="the send has waited")
        before = len(outcomes())
        cluster.broker_process.signal(signal.SIGCONT)
        wait_until(lambda: len(outcomes()) > before + 200, timeout_s=60, what="sends continue")
    finally:
        producer.kill()
        cluster.stop()
    late = outcomes()[before : before + 3]
    rejected = [found for line in late if (found := REMARK.search(line))]
    if enabled:
        assert len(rejected) == 1, late
        assert int(rejected[0].group(1)) >= LIMIT_MS
        assert all(line.endswith("SEND_OK") for line in outcomes()[before + 3 :])
    else:
        assert all(line.endswith("SEND_OK") for line in late), late
