"""Tests that separate nameservers are added and removed without a change of brokers or controllers. The
manifests are those of a real cluster."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest

from epochmq_operator.manifests import group
from epochmq_operator.plans.objects import Ref
from epochmq_protocol import properties
from tests.unit.operator.plans import fake_api
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer
from tests.unit.operator.plans.updated_groups import files_of, pods_of, restarts

QUORUM = Ref("ControllerGroup", NAMESPACE, "quorum")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
NAMESERVERS = Ref("StatefulSet", NAMESPACE, "quorum-nameserver")
NAME = f"quorum-nameservers.{NAMESPACE}.svc:9876"


def spec(count: int | None) -> dict[str, object]:
    """The spec of controllers with this number of separate nameservers."""
    replicas = {} if count is None else {"replicas": count}
    return {"replicas": 3, "nameserver": {"embedded": False, **replicas}}


def ready_groups() -> FakeApi:
    """A cluster with controllers that have separate nameservers, and a group that uses them."""
    api = FakeApi(renderer=manifest_renderer())
    api.put("ControllerGroup", "quorum", spec(None))
    api.put("BrokerGroup", "orders", {"replicas": 3, "controllerGroup": "quorum"})
    api.settle()
    return api


def uids(api: FakeApi) -> dict[str, str]:
    """The uids of the pods."""
    return {name: api.uid(Ref("Pod", NAMESPACE, name)) for name in api.pods()}


def nameservers(api: FakeApi) -> list[str]:
    """The pods of nameservers."""
    return [name for name in api.pods() if name.startswith("quorum-nameserver-")]


def test_brokers_find_separate_nameservers_by_one_name() -> None:
    api = ready_groups()
    for pod in pods_of(api, BROKERS):
        config = properties.parse(files_of(api, pod))
        assert (config["namesrvAddr"], config["fetchNameSrvAddrByDnsLookup"]) == (NAME, "true")
        assert config["updateNameServerAddrPeriod"] == "5000"
    service = api.objects[Ref("Service", NAMESPACE, "quorum-nameservers")]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)


@pytest.mark.parametrize("counts", [(5, 1), (1, 9, 3)])
def test_nameservers_are_added_and_removed_and_no_other_pod_restarts(counts: tuple[int, ...]) -> None:
    api = ready_groups()
    before = uids(api)
    kept = 3
    for count in counts:
        api.put("ControllerGroup", "quorum", spec(count))
        api.settle()
        kept = min(kept, count)
        assert nameservers(api) == [f"quorum-nameserver-{n}" for n in range(count)]
        status = api.status(QUORUM)
        assert (status["phase"], status["ready"]) == ("Ready", "3/3")
        survivors = {
            name: uid
            for name, uid in before.items()
            if "nameserver" not in name or int(name.rpartition("-")[2]) < kept
        }
        assert survivors.items() <= uids(api).items()
    assert restarts(api) == []
    assert not [name for name in api.deleted if name.startswith("Pod")]


def test_brokers_of_a_former_release_restart_once_when_the_number_is_first_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as former:
        former.setattr(group, "_nameservers_name", lambda controllers: None)
        former.setattr(fake_api, "RENDERED", OrderedDict())
        api = ready_groups()
    (first, *_) = pods_of(api, BROKERS)
    assert "fetchNameSrvAddrByDnsLookup" not in files_of(api, first)
    api.settle()
    assert restarts(api) == []
    api.put("ControllerGroup", "quorum", spec(5))
    api.settle()
    brokers = ["orders-broker-2", "orders-broker-1", "orders-broker-0"]
    assert [name for name in restarts(api) if "broker" in name] == brokers
    before = len(restarts(api))
    api.put("ControllerGroup", "quorum", spec(3))
    api.settle()
    assert len(restarts(api)) == before


def test_a_nameserver_that_does_not_start_disturbs_no_other_pod() -> None:
    api = ready_groups()
    before = uids(api)
    api.unready = {"quorum-nameserver-4"}
    api.put("ControllerGroup", "quorum", spec(5))
    for _ in range(20):
        api.tick()
        api.operate()
    assert "quorum-nameserver-4 is not ready" in api.condition(QUORUM, "Ready")["message"]
    api.put("ControllerGroup", "quorum", spec(4))
    api.settle()
    assert api.status(QUORUM)["phase"] == "Ready"
    assert before.items() <= uids(api).items()


READY = ready_groups()


def scaled(stop: int | None) -> tuple[FakeApi, int]:
    """Nameservers that are scaled under operators of which one is killed after `stop` effects; the number of
    effects."""
    api, total = copy.deepcopy(READY), 0
    api.replace_operator()
    for count in (5, 2):
        api.put("ControllerGroup", "quorum", spec(count))
        for _ in range(6):
            api.tick()
            done = api.operate(limit=stop)
            stop = None if stop is None or done >= stop else stop - done
            total += done
    return api, total


@pytest.mark.long
@pytest.mark.parametrize("stop", range(scaled(None)[1]))
def test_an_operator_killed_after_any_effect_of_scaling_nameservers_finishes_it(stop: int) -> None:
    api, _ = scaled(stop)
    api.settle()
    assert nameservers(api) == ["quorum-nameserver-0", "quorum-nameserver-1"]
    assert restarts(api) == []
    assert [one["spec"]["replicas"] for one in api.applied[NAMESERVERS]][-1] == 2
