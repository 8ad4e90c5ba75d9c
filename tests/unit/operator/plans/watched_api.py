"""A simulated cluster whose writes are checked while they happen."""

from __future__ import annotations

from typing import Any

from epochmq_operator.manifests.kept_templates import (
    mounted_config_maps,
)
from epochmq_operator.manifests.restart_digest import restart_digest_of
from epochmq_operator.plans.effects import Apply, ChangeQuorumMembers, Delete, Effect, PatchStatus
from epochmq_operator.plans.objects import Ref
from epochmq_operator.pod_rendering import broker_pod_name, controller_pod_name
from epochmq_protocol import properties
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "orders-controller")


class WatchedApi(FakeApi):
    """A cluster that checks each restart, each removal of a replica and each change of the controllers by the
    operator."""

    def act(self, effect: Effect, resource: Ref) -> None:
        """Carries out one effect, after it has checked it."""
        if isinstance(effect, Delete) and effect.ref.kind == "Pod":
            self._check_restart(effect.ref)
        if isinstance(effect, Apply) and effect.manifest["kind"] == "StatefulSet":
            self._check_size(effect.manifest)
        if isinstance(effect, Apply) and effect.manifest["kind"] == "ConfigMap":
            self._check_votes(effect.manifest["data"])
        if isinstance(effect, PatchStatus) and resource == ORDERS:
            self._check_target(effect.status["targetReplicas"])
        if isinstance(effect, ChangeQuorumMembers):
            self._check_members(effect)
        super().act(effect, resource)

    def _check_members(self, change: ChangeQuorumMembers) -> None:
        """After the change all members are ready but those that were not members before."""
        before, ordinal = self.quorums["orders"], int(change.member.removeprefix("n"))
        if (ordinal in before) == (change.address is not None):
            return  # it changes nothing
        unready = {n for n in before - {ordinal} if not self._ready(controller_pod_name("orders", n))}
        assert not unready, f"{change} beside the unready {unready}"
        assert change.address is not None or ordinal == max(before)

    def _check_votes(self, files: dict[str, str]) -> None:
        """No controller may vote by a configuration that names others than the members."""
        for text in files.values():
            keys = properties.parse(text)
            if "controllerDLegerPeers" in keys and "joinControllerGroup" not in keys:
                named = {int(one.partition("-")[0][1:]) for one in keys["controllerDLegerPeers"].split(";")}
                assert named == self.quorums.get("orders", named)

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
        if name == CONTROLLERS.name:
            assert wanted > max(self.quorums.get("orders", {0})), f"a member is removed: {wanted} pods remain"
            return
        before = self.applied.get(Ref("StatefulSet", NAMESPACE, name))
        if before and wanted < before[-1]["spec"]["replicas"]:
            assert wanted == before[-1]["spec"]["replicas"] - 1

    def _check_target(self, target: int) -> None:
        """A replica is removed while all others have every message; or a person named it, and the master
        stays."""
        if target >= self.status(ORDERS).get("targetReplicas", 0):
            return
        *remaining, removed = (broker_pod_name("orders", ordinal) for ordinal in range(target + 1))
        master = self.masters["orders"][0]
        if all(self._ready(name) and name not in self.behind - {master} for name in remaining):
            return
        group = self.objects[ORDERS]["metadata"]
        named = (group.get("annotations") or {}).get("epochmq.io/force-scale-down")
        assert named == f"{removed}.{group['generation']}", f"{removed} was removed beside unready replicas"
        assert master in remaining, f"{removed} was removed without a master that stays"

    def _names(self, stateful_set: Ref) -> list[str]:
        count = self.objects[stateful_set]["spec"]["replicas"]
        return [f"{stateful_set.name}-{ordinal}" for ordinal in range(count)]

    def is_outdated(self, name: str) -> bool:
        """Whether a pod has another template than its StatefulSet. Other members of the quorum alone do not
        count while the former ConfigMap exists."""
        pod = self.objects.get(Ref("Pod", NAMESPACE, name))
        if pod is None:
            return False
        stateful_set = self.objects[Ref("StatefulSet", NAMESPACE, name.rpartition("-")[0])]
        template = stateful_set["spec"]["template"]
        kept = all(
            Ref("ConfigMap", NAMESPACE, one) in self.objects for one in mounted_config_maps(pod["spec"])
        )
        if "controller" in name and kept and restart_digest_of(pod) == restart_digest_of(template):
            return False
        present: str = stateful_set["status"]["updateRevision"]
        revision: str = pod["metadata"]["labels"]["controller-revision-hash"]
        return revision != present
