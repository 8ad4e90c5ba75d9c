"""Tests the comparison of an object in the API server with the desired one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_operator.manifests import OBJECT_KINDS, JsonObject, differences, keep_immutable_fields
from epochmq_operator.resources import GroupResource
from tests.unit.operator.rendered_groups import EVERYTHING, broker_group, controller_group, made, of_kind


def from_the_api_server(manifest: JsonObject) -> JsonObject:
    """An object as the API server returns it: with defaults, rewritten quantities, and without empty
    fields."""
    found: JsonObject = copy.deepcopy(manifest)
    found["metadata"] |= {"uid": "1", "resourceVersion": "2", "managedFields": [{}]}
    found["status"] = {"replicas": 3}
    if found["kind"] == "Service":
        found["spec"] |= {"sessionAffinity": "None", "ipFamilies": ["IPv4"]}
        for port in found["spec"]["ports"]:
            port["protocol"] = "TCP"
    if found["kind"] == "StatefulSet":
        spec = found["spec"]["template"]["spec"]
        spec |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
        spec["containers"][0]["terminationMessagePath"] = "/dev/termination-log"
        spec["containers"][0]["resources"]["requests"] = {"cpu": "0.05", "memory": "131072Ki"}
        spec["containers"][0]["volumeMounts"][0]["recursiveReadOnly"] = "Disabled"
        spec["volumes"][1].pop("emptyDir")
        found["spec"]["volumeClaimTemplates"][0]["status"] = {"phase": "Pending"}
        found["spec"]["volumeClaimTemplates"][0]["spec"]["volumeMode"] = "Filesystem"
    return found


@pytest.mark.parametrize("group", [broker_group(), controller_group()], ids=["brokers", "controllers"])
def test_defaults_of_the_api_server_are_no_difference(group: GroupResource) -> None:
    for manifest in made(group):
        assert differences(manifest, manifest) == ()
        assert differences(manifest, from_the_api_server(manifest)) == ()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if items is None or not value:
        yield path
        return
    for key, inner in items:
        yield from leaves(inner, (*path, key))


@pytest.mark.parametrize("kind", [kind.kind for kind in OBJECT_KINDS])
def test_every_changed_or_removed_field_is_a_difference(kind: str) -> None:
    manifest = of_kind(kind, made(EVERYTHING))[0]
    for path in leaves(manifest):
        for change in ("changed", "removed"):
            observed = from_the_api_server(manifest) if kind != "StatefulSet" else copy.deepcopy(manifest)
            inner: Any = observed
            for part in path[:-1]:
                inner = inner[part]
            before = inner[path[-1]]
            if change == "changed":
                inner[path[-1]] = {"x": 1} if isinstance(before, str) else "something else"
            elif before in ({}, ""):
                continue  # omitting the field means the same
            else:
                del inner[path[-1]]
            assert differences(manifest, observed), (path, change)


def test_a_difference_names_the_field_and_both_values() -> None:
    (wanted,) = of_kind("StatefulSet", made(broker_group()))
    observed = copy.deepcopy(wanted)
    observed["spec"]["replicas"] = 1
    observed["spec"]["template"]["spec"]["containers"][1]["image"] = "mine"
    assert differences(wanted, observed) == (
        "spec.replicas: 1, should be 3",
        'spec.template.spec.containers[admin].image: "mine", should be "epochmq/broker:1"',
    )


def test_fields_that_others_add_are_no_difference() -> None:
    (wanted,) = of_kind("StatefulSet", made(broker_group()))
    observed = copy.deepcopy(wanted)
    observed["metadata"]["labels"]["mine"] = "x"
    observed["spec"]["template"]["spec"]["containers"].append({"name": "mesh", "image": "mesh"})
    assert differences(wanted, observed) == ()


def test_immutable_fields_of_a_stateful_set_are_kept_and_reported() -> None:
    """All but the size of volumes, whose claims can grow."""
    before, after = (
        of_kind("StatefulSet", made(broker_group(storage={"size": size}, image=size.lower())))[0]
        for size in ("1Gi", "2Gi")
    )
    applied, lines = keep_immutable_fields(after, from_the_api_server(before))
    assert lines == ()
    assert (
        differences(before["spec"]["volumeClaimTemplates"][0], applied["spec"]["volumeClaimTemplates"][0])
        == ()
    )
    assert applied["spec"]["template"] == after["spec"]["template"]
    other = copy.deepcopy(after)
    other["spec"]["serviceName"] = "mine"
    assert keep_immutable_fields(other, from_the_api_server(before))[1] == (
        'spec.serviceName: "orders-brokers", should be "mine"',
    )
    for manifest in made(broker_group()):
        assert keep_immutable_fields(manifest, from_the_api_server(manifest)) == (manifest, ())


@settings(deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), st.lists, max_leaves=9))
def test_any_observed_value_can_be_compared(value: Any) -> None:
    wanted = made(broker_group(replicas=1))[-1]
    for path in (("spec",), ("spec", "template", "spec", "containers"), ("metadata", "labels")):
        observed = copy.deepcopy(wanted)
        inner: Any = observed
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = value
        assert differences(wanted, observed)


@pytest.mark.parametrize(
    ("desired", "observed"),
    [("1024Mi", "1Gi"), (2, "2"), ("0.5", "500m"), ("1.5Gi", "1536Mi"), ("1000", "1k"), ("1024Pi", "1Ei")],
)
def test_a_quantity_in_another_spelling_is_no_difference(desired: str | int, observed: str) -> None:
    (want, have), other = ({"limits": {"memory": value}} for value in (desired, observed)), {"memory": "3Gi"}
    assert differences(want, have) == ()
    assert differences(want, {"limits": other}) != ()
