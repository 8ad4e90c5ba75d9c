"""Groups of three replicas that run in a simulated cluster, and what an update did to their pods."""

from __future__ import annotations

from typing import Any

from epochmq_operator.manifests.kept_templates import mounted_config_maps
from epochmq_operator.plans.objects import Ref
from tests.unit.operator.plans.fake_api import NAMESPACE, FakeApi, manifest_renderer

ORDERS = Ref("BrokerGroup", NAMESPACE, "orders")
BROKERS = Ref("StatefulSet", NAMESPACE, "orders-broker")
CONTROLLERS = Ref("StatefulSet", NAMESPACE, "orders-controller")
CHANGED = {"replicas": 3, "config": {"fileReservedTime": 48}}
ROUNDS = 30


def ready_group(**spec: Any) -> FakeApi:
    """A cluster with a ready group of three replicas."""
    api = FakeApi(renderer=manifest_renderer())
    api.put("BrokerGroup", "orders", {"replicas": 3, **spec})
    api.settle()
    return api


def restarts(api: FakeApi) -> list[str]:
    """The pods that were restarted, by the Events, in order."""
    messages = [one.message for one in api.events.values() if one.reason == "RestartingPod"]
    return [message.split()[1].rstrip(":") for message in messages]


def run(api: FakeApi, rounds: int = ROUNDS) -> None:
    """Runs cluster and operator for a while."""
    for _ in range(rounds):
        api.tick()
        api.operate()


def pods_of(api: FakeApi, stateful_set: Ref) -> list[dict[str, Any]]:
    """The pods of a StatefulSet."""
    return [
        pod
        for ref, pod in sorted(api.objects.items())
        if ref.kind == "Pod" and ref.name.startswith(f"{stateful_set.name}-")
    ]


def files_of(api: FakeApi, pod: dict[str, Any]) -> str:
    """The configuration that a pod mounts."""
    (name,) = mounted_config_maps(pod["spec"])
    text: str = api.objects[Ref("ConfigMap", NAMESPACE, name)]["data"][f"{pod['metadata']['name']}.conf"]
    return text
