"""Asks the replicas of groups in the cache for their states and epoch files."""

from __future__ import annotations

from collections.abc import Mapping

from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.sidecar_client import SidecarClient
from epochmq_operator.kube.sidecar_credentials import CredentialsCache, SidecarCredentials
from epochmq_operator.manifests.names import GROUP_LABEL, KIND_LABEL
from epochmq_operator.plans.objects import Manifest, Ref, metadata, spec_of
from epochmq_operator.plans.reported_states import ReportedState


class ReplicaObserver:
    """Finds the pods of a group and the credentials for their sidecars, and asks the sidecars."""

    def __init__(self, cache: ObjectCache, sidecar_client: SidecarClient, secrets: CredentialsCache) -> None:
        self._cache = cache
        self._sidecar_client = sidecar_client
        self._secrets = secrets

    @property
    def failures(self) -> int:
        """The number of requests to sidecars that failed."""
        return self._sidecar_client.failures

    async def states(self, group: Ref) -> Mapping[str, ReportedState]:
        """The states that the group's replicas report, by pod."""
        pods, credentials = await self._pods_and_credentials(group)
        return await self._sidecar_client.states(group.namespace, pods, credentials)

    async def epoch_files(self, group: Ref) -> Mapping[str, bytes]:
        """Copies of the brokers' epoch files, by pod."""
        pods, credentials = await self._pods_and_credentials(group)
        return await self._sidecar_client.epoch_files(group.namespace, pods, credentials)

    async def _pods_and_credentials(self, group: Ref) -> tuple[list[Manifest], SidecarCredentials | None]:
        objects = self._cache.namespace(group.namespace)
        pods = [pod for ref, pod in objects.items() if ref.kind == "Pod" and _belongs(pod, group)]
        admin = spec_of(objects.get(group) or {}).get("admin")
        secret = admin.get("tlsSecret") if isinstance(admin, Mapping) else None
        named = secret if isinstance(secret, str) else None
        return pods, await self._secrets.credentials(group.namespace, named)


def _belongs(pod: Manifest, group: Ref) -> bool:
    labels = metadata(pod).get("labels") or {}
    return labels.get(KIND_LABEL) == group.kind and labels.get(GROUP_LABEL) == group.name
