# pure: what goes in and out of the replicas core
"""Inputs and effects of `core`, as plain values."""

from __future__ import annotations

import msgspec

from epochmq_broker.replicas.identity import Application, Identity


class MasterView(msgspec.Struct, frozen=True):
    """What a controller says of the group. `master_id` and `address` are None without a master; `epoch` is 0,
    and `set_epoch` -1, when they were not said."""

    master_id: int | None = None
    address: str | None = None
    epoch: int = 0
    members: frozenset[int] = frozenset()
    set_epoch: int = -1


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Periods in milliseconds."""

    look_ms: int = 5000
    """syncBrokerMetadataPeriod"""
    discover_ms: int = 10_000
    """syncControllerMetadataPeriod"""


# What is asked of the leading controller --------------------------------------------------------------------


class NextId(msgspec.Struct, frozen=True):
    """1012."""


class ApplyId(msgspec.Struct, frozen=True):
    """1013."""

    application: Application


class Register(msgspec.Struct, frozen=True):
    """1003."""

    broker_id: int


class Elect(msgspec.Struct, frozen=True):
    """1002, on one's own behalf; `designate`: this replica and no other, in place of the present master, who
    asks, and writes no more under `fenced_epoch`."""

    broker_id: int
    designate: bool = False
    fenced_epoch: int | None = None


class Look(msgspec.Struct, frozen=True):
    """1004."""


class Alter(msgspec.Struct, frozen=True):
    """1001."""

    broker_id: int
    epoch: int
    members: frozenset[int]
    set_epoch: int


Question = NextId | ApplyId | Register | Elect | Look | Alter


# Answers ----------------------------------------------------------------------------------------------------


class Granted(msgspec.Struct, frozen=True):
    """The id applied for is ours."""


class FreeId(msgspec.Struct, frozen=True):
    """The id to apply for, and a code that nobody has used."""

    id: int
    check_code: str


class Refused(msgspec.Struct, frozen=True):
    """The controller says no."""

    code: int
    remark: str


class Lost(msgspec.Struct, frozen=True):
    """No answer: the question may have taken effect."""

    why: str


Reply = FreeId | Granted | MasterView | Refused | Lost


# Inputs -----------------------------------------------------------------------------------------------------


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class Met(msgspec.Struct, frozen=True):
    """A controller's answer to 1005. `leader` is the address that it gives, `leads` whether it says that it
    leads itself, `grants` whether it is one that grants leases, `term` the term it knows, if it says so."""

    address: str
    leader: str | None
    leads: bool
    grants: bool
    term: int | None = None


class Searched(msgspec.Struct, frozen=True):
    """All controllers have been asked; those that answered."""

    found: tuple[Met, ...]


class Replied(msgspec.Struct, frozen=True):
    """What became of an `Ask`."""

    token: int
    reply: Reply


class Kept(msgspec.Struct, frozen=True):
    """What a `Keep` effect wanted kept is on disk, or (`error`) is not."""

    what: Application | Identity
    error: str | None = None


class Told(msgspec.Struct, frozen=True):
    """A controller's notification (1008)."""

    view: MasterView


class Taken(msgspec.Struct, frozen=True):
    """What became of a `Become`."""

    view: MasterView
    error: str | None = None


class Proposed(msgspec.Struct, frozen=True):
    """Our master half wants another SyncStateSet."""

    members: frozenset[int]
    set_epoch: int


class Starved(msgspec.Struct, frozen=True):
    """No lease comes: who leads?"""


class CaughtUp(msgspec.Struct, frozen=True):
    """Our log lacks nothing that a living master may have acknowledged."""


Input = Tick | Searched | Replied | Kept | Told | Taken | Proposed | Starved | CaughtUp


# Effects ----------------------------------------------------------------------------------------------------


class Search(msgspec.Struct, frozen=True):
    """Ask every controller who leads, and report with `Searched`."""


class Ask(msgspec.Struct, frozen=True):
    """Ask the controller at `address`, and report with `Replied`."""

    token: int
    address: str
    question: Question


class Keep(msgspec.Struct, frozen=True):
    """Write an application or an identity durably, and report with `Kept`."""

    what: Application | Identity


class Drop(msgspec.Struct, frozen=True):
    """Forget the application on disk."""


class Fence(msgspec.Struct, frozen=True):
    """Write no more, at once: another broker is, or may be, the master."""


class Become(msgspec.Struct, frozen=True):
    """Take the role that the view gives this broker, and report with `Taken`."""

    view: MasterView
    broker_id: int


class GiveUp(msgspec.Struct, frozen=True):
    """The mastership of `epoch` is from before our log lost its end: keep that it is given up, and say so to
    the controllers."""

    epoch: int


class Adopt(msgspec.Struct, frozen=True):
    """The controller's SyncStateSet."""

    members: frozenset[int]
    set_epoch: int


class NotTaken(msgspec.Struct, frozen=True):
    """The SyncStateSet proposed last was surely not taken."""


class Leader(msgspec.Struct, frozen=True):
    """Which controller leads, and whether it grants leases (None: not known)."""

    address: str
    grants: bool | None


class Said(msgspec.Struct, frozen=True):
    """A line for the log."""

    text: str
    warns: bool = False


Effect = Search | Ask | Keep | Drop | Fence | Become | GiveUp | Adopt | NotTaken | Leader | Said
