"""`epochmq up` of a group in the mode MasterSlave under RocketMQ's Java consumer: it continues from the
acting slave at its offsets when the master is killed, and from the master when that returns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.interop.acting_pairs import ALL_CONSUMER_OFFSETS, Consumer
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.up_pair_run import PairRun, create_topic, send, wait_copied

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PAIR = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: pair}
spec:
  mode: MasterSlave
  replicas: 2
  brokerName: pair-a
  config: {mappedFileSizeCommitLog: 33554432}
"""
COUNT = 20


def fill(master: str, slave: str, prefix: str) -> list[str]:
    """Sends messages to the master, and waits until the slave has them. Returns their bodies."""
    bodies = [f"{prefix}-{number}" for number in range(COUNT)]
    for body in bodies:
        send(master, body.encode())
    wait_copied(master, slave)
    return bodies


def test_a_java_consumer_continues_from_the_acting_slave(tmp_path: Path) -> None:
    run = PairRun(tmp_path)
    run.file.write_text(PAIR)
    try:
        run.up()
        group = run.group()
        master, slave = (one["address"] for one in group["replicas"])
        nameserver = SimpleNamespace(nameserver=SimpleNamespace(address=group["nameservers"][0]))
        clients = cast(Any, nameserver)
        create_topic(master)
        before = fill(master, slave, "before")
        offset = f'"orders@readers":{{0:{COUNT}'.encode()
        with Consumer(clients, tmp_path / "first") as consumer:
            wait_until(lambda: sorted(consumer.bodies) == sorted(before), what="the first messages")
            # A consumer that stops at once may not commit the message that it has just consumed.
            wait_until(
                lambda: offset in call(slave, ALL_CONSUMER_OFFSETS).body, what="the slave has the offset"
            )
        after = fill(master, slave, "after")
        with run.without_master(group["replicas"][0]):
            run.until(lambda: run.group()["actingMaster"] is not None, "the slave acts")
            consumer = Consumer(clients, tmp_path / "second")
            consumer.process.start()
            try:
                wait_until(lambda: len(consumer.bodies) >= COUNT, what="the other messages")
                assert sorted(consumer.bodies) == sorted(after), "from the slave, and none twice"
            except BaseException:
                consumer.process.stop()
                raise
        try:
            run.wait_settled()
            latest = fill(master, slave, "latest")
            wait_until(lambda: set(latest) <= set(consumer.bodies), what="messages of the returned master")
        finally:
            consumer.process.stop()
    finally:
        run.ok("down")
