"""Sends requests to the API server, each with a deadline."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from epochmq_operator.kube.connection import ClusterConnection
from epochmq_operator.manifests import OBJECT_KINDS
from epochmq_operator.plans.objects import Manifest, Ref, ref_of
from epochmq_protocol.errors import EpochMQError

FIELD_MANAGER = "epochmq-operator"
REQUEST_TIMEOUT_S = 5.0
"""The deadline of requests other than lists and watches. A write begins before this operator must stop
writing, and ends with this deadline, before another operator can acquire the operator lease
(`lease_rules`)."""
LIST_TIMEOUT_S = 60.0
WATCH_S = 300
"""The API server ends a watch after this time, and the operator starts another. A watch also ends after half
of it without a byte: bookmarks come every minute, so the connection is dead."""
LINE_LENGTH_MAX = 8 * 1024 * 1024
"""The limit for one event of a watch. etcd accepts objects of up to 1.5 MiB."""
GROUP_VERSION = "epochmq.io/v1alpha1"

PATHS: Mapping[str, tuple[str, str]] = {
    "BrokerGroup": (GROUP_VERSION, "brokergroups"),
    "ControllerGroup": (GROUP_VERSION, "controllergroups"),
    "BrokerGroupAudit": (GROUP_VERSION, "brokergroupaudits"),
    "BrokerGroupBackup": (GROUP_VERSION, "brokergroupbackups"),
    "Topic": (GROUP_VERSION, "topics"),
    "User": (GROUP_VERSION, "users"),
    "Pod": ("v1", "pods"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Secret": ("v1", "secrets"),
    "Event": ("v1", "events"),
    "Role": ("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "VolumeSnapshot": ("snapshot.storage.k8s.io/v1", "volumesnapshots"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    **{one.kind: (one.api_version, one.plural) for one in OBJECT_KINDS},
}
"""The API version and the plural of each kind that the operator uses."""


class ApiError(EpochMQError):
    """A request failed. `status` is the HTTP status, 0 if there was no response."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_rejection(self) -> bool:
        """Whether the API server rejected the request for good: a retry would fail, too."""
        return self.status in (400, 403, 405, 413, 415, 422)


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch. `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: dict[str, Any]


def collection_path(kind: str, namespace: str | None) -> str:
    """The path of a kind's objects in a namespace; with None, in all namespaces."""
    version, plural = PATHS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace is not None else f"{root}/{plural}"


def object_path(ref: Ref) -> str:
    """The path of an object."""
    return f"{collection_path(ref.kind, ref.namespace)}/{ref.name}"


class Api:
    """A client of a cluster's API server. It calls `may_write` before every write, which raises if another
    operator may have taken over."""

    def __init__(self, connection: ClusterConnection, may_write: Callable[[], None] = lambda: None) -> None:
        self.connection = connection
        self.session = connection.session()
        self.may_write = may_write

    async def close(self) -> None:
        """Closes all connections."""
        await self.session.close()

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Gets an object or a list. ApiError with 404 if it does not exist."""
        return await self._json("GET", path, params=params)

    async def list(self, kind: str, namespace: str | None, selector: str) -> tuple[list[dict[str, Any]], str]:
        """Lists objects; returns them with the list's resourceVersion."""
        version, _ = PATHS[kind]
        params = {"labelSelector": selector} if selector else {}
        answer = await self._json(
            "GET", collection_path(kind, namespace), params=params, timeout_s=LIST_TIMEOUT_S
        )
        items = [{"apiVersion": version, "kind": kind, **item} for item in answer.get("items") or ()]
        return items, str(answer["metadata"]["resourceVersion"])

    async def watch(
        self, kind: str, namespace: str | None, selector: str, since: str
    ) -> AsyncIterator[WatchEvent]:
        """Watches objects from a resourceVersion on until the server ends the watch. ApiError with 410 if the
        version is too old."""
        params = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": since,
            "timeoutSeconds": str(WATCH_S),
            **({"labelSelector": selector} if selector else {}),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_S / 2)
        url = self.connection.server + collection_path(kind, namespace)
        async with _as_api_errors(url), self.session.get(url, params=params, timeout=timeout) as answer:
            await _raise_for_status(answer)
            async for line in _lines(answer.content):
                event = json.loads(line)
                found = event["object"]
                if event["type"] == "ERROR":
                    raise ApiError(int(found.get("code") or 0), str(found.get("message")))
                yield WatchEvent(event["type"], found)

    async def apply(self, manifest: Manifest) -> dict[str, Any]:
        """Server-side apply; returns the object as stored."""
        params = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._write(
            "PATCH", object_path(ref_of(manifest)), manifest, "application/apply-patch+yaml", params
        )

    async def put_status(self, ref: Ref, version: str, status: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the whole status if the object still has this resourceVersion."""
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status", "value": status},
        ]
        return await self._write(
            "PATCH", f"{object_path(ref)}/status", operations, "application/json-patch+json"
        )

    async def put_finalizers(self, ref: Ref, version: str, finalizers: tuple[str, ...]) -> dict[str, Any]:
        """Replaces all finalizers if the object still has this resourceVersion."""
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/metadata/finalizers", "value": list(finalizers)},
        ]
        return await self._write("PATCH", object_path(ref), operations, "application/json-patch+json")

    async def replace_field(self, ref: Ref, version: str, path: str, value: Any) -> dict[str, Any]:
        """Replaces a field, such as `/spec/ports`, if the object still has this resourceVersion."""
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": path, "value": value},
        ]
        return await self._write("PATCH", object_path(ref), operations, "application/json-patch+json")

    async def annotate(self, ref: Ref, version: str, key: str, value: str) -> dict[str, Any]:
        """Sets an annotation if the object still has this resourceVersion."""
        patch = {"metadata": {"resourceVersion": version, "annotations": {key: value}}}
        return await self._write("PATCH", object_path(ref), patch, "application/merge-patch+json")

    async def remove_annotation(self, ref: Ref, key: str, value: str) -> dict[str, Any] | None:
        """Removes an annotation if it still has this value; returns the object, None if nothing is left to
        remove."""
        path = f"/metadata/annotations/{key.replace('~', '~0').replace('/', '~1')}"
        operations = [{"op": "test", "path": path, "value": value}, {"op": "remove", "path": path}]
        try:
            return await self._write("PATCH", object_path(ref), operations, "application/json-patch+json")
        except ApiError as error:
            if error.status not in (404, 422):
                raise
            return None

    async def delete(self, ref: Ref, uid: str, *, forced: bool = False) -> None:
        """Deletes the object with this uid; the garbage collector deletes what it owns. `forced`: a pod goes
        at once, although its node has not ended it. Does nothing if the object is gone, or if the name
        belongs to an object with another uid."""
        body: dict[str, Any] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if forced:
            body["gracePeriodSeconds"] = 0
        try:
            await self._write("DELETE", object_path(ref), body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def create(self, manifest: Manifest) -> dict[str, Any]:
        """Creates an object. ApiError with 409 if it exists."""
        ref = ref_of(manifest)
        return await self._write("POST", collection_path(ref.kind, ref.namespace), manifest)

    async def replace(self, manifest: Manifest) -> dict[str, Any]:
        """Replaces the whole object if it still has the manifest's resourceVersion."""
        return await self._write("PUT", object_path(ref_of(manifest)), manifest)

    async def _write(
        self,
        method: str,
        path: str,
        body: Any,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        self.may_write()
        return await self._json(method, path, body, content_type, params)

    async def _json(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[str, Any]:
        data, headers = None, {"Accept": "application/json"}
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), content_type
        url = self.connection.server + path
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with (
            _as_api_errors(url),
            self.session.request(
                method, url, data=data, headers=headers, params=params, timeout=timeout
            ) as answer,
        ):
            await _raise_for_status(answer)
            found = await answer.json(content_type=None)
        if not isinstance(found, dict):
            raise ApiError(0, f"the response to {path} is not a JSON object")
        return found


@contextlib.asynccontextmanager
async def _as_api_errors(url: str) -> AsyncIterator[None]:
    """Raises connection errors and timeouts as ApiError."""
    try:
        yield
    except TimeoutError:
        raise ApiError(0, f"{url} did not respond in time") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ApiError(0, f"{url}: {error or type(error).__name__}") from None


async def _raise_for_status(answer: aiohttp.ClientResponse) -> None:
    if answer.status < 400:
        return
    text = await answer.text()
    message = text[:500]
    with contextlib.suppress(ValueError, AttributeError):
        message = str(json.loads(text).get("message") or message)
    raise ApiError(answer.status, message)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Splits a stream into lines. ApiError for a line that is too long."""
    buffer = bytearray()
    async for chunk in content.iter_any():
        buffer += chunk
        if len(buffer) > LINE_LENGTH_MAX:
            raise ApiError(0, f"a watch sent an event of more than {LINE_LENGTH_MAX} bytes")
        *lines, rest = bytes(buffer).split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            if line.strip():
                yield line
