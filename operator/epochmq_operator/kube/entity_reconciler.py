"""Reconciles Topics and Users: asks the masters of their broker groups, and makes the changes that
`entities.entity_reconciliation` decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from epochmq_operator.entities.broker_changes import Changes, FoundEntity
from epochmq_operator.entities.entity_reconciliation import (
    ObservedEntity,
    ObservedGroup,
    conclude,
    entity_of,
    groups_to_ask,
    invalid,
    older_resources,
    plan_changes,
    prepare,
)
from epochmq_operator.entities.masters import Problem, master_pod, missing_provider
from epochmq_operator.entities.user_changes import wanted_user
from epochmq_operator.kube.broker_client import BrokerClient, BrokerRejectionError, Master
from epochmq_operator.kube.lease_holder import LeadershipLostError
from epochmq_operator.kube.reconciler import Reconciler, ReconcilerDependencies
from epochmq_operator.kube.secret_reader import SecretError, SecretReader
from epochmq_operator.kube.sidecar_client import address_of
from epochmq_operator.manifests.pod import AUTH_FILE
from epochmq_operator.plans.effects import ReconciliationResult
from epochmq_operator.plans.objects import Manifest, Ref, is_deleting, metadata, ref_of, spec_of
from epochmq_operator.pod_rendering import BROKER_PORT
from epochmq_operator.resources import KINDS
from epochmq_operator.resources.entities import Entity, TopicResource, UserResource
from epochmq_protocol import properties
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.signatures import SessionCredentials

INNER_CREDENTIALS = "innerClientAuthenticationCredentials"


class EntityReconciler(Reconciler):
    """Reconciles the resources of `kinds`: Topic, User or both."""

    needed_kinds = (*KINDS, "Pod")

    def __init__(
        self, kinds: Iterable[str], broker_client: BrokerClient, dependencies: ReconcilerDependencies
    ) -> None:
        super().__init__(dependencies)
        self.kinds = tuple(kinds)
        self._broker_client = broker_client
        self._secrets = SecretReader(dependencies.api)

    def object_changed(self, manifest: Manifest) -> None:
        """Wakes also the entities of a broker group that changed."""
        super().object_changed(manifest)
        changed = ref_of(manifest)
        if changed.kind != "BrokerGroup":
            return
        for kind in self.kinds:
            for ref, found in self.cache.all(kind):
                groups = spec_of(found).get("brokerGroups")
                if ref.namespace == changed.namespace and isinstance(groups, list) and changed.name in groups:
                    self._wake(ref)

    async def reconcile(self, ref: Ref, resource: Manifest, rejection: str) -> ReconciliationResult:
        """Compares the entity in all its broker groups, and makes it as desired."""
        entity = entity_of(resource)
        if isinstance(entity, str):
            return invalid(resource, entity, time.time())
        first = prepare(resource, entity, time.time())
        if first is not None:
            return first
        masters: dict[str, Master] = {}
        observed = await self._observe(ref, resource, entity, masters)
        plan = plan_changes(observed)
        rejections = await self._carry_out(plan, masters)
        return conclude(observed, plan, rejections, time.time())

    async def _observe(
        self, ref: Ref, resource: Manifest, entity: Entity, masters: dict[str, Master]
    ) -> ObservedEntity:
        """Asks all groups at once; puts their masters into `masters`."""
        names = groups_to_ask(resource, entity)
        found = await asyncio.gather(*(self._group(ref.namespace, one, entity, masters) for one in names))
        others = [one for other, one in self.cache.all(ref.kind) if other.namespace == ref.namespace]
        observed = ObservedEntity(
            resource,
            entity,
            dict(zip(names, found, strict=True)),
            older=older_resources(resource, entity, others),
        )
        if not isinstance(entity, UserResource):
            return observed
        secret = entity.spec.password_secret
        try:
            password = await self._secrets.text(ref.namespace, secret.name, secret.key)
        except SecretError as error:
            return replace(observed, problem=Problem("SecretUnusable", str(error)))
        wanted = wanted_user(entity, password.text.rstrip("\r\n"))
        return replace(observed, wanted_user=wanted, secret_version=password.version)

    async def _group(
        self, namespace: str, name: str, entity: Entity, masters: dict[str, Master]
    ) -> ObservedGroup:
        group = self.cache.get(Ref("BrokerGroup", namespace, name))
        if group is None or is_deleting(group):
            return ObservedGroup(exists=False)
        missing = missing_provider(group, entity)
        if missing is not None:
            return ObservedGroup(problem=missing)
        try:
            master = await self._master(group)
            if isinstance(master, Problem):
                return ObservedGroup(problem=master)
            found = await self._found(master, entity)
        except SecretError as error:
            return ObservedGroup(problem=Problem("SecretUnusable", str(error)))
        except BrokerRejectionError as error:
            return ObservedGroup(problem=Problem("Rejected", str(error)))
        except EpochMQError as error:
            return ObservedGroup(problem=Problem("Unreachable", str(error)))
        masters[name] = master
        return ObservedGroup(found=found)

    async def _master(self, group: Manifest) -> Master | Problem:
        ref = ref_of(group)
        pod = master_pod(group, await self.replicas.states(ref))
        if isinstance(pod, Problem):
            return pod
        found = self.cache.get(Ref("Pod", ref.namespace, pod))
        ip = address_of(found) if found is not None else None
        if ip is None:
            return Problem("NoMaster", f"{pod} has no address")
        address = f"[{ip}]:{BROKER_PORT}" if ":" in ip else f"{ip}:{BROKER_PORT}"
        broker_name = str(spec_of(group).get("brokerName") or ref.name)
        return Master(address, broker_name, await self._credentials(group))

    async def _credentials(self, group: Manifest) -> SessionCredentials | None:
        """The credentials with which the group's brokers sign their own requests; None if the group has none.
        SecretError if they cannot be read."""
        spec = spec_of(group)
        config = spec.get("config")
        value = config.get(INNER_CREDENTIALS) if isinstance(config, Mapping) else None
        if isinstance(spec.get("authSecret"), str):
            namespace = str(metadata(group).get("namespace", ""))
            kept = await self._secrets.text(namespace, str(spec["authSecret"]), AUTH_FILE)
            value = properties.parse(kept.text).get(INNER_CREDENTIALS, value)
        if not isinstance(value, str) or not value.strip():
            return None
        try:
            return msgspec.json.decode(value, type=SessionCredentials)
        except msgspec.DecodeError as error:
            raise SecretError(f"{INNER_CREDENTIALS} is no JSON object with accessKey: {error}") from None

    async def _found(self, master: Master, entity: Entity) -> FoundEntity | None:
        name = entity.broker_side_name
        if isinstance(entity, TopicResource):
            return await self._broker_client.topic(master, name)
        return await self._broker_client.user(master, name, with_acl=bool(entity.spec.acl))

    async def _carry_out(self, plan: Mapping[str, Changes], masters: Mapping[str, Master]) -> dict[str, str]:
        """Makes the changes, of all groups at once; returns the rejections by group."""
        rejections: dict[str, str] = {}

        async def carry_out(name: str, changes: Changes) -> None:
            try:
                for change in changes.changes:
                    self._api.may_write()
                    await self._broker_client.change(masters[name], change)
            except LeadershipLostError:
                raise
            except EpochMQError as error:
                rejections[name] = str(error)

        await asyncio.gather(*(carry_out(name, changes) for name, changes in plan.items()))
        return rejections
