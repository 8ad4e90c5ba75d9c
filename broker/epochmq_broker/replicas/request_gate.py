"""Clients' requests while a mastership changes hands on purpose: let through, held, or relayed.

RocketMQ's clients ask for routes every 30 s, and a producer that is refused tries the same address again. So
a switch that no producer notices needs more than speed: the master that gives its mastership away holds what
arrives, and once another is master, passes it on there, and goes on to do so until its clients know better. A
request is relayed once: whoever gets a relayed one and is no master refuses it.

A relayed message's born host is this broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Awaitable, Mapping
from typing import Final, Protocol

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError, EpochMQError, RequestError
from epochmq_protocol.frame import FLAG_RESPONSE, Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler

HELD_CODES: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
"""What needs a master that may write."""
RELAYED_CODES: Final = HELD_CODES | {
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
}
"""What only the master knows or decides."""
RELAYED: Final = "relayedBy"
"""Ext field of a relayed request: who relays it."""

REJECTED: Final = "[REJECTREQUEST]"
"""How the remark begins with which a replica refuses what only a master takes."""

HELD_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
RELAYS_MAX: Final = 10_000
HOLD_TIMEOUT_S: Final = 2.5
"""How long a request waits in all; a Java producer gives up after 3 s."""
RELAY_PERIOD_S: Final = 90.0
"""How long requests are relayed: clients ask for routes every 30 s, and one may have failed."""
RETRY_S: Final = 0.005
RETRY_MAX_S: Final = 0.1


class GatePhase(enum.Enum):
    """What is done with requests."""

    OPEN = "open"
    HOLDING = "held"
    RELAYING = "relaying"


class RelayClient(Protocol):
    """What is needed of a RemotingClient."""

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """The answer of the peer at `address`."""
        ...

    async def oneway(self, address: str, command: Command, timeout_ms: float = 3000) -> None:
        """Sends what is not answered."""
        ...


class RequestGate:
    """The gate of one broker."""

    def __init__(self, client: RelayClient, own_address: str) -> None:
        self.phase = GatePhase.OPEN
        self.held = 0
        """Requests that wait now."""
        self.relayed = 0
        """Requests passed on since the start."""
        self._client = client
        self._own_address = own_address
        self._master = ""
        self._until_s = 0.0
        self._bytes = 0
        self._relays = 0
        self._changed = asyncio.Event()

    @property
    def lets_through(self) -> bool:
        """Whether messages are taken here."""
        return self.phase is GatePhase.OPEN

    # What is done with requests

    def hold(self) -> None:
        """What needs a master waits from now on."""
        self.phase = GatePhase.HOLDING
        self._changed.clear()

    def open(self) -> None:
        """Requests are handled here again, those that were held too."""
        self.phase = GatePhase.OPEN
        self._changed.set()

    def relay(self, master: str) -> None:
        """Requests go to the broker at this address, those that were held too."""
        self.phase = GatePhase.RELAYING
        self._master = master
        self._until_s = time.monotonic() + RELAY_PERIOD_S
        self._changed.set()

    async def wait_until_released(self, timeout_s: float) -> None:
        """Waits until nothing is held any more, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.phase is GatePhase.HOLDING:
                    await self._changed.wait()

    def master_changed(self, master: str | None) -> None:
        """The master is another one, or not known (None); matters to what is relayed only."""
        if self.phase is GatePhase.RELAYING and master:
            self._master = master

    # Requests

    def guard(self, handlers: Mapping[int, RequestHandler]) -> dict[int, RequestHandler]:
        """The handlers, with those behind the gate that belong there."""
        return {
            code: self._guarded(handler, waits=code in HELD_CODES) if code in RELAYED_CODES else handler
            for code, handler in handlers.items()
        }

    def _guarded(self, handler: RequestHandler, *, waits: bool) -> RequestHandler:
        def guarded(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            if self.phase is GatePhase.OPEN or (self.phase is GatePhase.HOLDING and not waits):
                return handler(connection, command)
            if self.phase is GatePhase.RELAYING and time.monotonic() > self._until_s:
                self.open()
                return handler(connection, command)
            return self._hold_or_relay(handler, connection, command)

        return guarded

    async def _hold_or_relay(
        self, handler: RequestHandler, connection: RemotingConnection, command: Command
    ) -> Command | None:
        """Whatever becomes of the mastership meanwhile, in the end it is handled here, or relayed."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + HOLD_TIMEOUT_S
        pause_s = RETRY_S
        was_relayed = RELAYED in (command.ext or {})
        while True:
            if self.phase is GatePhase.HOLDING:
                await self._wait(command, deadline_s - loop.time())
            elif self.phase is GatePhase.OPEN or was_relayed:
                result = handler(connection, command)
                return await result if isinstance(result, Awaitable) else result
            elif (left_s := deadline_s - loop.time()) <= 0:
                raise _not_now(f"{self._master} is not the master yet")
            elif command.is_oneway:
                await self._client.oneway(self._master, self._copy(command), left_s * 1000)
                return None
            else:
                answer = await self._relay(command, left_s * 1000)
                if answer is not None:
                    return answer
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _wait(self, command: Command, patience_s: float) -> None:
        size = len(command.body)
        if self.held >= HELD_MAX or self._bytes + size > HELD_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{self.held} requests wait for a switch of the master"
            )
        self.held += 1
        self._bytes += size
        try:
            async with asyncio.timeout(patience_s):
                await self._changed.wait()
        except TimeoutError:
            raise _not_now("the master is being switched") from None
        finally:
            self.held -= 1
            self._bytes -= size

    async def _relay(self, command: Command, timeout_ms: float) -> Command | None:
        """What the master answers; None when it did not take the request, and may be asked again."""
        if self._relays >= RELAYS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{self._relays} requests are being relayed")
        self._relays += 1
        try:
            answer = await self._client.call(self._master, self._copy(command), timeout_ms)
        except ConnectError:
            return None
        except EpochMQError as error:
            # It may have been done. A producer that tries again sends twice at worst.
            raise _not_now(f"the master {self._master} did not answer: {error}") from None
        finally:
            self._relays -= 1
        if _is_no_master(answer):
            return None
        self.relayed += 1
        answer.opaque, answer.flag = command.opaque, FLAG_RESPONSE
        return answer

    def _copy(self, command: Command) -> Command:
        return Command(
            command.code,
            flag=command.flag,
            language=command.language,
            version=command.version,
            ext={**(command.ext or {}), RELAYED: self._own_address},
            body=command.body,
        )


def _is_no_master(answer: Command) -> bool:
    """Whether a broker refuses because it is a replica, or has no lease yet."""
    if answer.code == ResponseCode.SYSTEM_BUSY:
        return (answer.remark or "").startswith(REJECTED)
    return answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def _not_now(why: str) -> RequestError:
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, why)
