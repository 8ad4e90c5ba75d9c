"""A returning master takes the tables of an acting master of the other implementation back, and the members
of a mixed group lock queues together: RocketMQ's broker and EpochMQ's, each as master and as slave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java_cluster import NO_TIMER_MESSAGES, java_broker, java_nameserver
from tests.support.acting_group import GROUP, ActingGroup
from tests.support.group_processes import Factory, our_broker, our_nameserver
from tests.support.java_slaves import java_slave
from tests.support.process import wait_until

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

SETTINGS = {**NO_TIMER_MESSAGES, "lockInStrictMode": True, "enableRemoteEscape": True}


@pytest.mark.parametrize(
    ("master", "slave", "nameserver"),
    [
        pytest.param(java_broker, our_broker, our_nameserver, id="javas-master-returns-to-ours"),
        pytest.param(our_broker, java_slave, our_nameserver, id="our-master-returns-to-javas"),
        pytest.param(
            our_broker, our_broker, java_nameserver, id="ours-with-javas-nameserver", marks=pytest.mark.soak
        ),
    ],
)
def test_a_returning_master_takes_back_what_the_acting_master_has(
    tmp_path: Path, master: Factory, slave: Factory, nameserver: Factory
) -> None:
    with ActingGroup(tmp_path, [master, slave], broker=SETTINGS, nameserver=nameserver) as group:
        group.wait_listed(0, 1)
        group.create_group()
        for number in range(8):
            group.deliver(queue_id=number % 4)
        group.wait_followed()
        first, second = group.brokers
        group.lock_everywhere("c1")
        group.lock(first, "c1", unlock=True)
        wait_until(
            lambda: group.lock(second, "c2", only_this_broker=True), what="the slave has unlocked, too"
        )
        # A master that never saved the table has a newer version of it after its start, and takes back none.
        saved = group.store(0) / "config" / "consumerOffset.json"
        wait_until(
            lambda: saved.exists() and GROUP in saved.read_text(), what="the master has saved the offsets"
        )
        first.process.kill()
        group.wait_listed(1)
        assert not group.lock(second, "c2"), "one of two brokers is no majority"
        for queue_id in range(3):
            group.commit(second, queue_id, 2 - queue_id)
        first.start()
        group.wait_listed(0, 1)
        assert [group.offset(first, queue_id) for queue_id in range(3)] == [2, 1, 0]
        group.deliver()
        group.wait_followed()
        wait_until(lambda: group.lock(first, "c2"), what="both brokers grant locks again")
