"""Notifies brokers of their group's master (`ControllerManager.notifyBrokerRoleChanged`)."""

from __future__ import annotations

import asyncio
import logging

from epochmq_controller.replica_groups.state_machine_types import NotifyBroker
from epochmq_protocol.bodies import SyncStateSet, to_json
from epochmq_protocol.codes import RequestCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import request
from epochmq_protocol.headers_controller import MIN_IN_SYNC_FIELD, NotifyBrokerRoleChangedRequestHeader
from epochmq_protocol.transport import RemotingClient
from epochmq_protocol.transport.descriptors import RejectionCounter

log = logging.getLogger(__name__)

NOTIFY_TIMEOUT_MS = 3000
PENDING_MAX = 50_000
"""Pending notifications. Further ones are dropped, counted and logged: brokers also ask for their master
every few seconds."""


class RoleChangeNotifier:
    """Sends one-way requests. A lost notification only costs time."""

    def __init__(self, client: RemotingClient) -> None:
        self.dropped = 0
        """Notifications that were not sent since the start, because `PENDING_MAX` others were pending."""
        self._client = client
        self._drops = RejectionCounter()
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, effect: NotifyBroker) -> None:
        """Notifies one broker in a task of its own."""
        if len(self._tasks) >= PENDING_MAX:
            self.dropped += 1
            if count := self._drops.add():
                log.warning(
                    "dropped %d notifications, the last one to broker %s: %d are pending; the brokers learn "
                    "their master when they ask for it",
                    count,
                    effect.address,
                    len(self._tasks),
                )
            return
        task = asyncio.get_running_loop().create_task(self._send(effect))
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def stop(self) -> None:
        """Cancels all pending notifications."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, effect: NotifyBroker) -> None:
        view = effect.view
        header = NotifyBrokerRoleChangedRequestHeader(
            master_address=view.master_address,
            master_epoch=view.master_epoch,
            sync_state_set_epoch=view.sync_state_set_epoch,
            master_broker_id=view.master_id,
        )
        body = to_json(SyncStateSet(set(view.sync_state_set), view.sync_state_set_epoch or 0))
        ext = {MIN_IN_SYNC_FIELD: str(view.least)} if view.least > 1 else None
        command = request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, ext=ext, body=body)
        try:
            await self._client.oneway(effect.address, command, NOTIFY_TIMEOUT_MS)
        except EpochMQError as error:
            log.warning("cannot notify broker %s of its master: %s", effect.address, error)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("the notification of a broker failed", exc_info=task.exception())
