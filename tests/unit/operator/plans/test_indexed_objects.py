"""Tests that the objects of a group are found without looking at those of all others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL
from epochmq_operator.plans.indexed_objects import (
    IndexedObjects,
    of_kind,
    of_owner,
    of_resource,
    with_ordinals,
)
from epochmq_operator.plans.objects import Manifest, Owner, Ref, status_of
from epochmq_operator.plans.observed_state import ObservedState
from epochmq_operator.plans.reconciliation import reconcile
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi

KINDS = ("Pod", "PersistentVolumeClaim", "ConfigMap")
ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")


def made(chance: random.Random) -> tuple[Ref, dict[str, Any]]:
    """An object with some of the marks by which objects are found."""
    name = chance.choice(["a", "a-0", "a-1", "a-10", "b-0", "b-01", "b"])
    ref = Ref(chance.choice(KINDS), NAMESPACE, name)
    meta: dict[str, Any] = {"name": name, "namespace": NAMESPACE}
    if chance.random() < 0.5:
        meta["labels"] = {KIND_LABEL: "BrokerGroup", GROUP_LABEL: chance.choice(["a", "b"])}
    if chance.random() < 0.5:
        meta["ownerReferences"] = [Owner("BrokerGroup", "a", chance.choice(["1", "2"])).reference()]
    return ref, {"kind": ref.kind, "metadata": meta}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_an_index_finds_what_a_search_finds(seed: int) -> None:
    chance = random.Random(seed)
    indexed, plain = IndexedObjects(), dict[Ref, Manifest]()
    for _ in range(200):
        ref, found = made(chance)
        if chance.random() < 0.3:
            indexed.remove(ref)
            plain.pop(ref, None)
        else:
            indexed.put(ref, found)
            plain[ref] = found
        assert dict(indexed) == plain
        for kind in KINDS:
            assert of_kind(indexed, kind) == of_kind(plain, kind)
            for one in ("a", "b", "1", "2"):
                resource = Ref("BrokerGroup", NAMESPACE, one)
                assert with_ordinals(indexed, kind, one) == with_ordinals(plain, kind, one)
                assert of_owner(indexed, kind, one) == of_owner(plain, kind, one)
                assert of_resource(indexed, kind, resource) == of_resource(plain, kind, resource)


class Unsearched(IndexedObjects):
    """Objects that may be looked up and not searched."""

    def __iter__(self) -> Iterator[Ref]:
        raise AssertionError("all objects of the namespace are searched")


def test_an_idle_reconciliation_does_not_look_at_the_objects_of_other_groups() -> None:
    api = FakeApi()
    api.put("BrokerGroup", "orders", {"replicas": 3})
    api.settle()
    objects = Unsearched()
    for ref, found in api.objects.items():
        objects.put(ref, found)
    for ref in api.resources():
        states: Mapping[str, Any] = api.states()
        observed = ObservedState(api.objects[ref], objects, states, users=api.users(ref))
        result = reconcile(api.renderer, observed, api.now)
        assert result.effects == (), status_of(api.objects[ref])
