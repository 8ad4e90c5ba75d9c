"""`epochmq up` of groups in the mode MasterSlave: a slave acts for a killed master, its due messages leave
for another group, `epochmq status` says so, the master returns, and a change restarts the master last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import wait_holds, wait_until
from tests.support.remoting import call
from tests.support.up_pair_run import ALL_TOPIC_CONFIG, GROUPS, PairRun, create_topic, send, wait_copied


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PairRun]:
    """A run that all tests share; each leaves it ready."""
    made = PairRun(tmp_path_factory.mktemp("pair"))
    try:
        made.up()
        yield made
    finally:
        made.ok("down")


def test_a_slave_acts_for_a_killed_master_and_the_status_says_so(run: PairRun) -> None:
    run.wait_settled()
    group = run.group()
    assert (group["mode"], group["controllerGroup"]) == ("MasterSlave", None)
    assert [one["brokerId"] for one in group["replicas"]] == [0, 1]
    master, slave = (one["address"] for one in group["replicas"])
    # The topic exists in both groups, so that due messages find a way.
    for address, body in ((master, b"first"), (run.other_master(), b"other")):
        create_topic(address)
        send(address, body)
    run.until(lambda: b'"orders"' in call(slave, ALL_TOPIC_CONFIG).body, "the slave has the topic")
    send(master, b"delayed", "DELAY\x012\x02")  # due in 20 s: the master is gone by then
    wait_copied(master, slave)
    killed_ms = time.time() * 1000
    with run.without_master(group["replicas"][0]):

        def check_acting() -> None:
            """Checks again: the status lacks a replica that is starved for a second."""
            acting = run.group()["actingMaster"]
            assert acting is not None
            assert acting["pod"] == "pair-broker-1"
            assert killed_ms - 1000 <= acting["sinceMs"] <= time.time() * 1000
            assert run.roles()[1] == "acting"
            assert "acting" in run.ok("status")

        def check_escaped() -> None:
            acting = run.group()["actingMaster"]
            assert acting is not None
            assert (acting["escaped"], acting["escapeWaiting"]) == (1, 0)

        wait_holds(check_acting)
        wait_holds(check_escaped)
        run.receive(["delayed", "first", "other"], "readers", broker_group="pair")
    run.wait_settled()
    run.until(lambda: run.group()["replicas"][1]["escaped"] == 1, "the status has the count of the slave")
    run.ok("produce", "orders", "second", "--broker-group", "pair")


def started(pid: int) -> int:
    """When a process started, in clock ticks since the start of the machine."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(") ")[2].split()[19])


def test_a_change_restarts_the_slave_first_and_then_the_master(run: PairRun) -> None:
    before = [one["pid"] for one in run.group()["replicas"]]
    run.file.write_text(GROUPS % ", maxMessageSize: 65536")
    run.up()
    master, slave = (one["pid"] for one in run.group()["replicas"])
    assert not {master, slave} & set(before), "up returns when both have been restarted"
    assert started(slave) < started(master)
    # On a busy machine a broker may be late to answer the status.
    wait_until(lambda: run.group()["phase"] == "Ready", what="the group is ready")


def test_promote_and_drain_say_that_the_master_is_fixed(run: PairRun) -> None:
    for verb in ("promote", "drain"):
        done = run.here(verb, "pair/1")
        assert done.returncode != 0
        assert "has no controllers" in done.stderr


def test_data_of_the_mode_is_not_used_under_controllers(run: PairRun) -> None:
    text = GROUPS % ", maxMessageSize: 65536"
    run.file.write_text(text.replace("mode: MasterSlave\n  replicas: 2", "replicas: 2"))
    done = run.here("up", "-f", str(run.file), "--detach")
    run.file.write_text(text)
    assert done.returncode != 0
    assert "was written without controllers and cannot be used with them" in done.stderr
    run.wait_settled()
