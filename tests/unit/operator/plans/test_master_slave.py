"""Tests groups in the mode MasterSlave: no controller decides; the brokers' own reports make the status."""

from __future__ import annotations

from typing import Any

from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedEscape,
    ReportedMemberGroup,
    ReportedState,
)
from epochmq_operator.pod_rendering import broker_pod_name
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer

PAIR = Ref("BrokerGroup", NAMESPACE, "pair")
SINCE_MS = 1_799_999_000_000
SINCE = "2027-01-15T07:43:20Z"


def broker(role: str, *, ready: bool = True, **group: Any) -> ReportedBrokerState:
    """The report of a broker with this role in its group."""
    return ReportedBrokerState(
        broker_name="pair",
        role="master" if role in ("master", "isolated") else "replica",
        controlled=False,
        ready=ready,
        group=ReportedMemberGroup(role=role, **group),  # type: ignore[arg-type]
    )


class PairApi(FakeApi):
    """A cluster whose brokers report their roles themselves: `roles` replaces the report of a replica."""

    def __init__(self) -> None:
        super().__init__()
        self.roles: dict[int, ReportedBrokerState | None] = {}
        self.controllers_respond = True

    def states(self) -> dict[str, ReportedState]:
        """The states that all ready replicas report."""
        found: dict[str, ReportedState] = {
            pod: state
            for pod, state in super().states().items()
            if self.controllers_respond or isinstance(state, ReportedBrokerState)
        }
        for ordinal in range(9):
            pod = broker_pod_name("pair", ordinal)
            state = self.roles.get(ordinal, broker("slave" if ordinal else "master"))
            if pod in found and state is not None:
                found[pod] = state
            elif state is None:
                found.pop(pod, None)
        return found


def ready_pair(replicas: int = 2) -> PairApi:
    """A group that has been created."""
    api = PairApi()
    api.put("BrokerGroup", "pair", {"mode": "MasterSlave", "replicas": replicas})
    api.settle()
    return api


def conditions(api: FakeApi) -> dict[str, tuple[str, str]]:
    """Type → (status, reason)."""
    return {one["type"]: (one["status"], one["reason"]) for one in api.status(PAIR)["conditions"]}


def test_the_first_replica_is_the_master_and_no_quorum_is_needed() -> None:
    api = ready_pair()
    status = api.status(PAIR)
    assert (status["phase"], status["ready"], status["master"]) == ("Ready", "2/2", "pair-broker-0")
    assert (status["syncStateSet"], status["masterEpoch"]) == ([0, 1], 0)
    assert "actingMaster" not in status
    assert conditions(api) == {
        "Ready": ("True", "AllReplicasReady"),
        "QuorumHealthy": ("Unknown", "NotUsed"),
        "InSync": ("True", "AllInSync"),
        "Progressing": ("False", "AsWanted"),
        "Degraded": ("False", "AsWanted"),
        "Paused": ("False", "NotPaused"),
        "Reconciling": ("False", "AsWanted"),
        "Stalled": ("False", "AsWanted"),
    }


def test_the_status_says_which_replica_acts_since_when_and_what_escaped() -> None:
    api = ready_pair()
    api.roles = {
        0: None,
        1: broker(
            "acting",
            acting_since_ms=SINCE_MS,
            escape=[ReportedEscape(escaped=5, waiting=2), ReportedEscape(escaped=1)],
        ),
    }
    api.operate()
    status = api.status(PAIR)
    assert status["actingMaster"] == {"pod": "pair-broker-1", "since": SINCE, "escaped": 6, "waiting": 2}
    assert (status["master"], status["phase"]) == ("", "Degraded")
    found = conditions(api)
    assert found["Ready"] == ("False", "NoMaster")
    (message,) = (one["message"] for one in status["conditions"] if one["type"] == "Ready")
    assert f"pair-broker-1 acts for it since {SINCE}" in message
    writes = api.writes
    api.operate()
    assert api.writes == writes, "an unchanged state is not written again"
    # An isolated master is not the master yet.
    api.roles[0] = broker("isolated", ready=False, isolated_because="takes tables back")
    api.operate()
    assert api.status(PAIR)["master"] == ""
    api.roles = {}
    api.settle()
    status = api.status(PAIR)
    assert (status["master"], status["phase"]) == ("pair-broker-0", "Ready")
    assert "actingMaster" not in status


def test_a_group_grows_without_a_leading_controller_while_its_master_serves() -> None:
    api = ready_pair()
    api.controllers_respond = False
    api.put("BrokerGroup", "pair", {"mode": "MasterSlave", "replicas": 3})
    api.roles = {0: broker("isolated", ready=False)}
    for _ in range(5):
        api.tick()
        api.operate()
    assert "pair-broker-2" not in api.pods()
    (message,) = (one["message"] for one in api.status(PAIR)["conditions"] if one["type"] == "Progressing")
    assert "the group has no master" in message
    api.roles = {}
    api.settle()
    assert api.status(PAIR)["ready"] == "3/3"
    assert api.status(PAIR)["syncStateSet"] == [0, 1, 2]


def test_an_update_restarts_the_slaves_and_then_the_master() -> None:
    api = ready_pair(3)
    api.renderer = manifest_renderer()
    api.settle()
    api.events.clear()
    api.put("BrokerGroup", "pair", {"mode": "MasterSlave", "replicas": 3, "image": "mine:2"})
    api.settle()
    messages = [one.message for one in api.events.values() if one.reason == "RestartingPod"]
    assert [message.partition(":")[0] for message in messages] == [
        f"restarts pair-broker-{ordinal}" for ordinal in (2, 1, 0)
    ]


def test_an_update_waits_for_a_slave_that_reports_that_it_is_not_ready() -> None:
    api = ready_pair(3)
    api.roles = {1: broker("slave", ready=False)}
    api.put("BrokerGroup", "pair", {"mode": "MasterSlave", "replicas": 3, "config": {"image": "good:2"}})
    for _ in range(10):
        api.tick()
        api.operate()
    assert "RestartingPod" not in api.reasons()
    api.roles = {}
    api.settle()
    assert api.reasons().count("RestartingPod") == 3
