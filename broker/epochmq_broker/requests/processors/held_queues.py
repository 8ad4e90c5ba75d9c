"""Lets requests wait whose message is for a queue in which a large batch is being stored (`batches`).

In RocketMQ they wait for the lock of the log, which the batch has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from epochmq_broker.writing.batches import BUSY_MAX_S, QueueHolds
from epochmq_broker.writing.inner_message import PutResult
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import EpochMQError, RequestError
from epochmq_protocol.frame import Command
from epochmq_protocol.transport.connection import RemotingConnection

WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of the bodies of the requests that wait for queues of a broker. Further ones are rejected."""


class QueueHeldError(EpochMQError):
    """A message was not stored, because its queue is held for a batch."""

    def __init__(self, place: str, holds: QueueHolds, released: asyncio.Event) -> None:
        super().__init__(f"a batch is being stored in {place}")
        self.holds = holds
        self.released = released

    @classmethod
    def check(cls, holds: QueueHolds, stored: PutResult) -> None:
        """Raises the error if this message was not stored because of a hold."""
        released = holds.released(stored.topic, stored.queue_id)
        if released is not None:
            raise cls(f"{stored.topic}-{stored.queue_id}", holds, released)


Retried = Callable[[RemotingConnection, Command], Command | Awaitable[Command | None] | None]


async def when_released(
    handler: Retried, connection: RemotingConnection, command: Command, held: QueueHeldError
) -> Command | None:
    """Runs the handler of a request again each time that its queue is free, until it stores its message.
    RequestError SYSTEM_BUSY: the queue was held for too long, or too many bytes wait."""
    holds, size = held.holds, len(command.body)
    if holds.waiting_bytes + size > WAITING_BYTES_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_BUSY,
            f"[PC_SYNCHRONIZED]broker busy: {held}, and requests of {holds.waiting_bytes} bytes wait already",
        )
    holds.waiting_bytes += size
    try:
        async with asyncio.timeout(BUSY_MAX_S):
            while True:
                await held.released.wait()
                try:
                    result = handler(connection, command)
                    break
                except QueueHeldError as again:
                    held = again
    except TimeoutError:
        raise RequestError(ResponseCode.SYSTEM_BUSY, f"[PC_SYNCHRONIZED]broker busy: {held}") from None
    finally:
        holds.waiting_bytes -= size
    return await result if isinstance(result, Awaitable) else result
