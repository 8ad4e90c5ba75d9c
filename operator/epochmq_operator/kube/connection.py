"""Configures connections to a cluster: from a kubeconfig, or from inside one of its pods."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import kubernetes.config
from kubernetes.client import Configuration
from kubernetes.config import incluster_config

from epochmq_protocol.errors import EpochMQError

USER_AGENT = "epochmq-operator"
"""The operator's name in the API server's audit log."""

_kubernetes: Any = kubernetes.config  # its functions carry no types
_incluster: Any = incluster_config
NoteResponse = Callable[[str, int, str], None]
"""Takes the path of a request, the HTTP status (0: no response), and the reason."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NoClusterError(EpochMQError):
    """No cluster is configured; the message says where the configuration was expected."""


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """An API server and credentials for it. `namespace` is that of the pod, or of the kubeconfig's
    context."""

    server: str
    namespace: str
    configuration: Any = field(repr=False)

    def ssl_context(self) -> ssl.SSLContext | bool:
        """The TLS context, with a client certificate if there is one."""
        if not self.server.startswith("https:"):
            return True
        found = self.configuration
        context = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if not found.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if found.cert_file:
            context.load_cert_chain(found.cert_file, found.key_file)
        return context

    def authorization(self) -> str | None:
        """The value of the Authorization header. Tokens of pods and of credential plugins expire, so it is
        read for each request."""
        found: str | None = self.configuration.get_api_key_with_prefix("BearerToken", "authorization")
        return found

    def session(self, note: NoteResponse | None = None) -> aiohttp.ClientSession:
        """An HTTP session with the operator's user agent. The caller closes it. `note` learns of each
        response as soon as its headers are there."""

        async def authorized(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            authorization = self.authorization()
            if authorization:
                scheme, _, token = authorization.partition(" ")
                request.headers["Authorization"] = f"{scheme.capitalize()} {token}"
            return await handler(request)

        async def noted(
            request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            try:
                response = await handler(request)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if note is not None:
                    note(request.url.path, 0, f"{error or type(error).__name__}")
                raise
            if note is not None:
                note(request.url.path, response.status, response.reason or "")
            return response

        connector = aiohttp.TCPConnector(ssl=self.ssl_context(), limit=0)
        return aiohttp.ClientSession(
            connector=connector, middlewares=(authorized, noted), headers={"User-Agent": USER_AGENT}
        )


def in_cluster() -> ClusterConnection:
    """The connection from inside a pod. NoClusterError elsewhere."""
    configuration = Configuration()
    try:
        loader = _incluster.InClusterConfigLoader(
            token_filename=_incluster.SERVICE_TOKEN_FILENAME,
            cert_filename=_incluster.SERVICE_CERT_FILENAME,
        )
        loader.load_and_set(configuration)
        namespace = NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except (_kubernetes.ConfigException, OSError) as error:
        raise NoClusterError(f"not inside a cluster: {error}") from None
    return ClusterConnection(configuration.host, namespace or "default", configuration)


def from_kubeconfig(path: str | None = None, context: str | None = None) -> ClusterConnection:
    """The connection of a kubeconfig file; without a path, of those that kubectl would use. NoClusterError if
    they are incomplete."""
    configuration = Configuration()
    try:
        _kubernetes.load_kube_config(path, context, configuration, persist_config=False)
        contexts, current = _kubernetes.list_kube_config_contexts(path)
    except (_kubernetes.ConfigException, OSError) as error:
        raise NoClusterError(
            f"no usable kubeconfig: {error}; name one with --kubeconfig FILE, or with KUBECONFIG"
        ) from None
    chosen = next((one for one in contexts if one["name"] == context), current) if context else current
    namespace = (chosen.get("context") or {}).get("namespace") or "default"
    return ClusterConnection(configuration.host, namespace, configuration)
