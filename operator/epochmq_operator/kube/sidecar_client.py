"""Requests states and epoch files from admin sidecars: all replicas at once, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from epochmq_operator.kube.api import Api, collection_path
from epochmq_operator.kube.sidecar_credentials import SidecarCredentials
from epochmq_operator.plans.objects import Manifest, is_deleting, metadata
from epochmq_operator.plans.reported_states import ReportedState, decode_state
from epochmq_operator.pod_rendering import ADMIN_PORT
from epochmq_protocol.errors import EpochMQError

RESPONSE_TIMEOUT_S = 2.0
FRESH_S = 0.5
"""A state of this age is not requested again: a group and its controllers are reconciled shortly after each
other."""
STALE_S = 15.0
"""The last state of a replica that does not respond is used for this time: one lost packet changes
nothing."""
REQUESTS_MAX = 32
BODY_BYTES_MAX = 4 * 1024 * 1024
CACHED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class _CachedState:
    uid: str
    state: ReportedState
    at_s: float


def address_of(pod: Manifest) -> str | None:
    """The address of a pod's sidecar, None if the pod does not run."""
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or is_deleting(pod):
        return None
    found = status.get("podIP")
    return found if isinstance(found, str) and found else None


class SidecarClient:
    """A client of all sidecars. `by_proxy`: through the API server, from outside the cluster."""

    def __init__(self, api: Api, *, by_proxy: bool) -> None:
        self._api = api
        self._by_proxy = by_proxy
        self._cached: dict[tuple[str, str], _CachedState] = {}
        self._free = asyncio.Semaphore(REQUESTS_MAX)
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=REQUESTS_MAX))
        self.failures = 0

    async def close(self) -> None:
        """Ends all connections."""
        await self._session.close()

    async def states(
        self, namespace: str, pods: Iterable[Manifest], credentials: SidecarCredentials | None
    ) -> Mapping[str, ReportedState]:
        """The states that these pods of a namespace report. Pods that cannot be reached are left out."""
        asked = [pod for pod in pods if address_of(pod) is not None]
        found = await asyncio.gather(*(self._state(namespace, pod, credentials) for pod in asked))
        return {str(metadata(pod)["name"]): state for pod, state in zip(asked, found, strict=True) if state}

    async def _state(
        self, namespace: str, pod: Manifest, credentials: SidecarCredentials | None
    ) -> ReportedState | None:
        name, uid = str(metadata(pod)["name"]), str(metadata(pod).get("uid", ""))
        key, now = (namespace, name), time.monotonic()
        known = self._cached.get(key)
        if known is not None and (known.uid != uid or now - known.at_s > STALE_S):
            self._cached.pop(key, None)
            known = None
        if known is not None and now - known.at_s < FRESH_S:
            return known.state
        try:
            async with self._free:
                state = decode_state(
                    await self._ask(namespace, name, str(address_of(pod)), credentials, "/v1/state")
                )
        except (EpochMQError, aiohttp.ClientError, TimeoutError, OSError, ValueError):
            self.failures += 1
            return known.state if known is not None else None
        if len(self._cached) >= CACHED_MAX:
            self._cached.clear()
        self._cached[key] = _CachedState(uid, state, now)
        return state

    async def epoch_files(
        self, namespace: str, pods: Iterable[Manifest], credentials: SidecarCredentials | None
    ) -> Mapping[str, bytes]:
        """Copies of these brokers' epoch files, by pod. Brokers without one, or out of reach, are left
        out."""
        asked = {str(metadata(pod)["name"]): ip for pod in pods if (ip := address_of(pod)) is not None}

        async def copy(name: str, ip: str) -> bytes | None:
            try:
                async with self._free:
                    return await self._ask(namespace, name, ip, credentials, "/v1/epoch-file")
            except (EpochMQError, aiohttp.ClientError, TimeoutError, OSError, ValueError):
                return None

        found = await asyncio.gather(*(copy(name, ip) for name, ip in asked.items()))
        return {name: data for name, data in zip(asked, found, strict=True) if data is not None}

    async def _ask(
        self, namespace: str, pod: str, ip: str, credentials: SidecarCredentials | None, path: str
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S)
        tls: ssl.SSLContext | bool = credentials.tls if credentials else True
        session = self._session
        if self._by_proxy:
            session, tls = self._api.session, True
            url = self._api.connection.server + proxy_path(namespace, pod, path, secure=bool(credentials))
        else:
            host = f"[{ip}]" if ":" in ip else ip
            url = f"{'https' if credentials else 'http'}://{host}:{ADMIN_PORT}{path}"
        options: dict[str, Any] = {} if self._by_proxy else {"ssl": tls}
        async with session.get(url, timeout=timeout, **options) as answer:
            if answer.status != 200:
                raise EpochMQError(f"the sidecar of {pod} responded with status {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise EpochMQError(
                        f"the sidecar of {pod} responded with more than {BODY_BYTES_MAX} bytes"
                    )
            return bytes(body)


def proxy_path(namespace: str, pod: str, path: str, *, secure: bool) -> str:
    """The API server's path for a path of a pod's sidecar."""
    scheme = "https:" if secure else ""
    return f"{collection_path('Pod', namespace)}/{scheme}{pod}:{ADMIN_PORT}/proxy{path}"


@contextlib.asynccontextmanager
async def open_sidecar_client(api: Api, *, by_proxy: bool) -> Any:
    """A SidecarClient that is closed when the `with` block ends."""
    made = SidecarClient(api, by_proxy=by_proxy)
    try:
        yield made
    finally:
        await made.close()
