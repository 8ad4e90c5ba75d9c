# pure: inputs and effects of the state machine
"""Defines the settings, inputs and effects of the controller's state machine. Times are milliseconds of one
monotonic clock."""

from __future__ import annotations

import msgspec

from epochmq_controller.replica_groups.heartbeats import BrokerIdentityInfo, Heartbeat
from epochmq_controller.replica_groups.replicated_state import ReplicaGroups
from epochmq_controller.replica_groups.requests import ControllerRequest
from epochmq_controller.replica_groups.rules import Decision, ReplicaGroupView
from epochmq_protocol.codes import ResponseCode

NOT_LEADER = "The controller is not in leader state"
"""Java's remark."""
CLOCK_STEP_MIN_MS = 20
LEASE_OF_REFUSED_MS = -1
"""The answer to a lease request of a process that must not act under its broker id, or that has not
registered yet (`incarnations`)."""
LEASE_OF_ANOTHER_MS = -2
"""The answer of a leader to a lease request of a broker that is not its group's master of this epoch."""


class ControllerStateMachineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the state machine."""

    lease_ms: int = 600
    scan_brokers_ms: int = 500
    scan_masters_ms: int = 1000
    unclean: bool = False
    confirm_reads: bool = False
    """Confirm leadership by a quorum round trip before the response to a request that changes nothing."""
    notify: bool = True

    @property
    def clock_step_ms(self) -> int:
        """The largest step of the leap-limited clock. While leases are granted, the state machine asks for
        steps twice as often."""
        return max(CLOCK_STEP_MIN_MS, self.lease_ms // 12)


class LeaseRequest(msgspec.Struct, frozen=True, gc=False):
    """A requested lease that waits for a leadership check."""

    token: object
    name: str
    holder: int
    epoch: int
    arrived_ms: float


# Inputs -----------------------------------------------------------------------------------------------------


class TimeAdvanced(msgspec.Struct, frozen=True):
    """Time has passed."""


class GroupRequestReceived(msgspec.Struct, frozen=True):
    """A request. The effect `RespondToRequest` or `RejectRequest` with the same token answers it."""

    token: int
    request: ControllerRequest


class HeartbeatReceived(msgspec.Struct, frozen=True, gc=False):
    """A heartbeat. With `lease_epoch` it requests a lease under this master epoch; `RespondToLeaseRequests`
    with `lease_token`, which identifies the request for the driver, answers it. `fenced_epoch`: the sender
    accepts no more writes under this master epoch."""

    replica: BrokerIdentityInfo
    heartbeat: Heartbeat
    fenced_epoch: int | None = None
    lease_epoch: int | None = None
    lease_token: object = None


class HeartbeatsReceived(msgspec.Struct, frozen=True):
    """Several heartbeats, in order of arrival. One leadership check serves all their lease requests."""

    heartbeats: list[HeartbeatReceived]


class ChannelClosed(msgspec.Struct, frozen=True):
    """A connection has closed."""

    channel: object


class LeadershipChanged(msgspec.Struct, frozen=True):
    """This controller's Raft peer leads `term` or, with None, does not lead."""

    term: int | None


class EntryApplied(msgspec.Struct, frozen=True):
    """A committed entry of the Raft log. Entries arrive in order."""

    index: int
    term: int
    body: bytes


class SnapshotRestored(msgspec.Struct, frozen=True):
    """A snapshot has replaced all entries applied so far."""

    groups: ReplicaGroups


class ProposalCompleted(msgspec.Struct, frozen=True):
    """A `ProposeEvents` is committed and applied or, with `error`, failed for sure."""

    token: int
    error: str | None = None


class LeadershipCheckCompleted(msgspec.Struct, frozen=True):
    """A `CheckLeadership` has succeeded or failed."""

    token: int
    leads: bool


ControllerInput = (
    TimeAdvanced
    | GroupRequestReceived
    | HeartbeatReceived
    | HeartbeatsReceived
    | ChannelClosed
    | LeadershipChanged
    | EntryApplied
    | SnapshotRestored
    | ProposalCompleted
    | LeadershipCheckCompleted
)


# Effects ----------------------------------------------------------------------------------------------------


class ProposeEvents(msgspec.Struct, frozen=True):
    """Append these entries to the Raft log, and report with `ProposalCompleted`. The report may be missing
    only after this controller has lost its leadership."""

    token: int
    bodies: tuple[bytes, ...]


class CheckLeadership(msgspec.Struct, frozen=True):
    """Confirm by a quorum round trip, which starts after this effect, that this controller leads; apply all
    committed entries; and report with `LeadershipCheckCompleted`."""

    token: int


class RespondToRequest(msgspec.Struct, frozen=True):
    """Respond to a request with a decision."""

    token: int
    decision: Decision


class RejectRequest(msgspec.Struct, frozen=True):
    """Respond to a request with an error: it was not decided, or its events may still be committed."""

    token: int
    code: ResponseCode
    remark: str


class RespondToLeaseRequests(msgspec.Struct, frozen=True):
    """Respond to lease requests: each gets a lease for `lease_ms` from the moment of the request, or none
    with 0, `LEASE_OF_REFUSED_MS` or `LEASE_OF_ANOTHER_MS`."""

    tokens: list[object]
    lease_ms: int


class NotifyBroker(msgspec.Struct, frozen=True):
    """Notify the broker at `address` of its group's master."""

    address: str
    view: ReplicaGroupView


class LogMessage(msgspec.Struct, frozen=True):
    """Write a line to the log."""

    text: str
    is_warning: bool = False


ControllerEffect = (
    ProposeEvents
    | CheckLeadership
    | RespondToRequest
    | RejectRequest
    | RespondToLeaseRequests
    | NotifyBroker
    | LogMessage
)
