"""Tests groups in the mode DLedger: the replicas elect the master, and their own reports make the status."""

from __future__ import annotations

from msgspec import structs

from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedState,
)
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer

LEDGER = Ref("BrokerGroup", NAMESPACE, "ledger")


class LedgerApi(FakeApi):
    """A cluster whose brokers form a DLedger group. `leader` is the number of the replica that leads `term`;
    None: there is no quorum."""

    def __init__(self) -> None:
        super().__init__()
        self.leader: int | None = 0
        self.term = 1
        self.unready: set[int] = set()

    def states(self) -> dict[str, ReportedState]:
        """The states that all ready replicas report. The controllers respond, and do not know the group."""
        found: dict[str, ReportedState] = {}
        for pod, state in super().states().items():
            if isinstance(state, ReportedControllerState):
                found[pod] = structs.replace(state, groups=[])
                continue
            number = int(pod.rpartition("-")[2])
            leads = number == self.leader
            follows = self.leader is not None
            found[pod] = ReportedBrokerState(
                broker_name="ledger",
                broker_id=number + 1,
                role="master" if leads else "replica" if follows else "none",
                master_epoch=self.term,
                controlled=False,
                ready=follows and number not in self.unready,
            )
        return found


def ready_group(replicas: int = 3) -> LedgerApi:
    """A group that has been created."""
    api = LedgerApi()
    api.put("BrokerGroup", "ledger", {"mode": "DLedger", "replicas": replicas})
    api.settle()
    return api


def conditions(api: FakeApi) -> dict[str, tuple[str, str]]:
    """Type → (status, reason)."""
    return {one["type"]: (one["status"], one["reason"]) for one in api.status(LEDGER)["conditions"]}


def message(api: FakeApi, kind: str) -> str:
    (found,) = (one["message"] for one in api.status(LEDGER)["conditions"] if one["type"] == kind)
    return str(found)


def test_a_group_is_created_at_once_and_its_status_names_leader_and_term() -> None:
    api = ready_group()
    status = api.status(LEDGER)
    assert (status["phase"], status["ready"], status["master"]) == ("Ready", "3/3", "ledger-broker-0")
    assert (status["masterEpoch"], status["syncStateSet"]) == (1, [1, 2, 3])
    assert conditions(api) == {
        "Ready": ("True", "AllReplicasReady"),
        "QuorumHealthy": ("True", "Leads"),
        "InSync": ("True", "AllInSync"),
        "Progressing": ("False", "AsWanted"),
        "Degraded": ("False", "AsWanted"),
        "Paused": ("False", "NotPaused"),
        "Reconciling": ("False", "AsWanted"),
        "Stalled": ("False", "AsWanted"),
    }
    assert message(api, "QuorumHealthy") == "ledger-broker-0 leads"
    assert not [reason for reason in api.reasons() if reason == "AddingReplica"]


def test_an_election_changes_master_and_term() -> None:
    api = ready_group()
    api.leader, api.term = 2, 4
    api.settle()
    status = api.status(LEDGER)
    assert (status["master"], status["masterEpoch"]) == ("ledger-broker-2", 4)


def test_a_group_without_a_leader_is_not_ready() -> None:
    api = ready_group()
    api.leader = None
    api.operate()
    found = conditions(api)
    assert found["Ready"] == ("False", "NoMaster")
    assert found["QuorumHealthy"] == ("False", "NoLeader")
    assert message(api, "QuorumHealthy") == "no replica leads"
    assert found["InSync"] == ("False", "Behind")


def test_an_update_restarts_the_followers_and_then_the_leader() -> None:
    api = ready_group()
    api.leader = 1
    api.renderer = manifest_renderer()
    api.settle()
    api.events.clear()
    api.put("BrokerGroup", "ledger", {"mode": "DLedger", "replicas": 3, "image": "mine:2"})
    api.settle()
    messages = [one.message for one in api.events.values() if one.reason == "RestartingPod"]
    assert [text.partition(":")[0] for text in messages] == [
        f"restarts ledger-broker-{ordinal}" for ordinal in (2, 0, 1)
    ]


def test_an_update_waits_for_a_follower_that_could_not_take_over() -> None:
    api = ready_group()
    api.unready = {1}
    api.put("BrokerGroup", "ledger", {"mode": "DLedger", "replicas": 3, "config": {"image": "good:2"}})
    for _ in range(10):
        api.tick()
        api.operate()
    assert "RestartingPod" not in api.reasons()
    api.unready = set()
    api.settle()
    assert api.reasons().count("RestartingPod") == 3
