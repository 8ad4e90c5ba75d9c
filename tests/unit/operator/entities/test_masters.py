"""Tests which broker takes the changes of a group's topics and users."""

from __future__ import annotations

from typing import Any

import pytest

from epochmq_operator.entities.entity_reconciliation import model_of
from epochmq_operator.entities.masters import Problem, master_pod, missing_provider
from epochmq_operator.plans.reported_states import (
    ReportedBrokerState,
    ReportedControllerState,
    ReportedMemberGroup,
)
from tests.unit.operator.entities.fake_brokers import user

GROUP: dict[str, Any] = {"kind": "BrokerGroup", "metadata": {"name": "orders"}, "spec": {"replicas": 3}}


def test_the_master_of_the_latest_epoch_counts() -> None:
    states = {
        "orders-broker-0": ReportedBrokerState(role="master", master_epoch=1, ready=True),
        "orders-broker-1": ReportedBrokerState(role="master", master_epoch=2),
        "orders-broker-2": ReportedBrokerState(role="replica"),
        "orders-controller-0": ReportedControllerState(role="leader"),
    }
    assert master_pod(GROUP, states) == "orders-broker-1"


def test_a_slave_that_acts_for_its_master_takes_no_changes() -> None:
    """Its tables are copies: the master's would replace the change."""
    acting = ReportedMemberGroup(role="acting", acting_since_ms=1)
    states = {"orders-broker-1": ReportedBrokerState(role="master", controlled=False, group=acting)}
    assert master_pod(GROUP, states) == Problem("NoMaster", "the group has no master")
    first = ReportedMemberGroup(role="master")
    states["orders-broker-0"] = ReportedBrokerState(role="master", controlled=False, group=first)
    assert master_pod(GROUP, states) == "orders-broker-0"


def test_a_group_without_a_master_or_a_response_says_so() -> None:
    assert master_pod(GROUP, {}) == Problem("NoMaster", "no broker of the group responds to the operator")
    replica = {"orders-broker-0": ReportedBrokerState(role="replica")}
    assert master_pod(GROUP, replica) == Problem("NoMaster", "the group has no master")


@pytest.mark.parametrize(
    "paused",
    [
        {**GROUP, "spec": {"paused": True}},
        {**GROUP, "metadata": {"annotations": {"epochmq.io/paused": "true"}}},
    ],
)
def test_topics_and_users_of_a_paused_group_are_left_alone(paused: dict[str, Any]) -> None:
    states = {"orders-broker-0": ReportedBrokerState(role="master")}
    assert master_pod(paused, states) == Problem("Paused", "the group is paused")


def test_a_user_needs_brokers_that_keep_users() -> None:
    entity = model_of(user())
    assert not isinstance(entity, str)
    problem = missing_provider(GROUP, entity)
    assert problem is not None
    assert "set authenticationMetadataProvider in the group's spec.config" in problem.message
    keeps = {**GROUP, "spec": {"config": {"authenticationMetadataProvider": "Local"}}}
    assert missing_provider(keeps, entity) is None
    with_acl = model_of(user(acl=[{"resource": "*", "actions": ["All"]}]))
    assert not isinstance(with_acl, str)
    problem = missing_provider(keeps, with_acl)
    assert problem is not None
    assert "keep no ACLs: set authorizationMetadataProvider" in problem.message
