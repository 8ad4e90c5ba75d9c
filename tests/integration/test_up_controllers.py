"""`epochmq up` of controllers as people type it: a real quorum that elects, loses its leader, and restarts
with its data."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.up_run import UpRun
from tests.support.process import wait_holds, wait_until
from tests.support.remoting import Response, call

CLUSTER_INFO, APPLY_BROKER_ID, NOT_LEADER = 106, 1013, 2007
REGISTER_BROKER, NO_PERMISSION = 103, 16
WHO = {"clusterName": "c", "brokerName": "b"}
GROUP = """\
apiVersion: epochmq.io/v1alpha1
kind: ControllerGroup
metadata: {name: quorum}
spec:
"""


class QuorumRun(UpRun):
    """A run of a group of controllers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "quorum")

    def write(self, *spec: str) -> None:
        """Writes the resource with these fields of `spec`."""
        self.file.write_text(GROUP + "".join(f"  {line}\n" for line in spec))

    def leader(self) -> Any:
        """The one controller that leads, of those that status shows; None when there is not exactly one."""
        leaders = [one for one in self.status()["controllers"] if one["role"] == "leader"]
        return leaders[0] if len(leaders) == 1 else None

    def wait_leader(self) -> Any:
        """`leader`, once there is one."""
        found: list[Any] = []

        def leads() -> bool:
            found[:] = [self.leader()]
            return found[0] is not None

        wait_until(leads, what="a controller leads")
        return found[0]

    def ask(self, code: int, more: dict[str, str]) -> Response:
        """The leader's response about the one simulated broker; asks again if the controller is no longer the
        leader."""
        found: list[Response] = []

        def answered() -> bool:
            found[:] = [call(self.wait_leader()["address"], code, WHO | more)]
            return found[0].code != NOT_LEADER

        wait_until(answered, what=f"a leading controller answers request {code}")
        return found[0]

    def groups(self) -> list[str]:
        """The replica groups that are shown."""
        return [group["brokerName"] for group in self.status()["controllerGroups"][0]["replicaGroups"]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[QuorumRun]:
    """A run that is stopped at the end."""
    made = QuorumRun(tmp_path)
    yield made
    made.here("down")


def test_three_controllers_elect_survive_the_loss_of_their_leader_and_keep_their_data(run: QuorumRun) -> None:
    run.write("replicas: 3", "memberAuthentication: Accept")  # the test acts as a broker
    done = run.try_up()
    assert done.returncode == 0, done.stderr
    assert [f"quorum-controller-{n}: Ready" in done.stdout for n in range(3)] == [True] * 3

    shown: list[Any] = []

    def check_status() -> None:
        """Checks the status; repeated, because the leader may change on a busy machine."""
        found = run.status()
        controllers = found["controllers"]
        assert [one["pod"] for one in controllers] == [f"quorum-controller-{n}" for n in range(3)]
        assert sorted(one["role"] for one in controllers) == ["follower", "follower", "leader"]
        assert all(Path(one["dataDir"], "controller").is_dir() for one in controllers)
        assert found["nameservers"] == [one["nameserver"] for one in controllers]
        assert [call(address, CLUSTER_INFO).code for address in found["nameservers"]] == [0, 0, 0]
        (quorum,) = found["controllerGroups"]
        (leader,) = [one for one in controllers if one["role"] == "leader"]
        assert quorum["leader"] == leader["pod"]
        assert (quorum["phase"], quorum["term"], quorum["replicaGroups"]) == ("Ready", leader["term"], [])
        assert quorum["memberAuthentication"] == "Accept"
        shown[:] = [quorum]

    wait_holds(check_status)
    (quorum,) = shown

    # Status shows what the controllers have registered.
    applied = {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;t"}
    assert run.ask(APPLY_BROKER_ID, applied).code == 0

    def check_group() -> None:
        now = run.status()["controllerGroups"][0]
        assert now["committedIndex"] > quorum["committedIndex"]
        (group,) = now["replicaGroups"]
        assert {key: group[key] for key in ("brokerName", "masterId", "masterEpoch", "syncStateSet")} == {
            "brokerName": "b",
            "masterId": None,
            "masterEpoch": 0,
            "syncStateSet": [],
        }
        assert [(one["brokerId"], one["alive"], one["inSync"]) for one in group["replicas"]] == [
            (1, False, False)
        ]

    wait_holds(check_group)

    # The leader is killed: another leads in a later term, and the killed one comes back.
    first = run.wait_leader()
    os.kill(first["pid"], signal.SIGKILL)

    def healed() -> bool:
        leader, now = run.leader(), run.status()
        return bool(
            leader
            and leader["pid"] != first["pid"]
            and leader["term"] > first["term"]
            and now["controllerGroups"][0]["phase"] == "Ready"
            and any(one["pod"] == first["pod"] and one["restarts"] for one in now["controllers"])
        )

    wait_until(healed, what="another leader, and all ready")
    wait_until(
        lambda: f"quorum       {run.wait_leader()['pod']}" in run.ok("status"),
        what="the table has the leader",
    )
    wait_until(lambda: run.groups() == ["b"], what="the group is there")

    # A later run has the data.
    assert "quorum-controller-0: Stopped (exit status 0)" in run.ok("down")
    assert run.here("status").returncode == 3
    assert run.try_up().returncode == 0
    wait_until(lambda: run.groups() == ["b"], what="the group is there again")


def test_a_controller_with_a_separate_nameserver_ignores_an_invalid_change(run: QuorumRun) -> None:
    run.write("replicas: 1", "nameserver: {embedded: false}")
    done = run.try_up()
    assert done.returncode == 0, done.stderr
    controller = run.wait_leader()
    assert controller["nameserver"] is None
    found = run.status()
    assert found["nameservers"] == [pod["address"] for pod in found["nameserverPods"]]
    assert [pod["pod"] for pod in found["nameserverPods"]] == ["quorum-nameserver-0"]
    assert call(found["nameservers"][0], CLUSTER_INFO).code == 0
    answer = call(found["controllers"][0]["address"], APPLY_BROKER_ID, WHO)
    assert answer.code == NO_PERMISSION, "who lacks the secret of the run is no broker"
    assert call(found["nameservers"][0], REGISTER_BROKER, WHO).code == NO_PERMISSION
    assert (run.state / "member-secret").stat().st_mode & 0o777 == 0o600
    assert found["controllerGroups"][0]["memberAuthentication"] == "Require"

    run.write("replicas: 1", "nameserver: {embedded: false}", "config: {writeLeaseMs: soon, writeLeasMs: 1}")
    done = run.try_up()
    assert done.returncode == 2
    expected = '(ControllerGroup quorum): spec.config.writeLeaseMs: "soon", expected a whole number'
    assert expected in done.stderr
    run.write("replicas: 2")
    done = run.try_up()
    assert done.returncode == 2
    assert "spec.replicas: 2, expected 1, 3 or 5: an even number" in done.stderr
    wait_until(lambda: run.status()["controllers"] == [controller], what="it runs as before")
    done = run.here("produce", "t", "x")
    assert done.returncode == 2
    assert f"no broker group runs in {run.state}" in done.stderr
