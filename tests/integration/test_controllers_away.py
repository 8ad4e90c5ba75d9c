"""A replica group of real processes goes on while all its controllers are away: stopped, or killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import SUCCESS, check_equal, deliver_to, read_queue, send, wait_confirmed
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup
from tests.support.stalls import unless_stalled

AWAY_S = 12.0
PAUSE_MAX_S = 1.0
SENDS_PAUSE_S = 0.005
SAFE = {"allAckInSyncStateSet": True, "minInSyncReplicas": 2, "registerNameServerPeriod": 10_000}
"""What the operator sets for three replicas."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaGroup]:
    directory = tmp_path_factory.mktemp("away")
    made = ReplicaGroup(directory, [our_controller] * 3, [our_broker] * 3, broker=SAFE, octet=81)
    try:
        made.start()
        deliver_to(made, b"first")  # creates the topic
        yield made
    finally:
        made.kill()


@pytest.fixture
def group(started: ReplicaGroup) -> Iterator[ReplicaGroup]:
    """The group that all tests share; every process runs, and every broker is in sync."""
    for member in started.members:
        if not member.process.alive:
            member.start()
        member.process.signal(signal.SIGCONT)
    started.wait_in_sync(3)
    yield started
    print(started.logs(4000))  # shown when the test failed


class Sends:
    """Sends to one broker, one message after another."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.bodies: list[bytes] = []
        """Those that were acknowledged."""
        self.failures: list[str] = []
        self.longest_pause_s = 0.0

    def run(self, for_s: float) -> None:
        """Sends for a while."""
        last_s = time.monotonic()
        end_s = last_s + for_s
        while time.monotonic() < end_s:
            body = b"%d" % time.monotonic_ns()
            found = send(self.member, body)
            if found.code == SUCCESS:
                self.bodies.append(body)
                now_s = time.monotonic()
                self.longest_pause_s = max(self.longest_pause_s, now_s - last_s)
                last_s = now_s
            else:
                self.failures.append(f"{found.code}: {found.remark}")
            time.sleep(SENDS_PAUSE_S)


def signal_controllers(group: ReplicaGroup, number: signal.Signals) -> None:
    for controller in group.controllers:
        controller.process.signal(number)


def master_of(group: ReplicaGroup) -> Member:
    found = group.master()
    assert found is not None
    return found


def check_sends(sends: Sends) -> None:
    """No send failed, and the group has acknowledged messages all the time."""
    assert sends.failures == []
    assert sends.longest_pause_s < PAUSE_MAX_S
    assert len(sends.bodies) > 100


def check_group(group: ReplicaGroup, master: Member, epoch: int, sends: Sends) -> None:
    """The master has kept its place, every acknowledged message is there, and the logs are equal."""
    group.wait_in_sync(3)
    assert (master_of(group), group.epoch()) == (master, epoch)
    stored = {record.body for record in read_queue(wait_confirmed(group))}
    assert set(sends.bodies) <= stored
    check_equal(group)


def test_messages_are_sent_while_all_controllers_are_stopped(group: ReplicaGroup, tmp_path: Path) -> None:
    def attempt(_: int) -> None:
        master, epoch = master_of(group), group.epoch()
        sends = Sends(master)
        sends.run(1.0)
        signal_controllers(group, signal.SIGSTOP)
        try:
            sends.run(AWAY_S)
        finally:
            signal_controllers(group, signal.SIGCONT)
        sends.run(3.0)
        check_sends(sends)
        check_group(group, master, epoch, sends)

    unless_stalled(tmp_path, attempt)


def test_messages_are_sent_while_all_controllers_are_down(group: ReplicaGroup, tmp_path: Path) -> None:
    """They come back without their memory."""

    def attempt(_: int) -> None:
        master, epoch = master_of(group), group.epoch()
        sends = Sends(master)
        sends.run(1.0)
        for controller in group.controllers:
            controller.process.kill()
        sends.run(AWAY_S)
        for controller in group.controllers:
            controller.start()
        sends.run(5.0)
        check_sends(sends)
        check_group(group, master, epoch, sends)

    unless_stalled(tmp_path, attempt)


def test_a_master_that_is_killed_meanwhile_is_replaced_when_the_controllers_return(
    group: ReplicaGroup,
) -> None:
    """Until then no other broker accepts messages."""
    master = master_of(group)
    others = [one for one in group.brokers if one is not master]
    signal_controllers(group, signal.SIGSTOP)
    try:
        sends = Sends(master)
        sends.run(2.0)
        assert sends.bodies
        master.process.kill()
        end_s = time.monotonic() + 3.0
        while time.monotonic() < end_s:
            assert all(send(one).code != SUCCESS for one in others)
    finally:
        signal_controllers(group, signal.SIGCONT)
    began_s = time.monotonic()
    second = deliver_to(group, b"after")
    print(f"a new master accepts messages {time.monotonic() - began_s:.3f} s after the controllers' return")
    assert second in others
    master.start()
    group.wait_in_sync(3)
    stored = {record.body for record in read_queue(wait_confirmed(group))}
    assert {*sends.bodies, b"after"} <= stored
    check_equal(group)


def test_a_master_without_a_replica_says_that_it_waits_for_the_controllers(group: ReplicaGroup) -> None:
    """Only the controllers can remove the replica from the SyncStateSet."""
    master = master_of(group)
    dead = next(one for one in group.brokers if one is not master)
    signal_controllers(group, signal.SIGSTOP)
    try:
        Sends(master).run(1.0)
        dead.process.kill()
        wait_until(
            lambda: "waits for the controllers: brokers [" in (send(master).remark or ""),
            what="the master names the broker that it waits for",
        )
    finally:
        signal_controllers(group, signal.SIGCONT)
    wait_until(lambda: send(master).code == SUCCESS, what="the master accepts messages again")
    assert master_of(group) is master
