"""One controller at work: a Raft peer, the desk that decides (`replicas.desk`), and what ties them together.

The desk's proposals go into the peer's log, what the log has committed comes back to the desk, and answers go
to whoever asked. Everything runs on one loop, one input after another.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable

from epochmq_controller.controller.config import ControllerConfig
from epochmq_controller.replica_groups import snapshot
from epochmq_controller.replica_groups.election_policy import ReplicaLiveInfo
from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.requests import ControllerRequest
from epochmq_controller.replica_groups.rules import Decision
from epochmq_controller.replica_groups.state_machine import NOT_LEADER, ControllerStateMachine
from epochmq_controller.replica_groups.state_machine_types import (
    ChannelClosed,
    CheckLeadership,
    ControllerEffect,
    ControllerInput,
    EntryApplied,
    GroupRequestReceived,
    HeartbeatReceived,
    HeartbeatsReceived,
    LeadershipChanged,
    LeadershipCheckCompleted,
    LogMessage,
    NotifyBroker,
    ProposalCompleted,
    ProposeEvents,
    RejectRequest,
    RespondToLeaseRequest,
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

PROOF_TIMEOUT_S = 5.0
RENEWAL_BATCH_S = 0.005
"""The least time between two batches of lease renewals. Each batch needs one quorum round trip."""


class Controller:
    """Make, `start`, `stop`. `notify` is told whom to tell of a new master."""

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
        self._stepping = False
        self._tokens = 0
        self._asked: dict[int, asyncio.Future[Decision]] = {}
        self._renewals: dict[int, Callable[[int], object]] = {}
        self._renewal_batch: list[HeartbeatReceived] = []
        self._batch_fed_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        """Its moment: uvloop's handle does not say when it is due at once."""

    def start(self) -> None:
        """Recovers and takes part. OSError or ValueError when the folder cannot be used."""
        self._state_machine = ControllerStateMachine(self.config.state_machine_settings(), self._now_ms())
        self.peer.start()
        members = self.peer.members
        if members != self.config.addresses():
            log.warning(
                "the group is %s by its log, which counts; controllerDLegerPeers=%s",
                ";".join(f"{name}-{address}" for name, address in members.items()),
                self.config.controller_d_leger_peers,
            )
        self._feed(TimeAdvanced())

    async def stop(self) -> None:
        """Ends this controller; who still waits is told that it does not lead."""
        self._feed(LeadershipChanged(None))
        self._state_machine = None
        if self._timer is not None:
            self._timer.cancel()
        await self.peer.stop()

    def _now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)

    # What it is ---------------------------------------------------------------------------------------------

    @property
    def state_machine(self) -> ControllerStateMachine:
        """The desk of a started controller."""
        assert self._state_machine is not None, "not started"
        return self._state_machine

    @property
    def groups(self) -> ReplicaGroups:
        """The replica groups as they are applied here."""
        return self.state_machine.groups

    @property
    def leads(self) -> bool:
        """Whether this controller is the leader and has applied everything that earlier leaders committed."""
        return self.state_machine.leads

    @property
    def leader_address(self) -> str | None:
        """Where the leader is, as far as this controller knows."""
        leader = self.peer.leader_id
        return self.addresses.get(leader) if leader is not None else None

    def alive(self, cluster: str, name: str, broker_id: int) -> ReplicaLiveInfo | None:
        """What a living replica's heartbeats say, None for a dead one."""
        return self.state_machine.alive(cluster, name, broker_id)

    def configure(self, config: ControllerConfig) -> None:
        """Goes by other settings, those of `config.FIXED` excepted."""
        self.config = config
        self.state_machine.configure(config.state_machine_settings())

    # What it is asked ---------------------------------------------------------------------------------------

    async def ask(self, request: ControllerRequest) -> Decision:
        """Decides a request and commits what it calls for. RequestError when this controller does not lead,
        or does not get a quorum in time (the outcome is then open)."""
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._tokens += 1
        self._asked[self._tokens] = future
        self._feed(GroupRequestReceived(self._tokens, request))
        return await future

    def heard(self, replica: BrokerIdentityInfo, beat: Heartbeat, fenced_epoch: int | None = None) -> None:
        """Takes a heartbeat. `fenced_epoch`: its sender accepts no more writes under this master epoch."""
        self._feed_renewals()
        self._feed(HeartbeatReceived(replica, self._stamp(beat), fenced_epoch))

    async def heard_asking(
        self, replica: BrokerIdentityInfo, beat: Heartbeat, fenced_epoch: int | None, lease_epoch: int
    ) -> int:
        """Takes a heartbeat that asks for a write lease under this master epoch. For how many milliseconds
        after it *sent* the heartbeat the master may write; 0: it may not."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.renew_lease(
            replica, beat, lease_epoch, lambda lease_ms: complete_future(future, lease_ms), fenced_epoch
        )
        return await future

    def renew_lease(
        self,
        replica: BrokerIdentityInfo,
        beat: Heartbeat,
        lease_epoch: int,
        done: Callable[[int], object],
        fenced_epoch: int | None = None,
    ) -> None:
        """Does as `heard_asking`, and calls `done` with the milliseconds. Renewals that come within
        `RENEWAL_BATCH_S` are decided together."""
        self._tokens += 1
        self._renewals[self._tokens] = done
        self._renewal_batch.append(
            HeartbeatReceived(replica, self._stamp(beat), fenced_epoch, lease_epoch, self._tokens)
        )
        if len(self._renewal_batch) == 1:
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), self._batch_fed_s + RENEWAL_BATCH_S), self._feed_renewals)

    def _stamp(self, beat: Heartbeat) -> Heartbeat:
        beat.last_ms = self._now_ms()
        return beat

    def closed(self, channel: object) -> None:
        """A connection has ended."""
        self._feed_renewals()
        self._feed(ChannelClosed(channel))

    async def confirm_leadership(self) -> None:
        """A quorum round trip. RequestError when this controller does not lead, or cannot show it."""
        try:
            if self.leads:
                async with asyncio.timeout(PROOF_TIMEOUT_S):
                    await self.peer.read_index()
                    return
        except (RaftOperationError, TimeoutError):
            pass
        raise RequestError(ResponseCode.CONTROLLER_NOT_LEADER, NOT_LEADER)

    # The desk -----------------------------------------------------------------------------------------------

    def _feed(self, event: ControllerInput) -> None:
        """One input after another: what comes while effects are carried out waits until all of them are."""
        if self._state_machine is None:
            return
        self._inputs.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inputs:
                for effect in self._state_machine.step(self._inputs.popleft(), self._now_ms()):
                    self._carry_out(effect)
        finally:
            self._stepping = False
        self._wake_in_time(self._state_machine)

    def _feed_renewals(self) -> None:
        """Feeds the lease renewals that have come, if any: before anything else that a broker says."""
        batch, self._renewal_batch = self._renewal_batch, []
        if batch:
            self._batch_fed_s = asyncio.get_running_loop().time()
            self._feed(HeartbeatsReceived(batch))

    def _wake_in_time(self, state_machine: ControllerStateMachine) -> None:
        at = state_machine.next_deadline_ms() / 1000
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_at(at, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._feed(TimeAdvanced())

    def _carry_out(self, effect: ControllerEffect) -> None:
        match effect:
            case RespondToLeaseRequest(token=token, lease_ms=lease_ms):
                self._renewals.pop(token)(lease_ms)
            case RespondToRequest(token=token, decision=decision):
                answered = self._asked.pop(token)
                if not answered.done():
                    answered.set_result(decision)
            case RejectRequest(token=token, code=code, remark=remark):
                rejected = self._asked.pop(token)
                if not rejected.done():
                    rejected.set_exception(RequestError(code, remark))
            case ProposeEvents(token=token, bodies=bodies):
                self.peer.submit(bodies, lambda outcome: self._settled(token, outcome))
            case CheckLeadership(token=token):
                self.peer.confirm_leadership(
                    lambda outcome: self._feed(
                        LeadershipCheckCompleted(token, not isinstance(outcome, RaftOperationError))
                    )
                )
            case NotifyBroker():
                self._notify(effect)
            case LogMessage(text=text, warns=warns):
                log.log(logging.WARNING if warns else logging.INFO, "%s", text)

    def _settled(self, token: int, outcome: AppendResult | RaftOperationError) -> None:
        if not isinstance(outcome, RaftOperationError):
            self._feed(ProposalCompleted(token))
        elif outcome.code not in (
            DLedgerResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
            DLedgerResponseCode.TERM_CHANGED,
        ):
            self._feed(ProposalCompleted(token, str(outcome)))
        # With these two its fate is open; the desk goes on once it is committed or we no longer lead.

    # From the log -------------------------------------------------------------------------------------------

    def _apply(self, entry: DLedgerEntry) -> None:
        self._feed(EntryApplied(entry.index, entry.term, entry.body))

    def save(self) -> bytes:
        """The tables as a snapshot (`StateMachine`)."""
        return snapshot.encode(self.state_machine.groups)

    def restore(self, data: bytes) -> None:
        """The tables become those of a snapshot. ValueError when it is none."""
        self._feed(SnapshotRestored(snapshot.decode(data)))

    def _on_role(self, change: RoleChanged) -> None:
        self._feed(LeadershipChanged(change.term if change.role is RaftRole.LEADER else None))
