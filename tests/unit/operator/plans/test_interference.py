"""Tests that a group returns to its desired state whatever people do to its objects, that no pod restarts for
it, and that nothing that the operator writes meanwhile has a wrong number of members."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Container, Mapping
from typing import Any

import pytest

from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE
from tests.unit.operator.plans.interference import (
    FIXED_FIELDS,
    InterferenceApi,
    changes,
    owned_objects,
    paths_of,
    set_field,
    value_at,
    wrong_values,
)

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
OWN = Ref("ControllerGroup", NAMESPACE, "orders")
QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")
SIZES = [0, 1, 2, 4, 9]
ROUNDS = 30
SHORT_STEP = 7
REQUIRED = [("metadata",), ("metadata", "uid"), ("metadata", "generation"), ("spec",), ("spec", "template")]
"""Fields that the API server sets, or without which it accepts no object."""
OWNERS_OF_PODS = ("StatefulSet", "ControllerGroup")


def with_own_controllers() -> InterferenceApi:
    """A ready group of three replicas, and three controllers of its own."""
    api = InterferenceApi(sizes={"orders-broker": 3, "orders-controller": 3})
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    return api


def with_separate_nameservers() -> InterferenceApi:
    """A ready group of three replicas whose controllers have two separate nameservers, with everything that a
    spec can add to the manifests."""
    api = InterferenceApi(sizes={"orders-broker": 3, "quorum-controller": 3, "quorum-nameserver": 2})
    secrets = {"admin": {"tokenSecret": "token", "tlsSecret": "tls"}, "clientTlsSecret": "clients"}
    nameserver = {"embedded": False, "replicas": 2}
    outside = {"external": {"type": "NodePort", "nodePort": 31000}}
    api.put("ControllerGroup", "quorum", {"replicas": 3, "nameserver": nameserver, **secrets, **outside})
    outside = {"external": {"type": "LoadBalancer", "host": "{ordinal}.example.com"}}
    more = {**outside, "authSecret": "auth", "config": {"fileReservedTime": 48}}
    api.put("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum", **secrets, **more})
    api.settle()
    return api


SETUPS = {"own controllers": with_own_controllers, "separate nameservers": with_separate_nameservers}
READY = {name: make() for name, make in SETUPS.items()}


class Interference:
    """A ready group, and what it has to return to."""

    def __init__(self, setup: str) -> None:
        self.api = copy.copy(READY[setup])
        self._before = READY[setup]
        self.owned = owned_objects(self.api)
        self.pods = self.api.pods()

    def begin(self) -> None:
        """Returns to the ready group."""
        self.api.objects = copy.deepcopy(self._before.objects)
        self.api.loaded = set()
        self.api.rejections = {}
        self.api.replace_operator()

    def check(self, what: str, *, replaced: Container[str] = (), scaled: bool = False) -> None:
        """The group returns to its state from before. Pods and volume claims not among the `replaced` are the
        same as before. `scaled`: there may be more volume claims."""
        api, before = self.api, self._before
        try:
            api.settle(ROUNDS)
        except AssertionError as error:
            pytest.fail(f"{what}: {error}; rejected: {api.rejections}")
        for ref in api.resources():
            assert api.status(ref)["phase"] == "Ready", (what, api.status(ref))
        more = api.objects.keys() ^ before.objects.keys()
        assert not more or (scaled and {ref.kind for ref in more} == {"PersistentVolumeClaim"}), what
        for ref in self.owned:
            assert not changes(before.objects[ref], api.objects[ref]), (what, str(ref))
        for ref in before.objects:
            if ref.kind in ("Pod", "PersistentVolumeClaim") and ref.name not in replaced:
                assert api.uid(ref) == before.uid(ref), (what, str(ref))


@pytest.fixture(params=list(SETUPS))
def interference(request: pytest.FixtureRequest) -> Interference:
    return Interference(request.param)


def may_be_set(ref: Ref, path: tuple[Any, ...]) -> bool:
    """Whether people can set this field of an existing object."""
    fixed = FIXED_FIELDS.get(ref.kind, ())
    if path[0] in ("apiVersion", "kind", "status") or path[:2] in (
        ("metadata", "name"),
        ("metadata", "namespace"),
    ):
        return False
    if path in REQUIRED or path[-1] == "emptyDir":  # which is what a volume is by default
        return False
    return not any(path[: len(one)] == one for one in fixed)


def fields_of(manifest: Mapping[str, Any], ref: Ref) -> list[tuple[Any, ...]]:
    """The fields that people can set."""
    return [path for path in paths_of(manifest) if may_be_set(ref, path)]


def values_for(path: tuple[Any, ...], value: Any) -> list[Any]:
    """Wrong values for a field."""
    return SIZES if path == ("spec", "replicas") else wrong_values(value)


def check_fields(interference: Interference, *, every: int) -> int:
    """Sets every so many-th field of each owned object to one wrong value, and all of them to all wrong
    values if `every` is 1; returns the number of values."""
    count = 0
    for ref in interference.owned:
        for number, path in enumerate(fields_of(interference.api.objects[ref], ref)):
            values = values_for(path, value_at(interference.api.objects[ref], path))
            if every > 1 and path != ("spec", "replicas"):
                values = [values[number % len(values)]] if number % every == 0 else []
            for wrong in values:
                interference.begin()
                set_field(interference.api.objects[ref], path, wrong)
                # Kubernetes deletes an object whose owner does not exist, and a StatefulSet's pods with it.
                scaled = path == ("spec", "replicas")
                replaced = interference.pods if path[-1] == "uid" or scaled else ()
                what = f"{ref}: {'.'.join(map(str, path))}: {wrong}"
                interference.check(what, replaced=replaced, scaled=scaled)
                count += 1
    return count


@pytest.mark.long
def test_fields_of_owned_objects_return_from_wrong_values(interference: Interference) -> None:
    assert check_fields(interference, every=SHORT_STEP) > 100


@pytest.mark.soak
def test_each_field_of_each_owned_object_returns_from_every_wrong_value(interference: Interference) -> None:
    assert check_fields(interference, every=1) > 1500


@pytest.mark.long
def test_each_owned_object_that_is_deleted_comes_back(interference: Interference) -> None:
    """Also two at a time, of which the second one is deleted before or after the operator acts."""
    for ref in interference.owned:
        interference.begin()
        interference.api.remove(ref)
        interference.check(f"without {ref}", replaced=interference.pods if ref.kind in OWNERS_OF_PODS else ())


@pytest.mark.soak
@pytest.mark.parametrize("effects", [0, 1, 3])
def test_any_two_objects_that_are_deleted_come_back(interference: Interference, effects: int) -> None:
    """The second one is deleted after so many effects of the operator."""
    for pair in itertools.permutations(interference.owned, 2):
        interference.begin()
        interference.api.remove(pair[0])
        interference.api.operate(limit=effects)
        interference.api.remove(pair[1])
        replaced = interference.pods if any(ref.kind in OWNERS_OF_PODS for ref in pair) else ()
        interference.check(f"without {pair}", replaced=replaced)


@pytest.mark.long
def test_any_two_pods_and_volumes_that_are_deleted_come_back(interference: Interference) -> None:
    api = interference.api
    kinds = ("Pod", "PersistentVolumeClaim")
    for pair in itertools.combinations(sorted(ref for ref in api.objects if ref.kind in kinds), 2):
        interference.begin()
        names = {ref.name for ref in pair}
        for ref in pair:
            api.remove(ref)
        # A claim in use is deleted with its pod.
        used = {ref for ref in pair if ref.kind == "PersistentVolumeClaim"}
        pods = {Ref("Pod", NAMESPACE, ref.name.partition("-")[2]) for ref in used}
        for ref in pods:
            api.remove(ref)
        interference.check(f"without {pair}", replaced=names | {ref.name for ref in pods})


@pytest.mark.parametrize("what", ["labels", "ownerReferences", "both"])
def test_all_objects_without_their_labels_and_owners_get_them_back(
    interference: Interference, what: str
) -> None:
    interference.begin()
    for ref in interference.owned:
        meta = interference.api.objects[ref]["metadata"]
        for key in ("labels", "ownerReferences") if what == "both" else (what,):
            del meta[key]
    interference.check(f"without {what}")


def replacements(manifest: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    """Fields of an object that nobody can change, with other values."""
    if manifest["kind"] == "ConfigMap":
        return [(("data",), {}), (("data",), dict.fromkeys(manifest["data"], "controllerDLegerPeers=n0-a:1"))]
    if manifest["kind"] == "Service":
        headless = manifest["spec"].get("clusterIP") == "None"
        return [(("spec", "clusterIP"), "10.0.0.1" if headless else "None")]
    return []


@pytest.mark.long
def test_objects_that_were_replaced_with_fixed_fields_of_other_values_are_replaced_again(
    interference: Interference,
) -> None:
    """As by `kubectl replace --force`, which keeps labels, annotations and owner."""
    api = interference.api
    for ref in interference.owned:
        for path, wrong in replacements(api.objects[ref]):
            interference.begin()
            made = copy.deepcopy(api.objects[ref])
            api.remove(ref)
            set_field(made, path, wrong)
            api.replace_object(ref, made)
            api.events.clear()
            before = api.deleted[str(ref)]
            interference.check(f"{ref} with {path}: {wrong}")
            assert api.deleted[str(ref)] == before + 1
            assert "RevertingDrift" in api.reasons()
