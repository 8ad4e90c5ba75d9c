"""Tests changes of the number of replicas in the mode DLedger: one at a time, with a quorum at every moment,
and without a restart of any pod. The manifests are those of a real cluster."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import pytest

from epochmq_operator.manifests import group as group_manifests
from epochmq_operator.plans.effects import (
    ChangeQuorumMembers,
    PatchStatus,
    ReloadConfiguration,
)
from epochmq_operator.plans.objects import Ref
from epochmq_operator.pod_rendering import broker_pod_name
from epochmq_protocol import properties
from tests.unit.operator.plans import fake_api
from tests.unit.operator.plans.dledger_resource import BROKERS, LEDGER, READY, is_at, put, ready_group
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.killed_operators import STEPS, change_under_operators
from tests.unit.operator.plans.updated_groups import files_of, pods_of, restarts, run


def sizes(api: FakeApi) -> list[int]:
    """The sizes of the StatefulSet, in order."""
    found = [one["spec"]["replicas"] for one in api.applied[BROKERS]]
    return [size for size, before in zip(found, [0, *found], strict=False) if size != before]


@pytest.mark.parametrize(
    "counts", [(1, 3), (3, 5, 3), (3, 1), (5, 1, 3)], ids=lambda counts: "-".join(map(str, counts))
)
def test_replicas_are_added_and_removed_one_by_one_and_no_pod_restarts(counts: tuple[int, ...]) -> None:
    api = ready_group(counts[0])
    before = {pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()}
    expected = [counts[0]]
    for old, new in pairwise(counts):
        put(api, new)
        api.settle()
        assert is_at(api, new)
        assert api.status(LEDGER)["founders"] == 0
        expected += range(old + 1, new + 1) if new > old else range(old - 1, new - 1, -1)
    assert sizes(api) == expected
    stay = {"names-controller-0", *(broker_pod_name("ledger", n) for n in range(min(counts)))}
    assert {pod: uid for pod, uid in before.items() if pod in stay}.items() <= {
        pod: api.uid(Ref("Pod", NAMESPACE, pod)) for pod in api.pods()
    }.items()
    assert restarts(api) == []
    claims = {ref.name for ref in api.objects if ref.kind == "PersistentVolumeClaim"}
    assert {f"store-ledger-broker-{n}" for n in range(max(counts))} <= claims


def test_each_step_has_an_event_and_the_conditions_name_it() -> None:
    api = ready_group(3)
    api.events.clear()
    put(api, 5)
    phases = set()
    for _ in range(40):
        api.tick()
        api.operate()
        phases.add(api.status(LEDGER)["phase"])
        assert api.condition(LEDGER, "QuorumHealthy")["reason"] == "Leads"
        assert api.condition(LEDGER, "Degraded")["status"] == "False"
    assert "Scaling" in phases
    assert is_at(api, 5)
    put(api, 3)
    api.settle()
    reasons = ("AddingReplica", "AddingMember", "RemovingReplica")
    assert [one.message for one in api.events.values() if one.reason in reasons] == [
        "starts ledger-broker-3",
        "makes ledger-broker-3 a member of the group",
        "starts ledger-broker-4",
        "makes ledger-broker-4 a member of the group",
        "removes ledger-broker-4 from the group; its volume stays",
        "removes ledger-broker-3 from the group; its volume stays",
    ]


def test_without_credentials_the_change_is_blocked_with_advice() -> None:
    api = ready_group(3)
    api.can_reload = False
    put(api, 5)
    api.settle()
    condition = api.condition(LEDGER, "Progressing")
    assert condition["reason"] == "MembershipBlocked"
    assert "set spec.admin.tokenSecret; 3 replicas keep running" in condition["message"]
    assert api.condition(LEDGER, "Degraded")["status"] == "False"
    assert sizes(api) == [3]
    api.can_reload = True
    api.settle()
    assert is_at(api, 5)


def an_unready_member(api: FakeApi) -> None:
    api.unready = {"ledger-broker-1"}


def a_busy_leader(api: FakeApi) -> None:
    api.busy = {"ledger"}


def silence(api: FakeApi) -> None:
    api.silent = True


@pytest.mark.parametrize(("trouble", "most"), [(an_unready_member, 3), (a_busy_leader, 4), (silence, 3)])
def test_no_member_is_added_under_these_conditions(trouble: Callable[[FakeApi], None], most: int) -> None:
    api = ready_group(3)
    trouble(api)
    put(api, 5)
    run(api)
    assert api.peers["ledger"] == {0, 1, 2}
    assert sizes(api)[-1] == most
    api.unready, api.busy, api.silent = set(), set(), False
    api.settle()
    assert is_at(api, 5)


@pytest.mark.parametrize("trouble", [an_unready_member, a_busy_leader, silence])
def test_no_member_is_removed_under_these_conditions(trouble: Callable[[FakeApi], None]) -> None:
    api = ready_group(5)
    trouble(api)
    put(api, 3)
    run(api)
    assert api.peers["ledger"] == {0, 1, 2, 3, 4}
    assert sizes(api) == [5]
    api.unready, api.busy, api.silent = set(), set(), False
    api.settle()
    assert is_at(api, 3)


def test_a_dead_replica_that_is_to_be_removed_hinders_nothing() -> None:
    api = ready_group(5)
    api.unready = {"ledger-broker-4"}
    put(api, 3)
    api.settle()
    assert is_at(api, 3)


def test_a_leader_transfers_its_leadership_before_it_is_removed() -> None:
    api = ready_group(3)
    api.peer_leaders["ledger"] = "ledger-broker-2"
    put(api, 1)
    api.settle()
    assert is_at(api, 1)
    assert api.status(LEDGER)["master"] == "ledger-broker-0"


def test_a_replica_that_does_not_start_is_taken_back() -> None:
    api = ready_group(3)
    api.unready = {"ledger-broker-3"}
    put(api, 5)
    run(api)
    message = api.condition(LEDGER, "Progressing")["message"]
    assert "waits until n3 responds; ledger-broker-3 is not ready" in message
    assert sizes(api) == [3, 4]
    put(api, 3)
    api.settle()
    assert is_at(api, 3)
    assert api.status(LEDGER)["founders"] == 3


@pytest.mark.parametrize("wrong", [0, 1, 2, 5, 9])
def test_a_statefulset_that_is_scaled_by_hand_changes_no_member(wrong: int) -> None:
    api = ready_group(3)
    before = {ref for ref in api.objects if ref.kind == "ConfigMap"}
    api.scale(BROKERS, wrong)
    api.tick()
    api.settle(200)
    assert api.peers["ledger"] == {0, 1, 2}
    assert is_at(api, 3)
    assert {ref for ref in api.objects if ref.kind == "ConfigMap"} == before
    assert "AddingMember" not in api.reasons()


@pytest.mark.long
@pytest.mark.parametrize("wrong", [0, 1, 3, 9])
def test_a_statefulset_that_is_scaled_by_hand_during_a_change_is_scaled_back(wrong: int) -> None:
    api = ready_group(3)
    api.unready = {"ledger-broker-3"}
    put(api, 5)
    run(api)
    api.scale(BROKERS, wrong)
    run(api, 40)
    assert api.objects[BROKERS]["spec"]["replicas"] == 4
    api.unready = set()
    api.settle()
    assert is_at(api, 5)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("deleted", [False, True], ids=["statefulset kept", "statefulset deleted"])
def test_a_lost_status_changes_no_configuration(count: int, deleted: bool) -> None:
    """The number of founders is that of the configuration."""
    api = ready_group(3)
    put(api, count)
    api.settle()
    before = {ref for ref in api.objects if ref.kind == "ConfigMap"}
    status = api.objects[LEDGER]["status"]
    api.objects[LEDGER]["status"] = {"plan": status["plan"], "targetReplicas": count} if deleted else {}
    if deleted:
        api.objects[LEDGER]["status"] |= {"founders": status["founders"]}
        api.remove(BROKERS)
    api.settle()
    assert is_at(api, count)
    assert api.status(LEDGER)["founders"] == 0
    assert {ref for ref in api.objects if ref.kind == "ConfigMap"} <= before


def test_a_new_group_beside_volumes_of_another_number_of_replicas_is_blocked() -> None:
    """A majority of five could form without two of the three that have the data."""
    api = ready_group(3)
    api.remove(LEDGER)
    for _ in range(5):
        api.tick()
    api.peers.clear()
    api.peer_leaders.clear()
    put(api, 5)
    run(api)
    assert BROKERS not in api.objects
    progressing = api.condition(LEDGER, "Progressing")
    assert (progressing["status"], api.status(LEDGER)["phase"]) == ("False", "Blocked")
    message = progressing["message"]
    assert "volume claims of 3 replicas exist" in message
    assert "set spec.replicas to 3" in message


def test_replicas_that_start_later_have_no_vote_until_the_log_names_them() -> None:
    api = ready_group(3)
    put(api, 5)
    api.settle()
    for pod in pods_of(api, BROKERS):
        api.remove(Ref("Pod", NAMESPACE, pod["metadata"]["name"]))
    api.settle()
    keys = [properties.parse(files_of(api, pod)) for pod in pods_of(api, BROKERS)]
    assert [one["joinDLedgerGroup"] for one in keys] == ["true"] * 5


def test_a_member_that_others_removed_is_added_again() -> None:
    api = ready_group(3)
    api.peers["ledger"] = frozenset({0, 1})
    api.settle()
    assert is_at(api, 3)
    assert api.status(LEDGER)["founders"] == 0


def test_a_group_of_an_earlier_release_restarts_each_replica_once_before_the_first_one_is_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its configuration has files only for the replicas that it began with."""
    with monkeypatch.context() as former:
        former.setattr(group_manifests, "possible_pods_of", group_manifests.pods_of)
        former.setattr(group_manifests, "restart_digest", lambda component, template, data: "former")
        former.setattr(fake_api, "RENDERED", OrderedDict())
        api = ready_group(3)
        api.objects[LEDGER]["status"].pop("founders")
    api.settle()
    assert restarts(api) == []
    put(api, 5)
    api.settle()
    assert is_at(api, 5)
    assert restarts(api) == ["ledger-broker-2", "ledger-broker-1", "ledger-broker-0"]


