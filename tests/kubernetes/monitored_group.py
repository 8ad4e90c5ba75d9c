"""Serves the metrics of a replica group, its controllers and the operator, as Prometheus scrapes them on a
cluster. The states are made up; the text is that of the sidecar's and the operator's own endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
import msgspec

from epochmq_operator.kube.metrics import OperatorMetrics, WatchAge, serve_metrics
from epochmq_operator.plans.objects import Manifest, Ref
from epochmq_protocol.admin_api.operations import AdminArguments
from epochmq_protocol.admin_api.results import (
    BrokerState,
    ControllerPeer,
    ControllerState,
    Lease,
    MetricValues,
    ReplicaGroupMember,
    ReplicaGroupState,
)
from epochmq_protocol.errors import ConnectError
from epochmq_sidecar.app import make_app
from epochmq_sidecar.config import SidecarConfig
from epochmq_sidecar.credentials import Tokens

HOST = "127.0.63.7"
NAMESPACE = "trade"
CLUSTER, BROKER_NAME = "DefaultCluster", "trade-orders"
GROUP = {"namespace": NAMESPACE, "broker_name": BROKER_NAME, "cluster": CLUSTER}
"""The labels of alerts about the replica group."""
OPERATOR = {"namespace": "epochmq-system", "pod": "epochmq-operator-0", "job": "epochmq-system/epochmq"}
"""The labels that Prometheus gives to the operator's series."""


def pod_labels(pod: str) -> dict[str, str]:
    """The labels that Prometheus gives to the series of a group's pod."""
    return {"namespace": NAMESPACE, "pod": pod, "job": "epochmq-system/epochmq-groups"}


@dataclass(frozen=True)
class ScrapedTarget:
    """What one target serves at `/metrics`, and its labels. `honors_labels`: labels of the series take
    precedence over these."""

    labels: Mapping[str, str]
    text: str
    honors_labels: bool = False


def _broker(number: int) -> BrokerState:
    master = number == 1
    return BrokerState(
        cluster=CLUSTER,
        broker_name=BROKER_NAME,
        broker_id=number,
        role="master" if master else "replica",
        master_epoch=3,
        sync_state_set=[1, 2, 3],
        sync_state_set_epoch=9,
        confirm_offset=1048576,
        max_offset=1048576,
        lag_bytes=0,
        lag_ms=0,
        lease=Lease(remaining_ms=240, duration_ms=300, promised_ms=210) if master else None,
        fenced=False,
        takes_messages=master,
        address=f"10.0.0.1{number}:10911",
        ha_address=f"10.0.0.1{number}:10912",
        ready=True,
        not_ready=[],
    )


def _controller(number: int) -> ControllerState:
    replicas = [ReplicaGroupMember(broker_id=n, address=f"10.0.0.1{n}:10911", alive=True) for n in (1, 2, 3)]
    group = ReplicaGroupState(
        broker_name=BROKER_NAME,
        cluster=CLUSTER,
        master_broker_id=1,
        master_epoch=3,
        sync_state_set=[1, 2, 3],
        sync_state_set_epoch=9,
        replicas=replicas,
    )
    return ControllerState(
        id=f"n{number}",
        group="orders",
        address=f"10.0.0.2{number}:9878",
        role="leader" if number == 0 else "follower",
        term=4,
        leader="n0",
        leader_address="10.0.0.20:9878",
        leads=number == 0,
        peers=[ControllerPeer(id=f"n{n}", address=f"10.0.0.2{n}:9878") for n in range(3)],
        committed_index=41,
        applied_index=41,
        groups=[group],
        ready=True,
        not_ready=[],
    )


