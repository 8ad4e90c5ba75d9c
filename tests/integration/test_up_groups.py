"""`epochmq up` of a group of three replicas as people type it: election, failover, promote, fence and
drain."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.up_run import COMMAND, GroupRun
from tests.support.group_traffic import send_header
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import call, frame, read_frame, split_address
from tests.support.stalls import unless_stalled

SEND_MESSAGE_V2, SERVICE_NOT_AVAILABLE = 310, 14


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupRun]:
    """A run that all tests share; each leaves every replica in the SyncStateSet."""
    made = GroupRun(tmp_path_factory.mktemp("groups"))
    try:
        output = made.up()
        assert [f"orders-controller-{n}: Ready" in output for n in range(3)] == [True] * 3
        assert [f"orders-broker-{n}: Ready" in output for n in range(3)] == [True] * 3
        yield made
    finally:
        made.ok("down")


class Senders:
    """Producers that never ask for a new route: they keep sending to the broker that was master when they
    began."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.failures: Counter[str] = Counter()
        self.bodies: list[str] = []
        self._address = address
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(3)]

    def __enter__(self) -> Senders:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: len(self.bodies) > 30, what="messages are sent")
        return self

    def __exit__(self, *error: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(60)

    def has_sent(self, count: int) -> bool:
        """Whether more messages than these were acknowledged."""
        return len(self.bodies) > count

    def _send(self, number: int) -> None:
        count = 0
        with socket.create_connection(split_address(self._address), timeout=5) as connection:
            while not self._ending.is_set():
                body = f"{number}-{count}"
                header = send_header(number, f"{number:016X}{count:016X}") | {"b": self.topic}
                try:
                    connection.sendall(frame(SEND_MESSAGE_V2, header, body.encode(), opaque=count))
                    response, _ = read_frame(connection)
                except OSError as error:
                    self.failures[type(error).__name__] += 1
                    return
                if response["code"] == 0:
                    self.bodies.append(body)
                else:
                    self.failures[f"{response['code']}: {response.get('remark')}"] += 1
                count += 1


def test_promoting_a_replica_fails_no_send(run: GroupRun, tmp_path: Path) -> None:
    unless_stalled(tmp_path, lambda number: promote_all(run, f"promoted-{number}"))


def promote_all(run: GroupRun, topic: str) -> None:
    """Promotes every replica in turn, while producers send."""
    run.until(run.whole, "all are in sync")
    before = run.wait_master()
    pods = [one["pod"] for one in run.group()["replicas"]]
    others = [pod for pod in pods if pod != before["pod"]]
    with Senders(before["address"], topic) as senders:
        for pod in [*others, before["pod"]]:
            sent = len(senders.bodies)
            output = run.ok("promote", f"orders/{pod}")
            assert output.startswith(f"{pod} (id ")
            assert "sends were held" in output
            run.until(partial(run.is_master, pod), f"{pod} says that it is the master")
            run.until(partial(senders.has_sent, sent + 100), "sends continue")
    assert senders.failures == {}
    assert f"{before['pod']} (id {before['brokerId']}) is already the master" in run.ok(
        "promote", f"orders/{before['pod']}"
    )
    run.until(run.whole, "all are in sync")

    def check() -> None:
        """Checks again: a follower learns of an epoch without messages a moment later."""
        group = run.group()
        assert [one["pod"] for one in group["replicas"] if one["role"] == "master"] == [before["pod"]]
        assert len({one["maxOffset"] for one in group["replicas"]}) == 1
        assert {one["epoch"] for one in group["replicas"]} == {group["masterEpoch"]}

    wait_holds(check)
    assert run.bodies("promoted", len(senders.bodies), topic) == sorted(senders.bodies)


def test_a_killed_master_is_replaced_and_all_messages_are_read(run: GroupRun) -> None:
    run.until(run.whole, "all are in sync")
    before = run.wait_master()
    run.ok("produce", "killed", stdin="".join(f"{n}\n" for n in range(50)))
    command = [*COMMAND, "consume", "killed", "--timeout", "120", "--state", str(run.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        try:
            seen: set[str] = set()
            while len(seen) < 50 and (line := reader.stdout.readline()):  # it serves reads
                seen.add(line.strip())
            os.kill(before["pid"], signal.SIGKILL)
            run.ok("produce", "killed", stdin="".join(f"{n}\n" for n in range(50, 100)))
            while len(seen) < 100 and (line := reader.stdout.readline()):
                seen.add(line.strip())
        finally:
            reader.terminate()
    assert sorted(map(int, seen)) == list(range(100))
    run.until(lambda: run.wait_master()["pod"] != before["pod"], "another master is shown")

    def healed() -> bool:
        replica = next(one for one in run.group()["replicas"] if one["pod"] == before["pod"])
        return bool(replica["restarts"] and replica["role"] == "slave") and run.whole()

    run.until(healed, f"{before['pod']} is back, as a replica")

    def check() -> None:
        lines = [line.split() for line in run.ok("status").splitlines() if " yes " in line]
        master = run.wait_master()
        (row,) = [line for line in lines if line[0] == master["pod"]]
        assert row[:3] == [master["pod"], str(master["brokerId"]), "master"]

    wait_holds(check)


def test_a_fenced_master_takes_no_message_until_it_is_unfenced(run: GroupRun) -> None:
    run.until(run.whole, "all are in sync")
    master = run.wait_master()
    name = f"orders/{master['pod'].rpartition('-')[2]}"
    run.ok("produce", "fenced", "before")
    assert run.ok("fence", name) == f"{master['pod']} (master) accepts no messages until it is unfenced\n"
    run.until(lambda: run.wait_master()["fenced"], "it is shown to be fenced")
    header = send_header(0, "0" * 32)
    assert call(master["address"], SEND_MESSAGE_V2, header, b"x").code == SERVICE_NOT_AVAILABLE
    words = "fenced: it stores no messages until it is unfenced; next: epochmq fence GROUP/REPLICA --off"

    def check() -> None:
        """Checks again: a broker that is starved for a second is late to answer the producer, or the
        status."""
        rejected = run.here("produce", "fenced", "while", "--timeout", "3")
        assert rejected.returncode == 1
        assert words in rejected.stderr, rejected.stderr
        shown = words.replace("GROUP/REPLICA", f"orders/{master['pod']}")
        assert f"\n{master['pod']}: {shown}\n" in run.ok("status")
        assert run.wait_master()["reason"] == words

    wait_holds(check)
    assert run.ok("fence", name, "--off") == f"{master['pod']} (master) accepts messages again\n"
    run.ok("produce", "fenced", "after")
    run.receive(["after", "before"], "readers", "fenced")


def test_a_drained_replica_is_not_elected_until_it_is_undrained(run: GroupRun) -> None:
    run.until(run.whole, "all are in sync")
    master = run.wait_master()
    output = run.ok("drain", f"orders/{master['pod'].rpartition('-')[2]}")
    assert f"{master['pod']} has left the SyncStateSet; it may be stopped now" in output
    found: list[Any] = []

    def check() -> None:
        group = run.group()
        (drained,) = [one for one in group["replicas"] if one["drained"]]
        assert (drained["pod"], drained["role"], drained["inSync"]) == (master["pod"], "slave", False)
        assert drained["brokerId"] not in group["syncStateSet"]
        assert len(group["syncStateSet"]) == 2
        assert group["phase"] == "Ready"  # as ordered
        found[:] = [drained]

    wait_holds(check)
    (drained,) = found
    # It copies the log, and is not elected, also after a restart.
    os.kill(drained["pid"], signal.SIGKILL)
    run.ok("produce", "drained", "hello")

    def follows() -> bool:
        replicas = run.group()["replicas"]
        ends = {one["maxOffset"] for one in replicas}
        back = next(one for one in replicas if one["drained"] and one["restarts"])
        return len(ends) == 1 and back["ready"] and not back["inSync"]

    def tries() -> bool:
        try:
            return follows()
        except StopIteration:
            return False

    run.until(tries, "it follows, out of the set")
    done = run.here("promote", f"orders/{master['pod']}")
    assert done.returncode == 1
    assert f"broker {drained['brokerId']} is not in sync" in done.stderr
    assert run.ok("drain", f"orders/{master['pod']}", "--off") == f"{master['pod']} is in the SyncStateSet\n"
    run.until(lambda: len(run.group()["syncStateSet"]) == 3, "all are in the set again")


def test_impossible_control_commands_are_rejected_with_a_reason(run: GroupRun) -> None:
    for verb, name, why in (
        ("promote", "orders", "orders: expected GROUP/REPLICA, such as orders/0 or orders/orders-broker-0"),
        ("fence", "bills/0", f"broker group bills does not run in {run.state}; running groups: orders"),
        ("drain", "orders/7", "orders has no replica 7; its replicas are orders-broker-0, orders-broker-1"),
    ):
        done = run.here(verb, name)
        assert done.returncode == 1
        assert why in done.stderr