@pytest.mark.long
def test_no_replica_restarts_for_an_update_while_two_run() -> None:
    api = ready_group(1)
    api.busy = {"ledger"}
    put(api, 3)
    run(api)
    assert len(pods_of(api, BROKERS)) == 2
    put(api, 3, image="mine:2")
    run(api, 4)
    api.busy = set()
    numbers = []
    for _ in range(80):
        api.tick()
        before = len(restarts(api))
        api.operate()
        numbers += [len(api.peers["ledger"])] * (len(restarts(api)) - before)
    assert set(numbers) == {3}
    assert is_at(api, 3)


# an operator that is killed

HISTORIES = {"1-3": (1, (3,)), "3-5-3": (3, (5, 3)), "3-5 reverted-1": (3, (5, 1))}
ROUNDS_MAX = {"3-5 reverted-1": 12}


def changed(history: str, stop: int | None) -> tuple[FakeApi, int]:
    """A change under operators of which one is killed after `stop` effects; the number of effects."""
    first, counts = HISTORIES[history]
    api = copy.deepcopy(READY[first])
    total = change_under_operators(
        api, counts, lambda count: put(api, count), ROUNDS_MAX.get(history, 40), stop
    )
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("step", STEPS)
def test_an_operator_killed_after_any_effect_of_a_change_finishes_it(history: str, step: int) -> None:
    _, total = changed(history, None)
    assert total > 10
    for stop in range(1, total, step):
        api, _ = changed(history, stop)
        api.settle()
        assert is_at(api, HISTORIES[history][1][-1]), f"after {stop} effects"
        assert restarts(api) == [], f"after {stop} effects"


