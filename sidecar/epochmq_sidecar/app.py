"""Serves the admin API over HTTP: paths, authorization and error responses.

The sidecar forwards the process's results unchanged and stores nothing. Reads are open unless
`adminReads=guarded`; changes need a token or a client certificate. `/live` and `/ready` are for probes, and
always open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response

from epochmq_protocol.admin_api.messages import TIMEOUT_MAX_MS, AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    LINGER_MAX_MS,
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    ChangeMembersArguments,
    HandoverArguments,
    LogLevelArguments,
    PromoteArguments,
    ReloadConfigArguments,
)
from epochmq_protocol.admin_api.results import EpochFileContent, MetricValues, ProcessState
from epochmq_protocol.errors import CallTimeoutError, EpochMQError, RemoteProtocolError
from epochmq_sidecar import metrics
from epochmq_sidecar.config import SidecarConfig
from epochmq_sidecar.credentials import Tokens
from epochmq_sidecar.openapi import describe, openapi

T = TypeVar("T")

BODY_MAX_BYTES: Final = 32 * 1024
SWITCH_MS: Final = 15_000
DRAIN_MS: Final = 30_000
CHANGE_MS: Final = 10_000
CLIENT_CERTIFICATE: Final = "client_certificate"
"""Key in a connection's state: whether the client presented a certificate. TLS has checked it."""
TOKEN_HEADER: Final = "x-epochmq-token"
"""A header for the token, in place of `Authorization: Bearer`, which Kubernetes' API server removes from the
requests that it proxies."""

STATUS: Final[Mapping[FaultKind, int]] = {
    FaultKind.UNKNOWN: 404,
    FaultKind.INVALID: 400,
    FaultKind.REFUSED: 409,
    FaultKind.TIMEOUT: 504,
    FaultKind.BUSY: 503,
    FaultKind.FAILED: 500,
}

READS: Final = {
    "/v1/state": AdminOperation.STATE,
    "/v1/epochs": AdminOperation.EPOCHS,
    "/v1/sync-state-set": AdminOperation.SYNC_STATE_SET,
    "/v1/lag": AdminOperation.LAG,
    "/v1/lease": AdminOperation.LEASE,
    "/v1/config": AdminOperation.CONFIG,
}
CONTROLS: Final = {
    "/v1/fence": (AdminOperation.FENCE, CHANGE_MS),
    "/v1/unfence": (AdminOperation.UNFENCE, CHANGE_MS),
    "/v1/drain": (AdminOperation.DRAIN, DRAIN_MS),
    "/v1/undrain": (AdminOperation.UNDRAIN, CHANGE_MS),
    "/v1/adopt-store": (AdminOperation.ADOPT_STORE, CHANGE_MS),
    "/v1/discard-store": (AdminOperation.DISCARD_STORE, CHANGE_MS),
}


class LocalCall(Protocol):
    """Calls the process beside the sidecar."""

    async def __call__(self, operation: str, arguments: AdminArguments | None, timeout_ms: int) -> bytes:
        """Returns the result as JSON. Raises EpochMQError, an AdminError if the process rejects the
        operation."""
        ...


