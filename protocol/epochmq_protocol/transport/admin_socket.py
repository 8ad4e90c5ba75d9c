"""Serves and calls the admin socket of a process, a Unix socket (`admin_api.messages` defines the messages).

The socket file has mode 0600 before it can be used: only processes of the same user can read the state or
change it. The file is created under another name and renamed, so it replaces one that a killed process left
behind. A socket that another process still serves is not replaced. Connections, sizes, and the time for each
step are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from epochmq_protocol.admin_api.messages import (
    PREFIX_BYTES,
    REQUEST_MAX_BYTES,
    RESPONSE_MAX_BYTES,
    AdminError,
    AdminRequest,
    FaultKind,
    body_size,
    decode_arguments,
    decode_request,
    decode_result,
    encode,
    encode_fault,
    encode_result,
)
from epochmq_protocol.errors import (
    CallTimeoutError,
    ConfigError,
    ConnectError,
    ConnectionClosedError,
    RemoteProtocolError,
    RequestError,
)

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
READ_S: Final = 5.0
"""Time a client has to send its request, or to read the response."""
GRACE_MS: Final = 250
"""Extra time that a client waits, so that the response of a process whose own time ran out still arrives."""
PATH_MAX_BYTES: Final = 107
"""The longest address of a Unix socket (Linux)."""
_NEW: Final = ".new"

RunOperation = Callable[[Any, float], Awaitable[object]]
"""Runs an operation with its arguments and the time it may take in ms. Returns the result, a value that
JSON can hold. AdminError, RequestError, ConfigError: the operation was not done."""


@dataclass(frozen=True, slots=True)
class AdminOperationHandler:
    """The type of an operation's arguments and the function that runs it."""

    arguments: type[msgspec.Struct]
    run: RunOperation


def check_admin_socket_path(path: str) -> None:
    """ConfigError: the path is relative or too long for a socket."""
    if not path.startswith("/") or len(path.encode()) + len(_NEW) > PATH_MAX_BYTES:
        limit = PATH_MAX_BYTES - len(_NEW)
        raise ConfigError("adminSocketPath", path, f"an absolute path of at most {limit} bytes")


class AdminSocketServer:
    """The server of one admin socket. `start` and `stop` it once."""

    def __init__(self, path: str, operations: Mapping[str, AdminOperationHandler]) -> None:
        """`operations` by name. ConfigError: the path is relative or too long."""
        check_admin_socket_path(path)
        self.path = Path(path)
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listens. ConfigError: the file cannot be created, or another process serves it."""
        try:
            listener = await asyncio.to_thread(_create_listener, self.path)
        except OSError as error:
            raise ConfigError(
                "adminSocketPath",
                str(self.path),
                f"a path where a socket can be created ({error.strerror or error})",
            ) from None
        self._inode = self.path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._accepted, sock=listener)
        log.info("admin socket listens at %s", self.path)

    async def stop(self) -> None:
        """Cancels running operations and removes the file, unless another process has replaced it."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_busy = len(self._connections) >= CONNECTIONS_MAX
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, is_busy=is_busy))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_busy: bool
    ) -> None:
        """Serves one connection. Faults of the client end the connection only."""
        try:
            if is_busy:
                response = encode_fault(AdminError(FaultKind.BUSY, f"{CONNECTIONS_MAX} connections are open"))
            else:
                async with asyncio.timeout(READ_S):
                    body = await _read(reader, REQUEST_MAX_BYTES)
                response = await self._respond(body)
            writer.write(response)
            async with asyncio.timeout(READ_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, RemoteProtocolError) as error:
            log.debug("a connection to the admin socket %s ended early: %s", self.path, error)
        finally:
            writer.transport.abort()

    async def _respond(self, body: bytes) -> bytes:
        try:
            request = decode_request(body)
            operation = self._operations.get(request.operation)
            if operation is None:
                known = ", ".join(sorted(self._operations))
                raise AdminError(FaultKind.UNKNOWN, f"operation={request.operation}: expected one of {known}")
            arguments = decode_arguments(request, operation.arguments)
            async with asyncio.timeout(request.timeout_ms / 1000):
                return encode_result(await operation.run(arguments, request.timeout_ms))
        except AdminError as error:
            return encode_fault(error)
        except (RequestError, ConfigError) as error:
            return encode_fault(AdminError(FaultKind.REFUSED, str(error)))
        except TimeoutError:
            return encode_fault(
                AdminError(FaultKind.TIMEOUT, f"{request.operation} took more than {request.timeout_ms} ms")
            )
        except Exception as error:
            log.exception("an operation of the admin socket raised")
            return encode_fault(AdminError(FaultKind.FAILED, f"{type(error).__name__}: {error}"))


async def call_admin_socket(
    path: str, operation: str, arguments: msgspec.Struct | None = None, *, timeout_ms: int = 1000
) -> bytes:
    """Runs an operation of the process behind an admin socket; returns the result as JSON. AdminError: the
    operation was not done. ConnectError, CallTimeoutError, ConnectionClosedError, RemoteProtocolError: no
    valid response."""
    encoded = msgspec.Raw(msgspec.json.encode(arguments) if arguments is not None else b"{}")
    request = encode(AdminRequest(operation, encoded, timeout_ms))
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout((timeout_ms + GRACE_MS) / 1000):
            try:
                reader, writer = await asyncio.open_unix_connection(path)
            except OSError as error:
                why = error.strerror or error
                raise ConnectError(f"no process listens at {path}: {why}") from None
            writer.write(request)
            return decode_result(await _read(reader, RESPONSE_MAX_BYTES))
    except TimeoutError:
        raise CallTimeoutError(f"{path}: no response to {operation} within {timeout_ms} ms") from None
    except (OSError, EOFError):
        raise ConnectionClosedError(
            f"{path}: the connection ended before the response to {operation}"
        ) from None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, size_max: int) -> bytes:
    """Reads one message. IncompleteReadError (an EOFError): it is incomplete."""
    return await reader.readexactly(body_size(await reader.readexactly(PREFIX_BYTES), size_max))


def _create_listener(path: Path) -> socket.socket:
    """Creates a listening socket with mode 0600, in place of a socket that no process serves. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise OSError(f"{path} exists and is not a socket")
        if _is_served(path):
            raise OSError("another process serves it")
    new = path.with_name(path.name + _NEW)
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(new))
        new.chmod(0o600)  # no client can connect yet: it does not listen
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
        new.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
