"""Serves, holds or relays clients' requests while the mastership moves to another broker in a switchover.

RocketMQ's clients ask for routes every 30 s, and a producer retries a rejected send at the same address. A
fast switchover alone would therefore not go unnoticed. The former master holds the requests that arrive
during it. Once another broker is the master, it relays requests to that broker, until its clients have
learned the new route. A request is relayed only once: a broker that is no master rejects a relayed request.

The born host of a relayed message is the relaying broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from epochmq_broker.membership.controlled.handover import Handover
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError, EpochMQError, RequestError
from epochmq_protocol.frame import FLAG_RESPONSE, Command
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_protocol.transport.request_client import RequestClient

RELAYED: Final = "relayedBy"
"""The ext field of a relayed request: the address of the relaying broker."""

REJECTED: Final = "[REJECTREQUEST]"
"""The start of the remark with which a replica rejects requests for the master."""

HELD_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 * 1024 * 1024
RELAYS_MAX: Final = 10_000
HOLD_TIMEOUT_S: Final = 2.5
"""How long one request is held and relayed at most; a Java producer times out after 3 s."""
RELAY_PERIOD_S: Final = 90.0
"""How long requests are relayed after a switchover. Clients ask for routes every 30 s, and may fail once or
twice."""
RETRY_S: Final = 0.005
RETRY_MAX_S: Final = 0.1


class GatePhase(enum.Enum):
    """What the gate does with requests for the master."""

    OPEN = "open"
    HOLDING = "held"
    RELAYING = "relaying"


_OPEN = GatePhase.OPEN  # for every send; a global costs less than a lookup in the enum


class RelayClient(RequestClient, Protocol):
    """The part of `RemotingClient` that relays requests."""

    async def oneway(self, address: str, command: Command, timeout_ms: float = 3000) -> None:
        """Sends a request that has no response."""
        ...


class RequestGate:
    """The request gate of one broker."""

    def __init__(
        self, client: RelayClient, own_address: str, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """`on_change` is called after each change of the phase."""
        self.phase = GatePhase.OPEN
        self.held = 0
        """How many requests are held now."""
        self.relayed = 0
        """How many requests were relayed since the start."""
        self._client = client
        self._own_address = own_address
        self._master = ""
        self._until_s = 0.0
        self._bytes = 0
        self._relays = 0
        self._changed = asyncio.Event()
        self._on_change = on_change

    @property
    def is_open(self) -> bool:
        """Whether this broker serves requests for the master itself."""
        return self.phase is _OPEN

    # Phases

    def hold(self) -> None:
        """Holds requests for the master from now on."""
        self.phase = GatePhase.HOLDING
        self._on_change()
        self._changed.clear()

    def open(self) -> None:
        """Serves requests here again, including the held ones."""
        self.phase = GatePhase.OPEN
        self._on_change()
        self._changed.set()

    def relay(self, master: str) -> None:
        """Relays requests to the broker at this address, including the held ones."""
        self.phase = GatePhase.RELAYING
        self._on_change()
        self._master = master
        self._until_s = time.monotonic() + RELAY_PERIOD_S
        self._changed.set()

    async def wait_until_released(self, timeout_s: float) -> None:
        """Waits until requests are no longer held, at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.phase is GatePhase.HOLDING:
                    await self._changed.wait()

    def master_changed(self, master: str | None) -> None:
        """Relays to another master from now on, if requests are relayed. None: the master is unknown."""
        if self.phase is GatePhase.RELAYING and master:
            self._master = master

    # Requests

    def guard(
        self, handler: RequestHandler, handover: Handover, after_hold: RequestHandler | None = None
    ) -> RequestHandler:
        """Returns the handler with the gate in front of it; the same handler for `SERVED`. A request that was
        held and is served here runs in `after_hold`, by default in the same handler."""
        if handover is Handover.SERVED:
            return handler
        is_held = handover is not Handover.RELAYED
        then = after_hold or handler

        def guarded(
            connection: RemotingConnection, command: Command
        ) -> Command | Awaitable[Command | None] | None:
            if self.phase is GatePhase.OPEN or (self.phase is GatePhase.HOLDING and not is_held):
                return handler(connection, command)
            if self.phase is GatePhase.RELAYING and time.monotonic() > self._until_s:
                self.open()
                return handler(connection, command)
            return self._hold_or_relay(then, handover, connection, command)

        return guarded

    async def _hold_or_relay(
        self,
        handler: RequestHandler,
        handover: Handover,
        connection: RemotingConnection,
        command: Command,
    ) -> Command | None:
        """Holds the request as long as requests are held, then serves it here, relays or rejects it."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + HOLD_TIMEOUT_S
        pause_s = RETRY_S
        was_relayed = RELAYED in (command.ext or {})
        while True:
            if self.phase is GatePhase.HOLDING:
                await self._wait_until_released(command, deadline_s - loop.time())
            elif self.phase is GatePhase.RELAYING and handover is Handover.HELD_ONLY:
                raise RequestError(
                    ResponseCode.SYSTEM_BUSY, f"the broker at {self._master} is the master now"
                )
            elif self.phase is GatePhase.OPEN or was_relayed:
                result = handler(connection, command)
                return await result if isinstance(result, Awaitable) else result
            elif (left_s := deadline_s - loop.time()) <= 0:
                raise _unavailable(f"the broker at {self._master} is not the master yet")
            elif command.is_oneway:
                await self._client.oneway(self._master, self._copy(command), left_s * 1000)
                return None
            else:
                response = await self._relay(command, left_s * 1000)
                if response is not None:
                    return response
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _wait_until_released(self, command: Command, timeout_s: float) -> None:
        size = len(command.body)
        if self.held >= HELD_MAX or self._bytes + size > HELD_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_BUSY, f"{self.held} requests wait for a switchover of the master already"
            )
        self.held += 1
        self._bytes += size
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            raise _unavailable("a switchover of the master is under way") from None
        finally:
            self.held -= 1
            self._bytes -= size

    async def _relay(self, command: Command, timeout_ms: float) -> Command | None:
        """The master's response; None if it did not accept the request, so that it may be sent again."""
        if self._relays >= RELAYS_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, f"{self._relays} requests are being relayed already")
        self._relays += 1
        try:
            response = await self._client.call(self._master, self._copy(command), timeout_ms)
        except ConnectError:
            return None
        except EpochMQError as error:
            # The master may have served it. A producer that retries sends its message twice at worst.
            raise _unavailable(f"the master at {self._master} did not respond: {error}") from None
        finally:
            self._relays -= 1
        if _is_no_master(command, response):
            return None
        self.relayed += 1
        response.opaque, response.flag = command.opaque, FLAG_RESPONSE
        return response

    def _copy(self, command: Command) -> Command:
        return Command(
            command.code,
            flag=command.flag,
            language=command.language,
            version=command.version,
            ext={**(command.ext or {}), RELAYED: self._own_address},
            body=command.body,
        )


def _is_no_master(command: Command, response: Command) -> bool:
    """Whether a broker rejected the request because it is a replica, or has no lease yet."""
    if command.code == RequestCode.END_TRANSACTION and response.code == ResponseCode.SLAVE_NOT_AVAILABLE:
        return True
    if response.code == ResponseCode.SYSTEM_BUSY:
        return (response.remark or "").startswith(REJECTED)
    return response.code == ResponseCode.SERVICE_NOT_AVAILABLE


def _unavailable(why: str) -> RequestError:
    return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, why)