@dataclass
class MonitoredGroup:
    """A healthy group of three replicas, with three controllers and an operator. `values` are further values
    of each broker, by the metric's name; the processes of `silent` pods do not respond; without
    `operator_runs` there is no operator to scrape. `watch_age_s` is the age of the operator's watch of pods,
    `failed_passes` the number of its reconciliations of broker groups that failed. `resources` are those
    that the operator manages."""

    brokers: dict[str, BrokerState] = field(
        default_factory=lambda: {f"orders-broker-{n}": _broker(n + 1) for n in range(3)}
    )
    controllers: dict[str, ControllerState] = field(
        default_factory=lambda: {f"orders-controller-{n}": _controller(n) for n in range(3)}
    )
    values: dict[str, dict[str, float]] = field(
        default_factory=lambda: {
            f"orders-broker-{n}": {
                "broker_disk_used_ratio": 0.4,
                "broker_read_failures_total": 0.0,
                "broker_damaged_bytes": 0.0,
            }
            for n in range(3)
        }
    )
    silent: set[str] = field(default_factory=set)
    operator_runs: bool = True
    operator_leads: bool = True
    watch_age_s: float = 30.0
    failed_passes: int = 0
    resources: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "BrokerGroup": {"phase": "Ready", "targetReplicas": 3, "readyReplicas": 3, "masterEpoch": 3},
            "ControllerGroup": {"phase": "Ready", "targetReplicas": 3, "readyReplicas": 3},
            "Topic": {"phase": "Ready", "brokerGroups": []},
            "BrokerGroupAudit": {
                "verdict": "healthy",
                "history": [{"number": 1, "verdict": "healthy", "finished": "2027-01-15T08:00:00Z"}],
            },
            "BrokerGroupBackup": {
                "lastSuccess": "2027-01-15T08:00:00Z",
                "bytes": 5000,
                "history": [{"number": 1, "backup": "20270115T080000Z-0a1b2c"}],
            },
        }
    )

    def change_brokers(self, *pods: str, **fields: Any) -> None:
        """Changes the state of these brokers."""
        for pod in pods:
            self.brokers[pod] = msgspec.structs.replace(self.brokers[pod], **fields)

    def change_controllers(self, **fields: Any) -> None:
        """Changes the state of all controllers."""
        for pod, state in self.controllers.items():
            self.controllers[pod] = msgspec.structs.replace(state, **fields)

    def change_replica_group(self, **fields: Any) -> None:
        """Changes what the controllers know about the replica group."""
        (group,) = next(iter(self.controllers.values())).groups
        self.change_controllers(groups=[msgspec.structs.replace(group, **fields)])

    def change_status(self, kind: str, **fields: Any) -> None:
        """Changes the status of a resource."""
        self.resources[kind] = {**self.resources[kind], **fields}

    async def scrape(self) -> list[ScrapedTarget]:
        """What Prometheus gets from every target now."""
        states: dict[str, BrokerState | ControllerState] = {**self.brokers, **self.controllers}
        found = [
            ScrapedTarget(pod_labels(pod), await self._of_sidecar(pod, state))
            for pod, state in states.items()
        ]
        if self.operator_runs:
            found.append(ScrapedTarget(OPERATOR, await self._of_operator(), honors_labels=True))
        return found

    async def _of_sidecar(self, pod: str, state: BrokerState | ControllerState) -> str:
        async def ask(operation: str, arguments: AdminArguments | None, timeout_ms: int) -> bytes:
            if pod in self.silent:
                raise ConnectError("no process listens")
            return msgspec.json.encode(MetricValues(state=state, values=self.values.get(pod, {})))

        config = SidecarConfig()
        transport = httpx.ASGITransport(app=make_app(config, Tokens(config), ask))
        async with httpx.AsyncClient(transport=transport, base_url="http://sidecar") as client:
            response = await client.get("/metrics")
        assert response.status_code == 200, response.text
        return response.text

    async def _of_operator(self) -> str:
        metrics = OperatorMetrics()
        metrics.leads.set(self.operator_leads)
        metrics.reconciliations.labels("BrokerGroup", "failed").inc(self.failed_passes)
        metrics.collect_watches(lambda: [WatchAge("Pod", "all namespaces", self.watch_age_s, False)])
        metrics.collect_conditions(lambda: self._resources("BrokerGroup", "ControllerGroup"))
        metrics.collect_groups(lambda: self._resources("BrokerGroup", "ControllerGroup"))
        metrics.collect_entities(lambda: self._resources("Topic"))
        metrics.collect_audits(lambda: self._resources("BrokerGroupAudit"))
        metrics.collect_backups(lambda: self._resources("BrokerGroupBackup"))
        async with (
            serve_metrics(metrics, HOST, 0, list, list) as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://{HOST}:{port}/metrics") as response,
        ):
            return await response.text()

    def _resources(self, *kinds: str) -> list[tuple[Ref, Manifest]]:
        spec = {"brokerName": BROKER_NAME, "brokerGroup": "orders"}
        return [
            (Ref(kind, NAMESPACE, "orders"), {"spec": spec, "status": self.resources[kind]}) for kind in kinds
        ]
