"""The plan for a forgotten group: the newest log leads, and no broker that may have more is left out
silently."""

from __future__ import annotations

from dataclasses import replace

import pytest

from epochmq_operator.adoption_plan import AdoptionError, BrokerReport, plan_adoption

INFO = {
    "replicaCluster": "c",
    "replicaGroup": "orders",
    "replicaId": "2",
    "knownMasterEpoch": "4",
    "knownMembers": "1,2",
    "writtenEpoch": "3",
    "commitLogMaxOffset": "900",
    "confirmOffset": "800",
    "mayLackAcknowledged": "false",
}


def report(broker_id: int, **changes: object) -> BrokerReport:
    """A healthy broker of a group of three under epoch 4."""
    usual = BrokerReport(
        f"pod-{broker_id}", f"10.0.0.{broker_id}:1", "c", "orders", broker_id, 4, frozenset({1, 2, 3}),
        (4, 1000), 1000, False,
    )  # fmt: skip
    return replace(usual, **changes)  # type: ignore[arg-type]


ALL = [report(1), report(2), report(3)]


def test_runtime_information_becomes_a_report() -> None:
    parsed = BrokerReport.parse("pod-2", "10.0.0.2:1", INFO)
    assert parsed == report(2, members=frozenset({1, 2}), log_end=(3, 900), confirm_offset=800)
    with pytest.raises(AdoptionError, match=r"pod-2 at .* has no broker id"):
        BrokerReport.parse("pod-2", "10.0.0.2:1", {**INFO, "replicaId": "?"})


@pytest.mark.parametrize(
    ("changes", "master"),
    [
        ({}, 1),
        ({3: {"log_end": (4, 1001)}}, 3),
        ({2: {"log_end": (5, 10)}, 3: {"log_end": (4, 1001)}}, 2),
        ({1: {"in_doubt": True}}, 2),
        ({1: {"in_doubt": True}, 2: {"in_doubt": True}, 3: {"in_doubt": True, "log_end": (4, 2000)}}, 3),
    ],
)
def test_the_newest_log_leads(changes: dict[int, dict[str, object]], master: int) -> None:
    reports = [report(one, **{"confirm_offset": 0, **changes.get(one, {})}) for one in (1, 2, 3)]
    plan = plan_adoption(reports, [], accept_missing=False)
    assert plan.master_broker_id == master
    assert [one.broker_id for one in plan.replicas] == [1, 2, 3]


def test_the_epoch_is_the_greatest_that_any_broker_knows() -> None:
    reports = [report(1), report(2, known_epoch=9), report(3)]
    assert plan_adoption(reports, [], accept_missing=False).master_epoch == 9


@pytest.mark.parametrize(
    ("reports", "unreachable", "part"),
    [
        (ALL[:2], [], "broker 3"),
        ([report(1, members=frozenset())], ["pod-2 at 10.0.0.2:1"], "pod-2 at 10.0.0.2:1"),
        ([report(1, log_end=(4, 900)), *(report(one, log_end=(3, 9)) for one in (2, 3))], [], "ends at 900"),
    ],
)
def test_messages_are_given_up_only_if_a_person_says_so(
    reports: list[BrokerReport], unreachable: list[str], part: str
) -> None:
    with pytest.raises(AdoptionError, match="--accept-missing") as error:
        plan_adoption(reports, unreachable, accept_missing=False)
    assert part in str(error.value)
    assert plan_adoption(reports, unreachable, accept_missing=True).master_broker_id == 1


@pytest.mark.parametrize(
    ("reports", "part"),
    [
        ([], "no broker"),
        ([report(1), report(2, broker_name="other")], "several groups"),
        ([report(1), replace(report(2), broker_id=1)], "claim broker id 1"),
    ],
)
def test_brokers_that_contradict_each_other_are_never_adopted(reports: list[BrokerReport], part: str) -> None:
    with pytest.raises(AdoptionError, match=part):
        plan_adoption(reports, [], accept_missing=True)
