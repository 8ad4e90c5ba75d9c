"""Tests that deleting the release, a guarded group and its controllers in any order leaves no pod, object or
finalizer, but only the retained volumes."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence

import pytest

from tests.kubernetes.chart import CHART, TAKE, values
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.processes import TestbedError

pytestmark = pytest.mark.soak

KINDS = "brokergroups,controllergroups,statefulsets,pods,services,configmaps,serviceaccounts,pdb,netpol,jobs"
POLICIES = "validatingadmissionpolicies,validatingadmissionpolicybindings"
CLUSTER_WIDE = f"{POLICIES},clusterroles,clusterrolebindings"
CONFIRM = "epochmq.io/confirm-deletion"
HELM_TIMEOUT = ("--wait", "--timeout=240s")
ORDERS = list(itertools.permutations(["uninstall", "brokers", "controllers"]))
KEPT = ["data-quorum-controller-0", "store-orders-broker-0"]


class DeletionScenario:
    """A release with a group and its controllers, both guarded, and the deletion of each."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.place = f"--namespace={namespace}"
        self.release = f"epochmq-{uuid.uuid4().hex[:6]}"
        self.groups = Groups(cluster, namespace)
        chosen = (*values(namespace), "--set", "replicas=1")
        cluster.helm("install", self.release, str(CHART), TAKE, *chosen, *HELM_TIMEOUT)
        self.groups.apply("ControllerGroup", "quorum", {"replicas": 1, "deletionGuard": True})
        spec = {"replicas": 1, "controllerGroup": "quorum", "deletionGuard": True}
        self.groups.apply("BrokerGroup", "orders", spec)
        self.groups.ready("orders", 1)
        self.groups.wait("ControllerGroup", "quorum", phase="Ready", brokerGroups=["orders"])

    def uninstall(self) -> None:
        """helm uninstall."""
        self.cluster.helm("uninstall", self.release, self.place, *HELM_TIMEOUT)

    def brokers(self) -> None:
        """kubectl delete brokergroup, confirmed."""
        self._delete("brokergroup", "orders")

    def controllers(self) -> None:
        """kubectl delete controllergroup, confirmed. Without confirmation it is rejected while the release
        protects it and the group uses it."""
        group = self.groups.get("BrokerGroup", "orders")
        if self.cluster_wide() and group and not group["metadata"].get("deletionTimestamp"):
            with pytest.raises(TestbedError, match=f"by: kubectl annotate controllergroup quorum {CONFIRM}"):
                self.cluster.kubectl("delete", "controllergroup", "quorum", self.place, "--wait=false")
        self._delete("controllergroup", "quorum")

    def _delete(self, kind: str, name: str) -> None:
        self.cluster.kubectl("annotate", kind, name, f"{CONFIRM}={name}", self.place)
        self.cluster.kubectl("delete", kind, name, self.place, "--wait=false")

    def left(self) -> list[str]:
        """The objects in the namespace that did not exist before, without volumes."""
        found = self.cluster.kubectl("get", KINDS, self.place, "--output=name").split()
        kubernetes = ("configmap/kube-root-ca.crt", "serviceaccount/default")
        return [one for one in found if one not in kubernetes]

    def cluster_wide(self) -> list[str]:
        """The objects of the release outside its namespace, without CustomResourceDefinitions."""
        mine = f"--selector=app.kubernetes.io/instance={self.release}"
        return self.cluster.kubectl("get", CLUSTER_WIDE, mine, "--output=name").split()


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_deletions_in_any_order_leave_nothing(cluster: Cluster, namespace: str, order: Sequence[str]) -> None:
    scenario = DeletionScenario(cluster, namespace)
    for what in order:
        getattr(scenario, what)()
    cluster.wait(lambda: not scenario.left(), READY_TIMEOUT_S, f"nothing is left: {scenario.left()}")
    assert scenario.cluster_wide() == []
    claims = cluster.kubectl("get", "pvc", scenario.place, "--output=name").split()
    assert sorted(claims) == [f"persistentvolumeclaim/{one}" for one in KEPT]
    cluster.kubectl("delete", "namespace", namespace, "--wait=true", "--timeout=110s")


def test_a_namespace_is_deleted_with_everything_in_it(cluster: Cluster, namespace: str) -> None:
    """The operator is deleted with it, in any order; no deletion is guarded. The release's objects outside
    the namespace are then deleted by hand, because Helm's record was in the namespace."""
    scenario = DeletionScenario(cluster, namespace)
    for kind, name in (("BrokerGroup", "orders"), ("ControllerGroup", "quorum")):
        patch = '--patch={"spec":{"deletionGuard":false}}'
        cluster.kubectl("patch", kind, name, scenario.place, "--type=merge", patch)
        cluster.wait(
            lambda kind=kind, name=name: not scenario.groups.get(kind, name)["metadata"].get("finalizers"),
            what=f"{kind} {name} is guarded no more",
        )
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")
    gone = f"jsonpath={{.items[?(@.metadata.name=='{namespace}')].metadata.name}}"
    cluster.wait(
        lambda: not cluster.kubectl("get", "namespaces", f"--output={gone}").strip(),
        READY_TIMEOUT_S,
        "the namespace is gone",
    )
    found = scenario.cluster_wide()
    assert {one.partition(".")[0] for one in found} == {
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    }
    cluster.kubectl("delete", POLICIES, f"--selector=app.kubernetes.io/instance={scenario.release}")
