"""Collects the operator's metrics and serves `/metrics`, `/live` and `/ready`."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from epochmq_operator.entities.entity_status import EntityRecord
from epochmq_operator.plans.conditions import seconds_of
from epochmq_operator.plans.objects import Manifest, Ref, spec_of, status_of
from epochmq_operator.plans.plan_steps import PlanState
from epochmq_operator.plans.scheduled_runs import history_of

RECONCILIATION_BUCKETS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


@dataclass(frozen=True, slots=True)
class WatchAge:
    """The age of a watch of a kind in a namespace, and whether it fails."""

    kind: str
    namespace: str
    age_s: float
    fails: bool


class OperatorMetrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconciliations = Counter(
            "epochmq_operator_passes", "Reconciliations", ["kind", "outcome"], registry=self.registry
        )
        self.effects = Counter(
            "epochmq_operator_effects", "Effects carried out", ["effect"], registry=self.registry
        )
        self.lost_events = Counter(
            "epochmq_operator_events_lost_total",
            "Events that the API server did not accept, which were dropped",
            registry=self.registry,
        )
        self.seconds = Histogram(
            "epochmq_operator_pass_seconds",
            "Duration of a reconciliation with its effects",
            buckets=RECONCILIATION_BUCKETS_S,
            registry=self.registry,
        )
        self.leads = Gauge("epochmq_operator_leads", "1 on the active operator", registry=self.registry)
        self.sidecar_failures = Gauge(
            "epochmq_operator_sidecar_failures",
            "Requests to admin sidecars that failed",
            registry=self.registry,
        )

    def collect_groups(self, groups: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        """Exports each group's phase and replicas."""
        self.registry.register(_GroupCollector(groups))

    def collect_entities(self, entities: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        """Exports whether each topic and user is as desired."""
        self.registry.register(_EntityCollector(entities))

    def collect_backups(self, backups: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        """Exports when each backup last succeeded, and whether the last run failed."""
        self.registry.register(_BackupCollector(backups))

    def collect_audits(self, audits: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        """Exports each audit's last verdict."""
        self.registry.register(_AuditCollector(audits))

    def collect_conditions(self, resources: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        """Exports the conditions of each resource, and since when the present step of its plan lasts."""
        self.registry.register(_ConditionCollector(resources))

    def collect_watches(self, watches: Callable[[], Iterable[WatchAge]]) -> None:
        """Exports the age of each watch, and whether it fails."""
        self.registry.register(_WatchCollector(watches))


class _WatchCollector(Collector):
    def __init__(self, watches: Callable[[], Iterable[WatchAge]]) -> None:
        self._watches = watches

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["kind", "watched_namespace"]
        age = GaugeMetricFamily(
            "epochmq_operator_watch_age_seconds",
            "Seconds since the API server responded to a watch",
            labels=labels,
        )
        failing = GaugeMetricFamily(
            "epochmq_operator_watch_failing", "1 while a watch fails or has not listed yet", labels=labels
        )
        for one in self._watches():
            names = [one.kind, one.namespace]
            age.add_metric(names, one.age_s)
            failing.add_metric(names, 1 if one.fails else 0)
        return [age, failing]


class _ConditionCollector(Collector):
    def __init__(self, resources: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        self._resources = resources

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["kind", "namespace", "name"]
        condition = GaugeMetricFamily(
            "epochmq_resource_condition",
            "1 for the present status of a condition of a resource",
            labels=[*labels, "type", "status"],
        )
        step = GaugeMetricFamily(
            "epochmq_group_plan_step_timestamp_seconds",
            "When the present step of a group's unfinished plan began",
            labels=[*labels, "plan"],
        )
        for ref, found in self._resources():
            status = status_of(found)
            names = [ref.kind, ref.namespace, ref.name]
            conditions = status.get("conditions")
            for one in conditions if isinstance(conditions, list) else ():
                if isinstance(one, dict):
                    condition.add_metric([*names, str(one.get("type")), str(one.get("status"))], 1)
            plan = PlanState.of(status)
            if plan is not None and not plan.finished:
                since = seconds_of(plan.step_since or plan.started)
                if since is not None:
                    step.add_metric([*names, plan.name], since)
        return [condition, step]


class _AuditCollector(Collector):
    def __init__(self, audits: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        self._audits = audits

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["namespace", "name", "group"]
        verdict = GaugeMetricFamily(
            "epochmq_audit_verdict",
            "1 for the verdict of the last audit; absent if it failed",
            labels=[*labels, "verdict"],
        )
        findings = GaugeMetricFamily(
            "epochmq_audit_findings", "Findings of the last audit", labels=[*labels, "severity"]
        )
        finished = GaugeMetricFamily(
            "epochmq_audit_finished_timestamp_seconds", "When the last audit ended", labels=labels
        )
        failed = GaugeMetricFamily(
            "epochmq_audit_failed", "1 if the last audit has no verdict", labels=labels
        )
        for ref, found in self._audits():
            status, spec = found.get("status"), found.get("spec")
            if not isinstance(status, dict) or not isinstance(spec, dict):
                continue
            names = [ref.namespace, ref.name, str(spec.get("brokerGroup", ""))]
            if status.get("verdict"):
                verdict.add_metric([*names, str(status["verdict"])], 1)
            for entry in history_of(status)[:1]:
                for severity in ("errors", "warnings", "notes") if entry.get("verdict") else ():
                    findings.add_metric([*names, severity.removesuffix("s")], _number(entry.get(severity)))
                failed.add_metric(names, 0 if entry.get("verdict") else 1)
                if (ended := seconds_of(entry.get("finished"))) is not None:
                    finished.add_metric(names, ended)
        return [verdict, findings, finished, failed]


class _BackupCollector(Collector):
    def __init__(self, backups: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        self._backups = backups

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["namespace", "name", "group"]
        success = GaugeMetricFamily(
            "epochmq_backup_success_timestamp_seconds",
            "When the last run with a backup began: what came later is not in it",
            labels=labels,
        )
        failed = GaugeMetricFamily("epochmq_backup_failed", "1 if the last run has no backup", labels=labels)
        size = GaugeMetricFamily("epochmq_backup_bytes", "Size of the last backup", labels=labels)
        for ref, found in self._backups():
            status, names = status_of(found), [ref.namespace, ref.name]
            names.append(str(spec_of(found).get("brokerGroup", "")))
            if (began := seconds_of(status.get("lastSuccess"))) is not None:
                success.add_metric(names, began)
                size.add_metric(names, _number(status.get("bytes")))
            for entry in history_of(status)[:1]:
                failed.add_metric(names, 0 if entry.get("backup") else 1)
        return [success, failed, size]


class _GroupCollector(Collector):
    def __init__(self, groups: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        self._groups = groups

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["kind", "namespace", "name"]
        phase = GaugeMetricFamily(
            "epochmq_group_phase", "1 for the present phase of a group", labels=[*labels, "phase"]
        )
        ready = GaugeMetricFamily("epochmq_group_ready_replicas", "Replicas that are ready", labels=labels)
        epoch = GaugeMetricFamily("epochmq_group_master_epoch", "The epoch of the master", labels=labels)
        target = GaugeMetricFamily(
            "epochmq_group_target_replicas",
            "Replicas that a broker group is to have at present; 0 if it hibernates",
            labels=[*labels, "broker_name"],
        )
        for ref, found in self._groups():
            status = found.get("status")
            if not isinstance(status, dict):
                continue
            names = [ref.kind, ref.namespace, ref.name]
            phase.add_metric([*names, str(status.get("phase", ""))], 1)
            ready.add_metric(names, _number(status.get("readyReplicas")))
            if ref.kind == "BrokerGroup":
                epoch.add_metric(names, _number(status.get("masterEpoch")))
                broker_name = str(spec_of(found).get("brokerName") or ref.name)
                target.add_metric([*names, broker_name], _number(status.get("targetReplicas")))
        return [phase, ready, epoch, target]


class _EntityCollector(Collector):
    def __init__(self, entities: Callable[[], Iterable[tuple[Ref, Manifest]]]) -> None:
        self._entities = entities

    def collect(self) -> Iterable[GaugeMetricFamily]:
        labels = ["kind", "namespace", "name"]
        ready = GaugeMetricFamily(
            "epochmq_entity_ready", "Whether a topic or user is as desired in every group", labels=labels
        )
        drifts = GaugeMetricFamily(
            "epochmq_entity_drifts", "Changes of a topic or user that were reverted", labels=labels
        )
        for ref, found in self._entities():
            status = status_of(found)
            if not status:
                continue
            names = [ref.kind, ref.namespace, ref.name]
            ready.add_metric(names, 1 if status.get("phase") == "Ready" else 0)
            records = EntityRecord.of(status).groups.values()
            drifts.add_metric(names, sum(one.drifts for one in records))
        return [ready, drifts]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int) else 0.0


@contextlib.asynccontextmanager
async def serve_metrics(
    metrics: OperatorMetrics,
    address: str,
    port: int,
    stuck: Callable[[], list[str]],
    not_ready: Callable[[], list[str]],
) -> AsyncIterator[int]:
    """Serves the metrics for the length of a block; yields the port. `stuck` and `not_ready` return why
    `/live` and `/ready` fail, one line a reason."""

    async def tell(request: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    def answer(reasons: Callable[[], list[str]]) -> Callable[[web.Request], object]:
        async def probe(request: web.Request) -> web.Response:
            found = reasons()
            return web.Response(text="\n".join(found) or "yes", status=503 if found else 200)

        return probe

    app = web.Application()
    app.router.add_get("/metrics", tell)
    app.router.add_get("/live", answer(stuck))  # type: ignore[arg-type]
    app.router.add_get("/ready", answer(not_ready))  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
