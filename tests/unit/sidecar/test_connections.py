"""Idle connections to the sidecar are closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from epochmq_sidecar import main
from epochmq_sidecar.app import CLIENT_CERTIFICATE


class Wire:
    """A transport that records what is written."""

    def __init__(self, certificate: dict[str, str] | None = None) -> None:
        self.written = b""
        self.closed, self.wrote = asyncio.Event(), asyncio.Event()
        self._certificate = certificate

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._certificate if name == "peercert" else default

    def write(self, data: bytes) -> None:
        self.written += data
        self.wrote.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()

    def set_protocol(self, protocol: object) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class App:
    """Responds when the test allows it; records the state of the connection."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.asked = asyncio.Semaphore(0)
        self.states: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.states.append(scope["state"])
        self.asked.release()
        await self.may.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    monkeypatch.setattr(main, "IDLE_S", 0.03)
    app = App()
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False)
    opened: list[main.HTTPConnection] = []

    state = ServerState()

    def connect(wire: Wire) -> main.HTTPConnection:
        made = main.HTTPConnection(config, state, {})
        made.connection_made(wire)  # type: ignore[arg-type]
        opened.append(made)
        return made

    yield SimpleNamespace(app=app, connect=connect, config=config)
    for one in opened:
        one.connection_lost(None)


REQUEST = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("data", [b"", b"GET /live HT", REQUEST[:-1]])
async def test_a_connection_without_a_request_is_closed(served: Any, data: bytes) -> None:
    wire = Wire()
    connection = served.connect(wire)
    if data:
        connection.data_received(data)
    await asyncio.wait_for(wire.closed.wait(), 60)


async def test_a_connection_that_waits_for_a_response_stays_open(served: Any) -> None:
    wire = Wire()
    served.connect(wire).data_received(REQUEST)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wire.closed.wait(), 0.3)
    served.app.may.set()
    await asyncio.wait_for(wire.closed.wait(), 60)
    assert b"200 OK" in wire.written


async def test_a_connection_records_whether_the_client_presented_a_certificate(served: Any) -> None:
    served.app.may.set()
    for certificate in (None, {"subject": "x"}):
        served.connect(Wire(certificate)).data_received(REQUEST)
    for _ in range(2):
        await asyncio.wait_for(served.app.asked.acquire(), 60)
    assert [state[CLIENT_CERTIFICATE] for state in served.app.states] == [False, True]


async def test_half_open_connections_make_room_for_a_probe(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise whoever opens 64 connections makes `/ready` answer 503, and the pod loses its traffic."""
    monkeypatch.setattr(main, "IDLE_S", 600)
    half_open = [Wire() for _ in range(3 * main.CONNECTIONS_MAX)]
    for number, wire in enumerate(half_open):
        connection = served.connect(wire)
        connection.limit_concurrency = main.CONNECTIONS_MAX
        if number % 2:
            connection.data_received(b"GET /ready HT")
    probe = Wire()
    connection = served.connect(probe)
    connection.limit_concurrency = main.CONNECTIONS_MAX
    served.app.may.set()
    connection.data_received(REQUEST)
    await asyncio.wait_for(served.app.asked.acquire(), 60)
    await asyncio.wait_for(probe.wrote.wait(), 60)
    assert b"200 OK" in probe.written
    still_open = [wire for wire in half_open if not wire.is_closing()]
    assert still_open == half_open[-len(still_open) :]  # the oldest ones are closed
    assert len(still_open) == main.CONNECTIONS_MAX - 2


async def test_a_connection_with_a_request_is_not_closed_for_another(
    served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(main, "IDLE_S", 600)
    busy = [Wire() for _ in range(3)]
    for wire in busy:
        served.connect(wire).data_received(REQUEST)
    for _ in busy:
        await asyncio.wait_for(served.app.asked.acquire(), 60)
    served.connect(Wire())
    assert not any(wire.is_closing() for wire in busy)
