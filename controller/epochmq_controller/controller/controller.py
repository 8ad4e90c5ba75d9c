"""Runs one controller: a Raft peer, the state machine that decides, and what connects them.

The state machine's proposals go into the peer's log, committed entries come back to the state machine, and
responses go to the senders of requests. Everything runs on one event loop, one input after another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from epochmq_controller.controller.config import ControllerConfig
from epochmq_controller.controller.renewal_batch import RenewalBatch
from epochmq_controller.replica_groups import snapshot
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.requests import ControllerRequest
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    NOT_LEADER,
    ChannelClosed,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    NotifyBroker,
    ProposalCompleted,
    ProposeEvents,
    RejectRequest,
    RespondToLeaseRequests,
    RespondToRequest,
    SnapshotRestored,
    TimeAdvanced,
)
from epochmq_dledger.core.types import RaftRole, RoleChanged
from epochmq_dledger.peer import DLedgerPeer
from epochmq_dledger.results import AppendResult, RaftOperationError, complete_future
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.dledger import DLedgerEntry, DLedgerResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.transport import RemotingClient

log = logging.getLogger(__name__)

CHECK_TIMEOUT_S = 5.0


class Controller:
    """One controller: construct it, `start`, `stop`. `notify` gets the brokers to notify of a new master."""

    def __init__(
        self,
        config: ControllerConfig,
        client: RemotingClient,
        *,
        notify: Callable[[NotifyBroker], None] = lambda _: None,
        on_fatal: Callable[[Exception], None] = lambda _: None,
    ) -> None:
        self.config = config
        self.addresses = config.addresses()
        self.peer = DLedgerPeer(
            config.raft_settings(),
            self.addresses,
            config.store_path(),
            client,
            apply=self._apply,
            on_role=self._on_role,
            on_fatal=on_fatal,
            machine=self,
        )
        self._notify = notify
        self._state_machine: ControllerStateMachine | None = None
        self._inputs: deque[ControllerInput] = deque()
        self._is_stepping = False
        self._tokens = 0
        self._requests: dict[int, asyncio.Future[Decision]] = {}
        self._renewals = RenewalBatch(self._feed, self._renewals_wait)
        self._delay_reads: Callable[[float], None] = lambda _until_s: None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        """When the timer is due. uvloop's handle does not say so if it is due at once."""

    def read_renewals_with(self, delay_reads: Callable[[float], None]) -> None:
        """Calls `delay_reads` with the time, on the loop's clock, until which a leading controller need not
        read renewals, because they would wait for their batch. The others get their leader's calls over the
        same port."""
        self._delay_reads = delay_reads

    def start(self) -> None:
        """Recovers, and joins the Raft group. OSError or ValueError if the directory cannot be used."""
        self._state_machine = ControllerStateMachine(self.config.state_machine_settings(), self._now_ms())
        self.peer.start()
        members = self.peer.members
        if members != self.config.addresses():
            log.warning(
                "the log names the members %s, which count; the setting is controllerDLegerPeers=%s",
                ";".join(f"{name}-{address}" for name, address in members.items()),
                self.config.controller_d_leger_peers,
            )
        self._feed(TimeAdvanced())

    async def stop(self) -> None:
        """Stops this controller. Pending requests fail: it does not lead."""
        self._feed(LeadershipChanged(None))
        self._state_machine = None
        if self._timer is not None:
            self._timer.cancel()
        await self.peer.stop()

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # State --------------------------------------------------------------------------------------------------

    @property
    def state_machine(self) -> ControllerStateMachine:
        """The state machine of a started controller."""
        assert self._state_machine is not None, "not started"
        return self._state_machine

    @property
    def groups(self) -> ReplicaGroups:
        """The replica groups, as the applied entries have made them."""
        return self.state_machine.groups

    @property
    def leads(self) -> bool:
        """Whether this controller leads and has applied all entries that earlier leaders committed."""
        return self.state_machine.leads

    @property
    def leader_address(self) -> str | None:
        """The leader's address, as far as this controller knows."""
        leader = self.peer.leader_id
        return self.addresses.get(leader) if leader is not None else None

    def alive(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """What the heartbeats of a live replica say, None for a dead one."""
        return self.state_machine.alive(cluster, name, broker_id)

    def configure(self, config: ControllerConfig) -> None:
        """Changes the settings, except those of `config.IMMUTABLE_KEYS`."""
        self.config = config
        self.state_machine.configure(config.state_machine_settings())

    # Requests -----------------------------------------------------------------------------------------------

    async def decide(self, request: ControllerRequest) -> Decision:
        """Decides a request and commits its events. RequestError if this controller does not lead, or gets no
        quorum in time; in the second case the events may still be committed."""
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._tokens += 1
        self._requests[self._tokens] = future
        self._feed(GroupRequestReceived(self._tokens, request))
        return await future

    def receive_heartbeat(
        self, replica: BrokerIdentityInfo, heartbeat: Heartbeat, fenced_epoch: int | None = None
    ) -> bool:
        """Takes a heartbeat. `fenced_epoch`: its sender accepts no more writes under this master epoch.
        Returns whether the heartbeat counts: not if its process must not act under its broker id."""
        heartbeat.last_ms = self._now_ms()
        self._renewals.feed_now()
        self._feed(HeartbeatReceived(replica, heartbeat, fenced_epoch))
        return not self.state_machine.refuses(replica, heartbeat)

    async def request_lease(
        self, replica: BrokerIdentityInfo, heartbeat: Heartbeat, fenced_epoch: int | None, lease_epoch: int
    ) -> int:
        """Takes a heartbeat that requests a write lease under this master epoch. Returns for how many
        milliseconds after it *sent* the heartbeat the master may write, 0 without a lease, and
        `LEASE_OF_REFUSED_MS` to a process that must not act under its broker id."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.renew_lease(
            replica, heartbeat, lease_epoch, lambda lease_ms: complete_future(future, lease_ms), fenced_epoch
        )
        return await future

    def renew_lease(
        self,
        replica: BrokerIdentityInfo,
        heartbeat: Heartbeat,
        lease_epoch: int,
        done: Callable[[int], object],
        fenced_epoch: int | None = None,
    ) -> None:
        """Like `request_lease`, but calls `done` with the milliseconds. Renewals are decided in batches."""
        heartbeat.last_ms = self._now_ms()
        self._renewals.add(HeartbeatReceived(replica, heartbeat, fenced_epoch, lease_epoch, done))

    def _renewals_wait(self, until_s: float) -> None:
        if self.leads:
            self._delay_reads(until_s)

    def channel_closed(self, channel: object) -> None:
        """A connection has closed."""
        self._renewals.feed_now()
        self._feed(ChannelClosed(channel))

    async def confirm_leadership(self) -> None:
        """Confirms by a quorum round trip that this controller leads. RequestError if it does not, or gets no
        quorum."""
        try:
            if self.leads:
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    await self.peer.read_index()
                    return
        except (RaftOperationError, TimeoutError):
            pass
        raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)

    # Steps --------------------------------------------------------------------------------------------------

    def _feed(self, event: ControllerInput) -> None:
        """Feeds inputs one after another. An input that arrives while effects are carried out waits until all
        are."""
        if self._state_machine is None:
            return
        self._inputs.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._inputs:
                for effect in self._state_machine.step(self._inputs.popleft(), self._now_ms()):
                    self._carry_out(effect)
        finally:
            self._is_stepping = False
        self._set_timer(self._state_machine)

    def _set_timer(self, state_machine: ControllerStateMachine) -> None:
        at_s = state_machine.next_deadline_ms() / 1000
        if self._timer is None or at_s < self._timer_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at_s = at_s
            self._timer = asyncio.get_running_loop().call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._feed(TimeAdvanced())

    def _carry_out(self, effect: ControllerEffect) -> None:
        match effect:
            case RespondToLeaseRequests(tokens=tokens, lease_ms=lease_ms):
                for done in cast("list[Callable[[int], object]]", tokens):  # as `renew_lease` made them
                    done(lease_ms)
            case RespondToRequest(token=token, decision=decision):
                request = self._requests.pop(token)
                if not request.done():
                    request.set_result(decision)
            case RejectRequest(token=token, code=code, remark=remark):
                rejected = self._requests.pop(token)
                if not rejected.done():
                    rejected.set_exception(RequestError(code, remark))
            case ProposeEvents(token=token, bodies=bodies):
                self.peer.submit(bodies, lambda result: self._on_proposed(token, result))
            case CheckLeadership(token=token):
                self.peer.confirm_leadership(
                    lambda result: self._feed(
                        LeadershipCheckCompleted(token, not isinstance(result, RaftOperationError))
                    )
                )
            case NotifyBroker():
                self._notify(effect)
            case LogMessage(text=text, is_warning=is_warning):
                log.log(logging.WARNING if is_warning else logging.INFO, "%s", text)

    def _on_proposed(self, token: int, result: AppendResult | RaftOperationError) -> None:
        if not isinstance(result, RaftOperationError):
            self._feed(ProposalCompleted(token))
        elif result.code not in (
            DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
            DLedgerResponseCode.TERM_CHANGED,
        ):
            self._feed(ProposalCompleted(token, str(result)))
        # After these two codes the events may still be committed. The state machine waits until they are, or
        # until this controller no longer leads.

    # The Raft peer ------------------------------------------------------------------------------------------

    def _apply(self, entry: DLedgerEntry) -> None:
        self._feed(EntryApplied(entry.index, entry.term, entry.body))

    def save(self) -> bytes:
        """Encodes the groups as a snapshot (`StateMachine`)."""
        return snapshot.encode(self.state_machine.groups)

    def check(self, data: bytes) -> None:
        """ValueError unless `restore` can load these bytes (`StateMachine`)."""
        snapshot.decode(data)

    def restore(self, data: bytes) -> None:
        """Loads the groups of a snapshot. ValueError for other bytes."""
        self._feed(SnapshotRestored(snapshot.decode(data)))

    def _on_role(self, change: RoleChanged) -> None:
        self._feed(LeadershipChanged(change.term if change.role is RaftRole.LEADER else None))
