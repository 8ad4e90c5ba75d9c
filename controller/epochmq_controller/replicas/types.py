# pure: what goes into a controller's desk and what comes out
"""Inputs and effects of the desk (see `desk`), and its settings. Times are milliseconds of one monotonic
clock."""

from __future__ import annotations

import msgspec

from epochmq_controller.replicas.heartbeats import Heartbeat, Replica
from epochmq_controller.replicas.requests import Request
from epochmq_controller.replicas.rules import MasterView, Verdict
from epochmq_controller.replicas.state import ReplicaGroups
from epochmq_protocol.codes import ResponseCode

STRIDE_MIN_MS = 20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What of the controller's settings the desk goes by."""

    lease_ms: int = 600
    scan_brokers_ms: int = 500
    scan_masters_ms: int = 1000
    unclean: bool = False
    prove_reads: bool = False
    """Prove leadership by a quorum round trip before a request that changes nothing is answered."""
    notify: bool = True

    @property
    def stride_ms(self) -> int:
        """The most that the patient clock counts between two looks; the desk wants to be woken twice as
        often while leases are out."""
        return max(STRIDE_MIN_MS, self.lease_ms // 12)


# Inputs -----------------------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Asked(msgspec.Struct, frozen=True):
    """A request; its answer is an `Answer` or `Reject` with the same token."""

    token: int
    request: Request


class Heard(msgspec.Struct, frozen=True):
    """A heartbeat. `lease_token`: it asks for a lease under `lease_epoch`, to be answered by `Leased`.
    `fenced_epoch`: the sender accepts no more writes under this master epoch."""

    replica: Replica
    beat: Heartbeat
    fenced_epoch: int | None = None
    lease_epoch: int | None = None
    lease_token: int = -1


class Closed(msgspec.Struct, frozen=True):
    """A connection has ended."""

    channel: object


class Led(msgspec.Struct, frozen=True):
    """This controller's Raft peer leads `term`, or, with None, does not lead."""

    term: int | None


class Applied(msgspec.Struct, frozen=True):
    """A committed entry of the log, in order."""

    index: int
    term: int
    body: bytes


class Restored(msgspec.Struct, frozen=True):
    """A snapshot has taken the place of all entries applied so far."""

    groups: ReplicaGroups


class Settled(msgspec.Struct, frozen=True):
    """A `Propose` is committed and applied, or (`error`) was refused or its fate is open."""

    token: int
    error: str | None = None


class Proven(msgspec.Struct, frozen=True):
    """These `Prove` have succeeded, or failed."""

    tokens: tuple[int, ...]
    leads: bool


Input = Tick | Asked | Heard | Closed | Led | Applied | Restored | Settled | Proven


# Effects ----------------------------------------------------------------------------------------------------


class Propose(msgspec.Struct, frozen=True):
    """Append these entries to the log, and report with `Settled`. The report may fail to come only when this
    controller has stopped to lead."""

    token: int
    bodies: tuple[bytes, ...]


class Prove(msgspec.Struct, frozen=True):
    """Show by a quorum round trip that begins after this effect that we lead, apply what is committed, and
    report with `Proven`."""

    token: int


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request."""

    token: int
    verdict: Verdict


class Reject(msgspec.Struct, frozen=True):
    """The request was not decided, or its outcome is open."""

    token: int
    code: ResponseCode
    remark: str


class Leased(msgspec.Struct, frozen=True):
    """Whether a lease is granted, `lease_ms` from the moment it was asked for; 0: it is not."""

    token: int
    lease_ms: int


class Notify(msgspec.Struct, frozen=True):
    """Tell the broker at `address` who its group's master is."""

    address: str
    view: MasterView


class Said(msgspec.Struct, frozen=True):
    """A line for the log."""

    text: str
    warns: bool = False


Effect = Propose | Prove | Answer | Reject | Leased | Notify | Said
