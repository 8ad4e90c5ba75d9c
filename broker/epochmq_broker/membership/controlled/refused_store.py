"""Lets an administrator decide about a store that the controllers refuse, because it does not continue the
store that has its broker id (`incarnation_file`): adopt it for the id, or give it another id.

Either way the log is put in doubt first, durably. So the broker compares its whole log with a master's, and
is not elected before it has caught up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from epochmq_broker.membership.controlled.heartbeats import ControllerHeartbeats
from epochmq_broker.membership.controlled.identity_files import IdentityFiles
from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.state_machine_types import (
    IdentityDiscarded,
    ReplicaInput,
    StoreAdopted,
)
from epochmq_broker.replication.ha.service import HAService
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError


class RefusedStore:
    """The decisions about one store. `feed` gives inputs to the state machine, which `state_machine`
    returns."""

    def __init__(
        self,
        ha: HAService,
        files: IdentityFiles,
        heartbeats: ControllerHeartbeats,
        state_machine: Callable[[], ReplicaStateMachine],
        feed: Callable[[ReplicaInput], None],
    ) -> None:
        self._ha = ha
        self._files = files
        self._heartbeats = heartbeats
        self._state_machine = state_machine
        self._feed = feed
        self._stepped = asyncio.Event()

    def stepped(self) -> None:
        """The state machine has taken a step."""
        self._stepped.set()

    async def settle(self, *, adopt: bool, timeout_ms: float) -> int:
        """Adopts the store for its broker id or, without `adopt`, discards the id. Returns the broker id that
        the store has then. Raises RequestError if the controllers do not refuse the store, still refuse it,
        or do not respond in time; and if the disk fails."""
        machine = self._state_machine()
        if machine.refusal is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "the controllers do not refuse the store of this broker, so there is nothing to decide",
            )
        try:
            await self._ha.distrust()
            if not adopt:
                await asyncio.to_thread(self._files.discard)
        except OSError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the disk rejected the change: {error}") from None
        if adopt:
            self._feed(StoreAdopted())
        else:
            await self._heartbeats.stop()
            self._feed(IdentityDiscarded())
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while machine.identity is None or machine.adopts_store or self._is_undecided():
                    self._stepped.clear()
                    await self._stepped.wait()
        except TimeoutError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                "the controllers have not responded yet; the broker continues to ask them",
            ) from None
        if machine.refusal is not None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, machine.refusal)
        assert machine.identity is not None
        return machine.identity.id

    def _is_undecided(self) -> bool:
        machine = self._state_machine()
        return machine.refusal is None and not machine.is_registered