@pytest.mark.long
def test_the_target_is_recorded_after_a_member_is_removed() -> None:
    """So the StatefulSet never has a member fewer than the group."""
    api = ready_group(5)
    put(api, 3)
    seen = 0
    for _ in range(40):
        api.tick()
        outcome = api.look(LEDGER)
        kinds = [type(one) for one in outcome.effects] if outcome else []
        if ChangeQuorumMembers in kinds and "remove" in str(outcome):
            seen += 1
            assert kinds.index(ChangeQuorumMembers) < len(kinds) - 1
            assert kinds[-1] is PatchStatus
        api.operate()
    assert seen == 2
    assert is_at(api, 3)


@pytest.mark.long
def test_a_change_of_members_reloads_no_other_key() -> None:
    """The running replicas report the new configuration; what they start with names no founders any more."""
    api = ready_group(3)
    put(api, 5)
    sent: list[ReloadConfiguration] = []
    for _ in range(40):
        api.tick()
        outcome = api.look(LEDGER)
        sent += [one for one in (outcome.effects if outcome else ()) if isinstance(one, ReloadConfiguration)]
        api.operate()
    assert is_at(api, 5)
    assert sent
    for one in sent:
        (pod,) = (found for found in pods_of(api, BROKERS) if found["metadata"]["name"] == one.pod.name)
        before, after = properties.parse(files_of(api, pod)), dict(one.config)
        differ = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert differ <= {"dLegerPeers", "joinDLedgerGroup"}
