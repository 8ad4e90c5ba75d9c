"""`epochmq up` of a group in the mode DLedger as people type it: roles, failover, promote, drain, fence, and
a change that restarts the leader last."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import wait_holds
from tests.support.remoting import call
from tests.support.up_dledger_run import GET_MAX_OFFSET, LedgerRun, SteadySender


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LedgerRun]:
    """A run that all tests share; each leaves every replica ready."""
    made = LedgerRun(tmp_path_factory.mktemp("ledger"))
    try:
        made.up()
        yield made
    finally:
        made.ok("down")


def test_the_replicas_elect_a_master_and_the_status_shows_roles_and_terms(run: LedgerRun) -> None:
    run.until(run.whole, "all are ready")
    wait_holds(lambda: check_status(run))
    run.ok("produce", "first", stdin="a\nb\nc\n")
    run.receive(["a", "b", "c"], "readers", "first")


def check_status(run: LedgerRun) -> None:
    """Checks the status; repeated, because a replica that is starved for a second is not in it, and the
    leader may change."""
    group = run.group()
    assert (group["mode"], group["controllerGroup"], group["syncStateSet"]) == ("DLedger", None, [])
    assert [one["brokerId"] for one in group["replicas"]] == [1, 2, 3]
    assert sorted(one["role"] for one in group["replicas"]) == ["master", "slave", "slave"]
    assert {one["epoch"] for one in group["replicas"]} == {group["masterEpoch"]}
    assert {one["haAddress"] for one in group["replicas"]} == {None}
    assert {one["dledgerAddress"].rpartition(":")[2] for one in group["replicas"]} == {"40911"}
    assert f"master (term {group['masterEpoch']})" in run.ok("status")


def test_a_killed_leader_is_replaced_and_no_acknowledged_message_is_missing(run: LedgerRun) -> None:
    run.until(run.whole, "all are ready")
    before = run.wait_master()
    addresses = [one["address"] for one in run.group()["replicas"]]
    with SteadySender(addresses, "steady") as sender:
        run.until(lambda: len(sender.acknowledged) > 100, "messages are sent")
        os.kill(before["pid"], signal.SIGKILL)
        sent = len(sender.acknowledged)
        run.until(lambda: len(sender.acknowledged) > sent + 100, "messages are sent again")
    run.until(lambda: run.wait_master()["epoch"] > before["epoch"], "another term is shown")
    run.until(run.whole, "the killed replica follows again")
    # More than were acknowledged: the message that waited for the killed leader may be there twice.
    queue = {"topic": "steady", "queueId": "0"}
    stored = int(call(run.wait_master()["address"], GET_MAX_OFFSET, queue).ext["offset"])
    found = run.bodies("steady-readers", stored, "steady")
    assert set(sender.acknowledged) <= set(found)


def test_promote_transfers_the_leadership(run: LedgerRun) -> None:
    run.until(run.whole, "all are ready")
    chosen = run.wait_slaves()[0]
    output = run.ok("promote", f"ledger/{chosen['pod']}")
    assert output.startswith(f"{chosen['pod']} (id {chosen['brokerId']}) is the master of epoch ")
    assert "sends were rejected" in output
    run.until(lambda: run.is_master(chosen["pod"]), "it is shown as the master")
    assert "is already the master" in run.ok("promote", f"ledger/{chosen['pod']}")
    run.ok("produce", "promoted", "one")


def test_a_drained_replica_leaves_the_leadership_to_the_others(run: LedgerRun) -> None:
    run.until(run.whole, "all are ready")
    drained = run.wait_master()
    output = run.ok("drain", f"ledger/{drained['pod']}")
    assert f"{drained['pod']} leaves the leadership to other replicas until it is undrained" in output
    run.until(lambda: run.wait_master()["pod"] != drained["pod"], "another master is shown")
    second = run.wait_master()
    done = run.here("promote", f"ledger/{drained['pod']}")
    assert done.returncode != 0
    assert "it did not take over: it does not respond, or it is drained" in done.stderr
    os.kill(second["pid"], signal.SIGKILL)
    third = next(
        one["pod"] for one in run.group()["replicas"] if one["pod"] not in (drained["pod"], second["pod"])
    )
    run.until(lambda: run.is_master(third), "the replica that is not drained becomes the master")
    run.until(run.whole, "the killed replica follows again")
    run.ok("drain", f"ledger/{drained['pod']}", "--off")
    run.ok("promote", f"ledger/{drained['pod']}")
    run.until(lambda: run.is_master(drained["pod"]), "it is shown as the master")


def test_a_fenced_master_rejects_messages_until_another_leads(run: LedgerRun) -> None:
    run.until(run.whole, "all are ready")
    master = run.wait_master()
    run.ok("fence", f"ledger/{master['pod']}")
    assert run.here("produce", "fenced", "no", "--timeout", "3").returncode != 0
    other = run.wait_slaves()[0]
    run.ok("promote", f"ledger/{other['pod']}")
    run.ok("produce", "fenced", "yes")
    run.ok("fence", f"ledger/{master['pod']}", "--off")


def test_a_change_restarts_the_leader_last(run: LedgerRun) -> None:
    run.until(run.whole, "all are ready")
    master = run.wait_master()
    before = {one["pod"]: one["pid"] for one in run.group()["replicas"]}
    run.write(", maxMessageSize: 65536")
    run.up()
    after = {one["pod"]: one["pid"] for one in run.group()["replicas"]}
    assert None not in after.values(), "up returns when all have been restarted"
    assert not set(before.values()) & set(after.values())
    starts = {pod: started(pid) for pod, pid in after.items()}
    assert max(starts, key=lambda pod: starts[pod]) == master["pod"]


def started(pid: int) -> int:
    """When a process started, in clock ticks since the start of the machine."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[19])


def test_another_mode_is_rejected(run: LedgerRun) -> None:
    text = run.file.read_text()
    run.file.write_text(text.replace("  mode: DLedger\n", ""))
    done = run.try_up()
    run.file.write_text(text)
    assert done.returncode != 0
    assert "was written in the mode DLedger and cannot be used in another mode" in done.stderr
    run.until(run.whole, "all are ready")
