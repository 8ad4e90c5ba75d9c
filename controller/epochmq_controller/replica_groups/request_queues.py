# pure: the order in which a controller decides requests
"""Queues the requests of each replica group, and decides them one after another.

- A request is decided on the committed state. Its events go into the Raft log; the response follows once they
  are applied.
- The requests of one group are decided in order, each on the state that the one before it left. Groups do not
  wait for each other.
- A proposal that may still be committed blocks its group, even after its client got a time-out: the next
  decision must know whether it was committed.
- A master is replaced only after its lease (see `leases`). Then the election is decided again: a master that
  has come back stays.
"""

from __future__ import annotations

import math
from collections import deque

import msgspec

from epochmq_controller.replica_groups import events, requests
from epochmq_controller.replica_groups.controller_tables import ControllerTables
from epochmq_controller.replica_groups.requests import (
    ControllerRequest,
    ElectMasterRequest,
    GetReplicaInfoRequest,
)
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine_types import (
    NOT_LEADER,
    CheckLeadership,
    NotifyBroker,
    ProposeEvents,
    RejectRequest,
    RespondToRequest,
)
from epochmq_protocol.codes import ResponseCode

REQUEST_TIMEOUT_MS = 5000
"""A request that is not decided and committed within this time fails. It may still be committed later."""
REQUESTS_MAX = 50_000
"""Pending requests. Further ones are rejected with SYSTEM_BUSY."""


class QueuedRequest(msgspec.Struct):
    """A request in a queue. `token` is None for the controller's own elections, and after the response."""

    token: int | None
    request: ControllerRequest


class ReadyToDecide(msgspec.Struct, frozen=True):
    """The first request can be decided."""


class AwaitingLeaseEnd(msgspec.Struct, frozen=True):
    """The first request elects another master. It is decided again when the present master's lease has
    ended."""


class AwaitingCommit(msgspec.Struct, frozen=True):
    """The events of the first request are proposed."""

    decision: Decision


class AwaitingLeadershipCheck(msgspec.Struct, frozen=True):
    """The first request changes nothing, and waits for a confirmation that this controller leads."""

    decision: Decision


QueueState = ReadyToDecide | AwaitingLeaseEnd | AwaitingCommit | AwaitingLeadershipCheck
READY_TO_DECIDE = ReadyToDecide()


class GroupRequestQueue(msgspec.Struct):
    """The requests of one group, in order of arrival."""

    requests: deque[QueuedRequest]
    state: QueueState = READY_TO_DECIDE


