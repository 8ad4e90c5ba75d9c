"""Tests the annotation that removes a replica although others are not ready: what it allows, and what it
never allows. The manifests are those of a real cluster."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from epochmq_operator.plans.effects import CreateEvent, EventType
from tests.unit.operator.plans.fake_api import FakeApi
from tests.unit.operator.plans.updated_groups import BROKERS, ORDERS, ready_group, run

BROKEN = {"orders-broker-1", "orders-broker-3"}


def waiting_group(wanted: int = 3) -> FakeApi:
    """A group of five replicas that is to have `wanted`, of which two are not ready."""
    api = ready_group(replicas=5)
    api.unready = set(BROKEN)
    run(api, 2)
    api.put("BrokerGroup", "orders", {"replicas": wanted})
    run(api)
    assert size(api) == 5
    return api


def size(api: FakeApi) -> int:
    """The number of replicas of the StatefulSet."""
    return int(api.objects[BROKERS]["spec"]["replicas"])


def offered(api: FakeApi) -> str | None:
    """The value of the annotation in the command that the condition Progressing gives; None without one."""
    found = re.search(
        r"kubectl annotate --overwrite brokergroup orders epochmq\.io/force-scale-down=(\S+)",
        api.condition(ORDERS, "Progressing")["message"],
    )
    return found[1] if found else None


def forced(api: FakeApi) -> list[CreateEvent]:
    """The Events about forced removals."""
    return [one for one in api.events.values() if one.reason == "ForcingScaleDown"]


def test_a_scale_down_that_waits_names_the_annotation_for_the_next_replica() -> None:
    api = waiting_group()
    message = api.condition(ORDERS, "Progressing")["message"]
    assert message.startswith("scale-down: removes orders-broker-4, whose volume stays, waiting for:")
    assert "orders-broker-1 is not ready; orders-broker-3 is not ready" in message
    assert offered(api) == f"orders-broker-4.{api.objects[ORDERS]['metadata']['generation']}"


@pytest.mark.long
def test_each_removal_needs_an_annotation_of_its_own() -> None:
    api = waiting_group()
    api.annotate(ORDERS, force_scale_down=offered(api) or "")
    run(api)
    assert size(api) == 4
    assert offered(api) == f"orders-broker-3.{api.objects[ORDERS]['metadata']['generation']}"
    api.annotate(ORDERS, force_scale_down=offered(api) or "")
    run(api)
    assert size(api) == 3
    assert api.condition(ORDERS, "Ready")["status"] == "False"
    claims = [ref for ref in api.objects if ref.name.startswith("store-orders-broker")]
    assert len(claims) == 5
    api.unready = set()
    api.settle()
    assert (api.status(ORDERS)["phase"], api.status(ORDERS)["ready"]) == ("Ready", "3/3")


@pytest.mark.long
def test_a_forced_removal_has_a_warning_that_says_which_copies_are_left() -> None:
    api = waiting_group()
    api.annotate(ORDERS, force_scale_down=offered(api) or "")
    run(api)
    (event,) = forced(api)
    assert event.type is EventType.WARNING
    assert event.message.startswith("removes orders-broker-4, as epochmq.io/force-scale-down says,")
    assert "although orders-broker-1 is not ready; orders-broker-3 is not ready" in event.message
    assert "orders-broker-0, orders-broker-2 have all acknowledged messages" in event.message


@pytest.mark.long
@pytest.mark.parametrize("value", ["true", "orders-broker-4", "orders-broker-3.2", "orders-broker-4.1", ""])
def test_an_annotation_that_names_no_pending_removal_has_no_effect(value: str) -> None:
    api = waiting_group()
    assert api.objects[ORDERS]["metadata"]["generation"] == 2
    api.annotate(ORDERS, force_scale_down=value)
    run(api)
    assert (size(api), forced(api)) == (5, [])


@pytest.mark.long
def test_an_annotation_is_used_once() -> None:
    api = waiting_group(4)
    api.annotate(ORDERS, force_scale_down=offered(api) or "")
    run(api)
    api.unready = set()
    api.settle()
    assert size(api) == 4
    api.put("BrokerGroup", "orders", api.objects[ORDERS]["spec"] | {"replicas": 5}, **kept_annotations(api))
    api.settle()
    api.unready = set(BROKEN)
    run(api, 2)
    api.put("BrokerGroup", "orders", api.objects[ORDERS]["spec"] | {"replicas": 4}, **kept_annotations(api))
    run(api)
    assert (size(api), len(forced(api))) == (5, 1)


def kept_annotations(api: FakeApi) -> dict[str, dict[str, str]]:
    """The annotations that stay when a user changes the spec."""
    return {"annotations": api.objects[ORDERS]["metadata"]["annotations"]}


def the_replica_is_the_master(api: FakeApi) -> None:
    api.masters["orders"] = ("orders-broker-4", 7)


def no_controller_leads(api: FakeApi) -> None:
    api.unready |= {"orders-controller-0", "orders-controller-1"}


def no_sidecar_responds(api: FakeApi) -> None:
    api.silent = True


def there_is_no_master(api: FakeApi) -> None:
    api.unready = {f"orders-broker-{n}" for n in range(4)}
    api.behind = {"orders-broker-4"}


REFUSED: dict[Callable[[FakeApi], None], str] = {
    the_replica_is_the_master: "orders-broker-4 is the master: promote another replica first",
    no_controller_leads: "the controllers report no leader",
    no_sidecar_responds: "the controllers report no leader",
    there_is_no_master: "no replica that stays is known to be the master",
}


@pytest.mark.long
@pytest.mark.parametrize("trouble", REFUSED, ids=lambda found: found.__name__)
def test_no_annotation_removes_a_replica_unless_a_known_master_stays(
    trouble: Callable[[FakeApi], None],
) -> None:
    api = waiting_group()
    approval = offered(api) or ""
    trouble(api)
    run(api, 3)
    assert offered(api) is None
    api.annotate(ORDERS, force_scale_down=approval)
    run(api)
    assert (size(api), forced(api)) == (5, [])
    message = api.condition(ORDERS, "Progressing")["message"]
    assert f"does not override that: {REFUSED[trouble]}" in message


def forced_scale_down(stop: int | None) -> tuple[FakeApi, int]:
    """A group whose scale-down is forced under operators of which one is killed after `stop` effects; the
    number of effects."""
    api, total = waiting_group(4), 0
    api.annotate(ORDERS, force_scale_down=offered(api) or "")
    for _ in range(8):
        api.tick()
        done = api.operate(limit=stop)
        stop = None if stop is None or done >= stop else stop - done
        total += done
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(forced_scale_down(None)[1]))
def test_an_operator_killed_after_any_effect_of_a_forced_removal_removes_one_replica(stop: int) -> None:
    api, _ = forced_scale_down(stop)
    run(api)
    assert (size(api), len(forced(api))) == (4, 1)
    assert [one["spec"]["replicas"] for one in api.applied[BROKERS]][-1] == 4
