"""Tests the reconciliation of topics and users against simulated brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from epochmq_operator.entities.broker_changes import BrokerUser, Permission, PutUser
from epochmq_operator.entities.entity_reconciliation import ENTITY_FINALIZER
from epochmq_operator.entities.masters import Problem
from epochmq_protocol.topics import TopicConfig
from tests.unit.operator.entities.fake_brokers import FakeBrokers, KilledError, resource, topic, user

ENTRY = {"resource": "Topic:payments", "actions": ["Pub", "Sub"]}


def found_topic(brokers: FakeBrokers, group: str = "orders") -> TopicConfig:
    """The topic of a group."""
    found = brokers.groups[group]
    assert isinstance(found, TopicConfig)
    return found


def for_tools(brokers: FakeBrokers) -> tuple[str, ...]:
    """The conditions that tools wait for."""
    return tuple(brokers.condition(kind)["status"] for kind in ("Ready", "Reconciling", "Stalled"))


def found_user(brokers: FakeBrokers, group: str = "orders") -> BrokerUser:
    """The user of a group."""
    found = brokers.groups[group]
    assert isinstance(found, BrokerUser)
    return found


def test_a_topic_is_created_in_every_group_and_then_nothing_is_written() -> None:
    made = topic(brokerGroups=["orders", "stock"], queues=4, messageType="FIFO", permission="Read")
    brokers = FakeBrokers(made, {"orders": None, "stock": None})
    brokers.settle()
    for group in ("orders", "stock"):
        assert found_topic(brokers, group) == TopicConfig(
            "payments", 4, 4, perm=4, attributes={"message.type": "FIFO"}
        )
    assert brokers.status["phase"] == "Ready"
    assert brokers.status["synced"] == "2/2"
    assert brokers.ready["status"] == "True"
    assert brokers.reasons() == ["Created", "Created"]
    writes = brokers.writes
    brokers.reconcile()
    assert brokers.writes == writes


def test_an_existing_topic_is_adopted_and_what_the_resource_leaves_out_stays() -> None:
    there = TopicConfig("payments", 16, 16, topic_sys_flag=1, order=True, attributes={"message.type": "FIFO"})
    brokers = FakeBrokers(topic(queues=4), {"orders": there})
    brokers.settle()
    adopted = found_topic(brokers)
    assert (adopted.write_queue_nums, adopted.read_queue_nums) == (4, 16), "unread messages stay readable"
    assert (adopted.topic_sys_flag, adopted.order, adopted.attributes) == (1, True, {"message.type": "FIFO"})
    (event,) = brokers.events.values()
    assert event.reason == "Adopted"
    assert "writeQueueNums is 16, expected 4" in event.message


def test_a_changed_resource_changes_the_topic() -> None:
    brokers = FakeBrokers(topic(), {"orders": None})
    brokers.settle()
    brokers.edit(queues=32, readQueues=64, permission="Write")
    brokers.settle()
    found = found_topic(brokers)
    assert (found.write_queue_nums, found.read_queue_nums, found.perm) == (32, 64, 2)
    assert brokers.reasons() == ["Created", "Changed"]
    assert "drifts" not in brokers.status["brokerGroups"][0]


@pytest.mark.parametrize(
    ("drifted", "difference"),
    [
        (TopicConfig("payments", 8, 2), "writeQueueNums is 2, expected 8"),
        (TopicConfig("payments", 8, 8, perm=2), "permission is Write, expected ReadWrite"),
        (TopicConfig("payments", 8, 8, perm=1), "permission is 1, expected ReadWrite"),
        (None, "the topic does not exist"),
    ],
)
def test_drift_is_reverted_and_reported(drifted: TopicConfig | None, difference: str) -> None:
    brokers = FakeBrokers(topic(), {"orders": None})
    brokers.settle()
    for times in (1, 2):
        brokers.groups["orders"] = drifted
        brokers.settle()
        assert found_topic(brokers) == TopicConfig("payments", 8, 8)
        (record,) = brokers.status["brokerGroups"]
        assert (record["drifts"], record["lastDrift"]) == (times, difference)
        assert brokers.reasons().count("DriftReverted") == times


@pytest.mark.parametrize(("policy", "stays"), [("Delete", False), ("Retain", True)])
@pytest.mark.parametrize("made", [topic, user])
def test_the_deletion_policy_decides_what_stays_in_the_brokers(
    made: Callable[..., dict[str, Any]], policy: str, stays: bool
) -> None:
    brokers = FakeBrokers(made(deletionPolicy=policy), {"orders": None})
    brokers.settle()
    brokers.delete()
    brokers.settle()
    assert brokers.resource is None
    assert (brokers.groups["orders"] is not None) == stays
    assert brokers.reasons() == ["Created"] + ([] if stays else ["Deleted"])


def test_a_changed_deletion_policy_sets_and_removes_the_finalizer() -> None:
    brokers = FakeBrokers(topic(), {"orders": None})
    brokers.settle()
    assert brokers.resource is not None
    assert not brokers.resource["metadata"].get("finalizers")
    brokers.edit(deletionPolicy="Delete")
    brokers.settle()
    assert brokers.resource["metadata"]["finalizers"] == [ENTITY_FINALIZER]
    brokers.edit(deletionPolicy="Retain")
    brokers.settle()
    assert brokers.resource["metadata"]["finalizers"] == []


@pytest.mark.parametrize(("policy", "stays"), [("Delete", False), ("Retain", True)])
def test_a_group_that_the_resource_no_longer_names_is_left_by_the_policy(policy: str, stays: bool) -> None:
    made = topic(brokerGroups=["orders", "stock"], deletionPolicy=policy)
    brokers = FakeBrokers(made, {"orders": None, "stock": None})
    brokers.settle()
    brokers.edit(brokerGroups=["orders"])
    brokers.settle()
    assert (brokers.groups["stock"] is not None) == stays
    assert [one["name"] for one in brokers.status["brokerGroups"]] == ["orders"]


def test_a_deletion_waits_for_a_master_unless_the_group_is_gone_or_the_policy_changes() -> None:
    for way in ("master", "gone", "retain"):
        brokers = FakeBrokers(topic(deletionPolicy="Delete"), {"orders": None})
        brokers.settle()
        brokers.problems["orders"] = Problem("NoMaster", "the group has no master")
        brokers.delete()
        brokers.settle()
        assert brokers.resource is not None
        assert brokers.status["phase"] == "Deleting"
        assert (
            "the group has no master; to leave it in the brokers, set deletionPolicy to Retain"
            in (brokers.ready["message"])
        )
        if way == "master":
            brokers.problems.clear()
        elif way == "gone":
            del brokers.groups["orders"]
        else:
            brokers.edit(deletionPolicy="Retain")
        brokers.settle()
        assert brokers.resource is None
        if way != "gone":
            assert (brokers.groups["orders"] is None) == (way == "master")


def test_groups_that_cannot_be_asked_do_not_hold_up_the_others() -> None:
    made = topic(brokerGroups=["orders", "stock", "none"])
    brokers = FakeBrokers(made, {"orders": None, "stock": None})
    brokers.problems["stock"] = Problem("NoMaster", "the group has no master")
    brokers.settle()
    found_topic(brokers, "orders")
    assert brokers.status["synced"] == "1/3"
    assert brokers.status["phase"] == "Pending"
    assert brokers.ready["status"] == "False"
    assert "stock: the group has no master" in brokers.ready["message"]
    assert "none: there is no BrokerGroup none in this namespace" in brokers.ready["message"]
    brokers.problems.clear()
    brokers.groups["none"] = None
    brokers.settle()
    assert brokers.status["synced"] == "3/3"


def test_the_condition_has_the_brokers_reason_for_a_rejection() -> None:
    brokers = FakeBrokers(topic(attributes={"queue.type": "BatchCQ"}), {"orders": TopicConfig("payments")})
    brokers.refusal = "attempt to update an unchangeable attribute. key: queue.type"
    brokers.settle()
    assert brokers.status["phase"] == "Failed"
    assert brokers.ready["reason"] == "Rejected"
    assert brokers.ready["message"] == f"orders: {brokers.refusal}"
    assert for_tools(brokers) == ("False", "False", "True")
    assert brokers.condition("Stalled")["message"] == f"orders: {brokers.refusal}"
    assert brokers.reasons() == ["Rejected"]
    brokers.refusal = ""
    brokers.settle()
    assert brokers.status["phase"] == "Ready"
    assert for_tools(brokers) == ("True", "False", "False")


def test_a_topic_whose_brokers_cannot_be_asked_is_on_its_way() -> None:
    brokers = FakeBrokers(topic(), {"orders": None})
    brokers.problems["orders"] = Problem("NoMaster", "orders has no master")
    brokers.settle()
    assert for_tools(brokers) == ("False", "True", "False")
    brokers.problems.clear()
    brokers.settle()
    assert for_tools(brokers) == ("True", "False", "False")
    brokers.edit(queues=16)
    brokers.problems["orders"] = Problem("NoMaster", "orders has no master")
    brokers.settle()
    assert for_tools(brokers) == ("False", "True", "False")


def test_of_two_resources_for_one_topic_the_older_one_counts() -> None:
    older = resource("Topic", "older", topicName="payments")
    older["metadata"]["creationTimestamp"] = "2025-12-31T00:00:00Z"
    brokers = FakeBrokers(topic(deletionPolicy="Delete"), {"orders": TopicConfig("payments")}, others=[older])
    brokers.settle()
    assert brokers.status["phase"] == "Conflict"
    assert brokers.ready["message"] == "orders: Topic older describes payments, too: delete one"
    assert brokers.changes == []
    brokers.delete()
    brokers.settle()
    assert brokers.resource is None
    found_topic(brokers)


def test_a_user_is_created_with_its_acl_and_surplus_entries_are_removed() -> None:
    brokers = FakeBrokers(user(acl=[ENTRY]), {"orders": None})
    brokers.settle()
    wanted = Permission("Topic:payments", frozenset({"Pub", "Sub"}))
    assert found_user(brokers) == BrokerUser("payments", "secret", permissions=(wanted,))
    surplus = Permission("*", frozenset({"All"}), policy_type="Default")
    brokers.groups["orders"] = BrokerUser("payments", "secret", permissions=(wanted, surplus))
    brokers.settle()
    assert found_user(brokers).permissions == (wanted,)
    (record,) = brokers.status["brokerGroups"]
    assert record["lastDrift"] == "the ACL has an entry for *, expected none"


def test_a_changed_password_in_the_secret_is_no_drift_and_appears_nowhere() -> None:
    brokers = FakeBrokers(user(), {"orders": None})
    brokers.settle()
    brokers.password, brokers.secret_version = "another-secret", "2"
    brokers.settle()
    assert found_user(brokers).password == "another-secret"
    assert brokers.reasons() == ["Created", "Changed"]
    assert "secret" not in str(brokers.status)
    assert not any("secret;" in one.message or "another" in one.message for one in brokers.events.values())
    shown = repr(brokers.changes)
    assert "another-secret" not in shown
    assert PutUser.__name__ in shown


def test_a_disabled_user_and_another_type_are_set() -> None:
    brokers = FakeBrokers(user(), {"orders": BrokerUser("payments", "secret", type="Super")})
    brokers.settle()
    assert found_user(brokers).type == "Normal"
    brokers.edit(enabled=False)
    brokers.settle()
    assert not found_user(brokers).enabled


@pytest.mark.parametrize("made", [topic(deletionPolicy="Delete"), user(acl=[ENTRY])], ids=["topic", "user"])
def test_an_operator_killed_before_any_write_finishes_and_leaves_nothing_behind(made: dict[str, Any]) -> None:
    """Creation in two groups, then removal from one of them, then deletion."""
    kill = 0
    while True:
        spec = {**made["spec"], "brokerGroups": ["orders", "stock"]}
        brokers = FakeBrokers(
            {**made, "spec": spec, "metadata": dict(made["metadata"])}, {"orders": None, "stock": None}
        )
        brokers.kill_before = kill
        _run(brokers)
        assert brokers.resource is not None
        assert brokers.status["synced"] == "2/2"
        assert "drifts" not in str(brokers.status)
        brokers.edit(brokerGroups=["orders"])
        _run(brokers)
        assert brokers.groups["stock"] is None
        brokers.delete()
        _run(brokers)
        assert brokers.resource is None
        assert brokers.groups == {"orders": None, "stock": None}
        if brokers.kill_before is not None:
            assert kill > 8, "no write was left to be killed at"
            return
        kill += 1


def _run(brokers: FakeBrokers) -> None:
    """Reconciles to the end, with another operator after the one that is killed."""
    try:
        brokers.settle()
    except KilledError:
        brokers.settle()


def test_a_resource_deleted_right_after_a_killed_creation_is_removed_from_every_group() -> None:
    for kill in range(7):
        made = topic(brokerGroups=["orders", "stock"], deletionPolicy="Delete")
        brokers = FakeBrokers(made, {"orders": None, "stock": None}, kill_before=kill)
        with pytest.raises(KilledError):
            brokers.settle()
        brokers.delete()
        brokers.settle()
        assert brokers.resource is None
        assert brokers.groups == {"orders": None, "stock": None}, f"killed before write {kill}"


def test_a_resource_that_passes_the_schema_and_is_invalid_says_so() -> None:
    brokers = FakeBrokers(topic(queues=8, readQueues=4), {"orders": None})
    brokers.settle()
    assert brokers.status["phase"] == "Invalid"
    assert "expected at least spec.queues, which is 8" in brokers.ready["message"]
    assert for_tools(brokers) == ("False", "False", "True")
    assert brokers.changes == []


INVALID_FIELDS = [
    (topic, {"attributes": {"Reserve.Time": "1"}}),
    (topic, {"readQueues": 1, "queues": 8}),
    (user, {"acl": [ENTRY, ENTRY]}),
    (user, {"passwordSecret": {}}),
]


@pytest.mark.parametrize(("made", "fields"), INVALID_FIELDS)
@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_an_invalid_resource_is_deleted_like_a_valid_one(
    made: Any, fields: dict[str, Any], policy: str
) -> None:
    """The schema accepts fields that the model rejects, and an older schema accepted others."""
    brokers = FakeBrokers(made(deletionPolicy="Delete"), {"orders": None})
    brokers.settle()
    brokers.edit(**fields)
    brokers.settle()
    assert brokers.status["phase"] == "Invalid"
    brokers.edit(deletionPolicy=policy)
    brokers.delete()
    brokers.settle()
    assert brokers.resource is None
    assert (brokers.groups["orders"] is None) is (policy == "Delete")


def test_an_invalid_resource_with_groups_that_cannot_be_read_is_deleted_where_it_was_made() -> None:
    brokers = FakeBrokers(topic(deletionPolicy="Delete"), {"orders": None})
    brokers.settle()
    brokers.edit(brokerGroups=["Not a name"])
    brokers.delete()
    brokers.settle()
    assert (brokers.resource, brokers.groups) == (None, {"orders": None})


def test_a_resource_whose_entity_has_no_name_any_more_loses_its_finalizer() -> None:
    brokers = FakeBrokers(topic(deletionPolicy="Delete"), {"orders": None})
    brokers.settle()
    brokers.edit(topicName="no name!")
    brokers.delete()
    brokers.settle()
    assert brokers.resource is None
    assert brokers.reasons()[-1] == "LeftInBrokers"