class RequestQueues:
    """The queues of all groups."""

    def __init__(self, state: ControllerTables) -> None:
        self._state = state
        self._queues: dict[str, GroupRequestQueue] = {}
        self._lease_ends_ms: dict[str, float] = {}
        """When the leases end that groups wait for, on the leap-limited clock."""
        self._next_lease_end_ms = math.inf
        """No lease in `_lease_ends_ms` ends before this."""
        self._proposals: dict[int, str] = {}
        """The group of each proposal, by token."""
        self._checks: dict[int, str] = {}
        """The group of each leadership check, by token."""
        self._timeouts: deque[tuple[int, int, str]] = deque()
        """(when, token, group) of pending requests."""
        self._open: set[int] = set()
        """Tokens of requests without a response."""
        self.wait_reasons: dict[str, str] = {}
        """Why a group gets no master until a missing member returns or an administrator orders an
        election."""

    # Adding -------------------------------------------------------------------------------------------------

    def add(self, token: int, request: ControllerRequest) -> None:
        """Adds a request of a broker or an administrator."""
        state, queued = self._state, QueuedRequest(token, request)
        self._open.add(token)
        if state.leases is None:
            self._reject(queued, ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        elif isinstance(request, GetReplicaInfoRequest) and not state.settings.confirm_reads:
            self._respond(queued, requests.decide(request, state.groups, state.alive))
        elif len(self._open) > REQUESTS_MAX:
            self._reject(queued, ResponseCode.SYSTEM_BUSY, f"{REQUESTS_MAX} requests are pending")
        else:
            self._timeouts.append((state.now_ms + REQUEST_TIMEOUT_MS, token, request.name))
            self._enqueue(queued)
            if isinstance(request, ElectMasterRequest) and request.fenced_epoch is not None:
                self._confirm_fenced(request.name, request.fenced_epoch)

    def _confirm_fenced(self, name: str, epoch: int) -> None:
        """The master of this epoch has fenced itself for a successor of its choice: an election need not wait
        for the end of its lease."""
        group, leases = self._state.groups.get(name), self._state.leases
        if leases is not None and group is not None and group.master_epoch == epoch:
            leases.confirm_fenced(name, epoch)
            self.retry_election(name)

    def trigger_election(self, name: str, *, gives_way: bool = False) -> None:
        """Elects a master for a group that has lost its master or whose master gives way, unless such an
        election is queued."""
        queue = self._queues.get(name)
        wanted = ElectMasterRequest(name, gives_way=gives_way)
        if queue is None or all(one.request != wanted for one in queue.requests):
            self._enqueue(QueuedRequest(None, wanted))

    def retry_election(self, name: str) -> None:
        """Decides an election again that waits for the end of a lease: the master is back, or fenced."""
        if name in self._lease_ends_ms:
            self._decide_next(name)

    def _enqueue(self, queued: QueuedRequest) -> None:
        name = queued.request.name
        queue = self._queues.setdefault(name, GroupRequestQueue(deque()))
        queue.requests.append(queued)
        if queue.state is READY_TO_DECIDE and len(queue.requests) == 1:
            self._decide_next(name)

    # Deciding -----------------------------------------------------------------------------------------------

    def _decide_next(self, name: str) -> None:
        """Decides a group's requests until one has to wait."""
        queue = self._queues[name]
        while queue.requests and isinstance(queue.state, ReadyToDecide | AwaitingLeaseEnd):
            if not self._decide(queue, queue.requests[0]):
                return
            queue.requests.popleft()
        if not queue.requests:
            del self._queues[name]

    def _decide(self, queue: GroupRequestQueue, queued: QueuedRequest) -> bool:
        """Decides a request. Returns whether it is complete."""
        state = self._state
        name, settings = queued.request.name, state.settings
        self._make_ready(queue, name)
        fenced = state.is_fenced(name)
        decision = requests.decide(
            queued.request, state.groups, state.alive, unclean=settings.unclean, fenced=fenced
        )
        if isinstance(queued.request, ElectMasterRequest):
            self._set_wait_reason(name, decision.wait_reason)
            if self._must_wait(queue, name, decision):
                return False
        if decision.events:
            queue.state = AwaitingCommit(decision)
            token = state.next_token()
            self._proposals[token] = name
            bodies = (events.encode(state.with_confirmed_offset(event)) for event in decision.events)
            state.emit(ProposeEvents(token, tuple(bodies)))
            return False
        if settings.confirm_reads and queued.token is not None:
            queue.state = AwaitingLeadershipCheck(decision)
            token = state.next_token()
            self._checks[token] = name
            state.emit(CheckLeadership(token))
            return False
        self._respond(queued, decision)
        return True

    def _must_wait(self, queue: GroupRequestQueue, name: str, decision: Decision) -> bool:
        """Whether an election must wait for the end of a lease. From now on the group gets no lease until its
        election is complete."""
        group, leases = self._state.groups.get(name), self._state.leases
        if decision.code != ResponseCode.SUCCESS or group is None or leases is None:
            return False
        leases.electing.add(name)
        until_ms = leases.lease_end_ms(name, group.master_epoch)
        if until_ms <= self._state.clock.ms:
            return False
        queue.state = AwaitingLeaseEnd()
        self._lease_ends_ms[name] = until_ms
        self._next_lease_end_ms = min(self._next_lease_end_ms, until_ms)
        return True

    def _set_wait_reason(self, name: str, reason: str | None) -> None:
        """Logs each new reason once; every scan decides the group's election again."""
        if reason == self.wait_reasons.get(name):
            return
        if reason is None:
            del self.wait_reasons[name]
        else:
            self.wait_reasons[name] = reason
            self._state.log(f"group {name} {reason}", is_warning=True)

    def _make_ready(self, queue: GroupRequestQueue, name: str) -> None:
        queue.state = READY_TO_DECIDE
        self._lease_ends_ms.pop(name, None)
        if self._state.leases is not None:
            self._state.leases.electing.discard(name)

    # Completing ---------------------------------------------------------------------------------------------

    def complete_proposal(self, token: int, error: str | None) -> None:
        """The proposed events are committed and applied, or failed for sure."""
        name = self._proposals.pop(token, None)
        if name is None:
            return  # of an earlier leadership
        queue = self._queues[name]
        assert isinstance(queue.state, AwaitingCommit)
        queued, decision = queue.requests.popleft(), queue.state.decision
        self._make_ready(queue, name)
        if error is not None:
            self._reject(queued, ResponseCode.SYSTEM_ERROR, f"the events were not committed: {error}")
        else:
            self._respond(queued, decision)
            if isinstance(queued.request, ElectMasterRequest):
                self._report_election(name, decision)
        self._decide_next(name)

    def complete_check(self, token: int, *, leads: bool) -> None:
        """A leadership check has succeeded or failed."""
        name = self._checks.pop(token, None)
        if name is None:
            return  # of an earlier leadership
        queue = self._queues[name]
        assert isinstance(queue.state, AwaitingLeadershipCheck)
        queued, decision = queue.requests.popleft(), queue.state.decision
        queue.state = READY_TO_DECIDE
        if leads:
            self._respond(queued, decision)
        else:
            self._reject(queued, ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)
        self._decide_next(name)

    def abort(self) -> None:
        """Rejects all requests: the leadership is over, and proposed events may or may not be committed."""
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for queued in queue.requests:
                is_proposed = queued is queue.requests[0] and isinstance(queue.state, AwaitingCommit)
                code = ResponseCode.SYSTEM_ERROR if is_proposed else ResponseCode.CONTROLLER_NOT_LEADER
                self._reject(
                    queued, code, NOT_LEADER + (", the events may still be committed" if is_proposed else "")
                )
        self._lease_ends_ms.clear()
        self._next_lease_end_ms = math.inf
        self._proposals.clear()
        self._checks.clear()
        self._timeouts.clear()
        self.wait_reasons.clear()

    def _respond(self, queued: QueuedRequest, decision: Decision) -> None:
        if queued.token is not None:
            self._open.discard(queued.token)
            self._state.emit(RespondToRequest(queued.token, decision))
            queued.token = None

    def _reject(self, queued: QueuedRequest, code: ResponseCode, remark: str) -> None:
        if queued.token is not None:
            self._open.discard(queued.token)
            self._state.emit(RejectRequest(queued.token, code, remark))
            queued.token = None
        else:
            self._state.log(
                f"group {queued.request.name}: the election failed, the next scan retries it: {remark}",
                is_warning=True,
            )

    def _report_election(self, name: str, decision: Decision) -> None:
        """Notifies the group's live members of their new master."""
        state = self._state
        group, view = state.groups.get(name), decision.view
        if decision.code != ResponseCode.SUCCESS or view is None or group is None:
            if decision.wait_reason is None:
                state.log(f"group {name} has no master: {decision.remark}", is_warning=True)
            return
        state.log(f"group {name}: broker {view.master_id} is master of epoch {view.master_epoch}")
        if state.settings.notify:
            for broker_id, replica in group.replicas.items():
                if state.alive(group.cluster_name, name, broker_id) is not None:
                    state.emit(NotifyBroker(replica.address, view))

    # Time ---------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Decides elections whose lease has ended, and rejects requests whose time is up."""
        state = self._state
        if self._next_lease_end_ms <= state.clock.ms:
            for name in [one for one, until_ms in self._lease_ends_ms.items() if until_ms <= state.clock.ms]:
                self._decide_next(name)
            self._next_lease_end_ms = min(self._lease_ends_ms.values(), default=math.inf)
        while self._timeouts and (
            self._timeouts[0][0] <= state.now_ms or self._timeouts[0][1] not in self._open
        ):
            _, token, name = self._timeouts.popleft()
            if token in self._open:
                self._time_out(token, name)

    def next_deadline_ms(self) -> int | None:
        """When `advance` is needed, on the clock of `step`."""
        state = self._state
        deadlines: list[int] = []
        if self._timeouts:
            deadlines.append(self._timeouts[0][0])
        if self._lease_ends_ms:
            deadlines.append(state.now_ms + max(0, math.ceil(self._next_lease_end_ms - state.clock.ms)))
        return min(deadlines, default=None)

    def _time_out(self, token: int, name: str) -> None:
        """Rejects a request whose time is up. Events that it has proposed still block its group."""
        queue = self._queues[name]
        queued = next(one for one in queue.requests if one.token == token)
        self._reject(queued, ResponseCode.SYSTEM_ERROR, "the events were not committed: no quorum in time")
        if queued is queue.requests[0] and isinstance(queue.state, AwaitingCommit | AwaitingLeadershipCheck):
            return
        was_first = queued is queue.requests[0]
        queue.requests = deque(one for one in queue.requests if one is not queued)
        if was_first:
            self._make_ready(queue, name)
            self._decide_next(name)
