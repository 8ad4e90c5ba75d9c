"""Carries TCP connections from an address of this machine to one inside a cluster's network: it listens
first, then moves into the other network namespace, where all that it opens from then on belongs.

    forward.py LISTEN_HOST:PORT NAMESPACE_FILE HOST:PORT"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 1 << 16
CONNECT_TIMEOUT_S = 10
BACKLOG = 256


def enter_network(namespace: Path) -> None:
    """Moves this thread into another network namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(namespace))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction until its end, and passes the end on."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    """Carries connections until it is cancelled."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = None
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                back, onward = await asyncio.open_connection(host, port)
            await asyncio.gather(_carry(reader, onward), _carry(back, writer))
        except (OSError, TimeoutError):
            pass  # the client sees its connection closed, as if nothing listened
        finally:
            for end in (writer, onward):
                if end is not None:
                    end.close()

    async with await asyncio.start_server(one, sock=listener, backlog=BACKLOG) as server:
        await server.serve_forever()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def main() -> None:
    """Listens, moves into the namespace, and forwards."""
    listen, namespace, target = sys.argv[1:]
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(_address(listen))
        listener.listen(BACKLOG)
        enter_network(Path(namespace))
        asyncio.run(serve(listener, *_address(target)))


if __name__ == "__main__":
    main()
