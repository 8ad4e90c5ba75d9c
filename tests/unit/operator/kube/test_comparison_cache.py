"""Tests that a comparison is reused until one of the objects changes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from epochmq_operator.kube.api import object_path
from epochmq_operator.manifests import differences
from epochmq_operator.plans.compared_objects import REWRITTEN_AFTER, ComparisonCache
from epochmq_operator.plans.objects import APPLIED, Manifest, Owner, Ref, with_owner
from epochmq_operator.plans.renderer import Renderer
from tests.support.fake_api_server import FakeApiServer
from tests.unit.operator.kube.running_reconcilers import QUORUM, resource, running_reconciler, until
from tests.unit.operator.plans.fake_api import SETTINGS, render


class Compared:
    """Counts the comparisons and returns given lines."""

    def __init__(self) -> None:
        self.count = 0
        self.lines: tuple[str, ...] = ()

    def __call__(self, wanted: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[str, ...]:
        self.count += 1
        return self.lines


def wanted(data: str = "a", uid: str = "u") -> dict[str, Any]:
    """A manifest."""
    manifest = {"kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}, "data": data}
    return with_owner(manifest, Owner("BrokerGroup", "g", uid))


def seen(version: str = "1", uid: str = "x") -> dict[str, Any]:
    """An observed object."""
    return {"metadata": {"resourceVersion": version, "uid": uid}}


def test_equal_objects_are_compared_once() -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    assert [comparison_cache(wanted(), seen()) for _ in range(3)] == [(), (), ()]
    assert compared.count == 1


@pytest.mark.parametrize(
    ("now_wanted", "now_seen"),
    [(wanted("b"), seen()), (wanted(uid="v"), seen()), (wanted(), seen("2")), (wanted(), seen(uid="y"))],
)
def test_another_version_of_either_object_is_compared_again(
    now_wanted: dict[str, Any], now_seen: dict[str, Any]
) -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    comparison_cache(wanted(), seen())
    compared.lines = ("different",)
    assert comparison_cache(now_wanted, now_seen) == ("different",)


def test_differences_are_returned_every_time() -> None:
    compared = Compared()
    compared.lines = ("different",)
    comparison_cache = ComparisonCache(compared)
    assert comparison_cache(wanted(), seen()) == comparison_cache(wanted(), seen()) == ("different",)
    assert compared.count == 2


def test_objects_without_versions_are_always_compared() -> None:
    compared = Compared()
    comparison_cache = ComparisonCache(compared)
    for _ in range(2):
        comparison_cache(wanted(), {"metadata": {}})
        comparison_cache({"metadata": {"name": "c"}}, seen())
    assert compared.count == 4


class Webhook(FakeApiServer):
    """An API server with an admission webhook that rewrites a field of ConfigMaps."""

    async def apply(self, manifest: Manifest) -> dict[str, Any]:
        if manifest["kind"] == "ConfigMap":
            manifest = {**manifest, "data": {**manifest["data"], "replicas": "mirrored"}}
        return await super().apply(manifest)


async def test_a_field_that_a_webhook_rewrites_is_reported_once_and_holds_nothing_up() -> None:
    server = Webhook(resource(QUORUM, replicas=1))
    renderer = Renderer(SETTINGS, render, differences=ComparisonCache(differences))
    config_map = Ref("ConfigMap", QUORUM.namespace, "orders-controller")
    async with running_reconciler(server, QUORUM, renderer=renderer) as (reconciler, cache):
        await until(lambda: Ref("StatefulSet", QUORUM.namespace, "orders-controller") in server.applied)
        await until(lambda: "FieldsRewritten" in server.events)
        assert server.applied.count(config_map) == REWRITTEN_AFTER
        changed = copy.deepcopy(server.objects[object_path(config_map)])
        changed["data"]["config"] = "by others"
        cache.put(server.put(changed))
        reconciler.object_changed(resource(QUORUM))
        await until(lambda: server.objects[object_path(config_map)]["data"]["config"] != "by others")
        assert server.applied.count(config_map) == REWRITTEN_AFTER + 1
    assert server.events.count("FieldsRewritten") == 1


def test_a_field_counts_again_when_the_manifest_changes_or_the_object_is_as_applied() -> None:
    cache = ComparisonCache(differences)
    wanted, stored = manifest("1", {"a": "x"}), manifest("1", {"a": "y"})
    assert cache.note_applied(wanted, stored) == ()
    assert len(cache(wanted, stored)) == 1, "one apply may have met a change by others"
    assert len(cache.note_applied(wanted, stored)) == 1
    assert list(cache(wanted, stored)) == []
    assert cache.note_applied(wanted, stored) == (), "it was reported"
    other = manifest("2", {"a": "z"})
    assert any(line.startswith("data.a:") for line in cache(other, stored))
    assert cache.note_applied(wanted, wanted) == ()
    again = cache(wanted, manifest("1", {"a": "y"}, version="8"))
    assert any(line.startswith("data.a:") for line in again)


def manifest(applied: str, data: dict[str, str], version: str = "7") -> dict[str, Any]:
    """A ConfigMap that was applied with this digest."""
    meta = {"name": "m", "namespace": "a", "uid": "u", "resourceVersion": version}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**meta, "annotations": {APPLIED: applied}},
        "data": data,
    }
