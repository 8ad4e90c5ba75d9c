"""The local socket by which a process is administered (`admin.messages` says what goes over it): the server
that the process starts, and one call of a client.

The file has mode 0600 from its first moment: only who runs as the same user reads or steers the process. It
is made under another name and renamed, so it takes the place of one that a killed process left; one at which
somebody answers is not taken. Everything is bounded: connections, sizes, and the time for each step.
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

from epochmq_protocol.admin.messages import (
    ANSWER_MAX_BYTES,
    PREFIX_BYTES,
    REQUEST_MAX_BYTES,
    AdminError,
    FaultKind,
    Request,
    answer_of,
    answer_of_fault,
    body_size,
    decode_answer,
    decode_arguments,
    decode_request,
    encode,
)
from epochmq_protocol.errors import (
    CallTimeout,
    ConfigError,
    ConnectFailed,
    ConnectionClosed,
    RemoteProtocolError,
    RequestError,
)

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
READ_S: Final = 5.0
"""How long a client may take to send its request, or to read its answer."""
GRACE_MS: Final = 250
"""How much longer than the process a client waits, so that the process can say that it took too long."""
PATH_MAX_BYTES: Final = 107
"""What a Unix socket's address has room for."""
_NEW: Final = ".new"

Handler = Callable[[Any, float], Awaitable[object]]
"""Takes the arguments, and how many milliseconds there are; returns what is put into JSON. AdminError,
RequestError or ConfigError when it is not done."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What may be asked of a process, and the arguments' type."""

    arguments: type[msgspec.Struct]
    run: Handler


def check_path(path: str) -> None:
    """ConfigError for a path that no socket can have."""
    if not path.startswith("/") or len(path.encode()) + len(_NEW) > PATH_MAX_BYTES:
        limit = PATH_MAX_BYTES - len(_NEW)
        raise ConfigError("adminSocketPath", path, f"an absolute path of at most {limit} bytes")


class LocalServer:
    """One socket. Make, `start`, `stop`; not started again."""

    def __init__(self, path: str, operations: Mapping[str, Operation]) -> None:
        """ConfigError for a path that cannot be."""
        check_path(path)
        self.path = Path(path)
        self._operations = operations
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listens. ConfigError when the file cannot be made, or another process answers there."""
        try:
            listener = await asyncio.to_thread(_listener, self.path)
        except OSError as error:
            raise ConfigError(
                "adminSocketPath", str(self.path), f"a place for a socket ({error.strerror or error})"
            ) from None
        self._inode = self.path.stat().st_ino
        self._server = await asyncio.start_unix_server(self._accepted, sock=listener)
        log.info("administration at %s", self.path)

    async def stop(self) -> None:
        """Ends what is under way and takes the file away, if it is still ours."""
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
        task = asyncio.get_running_loop().create_task(self._attend(reader, writer, is_busy=is_busy))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _attend(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_busy: bool
    ) -> None:
        """One connection; nothing that comes over it harms the process."""
        try:
            if is_busy:
                answer = answer_of_fault(AdminError(FaultKind.BUSY, f"{CONNECTIONS_MAX} ask already"))
            else:
                async with asyncio.timeout(READ_S):
                    body = await _read(reader, REQUEST_MAX_BYTES)
                answer = await self._answer(body)
            writer.write(answer)
            async with asyncio.timeout(READ_S):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, RemoteProtocolError) as error:
            log.debug("a connection to %s ended: %s", self.path, error)
        finally:
            writer.transport.abort()

    async def _answer(self, body: bytes) -> bytes:
        try:
            request = decode_request(body)
            operation = self._operations.get(request.operation)
            if operation is None:
                known = ", ".join(sorted(self._operations))
                raise AdminError(FaultKind.UNKNOWN, f"operation={request.operation}: expected one of {known}")
            arguments = decode_arguments(request, operation.arguments)
            async with asyncio.timeout(request.timeout_ms / 1000):
                return answer_of(await operation.run(arguments, request.timeout_ms))
        except AdminError as error:
            return answer_of_fault(error)
        except (RequestError, ConfigError) as error:
            return answer_of_fault(AdminError(FaultKind.REFUSED, str(error)))
        except TimeoutError:
            return answer_of_fault(
                AdminError(FaultKind.TIMEOUT, f"{request.operation} took more than {request.timeout_ms} ms")
            )
        except Exception as error:
            log.exception("an operation of the admin socket failed")
            return answer_of_fault(AdminError(FaultKind.FAILED, f"{type(error).__name__}: {error}"))


async def call_local(
    path: str, operation: str, arguments: msgspec.Struct | None = None, *, timeout_ms: int = 1000
) -> bytes:
    """Asks the process behind a socket; its answer as JSON. AdminError when it says no; ConnectFailed,
    CallTimeout, ConnectionClosed or RemoteProtocolError when it says nothing."""
    encoded = msgspec.Raw(msgspec.json.encode(arguments) if arguments is not None else b"{}")
    request = encode(Request(operation, encoded, timeout_ms))
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout((timeout_ms + GRACE_MS) / 1000):
            try:
                reader, writer = await asyncio.open_unix_connection(path)
            except OSError as error:
                why = error.strerror or error
                raise ConnectFailed(f"nobody answers at {path}: {why}") from None
            writer.write(request)
            return decode_answer(await _read(reader, ANSWER_MAX_BYTES))
    except TimeoutError:
        raise CallTimeout(f"{path}: {operation} was not answered within {timeout_ms} ms") from None
    except (OSError, EOFError):
        raise ConnectionClosed(f"{path}: the connection ended before {operation} was answered") from None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _read(reader: asyncio.StreamReader, size_max: int) -> bytes:
    """One message. IncompleteReadError (an EOFError) when it is cut off."""
    return await reader.readexactly(body_size(await reader.readexactly(PREFIX_BYTES), size_max))


def _listener(path: Path) -> socket.socket:
    """A listening socket with the mode 0600 in place of whatever socket was there. OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise OSError(f"{path} is there, and no socket")
        if _answers(path):
            raise OSError("another process answers there")
    new = path.with_name(path.name + _NEW)
    new.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(str(new))
        new.chmod(0o600)  # nobody can connect yet: it does not listen
        listener.listen(CONNECTIONS_MAX)
        listener.setblocking(False)
        new.rename(path)
    except BaseException:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
