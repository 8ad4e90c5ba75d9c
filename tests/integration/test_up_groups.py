"""`epochmq up` of a group of three replicas as people type it: election, failover, promote, fence and
drain."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_traffic import send_header
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import call, frame, read_frame, split_address
from tests.support.stalls import unless_stalled

COMMAND = [sys.executable, "-m", "epochmq"]
UP_S, TIMEOUT_S = 200, 240
"""How long a group may take to be ready, and how long a command may take."""
PATIENT = {"produce": ("--timeout", "60"), "promote": ("--timeout", "60"), "drain": ("--timeout", "60")}
"""Longer timeouts for verbs that must not fail on a busy machine; a timeout of the caller overrides them."""
SEND_MESSAGE_V2, SERVICE_NOT_AVAILABLE = 310, 14
GROUP = """\
apiVersion: epochmq.io/v1alpha1
kind: BrokerGroup
metadata: {name: orders}
spec:
  replicas: 3
  brokerName: orders-a
  config: {mappedFileSizeCommitLog: 33554432}
"""


class Run:
    """A state directory and a resource file of a test."""

    def __init__(self, directory: Path) -> None:
        self.state = directory / "state"
        self.file = directory / "orders.yaml"
        self.file.write_text(GROUP)

    def here(self, verb: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a verb to its end."""
        patience = PATIENT.get(verb, ()) if "--timeout" not in arguments else ()
        return subprocess.run(
            [*COMMAND, verb, *arguments, *patience, "--state", str(self.state)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def ok(self, verb: str, *arguments: str, stdin: str | None = None) -> str:
        """The output of a verb, which must succeed."""
        done = self.here(verb, *arguments, stdin=stdin)
        ended = f"{verb} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, f"{ended}\n{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        """The end of every pod's log."""
        paths = sorted((self.state / "logs").glob("*.log"))
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in paths)

    def up(self) -> str:
        """Runs `up` detached."""
        return self.ok("up", "-f", str(self.file), "--detach", "--timeout", str(UP_S))

    def group(self) -> Any:
        """The group's status as JSON."""
        (group,) = json.loads(self.ok("status", "-o", "json"))["brokerGroups"]
        return group

    def master(self) -> Any:
        """The replica that is the master; None unless exactly one serves."""
        masters = [one for one in self.group()["replicas"] if one["role"] == "master"]
        return masters[0] if len(masters) == 1 and masters[0]["pid"] is not None else None

    def wait_master(self) -> Any:
        """`master`, once there is one."""
        found: list[Any] = []

        def there() -> bool:
            found[:] = [self.master()]
            return found[0] is not None

        self.until(there, "a replica is the master")
        return found[0]

    def is_master(self, pod: str) -> bool:
        """Whether this pod is the only master."""
        master = self.master()
        return master is not None and master["pod"] == pod

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for a condition; a failure shows the pods' logs."""
        try:
            wait_until(condition, what=what)
        except AssertionError as error:
            error.add_note(self.logs())
            raise

    def whole(self) -> bool:
        """Whether every replica is in the SyncStateSet."""
        return bool(self.group()["phase"] == "Ready")

    def bodies(self, group: str, count: int, topic: str = "orders") -> list[str]:
        """The bodies of `count` messages that this consumer group reads."""
        output = self.ok("consume", topic, "--group", group, "--count", str(count), "--timeout", "120")
        return sorted(output.splitlines())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run that all tests share; each leaves every replica in the SyncStateSet."""
    made = Run(tmp_path_factory.mktemp("groups"))
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


def test_promoting_a_replica_fails_no_send(run: Run, tmp_path: Path) -> None:
    unless_stalled(tmp_path, lambda number: promote_all(run, f"promoted-{number}"))


def promote_all(run: Run, topic: str) -> None:
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
            run.until(lambda pod=pod: run.is_master(pod), f"{pod} says that it is the master")
            run.until(lambda sent=sent: len(senders.bodies) > sent + 100, "sends continue")
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


def test_a_killed_master_is_replaced_and_all_messages_are_read(run: Run) -> None:
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
    after = run.wait_master()
    assert after["pod"] != before["pod"]

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


def test_a_fenced_master_takes_no_message_until_it_is_unfenced(run: Run) -> None:
    run.until(run.whole, "all are in sync")
    master = run.wait_master()
    name = f"orders/{master['pod'].rpartition('-')[2]}"
    run.ok("produce", "fenced", "before")
    assert run.ok("fence", name) == f"{master['pod']} (master) accepts no messages until it is unfenced\n"
    run.until(lambda: run.wait_master()["fenced"], "it is shown to be fenced")
    header = send_header(0, "0" * 32)
    assert call(master["address"], SEND_MESSAGE_V2, header, b"x").code == SERVICE_NOT_AVAILABLE
    assert run.here("produce", "fenced", "while", "--timeout", "1").returncode == 1
    assert run.ok("fence", name, "--off") == f"{master['pod']} (master) accepts messages again\n"
    run.ok("produce", "fenced", "after")
    output = run.ok("consume", "fenced", "--count", "2", "--timeout", "120")
    assert sorted(output.splitlines()) == ["after", "before"]


def test_a_drained_replica_is_not_elected_until_it_is_undrained(run: Run) -> None:
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


def test_impossible_control_commands_are_rejected_with_a_reason(run: Run) -> None:
    for verb, name, why in (
        ("promote", "orders", "orders: expected GROUP/REPLICA, such as orders/0 or orders/orders-broker-0"),
        ("fence", "bills/0", f"broker group bills does not run in {run.state}; running groups: orders"),
        ("drain", "orders/7", "orders has no replica 7; its replicas are orders-broker-0, orders-broker-1"),
    ):
        done = run.here(verb, name)
        assert done.returncode == 1
        assert why in done.stderr
