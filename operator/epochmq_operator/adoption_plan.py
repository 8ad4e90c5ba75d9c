"""Decides how a replica group is rebuilt that the controllers have forgotten, from what its living brokers
say: its epoch, its replicas, and which of them becomes master."""

# pure: plain data in, data out.

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from epochmq_protocol.errors import EpochMQError
from epochmq_protocol.replica_control import AdoptedGroup, AdoptedReplica


class AdoptionError(EpochMQError):
    """A group cannot be rebuilt; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What one broker says of itself in its runtime information. `label` names it for people. `known_epoch`:
    the greatest master epoch that it knows. `members`: the last SyncStateSet that it knows, empty if it was
    restarted since. `log_end`: the epoch of the last byte of its log, and the end offset."""

    label: str
    address: str
    cluster: str
    broker_name: str
    broker_id: int
    known_epoch: int
    members: frozenset[int]
    log_end: tuple[int, int]
    confirm_offset: int
    in_doubt: bool

    @classmethod
    def parse(cls, label: str, address: str, info: dict[str, str]) -> BrokerReport:
        """Reads a broker's runtime information. AdoptionError if it lacks what is needed."""
        try:
            return cls(
                label,
                address,
                info["replicaCluster"],
                info["replicaGroup"],
                int(info["replicaId"]),
                int(info["knownMasterEpoch"]),
                frozenset(int(one) for one in info["knownMembers"].split(",") if one),
                (int(info["writtenEpoch"]), int(info["commitLogMaxOffset"])),
                int(info["confirmOffset"]),
                info["mayLackAcknowledged"] == "true",
            )
        except (KeyError, ValueError) as error:
            raise AdoptionError(
                f"{label} at {address} has no broker id of controllers, or is no EpochMQ broker of this "
                f"version: its runtime information lacks {error}"
            ) from None


def plan_adoption(
    reports: Sequence[BrokerReport], unreachable: Sequence[str], *, accept_missing: bool
) -> AdoptedGroup:
    """The plan for one group. The master is the replica with the newest log: the greatest epoch, then the
    greatest end offset; one whose log is not in doubt, if there is any. AdoptionError if two brokers claim
    one id; and, without `accept_missing`, if a broker that may have more is not among the `reports`.
    `unreachable`: the brokers of the group that were asked in vain."""
    _check_identities(reports)
    ids = {one.broker_id for one in reports}
    newest_members = max(reports, key=lambda one: (bool(one.members), one.known_epoch)).members
    missing = [*unreachable, *(f"broker {one}" for one in sorted(newest_members - ids))]
    if missing and not accept_missing:
        raise AdoptionError(
            f"{', '.join(missing)} may have acknowledged messages that the others lack: start them, or, if "
            "they are lost for good, repeat this with --accept-missing"
        )
    trusted = [one for one in reports if not one.in_doubt] or list(reports)
    chosen = max(trusted, key=lambda one: (one.log_end, -one.broker_id))
    confirmed = max(reports, key=lambda one: one.confirm_offset)
    if confirmed.confirm_offset > chosen.log_end[1] and not accept_missing:
        raise AdoptionError(
            f"the log of {chosen.label} ends at {chosen.log_end[1]}, but {confirmed.label} says that the "
            f"messages up to {confirmed.confirm_offset} were confirmed. To lose the rest, repeat this with "
            "--accept-missing"
        )
    return AdoptedGroup(
        chosen.cluster,
        chosen.broker_name,
        chosen.broker_id,
        max(one.known_epoch for one in reports),
        sorted(
            (AdoptedReplica(one.broker_id, one.address) for one in reports), key=lambda one: one.broker_id
        ),
    )


def _check_identities(reports: Sequence[BrokerReport]) -> None:
    if not reports:
        raise AdoptionError("no broker of the group responds; start its brokers")
    names = sorted({f"{one.broker_name} of cluster {one.cluster}" for one in reports})
    if len(names) > 1:
        raise AdoptionError(f"the brokers belong to several groups: {', '.join(names)}")
    for broker_id, count in Counter(one.broker_id for one in reports).items():
        if count > 1:
            who = " and ".join(
                f"{one.label} at {one.address}" for one in reports if one.broker_id == broker_id
            )
            raise AdoptionError(f"{who} claim broker id {broker_id}: stop the one whose store is a copy")
