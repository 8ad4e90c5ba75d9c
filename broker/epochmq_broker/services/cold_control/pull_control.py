"""Applies the flow control of cold data to pulls (RocketMQ's ColdDataPullRequestHoldService and the check in
PullMessageProcessor).

A push consumer over its threshold gets SYSTEM_BUSY, and pulls again later. A pull of a pull consumer is held
for at least three seconds, and then gets one message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.cold_control.flow_control import ColdDataFlowControl, is_system_group
from epochmq_broker.services.cold_control.page_scan import PageScan
from epochmq_broker.tables.clients import ClientRegistry
from epochmq_formats.queue_unit import PRE_BLANK_SIZE
from epochmq_protocol.bodies import ConsumeType
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.fastpath import FastPullRequest
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_store.message_store import MessageStore
from epochmq_store.reading.message_reader import EXTENSION_BELOW

HOLD_S = 3.0
HELD_MAX = 10_000
CONTROLLED_REMARK = "This consumer group is reading cold data. It has been flow control"

CHECK_MS, IDLE_CHECK_MS = 5000, 180_000
"""How often counters start again and held pulls are examined, while the control is on and off."""


class ColdPullControl:
    """The flow control of one broker's pulls. `counts`: whether cold bytes are counted."""

    def __init__(self, live: LiveConfig, store: MessageStore, clients: ClientRegistry) -> None:
        config = live.current
        self.flow = ColdDataFlowControl(config, adapts_by_pid=config.use_pid_cold_ctr_strategy)
        self.pages = PageScan(live, store)
        self.counts = config.cold_data_flow_control_enable
        self._rerun: Callable[[RemotingConnection, FastPullRequest], None] = lambda connection, request: None
        self._live = live
        self._store = store
        self._clients = clients
        self._held: deque[tuple[float, RemotingConnection, FastPullRequest]] = deque()
        live.on_change.append(self._reconfigured)

    def run_held_with(self, rerun: Callable[[RemotingConnection, FastPullRequest], None]) -> None:
        """Sets the function that runs a held pull again."""
        self._rerun = rerun

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self.flow.configure(after)
        self.counts = after.cold_data_flow_control_enable

    @property
    def check_interval_ms(self) -> int:
        """The time between two calls of `check`."""
        return CHECK_MS if self.counts else IDLE_CHECK_MS

    def check(self) -> None:
        """Starts a new counting period, and runs the pulls that were held long enough."""
        self.flow.start_period(now_ms())
        self._run_held(time.monotonic() - HOLD_S)

    def release(self) -> None:
        """Runs all held pulls, because the broker stops."""
        self.pages.stop()
        self._run_held(float("inf"))

    def _run_held(self, since: float) -> None:
        held = self._held
        for _ in range(len(held)):
            if held[0][0] > since:
                return
            _, connection, request = held.popleft()
            if not connection.closed:
                request.no_suspend = True
                self._rerun(connection, request)

    def admit(self, connection: RemotingConnection, request: FastPullRequest) -> bool:
        """Whether a pull may read now. False: it is held, and runs again later. Raises RequestError if the
        group's consumer has to come back later, NotResidentError if the disk must be read first."""
        group = request.consumer_group
        if not self.flow.is_controlled(group) or not self._reads_cold(request):
            return True
        online = self._clients.group(group)
        if online is None:
            return True
        if online.consume_type == ConsumeType.CONSUME_PASSIVELY:
            raise RequestError(ResponseCode.SYSTEM_BUSY, CONTROLLED_REMARK)
        if online.consume_type == ConsumeType.CONSUME_ACTIVELY:
            if not request.no_suspend:
                if len(self._held) >= HELD_MAX:
                    raise RequestError(ResponseCode.SYSTEM_BUSY, CONTROLLED_REMARK)
                connection.defer(request.opaque, request.code)
                self._held.append((time.monotonic(), connection, request))
                return False
            request.max_msg_nums = 1
        return True

    def _reads_cold(self, request: FastPullRequest) -> bool:
        reader = self._store.reader
        queue = self._store.readable_queue(request.topic, request.queue_id)
        if not queue.min_offset <= request.queue_offset < queue.max_offset:
            return False
        with reader.resident:
            unit = reader.unit(queue, request.queue_offset)
        return unit is not None and self.pages.is_far_behind(unit[0])

    def count(self, request: FastPullRequest, next_offset: int, tags: Container[int] | None) -> None:
        """Counts the cold bytes of a pull that read the queue up to `next_offset`."""
        group = request.consumer_group
        if is_system_group(group):
            return
        queue = self._store.readable_queue(request.topic, request.queue_id)
        cold = 0
        for physical, size, code in queue.units(request.queue_offset, next_offset - request.queue_offset):
            if not self.pages.is_far_behind(physical):
                break  # all later records are nearer to the end
            if size == PRE_BLANK_SIZE or (tags is not None and code not in tags and code >= EXTENSION_BELOW):
                continue
            if self.pages.is_cold(physical):
                cold += size
        self.flow.count(group, cold, now_ms())
