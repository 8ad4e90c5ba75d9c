"""The HTTP server of the sidecar: the operation of each path, authorization, and error responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminArguments,
    AdminOperation,
    ChangeConfigArguments,
    ChangeMembersArguments,
    HandoverArguments,
    LogLevelArguments,
    PromoteArguments,
    ReadinessLimits,
    ReloadConfigArguments,
)
from epochmq_protocol.errors import CallTimeoutError, ConnectError, EpochMQError, RemoteProtocolError
from epochmq_sidecar.app import CLIENT_CERTIFICATE, make_app
from epochmq_sidecar.config import SidecarConfig
from epochmq_sidecar.credentials import Tokens
from epochmq_sidecar.openapi import MASTER, PATHS

TOKEN = "a-token-of-good-length"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


class Process:
    """Replaces the process: records the calls and returns the configured results."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, AdminArguments | None, int]] = []
        self.answer: object = {"done": True}
        self.fault: EpochMQError | None = None

    async def __call__(self, operation: str, arguments: AdminArguments | None, timeout_ms: int) -> bytes:
        self.asked.append((operation, arguments, timeout_ms))
        if self.fault is not None:
            raise self.fault
        return msgspec.json.encode(self.answer)


@pytest.fixture
def process() -> Process:
    return Process()


Client = Callable[..., httpx.AsyncClient]


@pytest.fixture
async def open_client(process: Process, tmp_path: Path) -> AsyncIterator[Client]:
    """Makes a client of a sidecar with these settings."""
    made: list[httpx.AsyncClient] = []
    (tmp_path / "token").write_text(TOKEN)

    def make(*, certificate: bool = False, token: bool = True, **settings: Any) -> httpx.AsyncClient:
        config = SidecarConfig(admin_token_file=str(tmp_path / "token") if token else "", **settings)
        app = make_app(config, Tokens(config), process)

        async def over_a_connection(scope: Any, receive: Any, send: Any) -> None:
            scope["state"] = {CLIENT_CERTIFICATE: certificate}
            await app(scope, receive, send)

        transport = httpx.ASGITransport(app=over_a_connection)
        made.append(httpx.AsyncClient(transport=transport, base_url="http://sidecar"))
        return made[-1]

    yield make
    for one in made:
        await one.aclose()


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/state", AdminOperation.STATE),
        ("/v1/epochs", AdminOperation.EPOCHS),
        ("/v1/sync-state-set", AdminOperation.SYNC_STATE_SET),
        ("/v1/lag", AdminOperation.LAG),
        ("/v1/lease", AdminOperation.LEASE),
        ("/v1/config", AdminOperation.CONFIG),
        ("/live", AdminOperation.LIVE),
    ],
)
async def test_the_result_of_the_process_is_forwarded(
    process: Process, open_client: Client, path: str, operation: AdminOperation
) -> None:
    process.answer = {"some": ["thing", 1]}
    response = await open_client(socket_timeout_ms=700, ready_max_lag_bytes=9).get(path)
    assert (response.status_code, response.json()) == (200, process.answer)
    limits = ReadinessLimits(max_lag_bytes=9) if operation is AdminOperation.STATE else None
    assert process.asked == [(operation, limits, 700)]


async def test_the_epoch_file_is_returned_unchanged(process: Process, open_client: Client) -> None:
    process.answer = results.EpochFileContent(path="x", content=b"\x00raw\n")
    response = await open_client().get("/v1/epoch-file")
    assert (response.status_code, response.content) == (200, b"\x00raw\n")


async def test_readiness_gives_the_reasons(process: Process, open_client: Client) -> None:
    process.answer = MASTER
    response = await open_client().get("/ready")
    assert response.status_code == 200
    assert response.json() == {"ready": True, "notReady": [], "component": "broker", "role": "master"}
    process.answer = msgspec.structs.replace(MASTER, ready=False, not_ready=["the disk is full"])
    response = await open_client().get("/ready")
    assert (response.status_code, response.json()["notReady"]) == (503, ["the disk is full"])
    process.fault = ConnectError("no process listens at /s")
    response = await open_client().get("/ready")
    assert (response.status_code, response.json()) == (
        503,
        {"ready": False, "notReady": ["no process listens at /s"]},
    )


