"""A returning master serves its clients only after it has taken the group's tables back; a slave is listed
only after it has the log; orderly consumers lock queues on a majority of the brokers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.acting_group import SERVICE_NOT_AVAILABLE, ActingGroup
from tests.support.group_processes import our_broker
from tests.support.process import wait_until
from tests.support.remoting import call

pytestmark = pytest.mark.timeout(600)


def test_a_returning_master_is_isolated_until_it_has_the_offsets_of_the_acting_master(tmp_path: Path) -> None:
    # The slave is stopped for a while, and must not be dropped meanwhile.
    settings = {"brokerNotActiveTimeoutMillis": 120_000}
    with ActingGroup(tmp_path, [our_broker, our_broker], broker=settings) as group:
        group.wait_listed(0, 1)
        group.create_group()
        for number in range(8):
            group.deliver(queue_id=number % 4)
        group.wait_followed()
        group.commit(group.master, 1, 1)
        slave = group.brokers[1]
        wait_until(lambda: group.offset(slave, 1) == 1, what="the slave has copied the offsets")
        group.master.process.kill()
        group.wait_listed(1)
        group.commit(slave, 0, 2)
        slave.process.signal(signal.SIGSTOP)
        try:
            group.master.start()
            wait_until(lambda: group.answers(group.master), what="the master takes requests of members")
            response = group.ask_offset(group.master, 1)
            assert response.code == SERVICE_NOT_AVAILABLE, response
            assert "isolated" in (response.remark or "")
            assert group.send().code == SERVICE_NOT_AVAILABLE
            assert group.listed() == {1: slave.address}
        finally:
            slave.process.signal(signal.SIGCONT)
        group.wait_listed(0, 1)
        assert group.offset(group.master, 0) == 2
        assert group.offset(group.master, 1) == 1
        group.deliver()
        group.wait_followed()


def test_of_equal_versions_the_acting_masters_offsets_win(tmp_path: Path) -> None:
    """The other slave has what the master had when it died, of the same data version."""
    with ActingGroup(tmp_path, [our_broker] * 3) as group:
        group.wait_listed(0, 1, 2)
        group.create_group()
        group.deliver()
        group.wait_followed(2)
        group.master.process.kill()
        group.wait_listed(1, 2)
        group.commit(group.brokers[1], 0, 2)
        assert group.offset(group.brokers[2], 0) == 0
        group.master.start()
        group.wait_listed(0, 1, 2)
        assert group.offset(group.master, 0) == 2


def test_with_skip_pre_online_a_returning_master_keeps_its_own_offsets(tmp_path: Path) -> None:
    """As in RocketMQ: the consumers start again where they were when the master died."""
    with ActingGroup(tmp_path, [our_broker, our_broker], broker={"skipPreOnline": True}) as group:
        group.wait_listed(0, 1)
        group.create_group()
        group.deliver()
        group.wait_followed()
        group.master.process.stop()
        group.wait_listed(1)
        group.commit(group.brokers[1], 0, 2)
        group.master.start()
        group.wait_listed(0, 1)
        assert group.offset(group.master, 0) == 0


def test_a_slave_is_listed_after_it_has_copied_the_log(tmp_path: Path) -> None:
    settings = {
        "brokerNotActiveTimeoutMillis": 120_000,  # the master is stopped for a while
        "haMaxGapNotInSync": 1,
        "haFlowControlEnable": True,
        "maxHaTransferByteInSecond": 200_000,
        "mappedFileSizeCommitLog": 8 << 20,
    }
    with ActingGroup(tmp_path, [our_broker, our_broker], broker=settings) as group:
        group.wait_listed(0, 1)
        slave = group.brokers[1]
        slave.process.kill()
        group.wait_listed(0)
        for _ in range(12):
            group.deliver(body=bytes(50_000))
        end = group.end()
        # The slave cannot copy from a master that is stopped.
        group.master.process.signal(signal.SIGSTOP)
        try:
            slave.start()
            wait_until(lambda: group.answers(slave), what="the slave takes requests")
            assert 1 not in group.listed()
        finally:
            group.master.process.signal(signal.SIGCONT)

        def copied() -> bool:
            """A log only grows: a slave whose log is too short now was listed too early, if it was listed."""
            is_listed = 1 in group.listed()
            has_all = (group.ha(1)["haClientRuntimeInfo"] or {}).get("maxOffset", 0) >= end
            assert has_all or not is_listed, "the slave is listed before it has the log"
            return is_listed

        wait_until(copied, what="the slave is listed")
        group.wait_listed(0, 1)


def test_a_lock_of_a_majority_outlives_the_master(tmp_path: Path) -> None:
    settings = {"lockInStrictMode": True}
    with ActingGroup(tmp_path, [our_broker] * 3, broker=settings) as group:
        group.wait_listed(0, 1, 2)
        group.create_group()
        group.lock_everywhere("c1")
        assert not group.lock(group.master, "c2")
        group.master.process.kill()
        group.wait_listed(1, 2)
        acting = group.brokers[1]
        assert not group.lock(acting, "c2")
        wait_until(lambda: group.lock(acting, "c1"), what="two of three brokers renew the lock")
        group.lock(acting, "c1", unlock=True)
        wait_until(lambda: group.lock(acting, "c2"), what="the lock is free")


def test_two_replicas_grant_no_lock_while_one_of_them_is_down(tmp_path: Path) -> None:
    with ActingGroup(tmp_path, [our_broker] * 2, broker={"lockInStrictMode": True}) as group:
        group.wait_listed(0, 1)
        group.create_group()
        group.lock_everywhere("c1")
        group.master.process.kill()
        group.wait_listed(1)
        assert not group.lock(group.brokers[1], "c1")


def test_offset_queries_of_consumers_are_served_by_slaves(tmp_path: Path) -> None:
    """Of a slave, before and while it acts: offset by time (29), greatest offset (30), smallest (31) and the
    time of the first message (32)."""
    with ActingGroup(tmp_path, [our_broker] * 2) as group:
        group.wait_listed(0, 1)
        for _ in range(3):
            group.deliver()
        group.wait_followed()
        slave = group.brokers[1]
        queue = {"topic": "orders", "queueId": "0"}

        def query(code: int, **fields: str) -> int:
            response = call(slave.address, code, queue | fields)
            assert response.code == 0, response
            return int(response.ext["timestamp" if code == 32 else "offset"])

        def check() -> None:
            assert query(30) == 3
            assert query(31) == 0
            assert query(32) > 0
            assert query(29, timestamp="0") == 0
            assert query(29, timestamp=str(2**62)) == 3

        wait_until(lambda: query(30) == 3, what="the slave has dispatched the messages")
        check()
        group.master.process.kill()
        group.wait_listed(1)
        check()
