"""Tests that any sequence of updates, changes of size, faults and kills of the operator restarts no pod that
the group needs, keeps a majority of the controllers ready, and ends well once the faults are over. The
manifests are those of a real cluster."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from epochmq_operator.manifests import ManifestSettings, render_manifests
from epochmq_operator.manifests.kept_templates import (
    mounted_config_maps,
    template_annotations,
    template_spec,
)
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.pod_rendering import broker_pod_name, controller_pod_name
from epochmq_operator.quorum_steps import Founders
from epochmq_operator.resources import ControllerGroup, GroupResource
from tests.unit.operator.plans.fake_api import NAMESPACE, SETTINGS, manifest_renderer
from tests.unit.operator.plans.operator_rules import OperatorRules
from tests.unit.operator.plans.watched_api import BROKERS, CONTROLLERS, ORDERS, WatchedApi

QUORUM = Ref("ControllerGroup", NAMESPACE, "orders")
LATER = ManifestSettings("epochmq/broker:2", "epochmq/controller:2", "epochmq-system")
NIGHTS = [{"schedule": "0 3 * * *", "minutes": 60}]
GOOD, BAD = {"fileReservedTime": 48}, {"fileReservedTime": "bad"}


def release_of(settings: ManifestSettings) -> Renderer:
    """The renderer of a release with these settings. The later one renders other templates."""
    if settings is SETTINGS:
        return Renderer(settings)

    def render(
        group: GroupResource,
        controllers: ControllerGroup | None,
        settings: ManifestSettings,
        founders: Founders | None,
    ) -> list[dict[str, Any]]:
        made = [copy.deepcopy(one) for one in render_manifests(group, controllers, settings, founders)]
        for one in made:
            if one["kind"] == "StatefulSet":
                one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 77
                marks = template_annotations({}, one["spec"]["template"])
                one["metadata"]["annotations"]["epochmq.io/template"] = marks["epochmq.io/template"]
        return made

    return Renderer(settings, render)


def _mounted(found: dict[str, Any]) -> frozenset[str]:
    """The ConfigMaps that a pod, or the template of a StatefulSet, mounts. Controllers keep theirs when only
    the members of the quorum change."""
    if found["kind"] == "Pod":
        return mounted_config_maps(found["spec"])
    return mounted_config_maps(template_spec(found)) if found["kind"] == "StatefulSet" else frozenset()


class UpdateHistory(OperatorRules):
    """One group, an operator that is often killed, users who change the group, and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.api = WatchedApi(renderer=manifest_renderer(), can_reload=True, reloads_brokers=False)
        self.spec: dict[str, Any] = {"replicas": 3}
        self.controllers = 3
        self._resize_quorum()
        self.api.put("BrokerGroup", "orders", self.spec)
        self.api.settle()

    def _resize_quorum(self) -> None:
        self.api.put("ControllerGroup", "orders", {"replicas": self.controllers})

    def _put(self, **fields: Any) -> None:
        self.spec = {**self.spec, **fields}
        self.api.put("BrokerGroup", "orders", self.spec)

    @rule(config=st.sampled_from([{}, GOOD, BAD]))
    def configure(self, config: dict[str, Any]) -> None:
        """A user changes the configuration."""
        self._put(config=config)

    @rule(image=st.sampled_from(["mine:1", "mine:2", "bad:1"]))
    def upgrade(self, image: str) -> None:
        """A user changes the image."""
        self._put(image=image)

    @rule(replicas=st.sampled_from([1, 2, 3, 4]))
    def resize(self, replicas: int) -> None:
        """A user changes the number of replicas."""
        self._put(replicas=replicas)

    @rule(count=st.sampled_from([1, 3, 5]))
    def resize_quorum(self, count: int) -> None:
        """A user changes the number of controllers."""
        self.controllers = count
        self._resize_quorum()

    @rule(busy=st.booleans())
    def occupy(self, busy: bool) -> None:
        """The leading controller makes another change, or has made it."""
        self.api.busy = {"orders"} if busy else set()

    @rule(number=st.integers(0, 4), broken=st.booleans())
    def trouble_controller(self, number: int, broken: bool) -> None:
        """A controller becomes unready, or ready again."""
        (self.api.unready.add if broken else self.api.unready.discard)(controller_pod_name("orders", number))

    @rule(policy=st.sampled_from([{}, {"approval": "Supervised"}, {"windows": NIGHTS}]))
    def supervise(self, policy: dict[str, Any]) -> None:
        """A user says when updates may run."""
        self._put(updatePolicy=policy)

    @rule(approved=st.booleans())
    def approve(self, approved: bool) -> None:
        """A user approves the update that waits, or takes the approval back."""
        message = str(self.api.status(ORDERS).get("conditions"))
        found = re.search(r"approve-update=([0-9a-f]+)", message)
        self.api.annotate(ORDERS, approve_update=found[1] if found and approved else "")

    @rule(number=st.integers(0, 2), replicas=st.sampled_from([1, 2, 3]))
    def force(self, number: int, replicas: int) -> None:
        """A replica becomes unready, and a user forces the removal of another one that waits for it."""
        self.api.unready.add(broker_pod_name("orders", number))
        self._put(replicas=replicas)
        for _ in range(4):
            self.api.tick()
            self.api.operate()
        found = re.search(r"force-scale-down=([\w.-]+)", str(self.api.status(ORDERS).get("conditions")))
        if found:
            self.api.annotate(ORDERS, force_scale_down=found[1])

    @rule(hours=st.integers(1, 30))
    def wait(self, hours: int) -> None:
        """Time passes."""
        self.api.now += hours * 3600

    @rule(release=st.sampled_from([SETTINGS, LATER]))
    def replace_operator(self, release: ManifestSettings) -> None:
        """An operator of another release, with other defaults, takes over."""
        self.api.renderer = release_of(release)

    @rule(number=st.integers(0, 20))
    def remove_object(self, number: int) -> None:
        """Somebody deletes an object of the operator."""
        there = sorted(ref for ref in self.api.objects if ref.kind in ("ConfigMap", "StatefulSet"))
        if there:
            self.api.remove(there[number % len(there)])

    @rule(number=st.integers(0, 3), broken=st.booleans())
    def trouble(self, number: int, broken: bool) -> None:
        """A replica becomes unready, or ready again."""
        (self.api.unready.add if broken else self.api.unready.discard)(broker_pod_name("orders", number))

    @rule(number=st.integers(0, 3), slow=st.booleans())
    def lag(self, number: int, slow: bool) -> None:
        """A replica falls behind, or catches up."""
        (self.api.behind.add if slow else self.api.behind.discard)(broker_pod_name("orders", number))

    @rule(number=st.integers(0, 20))
    def remove(self, number: int) -> None:
        """Somebody deletes a pod."""
        pods = self.api.pods()
        if pods:
            self.api.remove(Ref("Pod", NAMESPACE, pods[number % len(pods)]))

    @rule(count=st.integers(0, 5))
    def scale(self, count: int) -> None:
        """Somebody scales the StatefulSets."""
        for stateful_set in (BROKERS, CONTROLLERS):
            if stateful_set in self.api.objects:
                self.api.scale(stateful_set, count)

    def teardown(self) -> None:
        """After the faults the group is as desired."""
        api = self.api
        api.unready, api.behind, api.silent, api.busy = set(), set(), False, set()
        self._put(config=GOOD, image="mine:3", updatePolicy={})
        api.settle(300)
        status, wanted = api.status(ORDERS), self.spec["replicas"]
        assert (status["phase"], status["ready"]) == ("Ready", f"{wanted}/{wanted}")
        quorum, controllers = api.status(QUORUM), self.controllers
        assert (quorum["phase"], quorum["ready"]) == ("Ready", f"{controllers}/{controllers}")
        assert api.quorums["orders"] == set(range(controllers))
        assert not any(api.is_outdated(name) for name in api.pods())
        used = {name for found in api.objects.values() for name in _mounted(found)}
        assert {ref.name for ref in api.objects if ref.kind == "ConfigMap"} == used
        (files,) = (
            found["data"]
            for ref, found in api.objects.items()
            if ref.kind == "ConfigMap" and ref.name.startswith(BROKERS.name)
        )
        copies = "minInSyncReplicas=2" if wanted >= 3 else "minInSyncReplicas"
        assert (copies in files["orders-broker-0.conf"]) is (wanted >= 3)