async def test_metrics_of_a_process_that_responds_and_of_one_that_does_not(
    process: Process, open_client: Client
) -> None:
    process.answer = results.MetricValues(state=MASTER, values={})
    response = await open_client().get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "epochmq_up 1.0\n" in response.text
    assert len(list(text_string_to_metric_families(response.text))) > 10
    process.fault = CallTimeoutError("late")
    response = await open_client().get("/metrics")
    assert (response.status_code, "epochmq_up 0.0\n" in response.text) == (200, True)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (AdminError(FaultKind.UNKNOWN, "a controller knows no epochs"), 404),
        (AdminError(FaultKind.INVALID, "no"), 400),
        (AdminError(FaultKind.REFUSED, "no"), 409),
        (AdminError(FaultKind.TIMEOUT, "no"), 504),
        (AdminError(FaultKind.BUSY, "no"), 503),
        (AdminError(FaultKind.FAILED, "no"), 500),
        (ConnectError("no"), 503),
        (CallTimeoutError("no"), 504),
        (RemoteProtocolError("no"), 502),
    ],
)
async def test_an_error_has_a_status_a_kind_and_a_message(
    process: Process, open_client: Client, fault: EpochMQError, status: int
) -> None:
    process.fault = fault
    response = await open_client().get("/v1/epochs")
    assert (response.status_code, response.json()["error"]["message"]) == (status, str(fault))


WRITES = [
    (
        "POST",
        "/v1/promote",
        {"brokerId": 2, "timeoutMs": 900},
        (AdminOperation.PROMOTE, PromoteArguments(broker_id=2), 900),
    ),
    ("POST", "/v1/promote", None, (AdminOperation.PROMOTE, PromoteArguments(), 15_000)),
    ("POST", "/v1/handover", {"timeoutMs": 20_000}, (AdminOperation.HANDOVER, HandoverArguments(), 20_000)),
    (
        "POST",
        "/v1/handover",
        {"lingerMs": 900},
        (AdminOperation.HANDOVER, HandoverArguments(linger_ms=900), 15_900),
    ),
    (
        "PUT",
        "/v1/members",
        {"member": "n3", "address": "h:1"},
        (AdminOperation.CHANGE_MEMBERS, ChangeMembersArguments(member="n3", address="h:1"), 15_000),
    ),
    (
        "PUT",
        "/v1/members",
        {"member": "n3"},
        (AdminOperation.CHANGE_MEMBERS, ChangeMembersArguments(member="n3"), 15_000),
    ),
    ("POST", "/v1/fence", None, (AdminOperation.FENCE, None, 10_000)),
    ("POST", "/v1/unfence", None, (AdminOperation.UNFENCE, None, 10_000)),
    ("POST", "/v1/drain", None, (AdminOperation.DRAIN, None, 30_000)),
    ("POST", "/v1/undrain", {}, (AdminOperation.UNDRAIN, None, 10_000)),
    ("POST", "/v1/adopt-store", None, (AdminOperation.ADOPT_STORE, None, 10_000)),
    ("POST", "/v1/discard-store", {}, (AdminOperation.DISCARD_STORE, None, 10_000)),
    (
        "PUT",
        "/v1/log-level",
        {"level": "DEBUG"},
        (AdminOperation.LOG_LEVEL, LogLevelArguments(level="DEBUG"), 10_000),
    ),
    (
        "PATCH",
        "/v1/config",
        {"a": True, "b": 5, "c": "x"},
        (
            AdminOperation.CHANGE_CONFIG,
            ChangeConfigArguments(changes={"a": "true", "b": "5", "c": "x"}),
            10_000,
        ),
    ),
    (
        "PUT",
        "/v1/config",
        {"config": {"a": "true"}, "version": "orders-broker-1"},
        (
            AdminOperation.RELOAD_CONFIG,
            ReloadConfigArguments(config={"a": "true"}, version="orders-broker-1"),
            10_000,
        ),
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "asked"), WRITES)
async def test_a_change_needs_a_token_or_a_certificate(
    process: Process, open_client: Client, method: str, path: str, body: Any, asked: Any
) -> None:
    client = open_client()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
        response = await client.request(method, path, json=body, headers=headers)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert process.asked == []
    response = await client.request(method, path, json=body, headers=AUTHORIZED)
    assert (response.status_code, response.json()) == (200, {"done": True})
    assert process.asked == [asked]
    response = await open_client(certificate=True).request(method, path, json=body)
    assert (response.status_code, process.asked) == (200, [asked, asked])
    for token, status in (("wrong", 401), (TOKEN, 200)):
        response = await client.request(method, path, json=body, headers={"X-EpochMQ-Token": token})
        assert response.status_code == status