class HttpRejection(Exception):  # noqa: N818 (an expected response, not a failure)
    """A request that the sidecar rejects itself, with an HTTP status."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class _Timed(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    timeout_ms: int | None = None


class _TimedPromote(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    broker_id: int | None = None
    timeout_ms: int | None = None


class _TimedHandover(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True):
    linger_ms: Annotated[int, msgspec.Meta(ge=0, le=LINGER_MAX_MS)] = 0
    timeout_ms: int | None = None


class SidecarHandlers:
    """The handlers of all paths."""

    def __init__(self, config: SidecarConfig, tokens: Tokens, ask: LocalCall) -> None:
        self._config = config
        self._tokens = tokens
        self._ask = ask

    # probes

    async def live(self) -> Response:
        """Returns 200 if the process responds."""
        return _json_response(await self._ask(AdminOperation.LIVE, None, self._config.socket_timeout_ms))

    async def ready(self) -> Response:
        """Returns whether the process is ready, and the reasons if it is not."""
        try:
            raw = await self._ask(AdminOperation.STATE, self._config.limits, self._config.socket_timeout_ms)
        except EpochMQError as error:
            return _json_response(msgspec.json.encode({"ready": False, "notReady": [str(error)]}), 503)
        state = msgspec.json.decode(raw, type=ProcessState)
        shown = {
            "ready": state.ready,
            "notReady": state.not_ready,
            "component": state.__struct_config__.tag,
            "role": getattr(state, "role", None),
        }
        return _json_response(msgspec.json.encode(shown), 200 if state.ready else 503)

    # reads

    def read(self, operation: AdminOperation) -> Callable[[Request], Awaitable[Response]]:
        """Makes a handler that forwards a result of the process."""
        arguments = self._config.limits if operation is AdminOperation.STATE else None

        async def handler(request: Request) -> Response:
            self._authorize_read(request)
            return _json_response(await self._ask(operation, arguments, self._config.socket_timeout_ms))

        return handler

    async def epoch_file(self, request: Request) -> Response:
        """Returns the bytes of the epoch file."""
        self._authorize_read(request)
        raw = await self._ask(AdminOperation.EPOCH_FILE, None, self._config.socket_timeout_ms)
        content = msgspec.json.decode(raw, type=EpochFileContent).content
        return Response(content, media_type="application/octet-stream")

    async def metrics(self, request: Request) -> Response:
        """Returns the metrics. A process that does not respond is a metric, too."""
        self._authorize_read(request)
        try:
            raw = await self._ask(AdminOperation.METRICS, self._config.limits, self._config.socket_timeout_ms)
        except EpochMQError as error:
            return Response(metrics.unresponsive(str(error)), media_type=metrics.CONTENT_TYPE)
        text = metrics.exposition(msgspec.json.decode(raw, type=MetricValues))
        return Response(text, media_type=metrics.CONTENT_TYPE)

    # changes

    def control(self, operation: AdminOperation, default_ms: int) -> Callable[[Request], Awaitable[Response]]:
        """Makes a handler that has the process change its control state."""

        async def handler(request: Request) -> Response:
            self._authorize_change(request)
            body = await _body(request, _Timed)
            return _json_response(await self._ask(operation, None, _timeout_ms(body.timeout_ms, default_ms)))

        return handler

    async def promote(self, request: Request) -> Response:
        """Makes a replica the master: the named one, or the one beside this sidecar."""
        self._authorize_change(request)
        body = await _body(request, _TimedPromote)
        timeout_ms = _timeout_ms(body.timeout_ms, SWITCH_MS)
        return _json_response(
            await self._ask(AdminOperation.PROMOTE, PromoteArguments(broker_id=body.broker_id), timeout_ms)
        )

    async def handover(self, request: Request) -> Response:
        """Makes any other replica the master."""
        self._authorize_change(request)
        body = await _body(request, _TimedHandover)
        timeout_ms = _timeout_ms(body.timeout_ms, SWITCH_MS + body.linger_ms)
        return _json_response(
            await self._ask(AdminOperation.HANDOVER, HandoverArguments(linger_ms=body.linger_ms), timeout_ms)
        )

    async def change_members(self, request: Request) -> Response:
        """Adds a controller to the quorum, or a broker to its DLedger group, or removes one."""
        self._authorize_change(request)
        body = await _body(request, ChangeMembersArguments)
        return _json_response(await self._ask(AdminOperation.CHANGE_MEMBERS, body, SWITCH_MS))

    async def log_level(self, request: Request) -> Response:
        """Sets a log level."""
        self._authorize_change(request)
        body = await _body(request, LogLevelArguments)
        return _json_response(await self._ask(AdminOperation.LOG_LEVEL, body, CHANGE_MS))

    async def change_config(self, request: Request) -> Response:
        """Changes settings; the body is an object of keys and values."""
        self._authorize_change(request)
        body = await _body(request, dict[str, str | int | float | bool])
        changes = {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in body.items()
        }
        return _json_response(
            await self._ask(AdminOperation.CHANGE_CONFIG, ChangeConfigArguments(changes=changes), CHANGE_MS)
        )

    async def reload_config(self, request: Request) -> Response:
        """Applies a whole configuration file to the running process."""
        self._authorize_change(request)
        body = await _body(request, ReloadConfigArguments)
        return _json_response(await self._ask(AdminOperation.RELOAD_CONFIG, body, CHANGE_MS))

    # authorization

    def _authorize_read(self, request: Request) -> None:
        if self._config.admin_reads == "guarded":
            self._authorize_change(request)

    def _authorize_change(self, request: Request) -> None:
        if getattr(request.state, CLIENT_CERTIFICATE, False):
            return
        if not self._tokens.exist and not self._config.admin_tls_ca_file:
            raise HttpRejection(
                403, "forbidden", "this sidecar changes nothing, because adminTokenFile is not set"
            )
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            token = request.headers.get(TOKEN_HEADER, "")
        if not self._tokens.accepts(token.strip()):
            raise HttpRejection(
                401, "unauthorized", "this request needs a bearer token or a client certificate"
            )


def make_app(config: SidecarConfig, tokens: Tokens, ask: LocalCall) -> FastAPI:
    """Builds the application."""
    app = FastAPI(title="EpochMQ admin", version="v1", docs_url=None, redoc_url=None)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    sidecar = SidecarHandlers(config, tokens, ask)

    def route(method: str, path: str, handler: Callable[..., Awaitable[Response]]) -> None:
        app.add_api_route(path, handler, methods=[method], response_model=None, **describe(method, path))

    route("GET", "/live", sidecar.live)
    route("GET", "/ready", sidecar.ready)
    route("GET", "/metrics", sidecar.metrics)
    for path, operation in READS.items():
        route("GET", path, sidecar.read(operation))
    route("GET", "/v1/epoch-file", sidecar.epoch_file)
    route("POST", "/v1/promote", sidecar.promote)
    route("POST", "/v1/handover", sidecar.handover)
    for path, (operation, default_ms) in CONTROLS.items():
        route("POST", path, sidecar.control(operation, default_ms))
    route("PUT", "/v1/members", sidecar.change_members)
    route("PUT", "/v1/log-level", sidecar.log_level)
    route("PATCH", "/v1/config", sidecar.change_config)
    route("PUT", "/v1/config", sidecar.reload_config)
    app.add_exception_handler(HttpRejection, _respond_to_rejection)
    app.add_exception_handler(EpochMQError, _respond_to_error)
    return app


async def _respond_to_rejection(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpRejection)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return _error_response(error.status, error.kind, str(error), headers)


async def _respond_to_error(request: Request, error: Exception) -> Response:
    if isinstance(error, AdminError):
        return _error_response(STATUS[error.kind], error.kind, error.message)
    if isinstance(error, CallTimeoutError):
        return _error_response(504, FaultKind.TIMEOUT, str(error))
    if isinstance(error, RemoteProtocolError):
        return _error_response(502, "broken", str(error))
    return _error_response(503, "silent", str(error))


def _error_response(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
) -> Response:
    return _json_response(msgspec.json.encode({"error": {"kind": kind, "message": message}}), status, headers)


def _json_response(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


async def _body(request: Request, kind: type[T]) -> T:
    """Decodes the body as this type; an empty body counts as an empty object."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_MAX_BYTES:
            raise HttpRejection(413, FaultKind.INVALID, f"the body has more than {BODY_MAX_BYTES} bytes")
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpRejection(400, FaultKind.INVALID, f"the body is invalid: {error}") from None


def _timeout_ms(wanted: Any, default_ms: int) -> int:
    timeout_ms: int = default_ms if wanted is None else wanted
    if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
        raise HttpRejection(400, FaultKind.INVALID, f"timeoutMs={timeout_ms}: expected 1 to {TIMEOUT_MAX_MS}")
    return timeout_ms
