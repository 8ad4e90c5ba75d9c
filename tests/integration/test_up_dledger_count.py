"""`epochmq up` with another number of replicas of a group in the mode DLedger: the group changes by one
broker at a time, while messages are sent."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.up_run import alive
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import call
from tests.support.up_dledger_run import LedgerRun, SteadySender

GET_MAX_OFFSET = 30


class ChangingRun(LedgerRun):
    """A run of a group whose number of replicas changes."""

    def up_with(self, replicas: int) -> None:
        """Runs `up` with this number of replicas, which are then the members of the group."""
        self.write(replicas=replicas)
        self.up()
        self.until(self.whole, "all are ready")
        assert len(self.group()["replicas"]) == replicas

        def check() -> None:
            """Asks again: a replica learns of the last change a little later than its leader."""
            assert self.members() == {f"n{number}" for number in range(replicas)}

        wait_holds(check)

    def members(self) -> set[str]:
        """The ids of the members of the group, as each replica knows them."""
        found = set()
        secret = str(self.state / "member-secret")
        for one in self.group()["replicas"]:
            shown = self.call("broker", "members", one["dledgerAddress"], EPOCHMQ_MEMBER_SECRET=secret)
            assert shown.returncode == 0, shown
            found.add(frozenset(line.split()[0] for line in shown.stdout.splitlines()))
        (members,) = found
        return set(members)

    def pids(self) -> dict[str, int]:
        """The process of each replica."""
        return {one["pod"]: one["pid"] for one in self.group()["replicas"]}

    def processes(self) -> set[str]:
        """The pods whose processes the supervisor has recorded."""
        records = json.loads((self.state / "pods.json").read_text())["pods"]
        return {one["pod"] for one in records if one["process"]}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[ChangingRun]:
    """A run that is stopped at the end."""
    made = ChangingRun(tmp_path)
    yield made
    made.here("down")


@pytest.mark.soak
def test_a_group_grows_from_one_to_five_and_shrinks_to_three_while_messages_are_sent(
    run: ChangingRun,
) -> None:
    run.up_with(1)
    before = run.pids()
    addresses = [run.wait_master()["address"]]
    with SteadySender(addresses, "steady") as sender:
        run.until(lambda: len(sender.acknowledged) > 20, "messages are sent")
        for number in (3, 5, 3):
            if number < len(before):
                run.ok("promote", f"ledger/{number}")  # it leaves as the leader
            run.up_with(number)
            after = run.pids()
            stay = before.keys() & after.keys()
            assert {pod: after[pod] for pod in stay} == {pod: before[pod] for pod in stay}, "none restarted"
            assert not any(alive(before[pod]) for pod in before.keys() - after.keys())
            addresses += [
                address for one in run.group()["replicas"] if (address := one["address"]) not in addresses
            ]
            sent = len(sender.acknowledged)
            run.until(lambda sent=sent: len(sender.acknowledged) > sent + 20, "messages are sent")  # type: ignore[misc]
            before = after
    queue = {"topic": "steady", "queueId": "0"}
    stored = int(call(run.wait_master()["address"], GET_MAX_OFFSET, queue).ext["offset"])
    assert set(sender.acknowledged) <= set(run.bodies("steady-readers", stored, "steady"))
    # The first broker, which once was a group of its own, now joins if it finds no log.
    os.kill(before["ledger-broker-0"], signal.SIGKILL)
    configuration = run.state / "config" / "ledger-broker-0" / "broker.conf"
    wait_until(lambda: "joinDLedgerGroup=true" in configuration.read_text(), what="it starts again")
    run.up_with(3)


def test_a_change_that_a_killed_supervisor_began_is_completed(run: ChangingRun) -> None:
    run.up_with(1)
    run.ok("produce", "kept", stdin="a\nb\nc\n")
    run.write(replicas=3)
    killed = threading.Thread(target=run.try_up)
    killed.start()
    wait_until(lambda: "ledger-broker-1" in run.processes(), what="the second broker's process")
    assert json.loads((run.state / "quorums.json").read_text())["ledger"]["running"] > 1
    pid = json.loads((run.state / "supervisor.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), what="the supervisor is gone")
    killed.join()
    run.up_with(3)
    run.ok("down")
    run.up_with(1)
    run.receive(["a", "b", "c"], "readers", "kept")
