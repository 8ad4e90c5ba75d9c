"""Asks the replicas of groups in the cache for their states and epoch files, and has them apply
configurations."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping

from epochmq_operator.kube.object_cache import ObjectCache
from epochmq_operator.kube.sidecar_client import (
    MembershipRejectionError,
    ReloadRejectionError,
    SidecarClient,
)
from epochmq_operator.kube.sidecar_credentials import CredentialsCache, SidecarCredentials
from epochmq_operator.plans.effects import ChangeQuorumMembers, ReloadConfiguration
from epochmq_operator.plans.indexed_objects import members_of
from epochmq_operator.plans.objects import Manifest, Ref, metadata, ref_of, spec_of
from epochmq_operator.plans.observed_state import RejectedReload
from epochmq_operator.plans.reported_states import ReportedState

REJECTED_FOR_S = 300.0
"""After this time a broker is asked again to apply a configuration that it rejected: a Secret may have
changed."""
REJECTIONS_MAX = 1000


class ReplicaObserver:
    """Finds the pods of a group and the credentials for their sidecars, and asks the sidecars."""

    def __init__(self, cache: ObjectCache, sidecar_client: SidecarClient, secrets: CredentialsCache) -> None:
        self._cache = cache
        self._sidecar_client = sidecar_client
        self._secrets = secrets
        self._rejections: OrderedDict[tuple[Ref, str], tuple[float, RejectedReload]] = OrderedDict()
        """What brokers rejected, by pod and its uid, with the time."""

    @property
    def failures(self) -> int:
        """The number of requests to sidecars that failed."""
        return self._sidecar_client.failures

    async def states(self, group: Ref) -> Mapping[str, ReportedState]:
        """The states that the group's replicas report, by pod. ApiError if their credentials are unknown."""
        pods, credentials = await self._pods_and_credentials(group)
        return await self._sidecar_client.states(group.namespace, pods, credentials)

    async def epoch_files(self, group: Ref) -> Mapping[str, bytes]:
        """Copies of the brokers' epoch files, by pod."""
        pods, credentials = await self._pods_and_credentials(group)
        return await self._sidecar_client.epoch_files(group.namespace, pods, credentials)

    async def can_reload(self, group: Ref) -> bool:
        """Whether the operator may change the settings of the group's running replicas. ApiError if the API
        server does not respond."""
        _, credentials = await self._pods_and_credentials(group)
        return self._sidecar_client.can_change(credentials, await self._token(group))

    def rejected_reloads(self, group: Ref) -> Mapping[str, RejectedReload]:
        """The configurations that the group's replicas rejected lately, by pod."""
        since = time.monotonic() - REJECTED_FOR_S
        found = {}
        for pod in self._pods(group):
            at_s, rejection = self._rejections.get(_key(pod), (-math.inf, None))
            if rejection is not None and at_s > since:
                found[str(metadata(pod)["name"])] = rejection
        return found

    async def reload(self, group: Ref, effect: ReloadConfiguration) -> None:
        """Has a broker of the group apply a configuration, unless its pod was replaced. Remembers a
        rejection. LeadershipLostError if another operator may be writing."""
        pods, credentials = await self._pods_and_credentials(group)
        pod = next((one for one in pods if metadata(one).get("uid") == effect.uid), None)
        if pod is None:
            return
        try:
            await self._sidecar_client.reload(
                pod, credentials, await self._token(group), effect.version, effect.config
            )
        except ReloadRejectionError as error:
            self._rejections[_key(pod)] = (time.monotonic(), RejectedReload(effect.version, str(error)))
            while len(self._rejections) > REJECTIONS_MAX:
                self._rejections.popitem(last=False)

    async def change_members(self, group: Ref, effect: ChangeQuorumMembers) -> None:
        """Has the leading controller of the group change the members of its quorum. MembershipRejectionError
        unless it responds that the change is in effect. LeadershipLostError if another operator may be
        writing."""
        pods, credentials = await self._pods_and_credentials(group)
        pod = next((one for one in pods if metadata(one).get("uid") == effect.uid), None)
        if pod is None:
            raise MembershipRejectionError(f"{effect.pod.name} was replaced")
        await self._sidecar_client.change_members(
            pod, credentials, await self._token(group), effect.member, effect.address
        )

    async def _token(self, group: Ref) -> str | None:
        return await self._secrets.token(group.namespace, self._secret_name(group, "tokenSecret"))

    def _secret_name(self, group: Ref, field: str) -> str | None:
        """The name of a Secret in `spec.admin` of a group."""
        admin = spec_of(self._cache.get(group) or {}).get("admin")
        secret = admin.get(field) if isinstance(admin, Mapping) else None
        return secret if isinstance(secret, str) else None

    def _pods(self, group: Ref) -> list[Manifest]:
        return members_of(self._cache.namespace(group.namespace), group)

    async def _pods_and_credentials(self, group: Ref) -> tuple[list[Manifest], SidecarCredentials | None]:
        named = self._secret_name(group, "tlsSecret")
        return self._pods(group), await self._secrets.credentials(group.namespace, named)


def _key(pod: Manifest) -> tuple[Ref, str]:
    return ref_of(pod), str(metadata(pod).get("uid", ""))
