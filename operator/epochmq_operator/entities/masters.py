"""Finds the broker that takes the changes of a group's topics and users: its master, whatever the group's
mode. Or says why there is none."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from epochmq_operator.plans.objects import PAUSED, Manifest, annotation, spec_of
from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedState
from epochmq_operator.resources.entities import Entity, UserResource


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an entity cannot be compared or changed. `reason` is one CamelCase word."""

    reason: str
    message: str


def master_pod(group: Manifest, states: Mapping[str, ReportedState]) -> str | Problem:
    """The pod of the master by the brokers' own reports. Of two that claim to be the master, the one of the
    later epoch counts; the other one no longer has a lease."""
    if spec_of(group).get("paused") is True or annotation(group, PAUSED) == "true":
        return Problem("Paused", "the group is paused")
    brokers = {pod: state for pod, state in states.items() if isinstance(state, ReportedBrokerState)}
    masters = [
        (state.master_epoch or 0, state.ready, pod)
        for pod, state in brokers.items()
        if state.role == "master" and (state.group is None or state.group.role == "master")
    ]
    if masters:
        return max(masters)[2]
    if not brokers:
        return Problem("NoMaster", "no broker of the group responds to the operator")
    return Problem("NoMaster", "the group has no master")


def missing_provider(group: Manifest, entity: Entity) -> Problem | None:
    """Why the group's brokers keep no users, or no ACLs; None if they keep what the entity needs."""
    if not isinstance(entity, UserResource):
        return None
    config = spec_of(group).get("config")
    keys = ["authenticationMetadataProvider", *(["authorizationMetadataProvider"] if entity.spec.acl else [])]
    missing = [key for key in keys if not (isinstance(config, Mapping) and config.get(key))]
    if not missing:
        return None
    what = "users" if missing[0] == keys[0] else "ACLs"
    message = f"the group's brokers keep no {what}: set {' and '.join(missing)} in the group's spec.config"
    return Problem("NoAccessControl", message)
