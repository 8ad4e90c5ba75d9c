"""Sends heartbeats to every controller, each from a task of its own, so that a slow or dead controller does
not delay the others (#5929).

A master requests its write lease with its heartbeats, twice during a lease, from every controller. The
leading one grants it, so that a change of the leading controller needs no search. If a renewal is late, the
master asks every controller more often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from epochmq_broker.config.broker_config import LiveConfig
from epochmq_broker.config.clock import boot_ms
from epochmq_broker.membership.controlled.write_lease import REQUEST_INTERVAL_MIN_MS, WriteLease
from epochmq_broker.replication.ha.log_doubt import HEARTBEAT_SUSPENSION_MS, suspends_heartbeats
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_controller import (
    CONFIRMED_BY_ALL_FIELD,
    FENCED_EPOCH_FIELD,
    HEARS_MASTER_FIELD,
    INCARNATION_FIELD,
    LEASE_EPOCH_FIELD,
    LEASE_MS_FIELD,
    LOG_IN_DOUBT_FIELD,
)
from epochmq_protocol.headers_namesrv import BrokerHeartbeatRequestHeader
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.write_promise import SUCCESSORS_FROM_SET_FIELD

log = logging.getLogger(__name__)

LEASE_TIMEOUT_MS: Final = 600
BRIEF_HEARTBEAT_TIMEOUT_MS: Final = 1
GIVE_UP_PAUSE_MS: Final = 10_000
"""How long a master whose disk has failed waits before it fences itself again."""
SUSPENSION_REASON: Final = (
    "the log may have lost its end, and RocketMQ's controllers replace a master, or elect no such replica, "
    "only if they receive no heartbeats from it"
)
LEASED_HEARTBEAT_TIMEOUT_MS: Final = 1500
"""The heartbeat timeout that a master with a lease asks for; it sends many heartbeats in it. RocketMQ's is
10 s."""


class HeartbeatLogState:
    """What heartbeats say of the log; `ReplicasManager` provides the functions."""

    def __init__(
        self,
        last_epoch: Callable[[], int],
        max_offset: Callable[[], int],
        confirm_offset: Callable[[], int],
        writable: Callable[[], bool],
        may_lack: Callable[[], bool] = lambda: False,
        gives_up_epoch: Callable[[], int | None] = lambda: None,
        confirmed_by_all: Callable[[], int] = lambda: -1,
        lineage: Callable[[], str] = lambda: "",
        heard_epoch: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`last_epoch`: the epoch of the last byte. `writable`: the disk accepts writes (not: this broker may
        write). `may_lack`: the log is in doubt. `gives_up_epoch`: see `ReplicaStateMachine`.
        `confirmed_by_all`: the end offset that every member of the SyncStateSet has, -1 if unknown.
        `lineage`: the names of this process and of former ones of its store. `heard_epoch`: the epoch of the
        master that has answered this replica just now, and may write."""
        self.last_epoch = last_epoch
        self.max_offset = max_offset
        self.confirm_offset = confirm_offset
        self.writable = writable
        self.may_lack = may_lack
        self.gives_up_epoch = gives_up_epoch
        self.confirmed_by_all = confirmed_by_all
        self.lineage = lineage
        self.heard_epoch = heard_epoch