class OwnControllersHistory(UpdateHistory):
    """The same with a group whose controllers are its own: users change their number in the BrokerGroup."""

    def _resize_quorum(self) -> None:
        self._put(controllers={"replicas": self.controllers}, admin={"tokenSecret": "token"})


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )


TestUpdateHistory = pytest.mark.long(UpdateHistory.TestCase)
TestUpdateHistory.settings = _settings(40)
TestOwnControllersHistory = pytest.mark.long(OwnControllersHistory.TestCase)
TestOwnControllersHistory.settings = _settings(15)


def test_controllers_restart_when_their_former_configuration_is_deleted() -> None:
    """They kept it while the members changed, and could not start again on their nodes without it."""
    history = OwnControllersHistory()
    history.resize_quorum(5)
    history.api.settle(300)
    names = [controller_pod_name("orders", number) for number in range(5)]
    former = {one for name in names for one in _mounted(history.api.objects[Ref("Pod", NAMESPACE, name)])}
    (deleted,) = former - _mounted(history.api.objects[CONTROLLERS])
    history.api.remove(Ref("ConfigMap", NAMESPACE, deleted))
    history.api.settle(300)
    (status, quorum) = history.api.status(ORDERS), history.api.status(QUORUM)
    assert (status["phase"], quorum["phase"], quorum["ready"]) == ("Ready", "Ready", "5/5")
    for name in names:
        pod = history.api.objects[Ref("Pod", NAMESPACE, name)]
        assert _mounted(pod) == _mounted(history.api.objects[CONTROLLERS])
