"""Tests that any sequence of changes, faults and kills of the operator ends well once the faults are over."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi
from tests.unit.operator.plans.operator_rules import OperatorRules

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
QUORUM = Ref("StatefulSet", NAMESPACE, "orders-controller")
CONTROLLERS = 3
KINDS = ("ConfigMap", "Service", "Pod")


class History(OperatorRules):
    """One group, an operator that is often killed, users, and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.api = FakeApi()
        self.wanted = 1
        self.guarded = False
        self.largest = self.former = 0
        self.api.put("BrokerGroup", "orders", {"replicas": 1})

    @rule(replicas=st.sampled_from([1, 2, 3, 5]), guarded=st.booleans())
    def wish(self, replicas: int, guarded: bool) -> None:
        """A user applies the group."""
        if not self._going():
            self.wanted, self.guarded = replicas, guarded
            self.api.put("BrokerGroup", "orders", {"replicas": replicas, "deletionGuard": guarded})

    @rule(number=st.integers(0, 4), broken=st.booleans())
    def trouble(self, number: int, broken: bool) -> None:
        """A replica becomes unready, or ready again."""
        (self.api.unready.add if broken else self.api.unready.discard)(f"orders-broker-{number}")

    @rule(kind=st.sampled_from(KINDS), number=st.integers(0, 20))
    def remove(self, kind: str, number: int) -> None:
        """Somebody deletes an object of the operator."""
        there = sorted(ref for ref in self.api.objects if ref.kind == kind)
        if there:
            self.api.remove(there[number % len(there)])

    @rule(stateful_set=st.sampled_from([BROKERS, QUORUM]), count=st.integers(0, 5))
    def scale(self, stateful_set: Ref, count: int) -> None:
        """Somebody scales a StatefulSet. Volume claims of further controllers would block a later group."""
        if stateful_set in self.api.objects:
            self.api.scale(stateful_set, count if stateful_set is BROKERS else min(count, CONTROLLERS))

    @rule(confirmed=st.booleans())
    def delete(self, confirmed: bool) -> None:
        """A user deletes the group, and may confirm it."""
        if ORDERS in self.api.objects and confirmed:
            self.api.annotate(ORDERS, confirm_deletion="orders")
        self.api.remove(ORDERS)

    def _going(self) -> bool:
        found = self.api.objects.get(ORDERS)
        return found is not None and "deletionTimestamp" in found["metadata"]

    @invariant()
    def a_group_never_loses_a_replica_to_the_operator(self) -> None:
        """While the group exists, the operator shrinks its StatefulSet by one replica at a time and only if
        the user asks for fewer, and it deletes no pod."""
        applied = self.api.applied.get(BROKERS, [])
        if BROKERS not in self.api.objects or ORDERS not in self.api.objects:
            self.largest, self.former = 0, len(applied)
        else:
            counts = [one["spec"]["replicas"] for one in applied[self.former :]]
            assert all(after >= before - 1 for before, after in itertools.pairwise(counts))
            assert not counts or counts[-1] >= min(self.largest, self.wanted)
            self.largest = counts[-1] if counts else 0
        assert not any(name.startswith("Pod") for name in self.api.deleted)

    def teardown(self) -> None:
        """After the faults the group is as desired, and nothing is left to do."""
        api = self.api
        api.unready, api.silent = set(), False
        if self._going():
            api.annotate(ORDERS, confirm_deletion="orders")
        api.settle()
        api.settle()
        if ORDERS not in api.objects:
            assert {ref.kind for ref in api.objects} <= {"PersistentVolumeClaim"}
            return
        status = api.status(ORDERS)
        claims = [ref for ref in api.objects if ref.name.startswith("store-orders-broker")]
        if status["phase"] == "Blocked":
            assert max(status["targetReplicas"], len(claims)) > self.wanted
            assert "set spec.replicas to" in str(status["conditions"])
        else:
            assert (status["phase"], status["ready"]) == ("Ready", f"{self.wanted}/{self.wanted}")
            assert api.objects[BROKERS]["spec"]["replicas"] == self.wanted
        assert {one["spec"]["replicas"] for one in api.applied[QUORUM]} == {CONTROLLERS}


TestHistory = pytest.mark.long(History.TestCase)
TestHistory.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
