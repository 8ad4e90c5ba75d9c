"""A master and its replicas as EpochMQ processes, without a controller."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.support.freeze import freeze
from tests.support.group_processes import our_broker
from tests.support.pair import Pair
from tests.support.process import wait_until

FLUSH_SLAVE_TIMEOUT = 12
SLAVE_TIMEOUT_MS = 5000
"""Longer than a busy machine starves a replica."""
LOOP_CLOCK_MS = 50
"""An event loop reads its clock once an iteration, in milliseconds: a timer may end that much early."""


def test_replicas_follow_while_master_and_replicas_are_killed(tmp_path: Path) -> None:
    with Pair(tmp_path, [our_broker] * 3, broker={"inSyncReplicas": 1}) as pair:
        for number in range(300):
            assert pair.send(body=os.urandom(6000), queue_id=number % 4).code == 0
        pair.wait_followed(2)
        pair.brokers[1].process.kill()
        for _ in range(50):
            assert pair.send(body=os.urandom(6000)).code == 0
        pair.brokers[1].start()
        pair.wait_followed(2)
        pair.master.process.kill()
        pair.master.start()
        wait_until(lambda: pair.answers(pair.master), what="the master is back")
        for _ in range(50):
            assert pair.send(body=os.urandom(6000)).code == 0
        end = pair.wait_followed(2)
        expected = pair.log_bytes(0, end)
        assert len(expected) == end
        assert pair.log_bytes(1, end) == pair.log_bytes(2, end) == expected
        assert pair.ha(1)["master"] is False
        # A replica rejects messages.
        pair.brokers[0], pair.brokers[1] = pair.brokers[1], pair.brokers[0]
        assert pair.send().code == 2


def test_a_send_waits_for_the_replica_and_times_out_when_it_is_silent(tmp_path: Path) -> None:
    settings = {"inSyncReplicas": 2, "slaveTimeout": SLAVE_TIMEOUT_MS}
    with Pair(tmp_path, [our_broker] * 2, broker=settings) as pair:
        pair.wait_followed()
        for _ in range(20):
            assert pair.send().code == 0  # a send that no replica acknowledges is answered after its timeout
        freeze([pair.brokers[1].process])
        began = time.monotonic()
        assert pair.send().code == FLUSH_SLAVE_TIMEOUT
        assert time.monotonic() - began >= (SLAVE_TIMEOUT_MS - LOOP_CLOCK_MS) / 1000
        pair.brokers[1].process.signal(signal.SIGCONT)
        end = pair.wait_followed()
        pair.deliver()
        assert pair.log_bytes(1, end) == pair.log_bytes(0, end)
