"""Runs `epochmq operator`: waits for the lease, then reconciles all resources until it is stopped or loses
the lease."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import uuid
from typing import Any

import structlog

from epochmq_operator.entities.entity_reconciliation import ENTITY_FINALIZER
from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.kube.audit_reconciler import AuditReconciler
from epochmq_operator.kube.backup_reconciler import BackupReconciler
from epochmq_operator.kube.broker_client import BrokerClient
from epochmq_operator.kube.config import OperatorConfig, load_config
from epochmq_operator.kube.connection import ClusterConnection, NoClusterError, from_kubeconfig, in_cluster
from epochmq_operator.kube.entity_reconciler import EntityReconciler
from epochmq_operator.kube.group_reconciler import GroupReconciler
from epochmq_operator.kube.kopf_watch import ResourceWatch, WatchEndedError, kopf_watch
from epochmq_operator.kube.lease_holder import LeadershipLostError, open_lease_holder
from epochmq_operator.kube.liveness import Liveness
from epochmq_operator.kube.metrics import OperatorMetrics, serve_metrics
from epochmq_operator.kube.object_cache import Informer, ObjectCache
from epochmq_operator.kube.reconciler import (
    WATCHED_FOR_AUDITS,
    WATCHED_OBJECTS,
    Reconciler,
    ReconcilerDependencies,
)
from epochmq_operator.kube.replica_observer import ReplicaObserver
from epochmq_operator.kube.sidecar_client import open_sidecar_client
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.kube.watch_states import WatchStates
from epochmq_operator.manifests import MANAGED_BY, MANAGER, differences
from epochmq_operator.plans.compared_objects import ComparisonCache
from epochmq_operator.plans.deletion import finalizers
from epochmq_operator.plans.objects import FINALIZER, Manifest, Ref, ref_of
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.resources import KINDS
from epochmq_operator.resources.audit import AUDIT_KIND
from epochmq_operator.resources.backup import BACKUP_KIND
from epochmq_operator.resources.entities import ENTITY_KINDS

SELECTOR = f"{MANAGED_BY}={MANAGER}"
OWN_FINALIZERS = (FINALIZER, ENTITY_FINALIZER)

log = structlog.get_logger()


def connect(config: OperatorConfig) -> ClusterConnection:
    """Connects to the cluster that the configuration names, else to the one that the process runs in, else to
    kubectl's."""
    if config.kubeconfig is not None or config.context is not None:
        return from_kubeconfig(config.kubeconfig, config.context)
    try:
        return in_cluster()
    except NoClusterError:
        return from_kubeconfig()


def run(path: str | None, overrides: dict[str, str]) -> int:
    """Runs the operator until SIGTERM or SIGINT. Returns 1 if it lost the lease."""
    config = load_config(path, overrides)
    _log(config.log_level)
    connection = connect(config)
    return asyncio.run(_run_until_signal(config, connection))


def remove_deletion_guards(path: str | None, overrides: dict[str, str]) -> int:
    """Removes the operator's finalizers of all groups, topics and users in the configuration's namespaces. No
    other program removes them, and a resource with a finalizer cannot be deleted."""
    config = load_config(path, overrides)
    _log(config.log_level)
    asyncio.run(_remove_deletion_guards(config, connect(config)))
    return 0


async def _remove_deletion_guards(config: OperatorConfig, connection: ClusterConnection) -> None:
    api = Api(connection)
    try:
        for kind in (*KINDS, *ENTITY_KINDS):
            for where in (*config.namespaces,) or (None,):
                for found in await _list_defined(api, kind, where):
                    rest = tuple(one for one in finalizers(found) if one not in OWN_FINALIZERS)
                    if rest != finalizers(found):
                        version = str(found["metadata"]["resourceVersion"])
                        await api.put_finalizers(ref_of(found), version, rest)
                        log.info("removed the finalizer", resource=str(ref_of(found)))
    finally:
        await api.close()


def _log(level: str) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )


async def _run_until_signal(config: OperatorConfig, connection: ClusterConnection) -> int:
    work = asyncio.ensure_future(operate(config, connection))
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, work.cancel)
    code = 0
    try:
        await work
    except* LeadershipLostError:
        log.error("lost the lease, exiting so that only the new holder writes")
        code = 1
    except* WatchEndedError as error:
        log.error("exiting", error=str(error.exceptions[0]))
        code = 1
    except* asyncio.CancelledError:
        log.info("stopped by a signal")
    return code


async def operate(config: OperatorConfig, connection: ClusterConnection) -> None:
    """Runs the operator until cancelled. LeadershipLostError if the lease is lost."""
    namespace = config.operator_namespace or connection.namespace
    renderer = Renderer(config.settings(namespace), differences=ComparisonCache(differences))
    me = f"{config.identity or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        lease_holder = await stack.enter_async_context(
            open_lease_holder(connection, Ref("Lease", namespace, config.lease_name), me)
        )
        api = Api(connection, lease_holder.require)
        stack.push_async_callback(api.close)
        metrics, cache, liveness = OperatorMetrics(), ObjectCache(), Liveness()
        states = WatchStates(liveness)
        metrics.collect_watches(states.ages)
        metrics.collect_groups(lambda: [found for kind in KINDS for found in cache.all(kind)])
        sidecar_client = await stack.enter_async_context(
            open_sidecar_client(api, by_proxy=config.sidecars == "proxy")
        )
        replicas = ReplicaObserver(cache, sidecar_client, CredentialsCache(api))
        dependencies = ReconcilerDependencies(api, cache, replicas, metrics, liveness, config.workers, states)
        reconcilers: list[Reconciler] = [GroupReconciler(renderer, dependencies, config.parallel_updates)]
        if config.audits:
            reconcilers.append(AuditReconciler(config.audit_settings(), dependencies))
        if config.backups:
            reconcilers.append(BackupReconciler(config.backup_settings(), dependencies))
        entities = [kind for kind in config.kinds if kind in ENTITY_KINDS]
        if entities:
            broker_client = BrokerClient()
            stack.push_async_callback(broker_client.close)
            reconcilers.append(EntityReconciler(entities, broker_client, dependencies))
            metrics.collect_entities(lambda: [found for kind in entities for found in cache.all(kind)])
        metrics.collect_audits(lambda: cache.all(AUDIT_KIND))
        metrics.collect_backups(lambda: cache.all(BACKUP_KIND))
        served = (*KINDS, *ENTITY_KINDS, AUDIT_KIND, BACKUP_KIND)
        metrics.collect_conditions(lambda: [found for kind in served for found in cache.all(kind)])
        informers = [
            Informer(api, cache, kind, where, SELECTOR, states)
            for kind in (*WATCHED_OBJECTS, *(WATCHED_FOR_AUDITS if config.audits else ()))
            for where in (*config.namespaces,) or (None,)
        ]
        watch = kopf_watch(cache, connection, states)
        resources = ResourceWatch(api, cache, states, watch, frozenset(config.kinds), config.namespaces)
        address, port = config.metrics_address, config.metrics_port
        await stack.enter_async_context(serve_metrics(metrics, address, port, liveness.stuck, states.blind))
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            tasks.create_task(resources.run())
            # Plans need the whole observed state. What is not listed by then is given up.
            await lease_holder.acquire(states.blind)
            async with lease_holder.released_at_exit(), asyncio.TaskGroup() as work:
                metrics.leads.set(1)
                work.create_task(lease_holder.hold())
                cache.on_change = lambda manifest: _notify(reconcilers, manifest)
                for reconciler in reconcilers:
                    work.create_task(reconciler.run())


def _notify(reconcilers: list[Reconciler], manifest: Manifest) -> None:
    for reconciler in reconcilers:
        reconciler.object_changed(manifest)


async def _list_defined(api: Api, kind: str, where: str | None) -> list[dict[str, Any]]:
    """The resources of a kind; none if the kind is not defined in this cluster."""
    try:
        return (await api.list(kind, where, ""))[0]
    except ApiError as error:
        if error.status == 404:
            return []
        raise
