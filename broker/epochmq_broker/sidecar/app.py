"""The HTTP surface: which path asks the process for what, who may, and how a fault looks.

What the process answers is passed on as it is; nothing is kept here. Reading is open unless
`adminReads=guarded`; whatever changes something needs a token, or a client certificate. `/live` and `/ready`
are for probes, and always open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response

from epochmq_broker.sidecar import metrics
from epochmq_broker.sidecar.config import SidecarConfig
from epochmq_broker.sidecar.credentials import Tokens
from epochmq_broker.sidecar.openapi import describe, openapi
from epochmq_protocol.admin_api.messages import TIMEOUT_MAX_MS, AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    LINGER_MAX_MS,
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    HandoverArguments,
    LogLevelArguments,
    PromoteArguments,
)
from epochmq_protocol.admin_api.results import EpochFileContent, MetricValues, ProcessState
from epochmq_protocol.errors import CallTimeoutError, EpochMQError, RemoteProtocolError

T = TypeVar("T")

BODY_MAX_BYTES: Final = 32 * 1024
SWITCH_MS: Final = 15_000
DRAIN_MS: Final = 30_000
CHANGE_MS: Final = 10_000
CLIENT_CERTIFICATE: Final = "client_certificate"
"""In a connection's state: whether the client has shown a certificate, which was checked."""

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
STEERS: Final = {
    "/v1/fence": (AdminOperation.FENCE, CHANGE_MS),
    "/v1/unfence": (AdminOperation.UNFENCE, CHANGE_MS),
    "/v1/drain": (AdminOperation.DRAIN, DRAIN_MS),
    "/v1/undrain": (AdminOperation.UNDRAIN, CHANGE_MS),
}


class LocalCall(Protocol):
    """The process beside this one."""

    async def __call__(self, operation: str, arguments: AdminArguments | None, timeout_ms: int) -> bytes:
        """Its answer, as JSON; EpochMQError (an AdminError when it says no)."""
        ...