class ControllerHeartbeats:
    """The heartbeats of one broker. `on_lease` is called after each granted lease, `on_lease_missing` while a
    master gets none, `on_not_counted` after a response that the heartbeat does not count."""

    def __init__(
        self, live: LiveConfig, client: RemotingClient, lease: WriteLease, state: HeartbeatLogState
    ) -> None:
        self.lease = lease
        self.on_lease: Callable[[], None] = lambda: None
        self.on_lease_missing: Callable[[], None] = lambda: None
        self.on_not_counted: Callable[[], None] = lambda: None
        self.naming_successor = False
        """Whether the election of a successor is under way. That request reports the fence. A heartbeat that
        reported it earlier would make the controllers elect a replica of their own choice."""
        self.suspended = False
        """Whether no heartbeats are sent (`suspends_heartbeats`)."""
        self._live = live
        self._client = client
        self._state = state
        self._broker_id = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._last_given_up: tuple[int, float] | None = None
        """The last epoch given up because of a failed disk, and when."""
        self._started_ms = boot_ms()
        self._brief_heartbeat_ms: dict[str, float] = {}
        """By controller: when the last brief heartbeat was sent."""

    def start(self, broker_id: int, addresses: Sequence[str]) -> None:
        """Sends heartbeats to these controllers, and to no others, from now on."""
        self._broker_id = broker_id
        for address in addresses:
            if address not in self._tasks:
                self._wakes[address] = asyncio.Event()
                self._tasks[address] = asyncio.create_task(self._run(address), name=f"heartbeat to {address}")
        for address in [one for one in self._tasks if one not in addresses]:
            self._tasks.pop(address).cancel()
            del self._wakes[address]

    async def stop(self) -> None:
        """Stops sending heartbeats."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send_now(self) -> None:
        """Sends the next heartbeat to every controller at once, because the role has changed."""
        for wake in self._wakes.values():
            wake.set()

    async def send_once(self, timeout_ms: float) -> int:
        """Sends one heartbeat to every controller, for example before a stop; returns how many responded."""
        sent = (self._send_heartbeat(address, timeout_ms) for address in list(self._tasks))
        return sum(await asyncio.gather(*sent))

    async def _run(self, address: str) -> None:
        wake = self._wakes[address]
        is_silent = False
        while True:
            wake.clear()
            timeout_ms = self._response_timeout_ms()
            began_ms = boot_ms()
            suspended = self._is_suspended()
            try:
                responded = (
                    await self._send_brief_heartbeat(address, timeout_ms)
                    if suspended
                    else await self._send_heartbeat(address, timeout_ms)
                )
            except Exception:
                log.exception("the heartbeat to the controller at %s failed", address)
                responded = False
            if responded == is_silent and not suspended:
                is_silent = not responded
                if is_silent:
                    log.warning("the controller at %s does not respond to heartbeats", address)
                else:
                    log.info("the controller at %s responds to heartbeats", address)
            if self.lease.needs_renewal(boot_ms()):
                self.on_lease_missing()
            earliest_ms = boot_ms() + REQUEST_INTERVAL_MIN_MS / 2
            while (pause_ms := max(self._next_heartbeat_ms(began_ms), earliest_ms) - boot_ms()) > 0:
                try:
                    async with asyncio.timeout(pause_ms / 1000):
                        await wake.wait()
                        break
                except TimeoutError:
                    pass  # another controller may have renewed the lease meanwhile

    def _renews_lease(self) -> bool:
        """Whether heartbeats request a lease. They also do under a leading controller that grants none: the
        next leader may grant leases, and must know which master writes."""
        return self.lease.epoch is not None and not self.lease.fenced

    def _is_suspended(self) -> bool:
        state = self._state
        suspended = suspends_heartbeats(
            grants=self.lease.leader_grants,
            in_doubt=state.may_lack(),
            gives_up_epoch=state.gives_up_epoch(),
            since_start_ms=boot_ms() - self._started_ms,
        )
        if suspended != self.suspended and (self.suspended or self.lease.leader_grants is False):
            self.suspended = suspended
            if suspended:
                log.warning("the broker suspends its heartbeats: %s", SUSPENSION_REASON)
            else:
                log.info("the broker resumes its heartbeats")
        return suspended

    def _asks_for_lease(self) -> bool:
        """Whether heartbeats follow the times of the lease. Under a controller that grants none they do
        not."""
        return self._renews_lease() and self.lease.leader_grants is not False

    def _response_timeout_ms(self) -> float:
        """How long to wait for a response."""
        if not self._asks_for_lease():
            return self._live.current.send_heartbeat_timeout_millis
        return self.lease.duration_ms or LEASE_TIMEOUT_MS

    def _next_heartbeat_ms(self, began_ms: float) -> float:
        """When the next heartbeat is due at a controller to which the last one was sent at `began_ms`."""
        due_ms = began_ms + self._live.current.broker_heartbeat_interval
        return min(due_ms, self.lease.next_request_ms(began_ms)) if self._asks_for_lease() else due_ms

    async def _send_brief_heartbeat(self, address: str, timeout_ms: float) -> bool:
        """While heartbeats are suspended, sends one with a timeout of a millisecond now and then. A RocketMQ
        controller that was restarted looks for dead masters only among brokers that sent it a heartbeat."""
        now_ms, last_ms = boot_ms(), self._brief_heartbeat_ms.get(address, self._started_ms)
        if self._state.gives_up_epoch() is None or now_ms - last_ms < HEARTBEAT_SUSPENSION_MS:
            return False
        self._brief_heartbeat_ms[address] = now_ms
        return await self._send_heartbeat(address, timeout_ms, alive_ms=BRIEF_HEARTBEAT_TIMEOUT_MS)

    async def _send_heartbeat(self, address: str, timeout_ms: float, *, alive_ms: int | None = None) -> bool:
        """Sends one heartbeat; whether a response arrived. `alive_ms` is the heartbeat timeout to ask for,
        None for the usual one."""
        lease, epoch = self.lease, self.lease.epoch
        command = self._command(alive_ms)
        sent_ms = boot_ms()
        lease.note_lapse(sent_ms)
        try:
            response = await self._client.call(address, command, timeout_ms)
        except EpochMQError:
            return False
        ext = response.ext or {}
        granted, from_set = ext.get(LEASE_MS_FIELD, ""), ext.get(SUCCESSORS_FROM_SET_FIELD)
        if response.code == ResponseCode.SUCCESS and granted.isdecimal() and epoch is not None:
            lease.note_lapse(boot_ms())
            lease.record_grant(epoch, sent_ms, int(granted), from_set=from_set == "true")
            self.on_lease()
        elif response.code == ResponseCode.SUCCESS and from_set == "false" and epoch is not None:
            lease.withdraw_statement(epoch)
        elif response.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self.on_not_counted()
        return True

    def _fence_after_disk_failure(self) -> None:
        """Fences a master whose disk has failed, so that another replica becomes master. If this broker is
        elected again, no other candidate exists; it fences itself again after a pause."""
        lease, epoch = self.lease, self.lease.epoch
        if epoch is None or not self._renews_lease() or not lease.leader_grants or self._state.writable():
            return
        now_ms = boot_ms()
        last = self._last_given_up
        if last is not None and (epoch == last[0] or now_ms - last[1] < GIVE_UP_PAUSE_MS):
            return
        log.critical(
            "the disk of this master has failed: it fences itself so that another replica is elected"
        )
        self._last_given_up = epoch, now_ms
        lease.fence()

    def _command(self, alive_ms: int | None) -> Command:
        self._fence_after_disk_failure()
        config, lease, state = self._live.current, self.lease, self._state
        ext: dict[str, str] = {}
        timeout_ms = config.controller_heart_beat_timeout_mills
        if lease.epoch is not None and lease.fenced and not self.naming_successor:
            ext[FENCED_EPOCH_FIELD] = str(lease.epoch)
        elif self._renews_lease():
            ext[LEASE_EPOCH_FIELD] = str(lease.epoch)
            if lease.duration_ms and lease.leader_grants:
                timeout_ms = min(timeout_ms, LEASED_HEARTBEAT_TIMEOUT_MS)
        elif (given_up := state.gives_up_epoch()) is not None:
            ext[FENCED_EPOCH_FIELD] = str(given_up)
        if state.may_lack():
            ext[LOG_IN_DOUBT_FIELD] = "true"
        confirmed = state.confirmed_by_all()
        if confirmed >= 0:
            ext[CONFIRMED_BY_ALL_FIELD] = str(confirmed)
        if lineage := state.lineage():
            ext[INCARNATION_FIELD] = lineage
        if (heard := state.heard_epoch()) is not None:
            ext[HEARS_MASTER_FIELD] = str(heard)
        header = BrokerHeartbeatRequestHeader(
            cluster_name=config.broker_cluster_name,
            broker_addr=config.broker_addr,
            broker_name=config.broker_name,
            broker_id=self._broker_id,
            epoch=state.last_epoch(),
            max_offset=state.max_offset(),
            confirm_offset=state.confirm_offset(),
            heartbeat_timeout_mills=timeout_ms if alive_ms is None else alive_ms,
            election_priority=config.broker_election_priority,
        )
        return request(RequestCode.BROKER_HEARTBEAT, header, ext=ext)
