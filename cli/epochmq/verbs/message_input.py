"""Reads the messages that `produce` sends: the lines of the standard input, or a file as one message.

The input may be empty, closed, endless, a terminal, a pipe, a file or a device: every read has a bound."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from epochmq.exits import UsageError

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Larger than any frame that a broker accepts."""
READ_BYTES = 64 * 1024


def read_file(path: Path) -> bytes:
    """A whole file as one message; `-` is the standard input. Raises UsageError."""
    try:
        if str(path) == "-":
            body = sys.stdin.buffer.read(MESSAGE_BYTES_MAX + 1)
        else:
            with path.open("rb") as file:
                body = file.read(MESSAGE_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"--file {path} cannot be read: {error.strerror}") from None
    if len(body) > MESSAGE_BYTES_MAX:
        raise UsageError(f"--file {path}: more than {MESSAGE_BYTES_MAX} bytes, which no broker accepts")
    if not body:
        raise UsageError(f"--file {path} is empty; RocketMQ accepts no empty messages")
    return body


async def input_lines() -> AsyncIterator[tuple[int, bytes]]:
    """The lines of the standard input with their numbers from 1, without line ends, each as soon as it is
    complete. Raises UsageError for a line that no broker would accept."""
    number, begun = 0, bytearray()
    async for chunk in _chunks():
        begun += chunk
        if b"\n" in chunk:
            *complete, rest = begun.split(b"\n")
            begun = bytearray(rest)
            for line in complete:
                number += 1
                yield number, bytes(line.rstrip(b"\r"))
        if len(begun) > MESSAGE_BYTES_MAX:
            raise UsageError(
                f"line {number + 1} of the input is longer than {MESSAGE_BYTES_MAX} bytes; "
                "to send a whole file as one message give --file FILE"
            )
    if begun:
        yield number + 1, bytes(begun.rstrip(b"\r"))


async def _chunks() -> AsyncIterator[bytes]:
    descriptor = sys.stdin.fileno()
    if not _can_wait(descriptor):
        while chunk := os.read(descriptor, READ_BYTES):
            yield chunk
            await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READ_BYTES)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while chunk := await reader.read(READ_BYTES):
            yield chunk
    finally:
        transport.close()


def _can_wait(descriptor: int) -> bool:
    """Whether the kernel can report that there is something to read. It cannot for files and for devices
    such as /dev/null, which are always ready."""
    with select.epoll() as poll:
        try:
            poll.register(descriptor, select.EPOLLIN)
        except PermissionError:
            return False
    return True
