"""Sidecars of the brokers and controllers of a real group, which all tests share."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.admin_pods import Pods, Producer
from tests.support.group_processes import Member, our_broker, our_controller
from tests.support.group_traffic import (
    SUCCESS,
    check_equal,
    deliver,
    deliver_to,
    read_queue,
    send,
    wait_confirmed,
)
from tests.support.leases import unless_lease_lapsed
from tests.support.process import wait_holds, wait_until
from tests.support.replica_group import ReplicaGroup
from tests.support.sidecar import Sidecar
from tests.support.stalls import unless_stalled

OCTET = 74
SETTINGS = {
    "allAckInSyncStateSet": True,
    "minInSyncReplicas": 2,
    "registerNameServerPeriod": 10_000,
    "haMaxTimeSlaveNotCatchup": 3000,
    "checkSyncStateSetPeriod": 500,
    "haSendHeartbeatInterval": 1000,
    "haHousekeepingInterval": 3000,
}


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    directory = tmp_path_factory.mktemp("a")
    group = ReplicaGroup(directory, [our_controller] * 3, [our_broker] * 3, broker=SETTINGS, octet=OCTET)
    pods = Pods(group)
    for member in [*group.brokers, group.controllers[0]]:
        pods.sidecars[member.name] = Sidecar.beside(member, octet=OCTET)
    try:
        for sidecar in pods.sidecars.values():
            sidecar.start()
        group.start()
        yield pods
    finally:
        group.kill()
        for sidecar in pods.sidecars.values():
            sidecar.kill()


@pytest.fixture
def pods(started: Pods) -> Iterator[Pods]:
    """The group; every broker is ready when a test starts."""
    started.wait_ready()
    yield started
    print(started.group.logs(4000))  # shown when the test failed
    for member in started.brokers:
        member.process.signal(signal.SIGCONT)
        if member.process.alive:
            for undo in ("unfence", "undrain"):
                started.of(member).ask("POST", f"/v1/{undo}")
        else:
            member.start()


def test_every_state_agrees_with_the_controllers(pods: Pods) -> None:
    wait_holds(lambda: check_states(pods))


def check_states(pods: Pods) -> None:
    """Compares what every sidecar says with what the controllers say. A replica learns a little later who is
    in sync, and on a busy machine that changes."""
    found = pods.group.wait_replicas()
    master = pods.master()
    for member in pods.brokers:
        state = pods.of(member).state()
        assert state, f"{member.name} says nothing"
        assert (state["component"], state["cluster"], state["brokerName"]) == (
            "broker",
            ReplicaGroup.CLUSTER,
            ReplicaGroup.NAME,
        )
        assert state["address"] == member.address
        assert state["masterEpoch"] == found["masterEpoch"]
        assert state["syncStateSet"] == [1, 2, 3]
        assert state["syncStateSetEpoch"] == found["syncStateSetEpoch"]
        assert (state["ready"], state["notReady"], state["fenced"]) == (True, [], False)
        assert state["masterAddress"] == master.address
        if member is master:
            assert (state["role"], state["brokerId"]) == ("master", found["masterBrokerId"])
            assert state["lease"]["durationMs"] == 300
            assert 0 < state["lease"]["remainingMs"] <= 300
            assert state["takesMessages"]
        else:
            assert (state["role"], state["lease"], state["lagBytes"]) == ("replica", None, 0)
    ids = {pods.of(member).state().get("brokerId") for member in pods.brokers}
    assert ids == {1, 2, 3}


def test_a_controller_reports_its_quorum_and_its_groups(pods: Pods) -> None:
    sidecar = pods.of(pods.group.controllers[0])

    def check() -> None:
        """Compares again: a follower learns a little later what is committed, and every controller who is
        alive."""
        state, leader = sidecar.state(), pods.group.wait_leader()
        assert state, "the controller says nothing"
        assert (state["component"], state["id"], state["ready"]) == ("controller", "n0", True)
        assert state["leaderAddress"] == leader.address
        assert state["role"] == ("leader" if leader is pods.group.controllers[0] else "follower")
        assert [peer["id"] for peer in state["peers"]] == ["n0", "n1", "n2"]
        assert [group["brokerName"] for group in state["groups"]] == [ReplicaGroup.NAME]
        (group,) = state["groups"]
        assert group["syncStateSet"] == [1, 2, 3]
        replicas = {(one["address"], one["alive"]) for one in group["replicas"]}
        assert replicas == {(member.address, True) for member in pods.brokers}

    wait_holds(check)
    assert sidecar.get("/live").json()["component"] == "controller"
    assert sidecar.get("/v1/config").json()["config"]["controllerDLegerSelfId"] == "n0"
    assert sidecar.get("/v1/epochs").status_code == 404
    assert sidecar.ask("POST", "/v1/fence").status_code == 404


def test_epochs_lease_and_sync_state_set_agree_with_the_log(pods: Pods) -> None:
    deliver_to(pods.group)

    def check() -> None:
        master = pods.master()
        sidecar = pods.of(master)
        found = {
            path: sidecar.get(f"/v1/{path}").json()
            for path in ("epochs", "lag", "sync-state-set", "lease", "config")
        }
        assert not any("error" in response for response in found.values()), found
        assert found["epochs"]["epochs"][-1]["endOffset"] is None
        file = master.config.parent / "store" / "epochFileCheckpoint"
        assert sidecar.get("/v1/epoch-file").content == file.read_bytes()
        replicas = [(one["lagBytes"], one["inSync"]) for one in found["lag"]["replicas"]]
        assert replicas == [(0, True)] * 2
        assert found["sync-state-set"]["members"] == [1, 2, 3]
        assert found["lease"]["mayWrite"]
        assert found["config"]["config"]["brokerName"] == ReplicaGroup.NAME

    wait_holds(check)


def test_metrics_are_prometheus_text(pods: Pods) -> None:
    wait_holds(lambda: check_metrics(pods))


def check_metrics(pods: Pods) -> None:
    """Reads the metrics of every broker and of a controller, which learns everything a little later than its
    leader."""
    master = pods.master()
    for member in [*pods.brokers, pods.group.controllers[0]]:
        text = pods.of(member).get("/metrics").text
        found = {family.name: family for family in text_string_to_metric_families(text)}
        assert found["epochmq_up"].samples[0].value == 1
        assert found["epochmq_ready"].samples[0].value == 1
        if member in pods.brokers:
            roles = {one.labels["role"]: one.value for one in found["epochmq_broker_role"].samples}
            assert roles["master"] == (member is master)
            assert found["epochmq_broker_sync_state_set_size"].samples[0].value == 3
        else:
            assert found["epochmq_group_replicas_alive"].samples[0].value == 3


def test_a_handover_under_load_fails_no_send(pods: Pods) -> None:
    """The producer keeps the address it knows; no send is rejected or lost."""
    unless_lease_lapsed(pods.lease_lapses, lambda: hand_over_under_load(pods))


def hand_over_under_load(pods: Pods) -> None:
    """One handover."""
    pods.wait_ready()
    before = deliver_to(pods.group)  # makes the topic
    assert wait_confirmed(pods.group) is before
    stored = len(read_queue(before, 3))
    with Producer(before, 3) as producer:
        epoch = pods.of(before).state().get("masterEpoch", 0)
        done = pods.of(before).ask("POST", "/v1/handover", {"timeoutMs": 60_000})
        assert done.status_code == 200, done.text
        assert done.json()["moved"]
        assert done.json()["masterEpoch"] > epoch
        count = producer.codes[SUCCESS]
        wait_until(lambda: producer.codes[SUCCESS] > count + 50, what="messages are accepted after it")
    assert set(producer.codes) == {SUCCESS}
    after = pods.master()
    assert after is not before
    assert done.json()["masterAddress"] == after.address
    assert len(read_queue(wait_confirmed(pods.group), 3)) == stored + producer.codes[SUCCESS]
    pods.wait_ready()
    check_equal(pods.group)


def test_a_prestop_hook_hands_over_and_ends_with_0_also_at_a_replica(pods: Pods) -> None:
    replica = pods.others(pods.master())[0]
    done = pods.of(replica).call("handover")
    assert (done.returncode, json.loads(done.stdout)["moved"]) == (0, False), done.stderr
    # A master that stalls for a moment is replaced: the hook runs at the present master.
    masters: list[Member] = []

    def moved() -> bool:
        pods.wait_ready()
        masters.append(pods.master())
        done = pods.of(masters[-1]).call("--timeout", "100", "handover")
        return done.returncode == 0 and json.loads(done.stdout)["moved"]

    wait_until(moved, what="the hook of a master hands over")
    master = masters[-1]
    wait_until(lambda: pods.master() is not master, what="another is master")
    done = pods.of(master).call("ready")
    assert done.returncode in (0, 1)
    wait_until(lambda: pods.of(master).call("ready").returncode == 0, what="it is a ready replica")


def test_a_prestop_hook_waits_for_clients_with_an_old_route(pods: Pods, tmp_path: Path) -> None:
    """A broker that is stopped after a handover with linger has no client left that still sends to it."""
    unless_stalled(tmp_path, lambda _: hand_over_and_linger(pods))


def hand_over_and_linger(pods: Pods) -> None:
    """One handover. A client that stalls for two seconds counts as gone."""
    pods.wait_ready()
    master = deliver_to(pods.group)  # makes the topic
    ended = threading.Event()
    done: list[int] = []

    def hand_over() -> None:
        response = pods.of(master).call("--timeout", "120", "handover", "lingerMs=90000")
        done.append(response.returncode)
        ended.set()

    hook = threading.Thread(target=hand_over, daemon=True)
    with Producer(master, 2) as producer:
        hook.start()
        successor = None
        while successor in (None, master):
            successor = pods.master()
        count = producer.codes[SUCCESS]
        wait_until(lambda: producer.codes[SUCCESS] > count + 200, what="messages are relayed")
        assert not ended.is_set()
    wait_until(ended.is_set, what="the hook ends after the last send")
    assert (done, set(producer.codes)) == ([0], {SUCCESS})


@pytest.mark.soak
def test_twenty_handovers_in_a_row_fail_no_send(pods: Pods) -> None:
    """Four producers keep the address that they know first."""
    first = deliver_to(pods.group)  # makes the topic
    stored = {queue: len(read_queue(first, queue)) for queue in range(4)}
    held: list[int] = []
    with contextlib.ExitStack() as producers:
        running = [producers.enter_context(Producer(first, queue)) for queue in range(4)]
        for _ in range(20):
            done = pods.of(pods.master()).ask("POST", "/v1/handover", {"timeoutMs": 60_000})
            assert done.status_code == 200, done.text
            assert done.json()["moved"]
            held.append(done.json()["heldMs"])
            pods.wait_ready()
    print(f"sends were held {sorted(held)} ms")
    assert [set(one.codes) for one in running] == [{SUCCESS}] * 4
    master = wait_confirmed(pods.group)
    for queue, producer in enumerate(running):
        assert len(read_queue(master, queue)) == stored[queue] + producer.codes[SUCCESS]
    check_equal(pods.group)


def wait_first_leads(pods: Pods) -> None:
    """Restarts leading controllers until the one with a sidecar leads."""
    sidecar = pods.of(pods.group.controllers[0])

    def leads() -> bool:
        if sidecar.state().get("leads"):
            return True
        leader = pods.group.leader()
        if leader is not None:
            leader.process.kill()
            leader.start()
        pods.group.wait_leader()
        return bool(sidecar.state().get("leads"))

    wait_until(leads, what="the controller with a sidecar leads")


def test_a_leading_controller_changes_the_members_of_its_quorum(pods: Pods) -> None:
    """Each change is repeated: an operator that was killed after it asks again."""
    sidecar = pods.of(pods.group.controllers[0])
    last = {"member": "n2", "address": pods.group.controllers[2].address}
    assert sidecar.ask("PUT", "/v1/members", {"member": "n2"}, token=None).status_code == 401
    assert sidecar.ask("PUT", "/v1/members", {"member": "a-b", "address": "h:1"}).status_code == 400

    def leads_to(change: dict[str, str], members: list[str]) -> bool:
        """Whether the change leads to these members. A leader that was starved may be replaced before it
        answers."""
        wait_first_leads(pods)
        done = sidecar.ask("PUT", "/v1/members", change)
        return done.status_code == 200 and [one["id"] for one in done.json()["members"]] == members

    for change, members in (({"member": "n2"}, ["n0", "n1"]), (last, ["n0", "n1", "n2"])):
        for _ in range(2):
            wait_until(partial(leads_to, change, members), what=f"the members {members}")

    def not_itself() -> bool:
        wait_first_leads(pods)
        done = sidecar.ask("PUT", "/v1/members", {"member": "n0"})
        return done.status_code == 409 and "transferred its leadership" in done.json()["error"]["message"]

    wait_until(not_itself, what="the leader transfers its leadership instead of removing itself")
    assert [one["id"] for one in sidecar.state()["peers"]] == ["n0", "n1", "n2"]


def test_a_leading_controller_transfers_its_leadership(pods: Pods) -> None:
    """The next leader gives the leadership back, so that the controller with a sidecar is also asked as
    leader."""
    sidecar = pods.of(pods.group.controllers[0])

    def moved() -> bool:
        wait_first_leads(pods)
        done = sidecar.ask("POST", "/v1/handover", {"timeoutMs": 60_000})
        return done.status_code == 200 and done.json()["moved"] and done.json()["leader"] in ("n1", "n2")

    def check() -> None:
        again = sidecar.ask("POST", "/v1/handover")
        assert again.status_code == 200, again.text
        assert (again.json()["moved"], again.json()["reason"]) == (False, "this controller does not lead")
        assert sidecar.ready() == (200, [])

    wait_until(moved, timeout_s=240, what="it has transferred its leadership")
    wait_holds(check)
    deliver_to(pods.group)  # the master keeps serving under the next leader


def test_a_replica_is_promoted_by_its_own_sidecar_or_by_its_masters(pods: Pods) -> None:
    one, two = pods.others(pods.master())
    assert pods.switch(one, "/v1/promote")["masterAddress"] == one.address
    wait_until(lambda: pods.master() is one, what="it is the master")
    wanted = pods.of(two).state()["brokerId"]
    assert pods.switch(one, "/v1/promote", {"brokerId": wanted})["masterBrokerId"] == wanted
    wait_until(lambda: pods.master() is two, what="the other one is the master")
    done = pods.switch(two, "/v1/promote")
    assert (done["moved"], done["reason"]) == (False, "it is the master already")
    assert pods.of(two).ask("POST", "/v1/promote", {"brokerId": 9}).status_code == 409


def test_a_fenced_master_rejects_messages_and_is_not_ready(pods: Pods) -> None:
    sidecar = pods.of(master := pods.master())
    assert sidecar.ask("POST", "/v1/fence", token=None).status_code == 401
    assert sidecar.ask("POST", "/v1/fence", token="not-the-token-of-here").status_code == 401
    deliver(master)
    assert sidecar.ask("POST", "/v1/fence").json()["fenced"]
    assert send(master).code != SUCCESS

    def is_not_ready() -> None:
        status, reasons = sidecar.ready()
        assert status == 503
        assert "it is fenced: it stores no messages until it is unfenced" in reasons

    wait_holds(is_not_ready)
    assert not sidecar.ask("POST", "/v1/unfence").json()["fenced"]
    deliver_to(pods.group)


def test_a_drained_replica_leaves_the_sync_state_set_and_comes_back(pods: Pods) -> None:
    """A drained replica is not ready, and says why. A master can be drained, too: it hands over first."""
    master = pods.master()
    sidecar = pods.of(master)
    own_id = sidecar.state()["brokerId"]
    done = sidecar.ask("POST", "/v1/drain", {"timeoutMs": 60_000})
    assert done.status_code == 200, done.text
    assert done.json()["switched"]["moved"]
    successor = pods.master()
    assert successor is not master
    wait_until(lambda: own_id not in (pods.members(successor) or [own_id]), what="it is out of the set")

    def is_not_ready() -> None:
        status, reasons = sidecar.ready()
        assert status == 503
        assert reasons[0] == "it is drained: it stays out of the SyncStateSet until it is undrained"

    wait_holds(is_not_ready)
    assert sidecar.ask("POST", "/v1/undrain").status_code == 200
    pods.wait_ready()
    wait_until(lambda: own_id in pods.members(pods.master()), what="it is in the set")


def test_readiness_follows_a_killed_master(pods: Pods) -> None:
    """The sidecar of the killed master says that the process does not answer. Another broker becomes a ready
    master. When the killed one is back, it is ready as soon as it is in sync."""
    master = pods.master()
    sidecar = pods.of(master)
    master.process.kill()
    assert sidecar.get("/live").status_code == 503
    status, reasons = sidecar.ready()
    assert status == 503
    assert "no process listens at" in reasons[0]
    text = sidecar.get("/metrics").text
    assert "epochmq_up 0.0\n" in text
    successor = pods.master()
    assert successor is not master
    wait_until(lambda: len(pods.members(pods.master())) == 2, what="a master knows of its set")
    master.start()
    wait_until(lambda: sidecar.get("/live").status_code == 200, what="it answers again")
    wait_until(lambda: sidecar.ready()[0] == 200, what="it is ready")

    def check() -> None:
        state = sidecar.state()
        assert (state["role"], state["brokerId"] in state["syncStateSet"]) == ("replica", True)

    wait_holds(check)


def test_a_replica_outside_the_sync_state_set_reports_its_lag(pods: Pods) -> None:
    """A replica that hangs leaves the SyncStateSet; its sidecar says that it does not answer. When it
    continues, it reports its lag, unless it is in sync by then."""
    replica = pods.others(pods.master())[0]
    sidecar = pods.of(replica)
    own_id = sidecar.state()["brokerId"]
    replica.process.signal(signal.SIGSTOP)
    assert sidecar.get("/live").status_code == 504
    assert sidecar.ready()[0] == 503
    wait_until(lambda: own_id not in pods.members(pods.master()), what="it is out, and the master is ready")
    for _ in range(20):
        deliver_to(pods.group, b"x" * 1000)
    replica.process.signal(signal.SIGCONT)

    def is_back() -> bool:
        return sidecar.ready()[0] == 200 and own_id in pods.members(pods.master())

    wait_until(is_back, what="it is in sync and ready again")


def test_a_master_without_enough_replicas_is_not_ready(pods: Pods) -> None:
    master = pods.master()
    others = pods.others(master)
    for other in others:
        other.process.kill()
    reason = "1 replicas are in sync, but minInSyncReplicas=2"
    wait_until(lambda: pods.of(master).ready() == (503, [reason]), what=reason)
    assert pods.of(master).get("/live").status_code == 200
    for other in others:
        other.start()
    pods.wait_ready()


def test_settings_and_log_level_change_at_run_time(pods: Pods) -> None:
    sidecar = pods.of(member := pods.brokers[0])
    done = sidecar.ask("PATCH", "/v1/config", {"fileReservedTime": 48, "slaveReadEnable": True})
    assert done.status_code == 200, done.text
    assert done.json()["config"]["fileReservedTime"] == "48"
    assert "fileReservedTime=48\n" in member.config.read_text()
    rejected = sidecar.ask("PATCH", "/v1/config", {"fileReservedTime": 24, "listenPort": 1})
    assert (rejected.status_code, "listenPort=1" in rejected.text) == (409, True)
    assert sidecar.get("/v1/config").json()["config"]["fileReservedTime"] == "48"
    assert sidecar.ask("PUT", "/v1/log-level", {"level": "DEBUG"}).json()["before"] == "INFO"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(sidecar.socket))  # and closes without a request, which the broker logs
    wait_until(lambda: '"level": "debug"' in member.process.output(), what="it logs more")
    assert sidecar.ask("PUT", "/v1/log-level", {"level": "INFO"}).json()["before"] == "DEBUG"


def test_bad_input_on_the_admin_socket_does_not_disturb_the_broker(pods: Pods) -> None:
    master = pods.master()
    path = str(pods.of(master).socket)
    pid = master.process.pid
    for data in (b"", b"\0", b"\xff" * 5000, b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x05[[[[[", os.urandom(3000)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(path)
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            response = connection.recv(65536)
            assert response == b"" or b"fault" in response
    assert (master.process.pid, master.process.alive) == (pid, True)
    pods.wait_ready()
    deliver_to(pods.group)


def test_an_idle_sidecar_is_small_and_stops_cleanly(pods: Pods) -> None:
    sidecar = pods.of(pods.brokers[0])
    status = Path(f"/proc/{sidecar.process.pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    assert int(found.group(1)) < 80_000
    assert sidecar.process.stop() == 0
    sidecar.start()
    assert sidecar.ready()[0] in (200, 503, 504)  # 504: the broker took more than 5 s to answer