async def test_without_configured_credentials_every_change_is_rejected(
    process: Process, open_client: Client
) -> None:
    response = await open_client(token=False).post("/v1/fence", headers=AUTHORIZED)
    assert response.status_code == 403
    assert "adminTokenFile is not set" in response.json()["error"]["message"]
    assert process.asked == []


async def test_reads_can_be_guarded_and_probes_never_are(process: Process, open_client: Client) -> None:
    process.answer = MASTER
    client = open_client(admin_reads="guarded")
    guarded = ["/v1/state", "/v1/config", "/v1/epoch-file", "/metrics"]
    assert [(await client.get(path)).status_code for path in guarded] == [401] * 4
    assert [(await client.get(path)).status_code for path in ("/live", "/ready")] == [200, 200]
    assert (await client.get("/v1/state", headers=AUTHORIZED)).status_code == 200
    assert (await open_client(admin_reads="guarded", certificate=True).get("/v1/state")).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/v1/promote", b'{"brokerId":"two"}', "Expected `int | null`, got `str` - at `$.brokerId`"),
        ("POST", "/v1/promote", b'{"broker":2}', "unknown field `broker`"),
        ("POST", "/v1/handover", b'{"timeoutMs":0}', "timeoutMs=0: expected 1 to 120000"),
        ("POST", "/v1/handover", b'{"timeoutMs":120001}', "timeoutMs=120001: expected 1 to 120000"),
        ("POST", "/v1/handover", b'{"lingerMs":90001}', "Expected `int` <= 90000"),
        ("PUT", "/v1/members", b'{"address":"h:1"}', "missing required field `member`"),
        ("POST", "/v1/fence", b"[]", "the body is invalid: Expected `object`, got `array`"),
        ("PUT", "/v1/log-level", b'{"level":"LOUD"}', "Invalid enum value 'LOUD'"),
        ("PATCH", "/v1/config", b'{"a":null}', "the body is invalid:"),
        ("PUT", "/v1/config", b'{"config":{"a":"b"}}', "missing required field `version`"),
        ("PUT", "/v1/config", b'{"config":{},"version":"1"}', "Expected `object` of length >= 1"),
        ("PATCH", "/v1/config", b"\xff", "the body is invalid:"),
        ("PATCH", "/v1/config", b"[" * 30_000, "the body is invalid:"),
    ],
)
async def test_an_invalid_body_is_not_forwarded(
    process: Process, open_client: Client, method: str, path: str, body: bytes, message: str
) -> None:
    response = await open_client().request(method, path, content=body, headers=AUTHORIZED)
    assert response.status_code == 400
    assert message in response.json()["error"]["message"]
    assert process.asked == []


async def test_a_body_that_is_too_large_is_not_read_completely(process: Process, open_client: Client) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while taken < 100:
            taken += 1
            yield b"x" * 8192

    response = await open_client().post("/v1/fence", content=endless(), headers=AUTHORIZED)
    assert (response.status_code, process.asked) == (413, [])


async def test_the_description_has_every_path_with_examples_of_its_type(open_client: Client) -> None:
    found = (await open_client().get("/openapi.json")).json()
    paths = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert paths == set(PATHS)
    schemas = found["components"]["schemas"]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"]
            if method != "get":
                assert "example" in operation["requestBody"]["content"]["application/json"]
            elif path.startswith("/v1/") and path != "/v1/epoch-file":
                content = operation["responses"]["200"]["content"]["application/json"]
                assert content["examples"]
    assert {"BrokerState", "ControllerState", "NameserverState", "SwitchoverResult"} <= schemas.keys()
    example = found["paths"]["/v1/state"]["get"]["responses"]["200"]["content"]["application/json"]
    for value in example["examples"].values():
        assert msgspec.convert(value["value"], results.ProcessState)


async def test_an_unknown_path_is_not_found(open_client: Client) -> None:
    client = open_client()
    assert (await client.get("/v2/state")).status_code == 404
    assert (await client.get("/v1/fence")).status_code == 405
