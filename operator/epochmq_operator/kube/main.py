"""`epochmq operator`: waits for the lease, then looks after every group until it ends or loses the lease."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import uuid
from typing import Any

import kopf
import structlog

from epochmq_operator import manifests
from epochmq_operator.kube import handlers
from epochmq_operator.kube.api import Api, ApiError
from epochmq_operator.kube.audit_reconciler import AuditReconciler, notify_both
from epochmq_operator.kube.comparison_cache import ComparisonCache
from epochmq_operator.kube.config import OperatorConfig, load_config
from epochmq_operator.kube.connection import ClusterConnection, NoClusterError, from_kubeconfig, in_cluster
from epochmq_operator.kube.lease_holder import LeadershipLostError, open_lease_holder
from epochmq_operator.kube.metrics import OperatorMetrics, serve_metrics
from epochmq_operator.kube.object_cache import Informer, ObjectCache
from epochmq_operator.kube.reconciler import RESOURCES, Reconciler
from epochmq_operator.kube.sidecar_client import open_sidecar_client
from epochmq_operator.kube.sidecar_credentials import CredentialsCache
from epochmq_operator.plans.deletion import finalizers
from epochmq_operator.plans.objects import FINALIZER, Ref, ref_of
from epochmq_operator.plans.renderer import Renderer
from epochmq_operator.resources.audit import AUDIT_KIND
from epochmq_protocol.errors import EpochMQError

SELECTOR = f"{manifests.MANAGED_BY}={manifests.MANAGER}"
WATCHED = (
    *(one.kind for one in manifests.OBJECT_KINDS),
    *("Pod", "PersistentVolumeClaim", "Role", "RoleBinding"),
)
LISTED_WITHIN_S = 120.0
LIST_AGAIN_S = 1.0

log = structlog.get_logger()


def connect(config: OperatorConfig) -> ClusterConnection:
    """To the cluster that the configuration names, that we are in, or that kubectl would use."""
    if config.kubeconfig is not None or config.context is not None:
        return from_kubeconfig(config.kubeconfig, config.context)
    try:
        return in_cluster()
    except NoClusterError:
        return from_kubeconfig()


def run(path: str | None, overrides: dict[str, str]) -> int:
    """Runs the operator until SIGTERM or SIGINT; 1 when it lost the lease."""
    config = load_config(path, overrides)
    _log(config.log_level)
    connection = connect(config)
    return asyncio.run(_run_until_signal(config, connection))


def release(path: str | None, overrides: dict[str, str]) -> int:
    """Takes the deletion guard off every group that the configuration is about: without an operator nobody
    else would, and a guarded group could never go."""
    config = load_config(path, overrides)
    _log(config.log_level)
    asyncio.run(_release(config, connect(config)))
    return 0


async def _release(config: OperatorConfig, connection: ClusterConnection) -> None:
    api = Api(connection)
    try:
        for kind in RESOURCES:
            for where in (*config.namespaces,) or (None,):
                for found in (await api.list(kind, where, ""))[0]:
                    if FINALIZER in finalizers(found):
                        rest = tuple(one for one in finalizers(found) if one != FINALIZER)
                        version = str(found["metadata"]["resourceVersion"])
                        await api.put_finalizers(ref_of(found), version, rest)
                        log.info("released", resource=str(ref_of(found)))
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
        log.error("ends without the lease, so that nobody writes besides the new leader")
        code = 1
    except* WatchEndedError as error:
        log.error("ends", error=str(error.exceptions[0]))
        code = 1
    except* asyncio.CancelledError:
        log.info("ends, as it was told")
    return code


class WatchEndedError(EpochMQError):
    """Groups are not watched any more."""


async def operate(config: OperatorConfig, connection: ClusterConnection) -> None:
    """The whole operator, until cancelled. Raises when the lease is lost."""
    namespace = config.operator_namespace or connection.namespace
    settings = config.settings(namespace)
    renderer = Renderer(
        render=lambda group, controllers: manifests.render_manifests(group, controllers, settings),
        differences=ComparisonCache(manifests.differences),
        possible_objects=manifests.possible_objects,
        keep_immutable_fields=manifests.keep_immutable_fields,
    )
    me = f"{config.identity or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
    async with contextlib.AsyncExitStack() as stack:
        lease_holder = await stack.enter_async_context(
            open_lease_holder(connection, Ref("Lease", namespace, config.lease_name), me)
        )
        api = Api(connection, lease_holder.require)
        stack.push_async_callback(api.close)
        metrics, cache = OperatorMetrics(), ObjectCache()
        metrics.collect_groups(lambda: [found for kind in RESOURCES for found in cache.all(kind)])
        sidecar_client = await stack.enter_async_context(
            open_sidecar_client(api, by_proxy=config.sidecars == "proxy")
        )
        secrets = CredentialsCache(api)
        reconciler = Reconciler(api, cache, sidecar_client, secrets, renderer, metrics, config.workers)
        audit_reconciler = AuditReconciler(
            config.audit_settings(), api, cache, sidecar_client, secrets, renderer, metrics, config.workers
        )
        metrics.collect_audits(lambda: cache.all(AUDIT_KIND))
        informers = [
            Informer(api, cache, kind, where, SELECTOR)
            for kind in WATCHED
            for where in (*config.namespaces,) or (None,)
        ]
        listed = lambda: all(one.listed.is_set() for one in informers)  # noqa: E731 -- a predicate
        address, port = config.metrics_address, config.metrics_port
        await stack.enter_async_context(serve_metrics(metrics, address, port, lambda: True, listed))
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                tasks.create_task(informer.run())
            tasks.create_task(_watch(config, cache, connection))
            await lease_holder.acquire()
            async with lease_holder.released_at_exit(), asyncio.TaskGroup() as work:
                metrics.leads.set(1)
                work.create_task(lease_holder.hold())
                await _wait_until_listed(informers)
                await _load_resources(api, cache, config)
                cache.on_change = notify_both(reconciler, audit_reconciler)
                work.create_task(reconciler.run())
                work.create_task(audit_reconciler.run())


async def _wait_until_listed(informers: list[Informer]) -> None:
    """Nothing is done on half a view."""
    async with asyncio.timeout(LISTED_WITHIN_S):
        for informer in informers:
            await informer.listed.wait()


async def _load_resources(api: Api, cache: ObjectCache, config: OperatorConfig) -> None:
    """All resources at once: kopf tells of one after the other, and a ControllerGroup that was not heard of
    yet would seem to be missing, or one whose users were not to be nobody's."""
    async with asyncio.timeout(LISTED_WITHIN_S):
        for kind in (*RESOURCES, AUDIT_KIND):
            for where in (*config.namespaces,) or (None,):
                for found in await _list_all(api, kind, where):
                    cache.put(found)


async def _list_all(api: Api, kind: str, where: str | None) -> list[dict[str, Any]]:
    while True:
        try:
            return (await api.list(kind, where, ""))[0]
        except ApiError as error:
            if error.status == 404:  # it is not defined
                return []
            log.warning("resources could not be listed", kind=kind, namespace=where, error=str(error))
            await asyncio.sleep(LIST_AGAIN_S)


async def _watch(config: OperatorConfig, cache: ObjectCache, connection: ClusterConnection) -> None:
    """kopf in a thread of its own: in ours it would take the signals, and end tasks that are not its own."""
    loop, stop, ended = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    def run_kopf() -> None:
        try:
            asyncio.run(
                kopf.operator(
                    registry=handlers.registry_for(cache, connection, loop),
                    settings=handlers.settings(),
                    standalone=True,
                    clusterwide=not config.namespaces,
                    namespaces=config.namespaces,
                    stop_flag=stop,
                )
            )
        finally:
            with contextlib.suppress(RuntimeError):  # our loop may be closed by now
                loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=run_kopf, name="kopf", daemon=True).start()
    try:
        await ended.wait()
    finally:
        stop.set()
    raise WatchEndedError("kopf ended by itself")
