"""Timer messages in a replica group of real processes: after a kill of the master its successor delivers what
is pending, and nothing that was acknowledged is lost or comes early."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import check_equal, deliver_to, read_queue
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup

SAFE = {
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "timerPrecisionMs": 200,
    "timerRollWindowSlot": 20,
}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ReplicaGroup]:
    made = ReplicaGroup(tmp_path, [our_controller] * 3, [our_broker] * 3, broker=SAFE, octet=72)
    made.start()
    yield made
    print(made.logs(6000))  # shown when the test failed
    made.kill()


def delivered(master: Member) -> set[bytes]:
    """The messages that this master shows."""
    return {record.body for record in read_queue(master)}


def test_the_next_master_delivers_what_is_pending(group: ReplicaGroup) -> None:
    due: dict[bytes, int] = {}
    for kill in range(2):
        start = int(time.time() * 1000)
        sent: set[bytes] = set()
        for number in range(100):
            body = b"%d-%d" % (kill, number)
            due[body] = start + 2000 + number * 100  # some are beyond the window of 4 s, and roll
            deliver_to(group, body, properties=f"TIMER_DELIVER_MS\x01{due[body]}\x02")
            sent.add(body)
        master = group.wait_master()
        wait_until(lambda of=master, new=sent: bool(delivered(of) & new), what="the master delivers")  # type: ignore[misc]
        master.process.kill()
        group.wait_master(other_than=master)
        master.start()
        group.wait_in_sync(3)
    wait_until(
        lambda: delivered(group.wait_master()) == due.keys(),
        what="all messages are delivered",
    )
    for record in read_queue(group.wait_master()):
        assert record.store_timestamp >= due[record.body], record.body
    check_equal(group)