class HttpRejection(Exception):  # noqa: N818 (an answer, not a fault)
    """A request that is not passed on."""

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
    """The handlers."""

    def __init__(self, config: SidecarConfig, tokens: Tokens, ask: LocalCall) -> None:
        self._config = config
        self._tokens = tokens
        self._ask = ask

    # Probes

    async def live(self) -> Response:
        """Whether the process answers."""
        return _json(await self._ask(AdminOperation.LIVE, None, self._config.socket_timeout_ms))

    async def ready(self) -> Response:
        """Whether the process is ready, and if not, why."""
        try:
            raw = await self._ask(AdminOperation.STATE, self._config.limits, self._config.socket_timeout_ms)
        except EpochMQError as error:
            return _json(msgspec.json.encode({"ready": False, "notReady": [str(error)]}), 503)
        state = msgspec.json.decode(raw, type=ProcessState)
        shown = {
            "ready": state.ready,
            "notReady": state.not_ready,
            "component": state.__struct_config__.tag,
            "role": getattr(state, "role", None),
        }
        return _json(msgspec.json.encode(shown), 200 if state.ready else 503)

    # Reading

    def read(self, operation: AdminOperation) -> Callable[[Request], Awaitable[Response]]:
        """A handler that passes on what the process says."""
        arguments = self._config.limits if operation is AdminOperation.STATE else None

        async def handler(request: Request) -> Response:
            self._may_read(request)
            return _json(await self._ask(operation, arguments, self._config.socket_timeout_ms))

        return handler

    async def epoch_file(self, request: Request) -> Response:
        """The file's own bytes."""
        self._may_read(request)
        raw = await self._ask(AdminOperation.EPOCH_FILE, None, self._config.socket_timeout_ms)
        content = msgspec.json.decode(raw, type=EpochFileContent).content
        return Response(content, media_type="application/octet-stream")

    async def metrics(self, request: Request) -> Response:
        """A process that does not answer is a metric, too."""
        self._may_read(request)
        try:
            raw = await self._ask(AdminOperation.METRICS, self._config.limits, self._config.socket_timeout_ms)
        except EpochMQError as error:
            return Response(metrics.silent(str(error)), media_type=metrics.CONTENT_TYPE)
        text = metrics.exposition(msgspec.json.decode(raw, type=MetricValues))
        return Response(text, media_type=metrics.CONTENT_TYPE)

    # Changing

    def steer(self, operation: AdminOperation, default_ms: int) -> Callable[[Request], Awaitable[Response]]:
        """A handler that has something done."""

        async def handler(request: Request) -> Response:
            self._may_write(request)
            body = await _body(request, _Timed)
            return _json(await self._ask(operation, None, _timeout_ms(body.timeout_ms, default_ms)))

        return handler

    async def promote(self, request: Request) -> Response:
        """Another master."""
        self._may_write(request)
        body = await _body(request, _TimedPromote)
        timeout_ms = _timeout_ms(body.timeout_ms, SWITCH_MS)
        return _json(
            await self._ask(AdminOperation.PROMOTE, PromoteArguments(broker_id=body.broker_id), timeout_ms)
        )

    async def handover(self, request: Request) -> Response:
        """Any other master."""
        self._may_write(request)
        body = await _body(request, _TimedHandover)
        timeout_ms = _timeout_ms(body.timeout_ms, SWITCH_MS + body.linger_ms)
        return _json(
            await self._ask(AdminOperation.HANDOVER, HandoverArguments(linger_ms=body.linger_ms), timeout_ms)
        )

    async def log_level(self, request: Request) -> Response:
        """Another log level."""
        self._may_write(request)
        body = await _body(request, LogLevelArguments)
        return _json(await self._ask(AdminOperation.LOG_LEVEL, body, CHANGE_MS))

    async def change_config(self, request: Request) -> Response:
        """Other settings: an object of keys and values."""
        self._may_write(request)
        body = await _body(request, dict[str, str | int | float | bool])
        changes = {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in body.items()
        }
        return _json(
            await self._ask(AdminOperation.CHANGE_CONFIG, ChangeConfigArguments(changes=changes), CHANGE_MS)
        )

    # Who may

    def _may_read(self, request: Request) -> None:
        if self._config.admin_reads == "guarded":
            self._may_write(request)

    def _may_write(self, request: Request) -> None:
        if getattr(request.state, CLIENT_CERTIFICATE, False):
            return
        if not self._tokens.exist and not self._config.admin_tls_ca_file:
            raise HttpRejection(403, "forbidden", "nothing is changed here: adminTokenFile is not set")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not self._tokens.accepts(token.strip()):
            raise HttpRejection(401, "unauthorized", "a bearer token, or a client certificate, is needed")


def make_app(config: SidecarConfig, tokens: Tokens, ask: LocalCall) -> FastAPI:
    """The application."""
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
    for path, (operation, default_ms) in STEERS.items():
        route("POST", path, sidecar.steer(operation, default_ms))
    route("PUT", "/v1/log-level", sidecar.log_level)
    route("PATCH", "/v1/config", sidecar.change_config)
    app.add_exception_handler(HttpRejection, _refused)
    app.add_exception_handler(EpochMQError, _failed)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HttpRejection)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return _fault(error.status, error.kind, str(error), headers)


async def _failed(request: Request, error: Exception) -> Response:
    if isinstance(error, AdminError):
        return _fault(STATUS[error.kind], error.kind, error.message)
    if isinstance(error, CallTimeoutError):
        return _fault(504, FaultKind.TIMEOUT, str(error))
    if isinstance(error, RemoteProtocolError):
        return _fault(502, "broken", str(error))
    return _fault(503, "silent", str(error))


def _fault(status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return _json(msgspec.json.encode({"error": {"kind": kind, "message": message}}), status, headers)


def _json(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, media_type="application/json")


async def _body(request: Request, kind: type[T]) -> T:
    """The body as this type; an empty one is an empty object."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_MAX_BYTES:
            raise HttpRejection(
                413, FaultKind.INVALID, f"a body of at most {BODY_MAX_BYTES} bytes is expected"
            )
    try:
        return msgspec.json.decode(bytes(data) or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpRejection(400, FaultKind.INVALID, f"the body: {error}") from None


def _timeout_ms(wanted: Any, default_ms: int) -> int:
    timeout_ms: int = default_ms if wanted is None else wanted
    if not 0 < timeout_ms <= TIMEOUT_MAX_MS:
        raise HttpRejection(400, FaultKind.INVALID, f"timeoutMs={timeout_ms}: expected 1 to {TIMEOUT_MAX_MS}")
    return timeout_ms
