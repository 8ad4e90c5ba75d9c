"""Tests that a group with the operator of the chart returns to its desired state whatever people do to its
objects, pods and volumes, and that it keeps all messages meanwhile."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from epochmq_operator.kube.api import FIELD_MANAGER
from epochmq_operator.manifests import OBJECT_KINDS, differences
from epochmq_operator.manifests.names import MANAGED_BY, MANAGER
from epochmq_operator.plans.objects import APPLIED, annotation
from tests.kubernetes.chart import CHART, TAKE, WAIT, values
from tests.kubernetes.operator_process import READY_TIMEOUT_S, Groups
from tests.kubernetes.testbed.cluster import Cluster
from tests.kubernetes.testbed.processes import TestbedError
from tests.kubernetes.traffic import Traffic
from tests.unit.operator.plans.interference import check_files, paths_of, set_field, value_at, wrong_values

pytestmark = pytest.mark.soak

KINDS = ",".join(["controllergroups.epochmq.io", *(one.plural for one in OBJECT_KINDS)])
OF_GROUPS = f"{MANAGED_BY}={MANAGER}"
WRONG_REPLICAS = (1, 5)
SCALE = ("spec", "replicas")
STEP = 6


class Interference:
    """A group of three brokers and three controllers of its own, and its objects as they have to be."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.cluster = groups.cluster
        self.place = f"--namespace={groups.namespace}"
        self.wanted = {key: set_by_operator(one) for key, one in self.owned().items()}
        """What the operator sets in them; it leaves all other fields alone."""

    def owned(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The objects that the operator made, by kind and name."""
        text = self.cluster.kubectl("get", KINDS, self.place, "--output=json", "--show-managed-fields")
        found = [one for one in json.loads(text)["items"] if annotation(one, APPLIED) is not None]
        return {(one["kind"], one["metadata"]["name"]): one for one in found}

    def restored(self) -> bool:
        """Whether all objects are as before and the group is ready; also reads every configuration."""
        now = self.owned()
        for (kind, _), one in now.items():
            if kind == "ConfigMap":
                check_files(one["data"])
        status = self.groups.status("BrokerGroup", "orders")
        return (
            now.keys() == self.wanted.keys()
            and not any(differences(_settings(self.wanted[key]), _settings(now[key])) for key in now)
            and (status["phase"], status["ready"]) == ("Ready", "3/3")
            and len(status["syncStateSet"]) == 3
        )

    def wait_restored(self, what: str) -> None:
        """Waits until the group is as before."""
        self.cluster.wait(self.restored, READY_TIMEOUT_S, f"the group has returned: {what}")

    def pods(self) -> dict[str, tuple[str, int]]:
        """The group's pods: uid, and how often their containers restarted."""
        found = self.cluster.core.list_namespaced_pod(self.groups.namespace, label_selector=OF_GROUPS).items
        restarts = {
            pod.metadata.name: sum(one.restart_count for one in pod.status.container_statuses)
            for pod in found
        }
        return {pod.metadata.name: (pod.metadata.uid, restarts[pod.metadata.name]) for pod in found}

    def set(self, key: tuple[str, str], path: tuple[Any, ...], wrong: Any) -> bool:
        """Sets a field, and waits until the group is as before. False if the API server rejects the value."""
        changed = copy.deepcopy(self.owned()[key])
        set_field(changed, path, wrong)
        accepted = self.put(changed)
        if accepted:
            self.wait_restored(f"{key} {path}: {wrong}")
        return accepted

    def put(self, manifest: dict[str, Any]) -> bool:
        """kubectl replace; whether the API server accepts it."""
        sent = copy.deepcopy(manifest)
        for key in ("resourceVersion", "managedFields"):
            sent["metadata"].pop(key, None)
        try:
            self.cluster.kubectl("replace", self.place, "--filename=-", stdin=json.dumps(sent))
        except TestbedError:
            return False
        return True


def set_by_operator(manifest: dict[str, Any]) -> dict[str, Any]:
    """The part of an object that the operator applied, by the API server's record of field managers."""
    applied = next(
        one["fieldsV1"]
        for one in manifest["metadata"]["managedFields"]
        if (one["manager"], one["operation"]) == (FIELD_MANAGER, "Apply") and "subresource" not in one
    )
    part: dict[str, Any] = _part(manifest, applied)
    names = {key: manifest["metadata"][key] for key in ("name", "namespace")}
    meta = {**part["metadata"], **names}
    return {**part, "apiVersion": manifest["apiVersion"], "kind": manifest["kind"], "metadata": meta}


def _part(value: Any, fields: dict[str, Any]) -> Any:
    """The part of a value with these fields (`f:name`), items by their keys (`k:{…}`) and values (`v:…`)."""
    inner = {key: found for key, found in fields.items() if key != "."}
    if not inner:
        return value
    if isinstance(value, dict):
        return {key: _part(one, inner[f"f:{key}"]) for key, one in value.items() if f"f:{key}" in inner}
    return [_part(one, found) for one in value if (found := _fields_of_item(one, inner)) is not None]


def _fields_of_item(item: Any, fields: dict[str, Any]) -> dict[str, Any] | None:
    for key, found in fields.items():
        wanted = json.loads(key[2:])
        if key.startswith("v:") and item == wanted:
            return {}
        if key.startswith("k:") and wanted.items() <= item.items():
            return found
    return None


def _settings(manifest: dict[str, Any]) -> dict[str, Any]:
    meta = {key: value for key, value in manifest["metadata"].items() if key in ("labels", "annotations")}
    owners = [one["name"] for one in manifest["metadata"].get("ownerReferences", ())]
    meta["annotations"] = {key: text for key, text in meta["annotations"].items() if key != APPLIED}
    kept = {key: value for key, value in manifest.items() if key not in ("metadata", "status")}
    return {**kept, "metadata": {**meta, "owners": owners}}


@pytest.fixture
def interference(cluster: Cluster, namespace: str, release: str, clients: str) -> Interference:
    cluster.helm("install", release, str(CHART), TAKE, *values(namespace, replicas="1"), *WAIT)
    groups = Groups(cluster, namespace)
    groups.apply("BrokerGroup", "orders", {"replicas": 3})
    groups.ready("orders", 3)
    return Interference(groups)


def delete_objects(made: Interference) -> None:
    """Deletes each object in turn, also StatefulSets with all of their pods. The chart lets nobody delete
    controllers that a group uses."""
    for kind, name in made.wanted:
        try:
            made.cluster.kubectl("delete", kind, name, made.place, "--timeout=120s")
        except TestbedError as error:
            if kind != "ControllerGroup" or "denied request" not in str(error):
                raise
        made.wait_restored(f"without {kind} {name}")


def set_fields(made: Interference) -> None:
    """Sets every so many-th field of each object to a wrong value, if the API server accepts that; no pod
    restarts. Then it sets the numbers of replicas."""
    pods, accepted = made.pods(), 0
    for key, wanted in made.wanted.items():
        for path in _fields(wanted)[::STEP]:
            if path != SCALE:
                values = wrong_values(value_at(wanted, path))
                accepted += made.set(key, path, values[len(str(path)) % len(values)])
    print(f"{accepted} wrong values were accepted and reverted")
    assert accepted > 30
    assert made.pods() == pods
    for key, wanted in made.wanted.items():
        if value_at(wanted, SCALE) is not None:
            assert all(made.set(key, SCALE, wrong) for wrong in WRONG_REPLICAS)


def _fields(manifest: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        path
        for path in paths_of(_settings(manifest))
        if len(path) > 1 and path[1] != "owners" and value_at(manifest, path) is not None
    ]


def remove_labels_and_owners(made: Interference) -> None:
    """Removes labels and owner references of all objects at once."""
    for one in made.owned().values():
        for key in ("labels", "ownerReferences"):
            del one["metadata"][key]
        assert made.put(one)
    made.wait_restored("without labels and owner references")


def delete_pods_and_volumes(made: Interference) -> None:
    """Deletes pods in pairs, and each pod together with its volume."""
    for component, volume in (("broker", "store"), ("controller", "data")):
        names = [f"orders-{component}-{ordinal}" for ordinal in range(3)]
        for pair in itertools.combinations(names, 2):
            made.cluster.kubectl("delete", "pod", *pair, made.place, "--timeout=180s")
            made.wait_restored(f"without {pair}")
        for name in names:
            claim = f"{volume}-{name}"
            made.cluster.kubectl("delete", "persistentvolumeclaim", claim, made.place, "--wait=false")
            made.cluster.kubectl("delete", "pod", name, made.place, "--timeout=180s")
            made.wait_restored(f"without {name} and {claim}")


ACTS = [remove_labels_and_owners, delete_objects, set_fields, delete_pods_and_volumes]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("act", ACTS, ids=[act.__name__ for act in ACTS])
def test_a_group_in_use_returns_to_its_desired_state_and_keeps_its_messages(
    interference: Interference, clients: str, act: Callable[[Interference], None]
) -> None:
    traffic = Traffic(interference.groups, clients, "orders")
    traffic.start()
    act(interference)
    traffic.wait_acks()
    traffic.stop()
    print(traffic.summary())
    traffic.check()
    traffic.check_equal(3)
