"""Tests that any sequence of changes, faults and kills of the operator ends well for a group in the mode
DLedger, and that no step on the way is unsafe (`PeersApi`)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from epochmq_operator.manifests.restart_digest import restart_digest_of
from epochmq_operator.plans.objects import Ref
from epochmq_operator.pod_rendering import broker_pod_name
from tests.unit.operator.plans.dledger_resource import BROKERS, LEDGER, READY, is_at, put
from tests.unit.operator.plans.fake_api import NAMESPACE
from tests.unit.operator.plans.operator_rules import OperatorRules
from tests.unit.operator.plans.updated_groups import pods_of


class LedgerHistory(OperatorRules):
    """One group, an operator that is often killed, users who change the group, and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.api = copy.deepcopy(READY[3])
        self.api.replace_operator()
        self.wanted = 3
        self.more: dict[str, Any] = {}

    @rule(replicas=st.sampled_from([1, 3, 5]))
    def resize(self, replicas: int) -> None:
        """A user changes the number of replicas."""
        self.wanted = replicas
        put(self.api, replicas, **self.more)

    @rule(hours=st.sampled_from([24, 48]), image=st.sampled_from(["mine:1", "mine:2"]))
    def change(self, hours: int, image: str) -> None:
        """A user changes the configuration and the image."""
        self.more = {"config": {"fileReservedTime": hours}, "image": image}
        put(self.api, self.wanted, **self.more)

    @rule(number=st.integers(0, 4), broken=st.booleans())
    def trouble(self, number: int, broken: bool) -> None:
        """A replica becomes unready, or ready again."""
        name = broker_pod_name("ledger", number)
        (self.api.unready.add if broken else self.api.unready.discard)(name)

    @rule(busy=st.booleans())
    def occupy(self, busy: bool) -> None:
        """The leader makes another change, or has made it."""
        self.api.busy = {"ledger"} if busy else set()

    @rule(number=st.integers(0, 4))
    def elect(self, number: int) -> None:
        """Another ready member becomes the leader."""
        name = broker_pod_name("ledger", number)
        is_ready = name in {pod for pod, state in self.api.states().items() if getattr(state, "ready", False)}
        if is_ready and number in self.api.peers["ledger"]:
            self.api.peer_leaders["ledger"] = name
            self.api.terms["ledger"] += 1

    @rule(allowed=st.booleans())
    def allow(self, allowed: bool) -> None:
        """The operator loses its credentials for sidecars, or gets them back."""
        self.api.can_reload = allowed

    @rule(count=st.integers(0, 6))
    def scale(self, count: int) -> None:
        """Somebody scales the StatefulSet."""
        if BROKERS in self.api.objects:
            self.api.scale(BROKERS, count)

    @rule(number=st.integers(0, 4))
    def remove(self, number: int) -> None:
        """Somebody deletes a pod."""
        self.api.remove(Ref("Pod", NAMESPACE, broker_pod_name("ledger", number)))

    @rule()
    def remove_set(self) -> None:
        """Somebody deletes the StatefulSet."""
        self.api.remove(BROKERS)

    def teardown(self) -> None:
        """After the faults the group is as desired."""
        api = self.api
        api.unready, api.busy, api.silent, api.can_reload = set(), set(), False, True
        put(api, self.wanted, config={"fileReservedTime": 36}, image="mine:3")
        api.settle(300)
        assert is_at(api, self.wanted)
        template = api.objects[BROKERS]["spec"]["template"]
        digests = [restart_digest_of(pod) for pod in pods_of(api, BROKERS)]
        assert digests == [restart_digest_of(template)] * self.wanted


def test_a_set_that_is_deleted_before_an_added_member_is_recorded_comes_back() -> None:
    history = LedgerHistory()
    history.resize(5)
    history.calm(4)
    history.remove_set()
    history.work(effects=4, ticks=1)
    history.remove_set()
    members, founders = history.api.peers["ledger"], history.api.status(LEDGER)["founders"]
    assert (members, founders) == ({0, 1, 2, 3}, 3), "the operator was killed in between"
    history.resize(3)
    history.teardown()


TestLedgerHistory = pytest.mark.long(LedgerHistory.TestCase)
TestLedgerHistory.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
