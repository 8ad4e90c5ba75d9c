"""The admin socket accepts only the same user, replaces a dead process's socket, and survives malformed
input."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from epochmq_protocol.admin_api.messages import AdminError, AdminRequest, FaultKind, encode
from epochmq_protocol.admin_api.operations import AdminArguments, PromoteArguments
from epochmq_protocol.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    RemoteProtocolError,
    RequestError,
)
from epochmq_protocol.transport import admin_socket
from epochmq_protocol.transport.admin_socket import (
    AdminOperationHandler,
    AdminSocketServer,
    call_admin_socket,
)


class Process:
    """A process with a few operations."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.released = asyncio.Event()
        self.waiting = asyncio.Event()
        self.cancelled = 0
        self.server = AdminSocketServer(
            self.path,
            {
                "add": AdminOperationHandler(PromoteArguments, self._add),
                "wait": AdminOperationHandler(AdminArguments, self._wait),
                "reject": AdminOperationHandler(AdminArguments, self._reject),
                "break": AdminOperationHandler(AdminArguments, self._break),
            },
        )

    async def _add(self, arguments: PromoteArguments, timeout_ms: float) -> dict[str, float]:
        return {"brokerId": arguments.broker_id or 0, "timeoutMs": timeout_ms}

    async def _wait(self, _: AdminArguments, timeout_ms: float) -> str:
        self.waiting.set()
        try:
            await self.released.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "waited"

    async def _reject(self, _: AdminArguments, timeout_ms: float) -> None:
        raise RequestError(1, "not this")

    async def _break(self, _: AdminArguments, timeout_ms: float) -> None:
        raise ZeroDivisionError("a fault")

    async def ask(
        self, operation: str, arguments: AdminArguments | None = None, timeout_ms: int = 60_000
    ) -> object:
        found = await call_admin_socket(self.path, operation, arguments, timeout_ms=timeout_ms)
        return msgspec.json.decode(found)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    made = Process(tmp_path / "run" / "admin.sock")
    await made.server.start()
    yield made
    await made.server.stop()


async def test_an_operation_gets_its_arguments_and_its_time(process: Process) -> None:
    assert await process.ask("add", PromoteArguments(broker_id=7), 9000) == {"brokerId": 7, "timeoutMs": 9000}
    assert await process.ask("add") == {"brokerId": 0, "timeoutMs": 60000}


async def test_only_the_same_user_may_connect(process: Process) -> None:
    mode = (await asyncio.to_thread(Path(process.path).stat)).st_mode
    assert stat.filemode(mode) == "srw-------"


@pytest.mark.parametrize(
    ("operation", "kind", "cause"),
    [
        ("odd", FaultKind.UNKNOWN, "operation=odd: expected one of add, break, reject, wait"),
        ("reject", FaultKind.REFUSED, "not this"),
        ("break", FaultKind.FAILED, "ZeroDivisionError: a fault"),
    ],
)
async def test_the_kind_of_a_fault_says_what_the_caller_should_do(
    process: Process, operation: str, kind: FaultKind, cause: str
) -> None:
    with pytest.raises(AdminError, match=cause) as caught:
        await process.ask(operation)
    assert caught.value.kind is kind


async def test_an_operation_that_takes_too_long_is_cancelled_and_reported(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        admin_socket, "GRACE_MS", 60_000
    )  # the response must come from the process, not from the timeout of the caller
    with pytest.raises(AdminError, match="wait took more than 30 ms") as caught:
        await process.ask("wait", timeout_ms=30)
    assert caught.value.kind is FaultKind.TIMEOUT
    assert process.cancelled == 1


async def test_a_call_to_a_process_that_hangs_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_socket, "GRACE_MS", 20)
    ended = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    async with await asyncio.start_unix_server(hang, tmp_path / "s"):
        with pytest.raises(CallTimeoutError, match="no response to state within 30 ms"):
            await call_admin_socket(str(tmp_path / "s"), "state", timeout_ms=30)
        ended.set()


async def test_a_missing_and_a_malformed_response_raise_different_errors(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with pytest.raises(ConnectError, match="no process listens at"):
        await call_admin_socket(path, "state")
    responses = [b"", b"\0\0\0\x02{}", b"HTTP/1.1 200 OK\r\n"]

    async def response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(responses.pop(0))
        writer.close()

    async with await asyncio.start_unix_server(response, path):
        with pytest.raises(ConnectionClosedError):
            await call_admin_socket(path, "state")
        for _ in range(2):
            with pytest.raises(RemoteProtocolError):
                await call_admin_socket(path, "state")


NONSENSE = [
    b"",
    b"\0\0",
    b"\0\0\0\0",
    b"\xff\xff\xff\xff" + b"x" * 1000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\0\0\0\x10half",
    b"\0\0\0\x04nope",
    b"\0\0\0\x02[]",
    encode(AdminRequest("add", msgspec.Raw(b'{"brokerId":"x"}'))),
    encode(AdminRequest("add", msgspec.Raw(b"null"))),
]


@pytest.mark.parametrize("data", NONSENSE)
async def test_after_any_bytes_the_next_client_gets_a_response(process: Process, data: bytes) -> None:
    reader, writer = await asyncio.open_unix_connection(process.path)
    writer.write(data)
    writer.write_eof()
    response = await asyncio.wait_for(reader.read(), 60)
    assert response == b"" or b'"kind":"invalid"' in response
    writer.close()
    assert await process.ask("add") == {"brokerId": 0, "timeoutMs": 60000}


async def test_a_client_that_sends_nothing_is_disconnected(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_socket, "READ_S", 0.05)
    reader, writer = await asyncio.open_unix_connection(process.path)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


async def test_connections_beyond_the_bound_get_busy(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_socket, "CONNECTIONS_MAX", 2)
    asked = [asyncio.create_task(process.ask("wait")) for _ in range(3)]
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    assert len(waiting) == 2
    with pytest.raises(AdminError, match="2 connections are open"):
        done.pop().result()
    process.released.set()
    assert [await one for one in waiting] == ["waited", "waited"]


async def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = await asyncio.start_unix_server(lambda r, w: None, path)
    first.close()
    await first.wait_closed()
    assert path.exists()
    second = Process(path)
    await second.server.start()
    assert await second.ask("add") == {"brokerId": 0, "timeoutMs": 60000}
    await second.server.stop()
    assert not path.exists()


async def test_the_socket_of_a_living_process_is_not_replaced(process: Process) -> None:
    with pytest.raises(ConfigError, match="another process serves it"):
        await Process(Path(process.path)).server.start()
    assert await process.ask("add") == {"brokerId": 0, "timeoutMs": 60000}


async def test_a_file_that_is_not_a_socket_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="not a socket"):
        await Process(path).server.start()
    assert path.read_text() == "precious"


@pytest.mark.parametrize("path", ["admin.sock", "/" + "x" * 104, ""])
def test_a_path_that_a_socket_cannot_have_is_rejected(path: str) -> None:
    with pytest.raises(ConfigError, match=r"adminSocketPath=.*: expected an absolute path of at most 103"):
        AdminSocketServer(path, {})


async def test_a_stop_cancels_running_operations(process: Process) -> None:
    asked = asyncio.create_task(process.ask("wait"))
    await asyncio.wait_for(process.waiting.wait(), 60)
    await process.server.stop()
    with pytest.raises(ConnectionClosedError):
        await asked
    assert process.cancelled == 1
    with pytest.raises(ConnectError):
        await process.ask("add")
