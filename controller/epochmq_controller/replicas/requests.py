# pure: what may be asked about a group
"""What may be asked about a replica group, as plain values, and by which rule each is decided."""

from __future__ import annotations

import msgspec

from epochmq_controller.replicas import rules
from epochmq_controller.replicas.policy import Liveness
from epochmq_controller.replicas.rules import Verdict
from epochmq_controller.replicas.state import ReplicaGroups


class _Request(msgspec.Struct, frozen=True):
    name: str
    """The group's broker name."""


class AlterSet(_Request, frozen=True):
    """1001: the master of `master_epoch` reports who is in sync, as a change of the set of `set_epoch`. None
    is what the sender left out."""

    master_id: int | None
    master_epoch: int | None
    new_set: frozenset[int] | None
    set_epoch: int


class Elect(_Request, frozen=True):
    """1002: `broker_id` wants a master, itself if `designate`. ANY_BROKER: the controller does.
    `fenced_epoch`: the present master asks, and writes no more under this epoch."""

    broker_id: int = rules.ANY_BROKER
    designate: bool = False
    fenced_epoch: int | None = None
    in_doubt: bool = False
    """`broker_id` says that it may lack acknowledged messages."""


class Register(_Request, frozen=True):
    """1003: a replica reports for duty. None is what the sender left out."""

    cluster: str
    broker_id: int | None
    address: str | None


class ReplicaInfo(_Request, frozen=True):
    """1004: who is master, who is in sync."""


class Clean(_Request, frozen=True):
    """1011: forget dead replicas (`ids`, `;` between them), or with `living_too` the group."""

    cluster: str
    ids: str | None
    living_too: bool


class NextId(_Request, frozen=True):
    """1012: which id a new replica should apply for."""


class ApplyId(_Request, frozen=True):
    """1013: a replica applies for an id; by `check_code` it proves later that the id is its own."""

    cluster: str
    applied: int
    check_code: str


Request = AlterSet | Elect | Register | ReplicaInfo | Clean | NextId | ApplyId


def decide(
    request: Request, groups: ReplicaGroups, alive: Liveness, *, unclean: bool = False, fenced: bool = False
) -> Verdict:
    """What the request finds on these tables, and the events that it calls for. `fenced`: the group's master
    has said that it writes no more under its epoch."""
    name = request.name
    match request:
        case AlterSet(master_id=master_id, master_epoch=epoch, new_set=new_set, set_epoch=set_epoch):
            return rules.alter_sync_state_set(groups, name, master_id, epoch, new_set, set_epoch, alive)
        case Elect(broker_id=broker_id, designate=designate, in_doubt=in_doubt):
            return rules.elect_master(
                groups,
                name,
                broker_id,
                designate=designate,
                unclean=unclean,
                alive=alive,
                fenced=fenced,
                in_doubt=in_doubt,
            )
        case Register(cluster=cluster, broker_id=broker_id, address=address):
            return rules.register_broker(groups, cluster, name, broker_id, address, alive)
        case ReplicaInfo():
            return rules.replica_info(groups, name)
        case Clean(cluster=cluster, ids=ids, living_too=living_too):
            return rules.clean_broker_data(groups, cluster, name, ids, living_too=living_too, alive=alive)
        case NextId():
            return Verdict()
        case ApplyId(cluster=cluster, applied=applied, check_code=check_code):
            return rules.apply_broker_id(groups, cluster, name, applied, check_code)
