"""Tests that any sequence of updates, changes of size, faults and kills of the operator restarts no pod that
the group needs, and ends well once the faults are over. The manifests are those of a real cluster."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from epochmq_operator.manifests import ManifestSettings
from epochmq_operator.manifests.kept_templates import template_annotations
from epochmq_operator.plans.effects import Apply, Delete, Effect
from epochmq_operator.plans.objects import Ref
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.pod_rendering import broker_pod_name
from epochmq_operator.resources import ControllerGroup, GroupResource
from tests.unit.operator_plans.fake_api import NAMESPACE, SETTINGS, FakeApi, manifest_renderer

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "orders-controller")
LATER = ManifestSettings("epochmq/broker:2", "epochmq/controller:2", "epochmq-system")
NIGHTS = [{"schedule": "0 3 * * *", "minutes": 60}]
GOOD, BAD = {"fileReservedTime": 48}, {"fileReservedTime": "bad"}


def release_of(settings: ManifestSettings) -> Renderer:
    """The renderer of a release with these settings. The later one renders other templates."""
    plain = manifest_renderer(settings)
    if settings is SETTINGS:
        return plain

    def render(group: GroupResource, controllers: ControllerGroup | None) -> list[dict[str, Any]]:
        made = [copy.deepcopy(dict(one)) for one in plain.render(group, controllers)]
        for one in made:
            if one["kind"] == "StatefulSet":
                one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 77
                marks = template_annotations({}, one["spec"]["template"])
                one["metadata"]["annotations"]["epochmq.io/template"] = marks["epochmq.io/template"]
        return made

    return replace(plain, render=render)


class WatchedApi(FakeApi):
    """A cluster that checks each restart and each removal of a replica by the operator."""

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect, after it has checked it."""
        if isinstance(effect, Delete) and effect.ref.kind == "Pod":
            self._check_restart(effect.ref)
        if isinstance(effect, Apply) and effect.manifest["kind"] == "StatefulSet":
            self._check_size(effect.manifest)
        super().act(effect, resource)

    def _check_restart(self, pod: Ref) -> None:
        stateful_set = BROKERS if "broker" in pod.name else CONTROLLERS
        names = self._names(stateful_set)
        assert self.is_outdated(pod.name), f"{pod.name} has the present template"
        if not self._ready(pod.name):
            return
        others = [name for name in names if name != pod.name]
        assert all(self._ready(name) for name in others), f"{pod.name} was restarted beside an unready pod"
        assert self.leaders.get("orders"), f"{pod.name} was restarted without a quorum"
        leads = self.leaders["orders"]
        if stateful_set is BROKERS:
            leads = self.masters["orders"][0]
            slow = self.behind & set(others) - {leads}
            assert not slow, f"{pod.name} was restarted while {slow} were not in sync"
        if pod.name == leads:
            assert not any(self.is_outdated(name) for name in others), f"{pod.name} was not the last"

    def _check_size(self, manifest: Any) -> None:
        name, wanted = manifest["metadata"]["name"], manifest["spec"]["replicas"]
        before = self.applied.get(Ref("StatefulSet", NAMESPACE, name))
        if before and wanted < before[-1]["spec"]["replicas"]:
            assert name == BROKERS.name
            assert wanted == before[-1]["spec"]["replicas"] - 1

    def _names(self, stateful_set: Ref) -> list[str]:
        count = self.objects[stateful_set]["spec"]["replicas"]
        return [f"{stateful_set.name}-{ordinal}" for ordinal in range(count)]

    def is_outdated(self, name: str) -> bool:
        """Whether a pod has another template than its StatefulSet."""
        pod = self.objects.get(Ref("Pod", NAMESPACE, name))
        if pod is None:
            return False
        stateful_set = self.objects[Ref("StatefulSet", NAMESPACE, name.rpartition("-")[0])]
        present: str = stateful_set["status"]["updateRevision"]
        revision: str = pod["metadata"]["labels"]["controller-revision-hash"]
        return revision != present


class UpdateHistory(RuleBasedStateMachine):
    """One group, an operator that is often killed, users who change the group, and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.api = WatchedApi(renderer=manifest_renderer())
        self.spec: dict[str, Any] = {"replicas": 3}
        self.api.put("BrokerGroup", "orders", self.spec)
        self.api.settle()

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

    @rule(effects=st.integers(0, 4), ticks=st.integers(0, 3))
    def work(self, effects: int, ticks: int) -> None:
        """An operator runs until it has carried out this many effects."""
        for _ in range(ticks):
            self.api.tick()
        self.api.operate(limit=effects)

    @rule(rounds=st.integers(4, 16))
    def calm(self, rounds: int) -> None:
        """An operator runs for a while."""
        for _ in range(rounds):
            self.api.tick()
            self.api.operate()

    @rule(number=st.integers(0, 3), broken=st.booleans())
    def trouble(self, number: int, broken: bool) -> None:
        """A replica becomes unready, or ready again."""
        (self.api.unready.add if broken else self.api.unready.discard)(broker_pod_name("orders", number))

    @rule(number=st.integers(0, 3), slow=st.booleans())
    def lag(self, number: int, slow: bool) -> None:
        """A replica falls behind, or catches up."""
        (self.api.behind.add if slow else self.api.behind.discard)(broker_pod_name("orders", number))

    @rule(silent=st.booleans())
    def hush(self, silent: bool) -> None:
        """The sidecars stop responding, or respond again."""
        self.api.silent = silent

    @rule(number=st.integers(0, 20))
    def remove(self, number: int) -> None:
        """Somebody deletes a pod."""
        pods = self.api.pods()
        if pods:
            self.api.remove(Ref("Pod", NAMESPACE, pods[number % len(pods)]))

    @rule(count=st.integers(0, 5))
    def scale(self, count: int) -> None:
        """Somebody scales the StatefulSet."""
        if BROKERS in self.api.objects:
            self.api.scale(BROKERS, count)

    def teardown(self) -> None:
        """After the faults the group is as desired."""
        api = self.api
        api.unready, api.behind, api.silent = set(), set(), False
        self._put(config=GOOD, image="mine:3", updatePolicy={})
        api.settle(300)
        status, wanted = api.status(ORDERS), self.spec["replicas"]
        assert (status["phase"], status["ready"]) == ("Ready", f"{wanted}/{wanted}")
        assert not any(api.is_outdated(name) for name in api.pods())
        assert len([ref for ref in api.objects if ref.kind == "ConfigMap"]) == 2
        (files,) = (
            found["data"]
            for ref, found in api.objects.items()
            if ref.kind == "ConfigMap" and ref.name.startswith(BROKERS.name)
        )
        copies = "minInSyncReplicas=2" if wanted >= 3 else "minInSyncReplicas"
        assert (copies in files["orders-broker-0.conf"]) is (wanted >= 3)


TestUpdateHistory = UpdateHistory.TestCase
TestUpdateHistory.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
