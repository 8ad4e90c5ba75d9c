"""Slaves of masters with a compaction topic: a slave whose log begins after the oldest messages fetches them
from its master, EpochMQ's or RocketMQ's, and then serves the newest message of each key.

A slave of RocketMQ 5.3.3 does not take over topics with attributes, so it serves no compaction topic."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.interop.java_cluster import java_broker
from tests.support import compaction_traffic as traffic
from tests.support.compaction_traffic import OFTEN, ROUND, SENT_MAX
from tests.support.group_processes import Factory, our_broker
from tests.support.pair import LOG_FILE, Pair
from tests.support.process import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SETTINGS = {**OFTEN, "slaveReadEnable": True, "slaveTimeout": 10}
STORED = frozenset({0, 10, 11, 12})
"""Also when no slave acknowledges in time."""


@pytest.mark.parametrize(
    ("master", "slave"),
    [
        pytest.param(our_broker, our_broker, id="ours"),
        pytest.param(java_broker, our_broker, id="ours-follows-java"),
    ],
)
def test_a_new_slave_serves_the_newest_message_of_each_key(
    tmp_path: Path, master: Factory, slave: Factory
) -> None:
    with Pair(tmp_path, [master, slave], broker=SETTINGS, octet=66) as pair:
        leader, follower = pair.brokers
        follower.process.kill()
        traffic.create(leader)
        sent = 0

        def compacted() -> bool:
            nonlocal sent
            if sent >= SENT_MAX:
                return True
            for number in range(sent, sent + ROUND):
                assert traffic.send(leader, number, stored=STORED)
            sent += ROUND
            found = traffic.pull_all(leader)
            return sent * 1000 > 2 * LOG_FILE and bool(found) and found[0][0] > 0

        wait_until(compacted, timeout_s=300, what="the master has compacted")
        traffic.wait_serves(leader, sent)
        shutil.rmtree(pair.store(1))
        follower.start()
        log_files = pair.store(1) / "commitlog"
        served = traffic.wait_serves(follower, sent)
        assert min(int(path.name) for path in log_files.iterdir()) > 0, "the slave's log lacks no message"
        traffic.check_offsets({"slave": served, "all": [(number, number) for number in range(sent)]})
