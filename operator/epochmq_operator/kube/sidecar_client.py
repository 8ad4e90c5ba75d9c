"""Requests states and epoch files from admin sidecars: all replicas at once, each with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
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
from epochmq_protocol.admin_api.messages import FaultKind
from epochmq_protocol.errors import EpochMQError

RESPONSE_TIMEOUT_S = 2.0
CHANGE_TIMEOUT_S = 4.0
"""A change begins before this operator must stop writing, and ends before another one may begin
(`lease_rules`)."""
TOKEN_HEADER = "X-EpochMQ-Token"
"""The API server removes the header `Authorization` from requests that it proxies."""
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


class SidecarRejectionError(EpochMQError):
    """A sidecar or its main process rejected a change. The text is theirs."""


class ReloadRejectionError(SidecarRejectionError):
    """The change was a configuration."""


class MembershipRejectionError(SidecarRejectionError):
    """The change was one of a quorum's members, and it is not known to be in effect. `is_under_way`: the
    leader is still making a change, perhaps this one: a new member gets the whole log."""

    def __init__(self, message: str, *, is_under_way: bool = False) -> None:
        super().__init__(message)
        self.is_under_way = is_under_way


class _BusyError(SidecarRejectionError):
    """The process is busy with another change."""


def _error_of(body: bytes, field: str) -> str:
    """A field of the error in a sidecar's response to a request that it rejects; "" if there is none."""
    try:
        found = json.loads(body)["error"][field]
    except (ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) else ""


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

    def can_change(self, credentials: SidecarCredentials | None, token: str | None) -> bool:
        """Whether sidecars accept changes from this client. The API server, as a proxy, presents no client
        certificate."""
        return token is not None or (credentials is not None and not self._by_proxy)

    async def reload(
        self,
        pod: Manifest,
        credentials: SidecarCredentials | None,
        token: str | None,
        version: str,
        config: Mapping[str, str],
    ) -> None:
        """Has a broker apply a configuration file. ReloadRejectionError if its sidecar rejects that. If it
        does not respond nothing is raised: its state will show whether it applied the file.
        LeadershipLostError if another operator may be writing."""
        meta, ip = metadata(pod), address_of(pod)
        if ip is None:
            return
        name, namespace = str(meta["name"]), str(meta.get("namespace", ""))
        headers = {TOKEN_HEADER: token} if token is not None else {}
        body = {"config": dict(config), "version": version}
        async with self._free:
            self._api.may_write()
            try:
                await self._ask(namespace, name, ip, credentials, "/v1/config", body=body, headers=headers)
            except SidecarRejectionError as error:
                raise ReloadRejectionError(str(error)) from None
            except (EpochMQError, aiohttp.ClientError, TimeoutError, OSError):
                self.failures += 1
            finally:
                self._cached.pop((namespace, name), None)

    async def change_members(
        self,
        pod: Manifest,
        credentials: SidecarCredentials | None,
        token: str | None,
        member: str,
        address: str | None,
    ) -> None:
        """Has a leading controller add a member or, without an address, remove it. MembershipRejectionError
        unless it responds that the change is committed. LeadershipLostError if another operator may be
        writing."""
        meta, ip = metadata(pod), address_of(pod)
        name, namespace = str(meta["name"]), str(meta.get("namespace", ""))
        if ip is None:
            raise MembershipRejectionError(f"{name} does not run")
        headers = {TOKEN_HEADER: token} if token is not None else {}
        body = {"member": member, **({} if address is None else {"address": address})}
        async with self._free:
            self._api.may_write()
            try:
                await self._ask(namespace, name, ip, credentials, "/v1/members", body=body, headers=headers)
            except SidecarRejectionError as error:
                is_under_way = isinstance(error, _BusyError)
                raise MembershipRejectionError(f"{name}: {error}", is_under_way=is_under_way) from None
            except (EpochMQError, aiohttp.ClientError, TimeoutError, OSError) as error:
                self.failures += 1
                why = str(error) or type(error).__name__
                raise MembershipRejectionError(f"{name} does not respond: {why}") from None
            finally:
                self._cached = {key: one for key, one in self._cached.items() if key[0] != namespace}

    async def _ask(
        self,
        namespace: str,
        pod: str,
        ip: str,
        credentials: SidecarCredentials | None,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        """The response of a sidecar: to `GET`, or to `PUT` with a body. EpochMQError if it is no success."""
        timeout = aiohttp.ClientTimeout(total=RESPONSE_TIMEOUT_S if body is None else CHANGE_TIMEOUT_S)
        tls: ssl.SSLContext | bool = credentials.tls if credentials else True
        session = self._session
        if self._by_proxy:
            session, tls = self._api.session, True
            url = self._api.connection.server + proxy_path(namespace, pod, path, secure=bool(credentials))
        else:
            host = f"[{ip}]" if ":" in ip else ip
            url = f"{'https' if credentials else 'http'}://{host}:{ADMIN_PORT}{path}"
        options: dict[str, Any] = {} if self._by_proxy else {"ssl": tls}
        if body is not None:
            options |= {"json": body, "headers": headers}
        method = "GET" if body is None else "PUT"
        async with session.request(method, url, timeout=timeout, **options) as answer:
            content = bytearray()
            async for chunk in answer.content.iter_any():
                content += chunk
                if len(content) > BODY_BYTES_MAX:
                    raise EpochMQError(
                        f"the sidecar of {pod} responded with more than {BODY_BYTES_MAX} bytes"
                    )
            if answer.status == 200:
                return bytes(content)
            if body is not None and _error_of(bytes(content), "kind") == FaultKind.BUSY:
                raise _BusyError(_error_of(bytes(content), "message"))
            if body is not None and 400 <= answer.status < 500:
                raise SidecarRejectionError(_error_of(bytes(content), "message") or f"status {answer.status}")
            raise EpochMQError(f"the sidecar of {pod} responded with status {answer.status}")


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
