"""Tells which changed pods need no restart: those in which only addresses of controllers and nameservers
differ. A member of a Raft group reads its peers when it starts, and only while its log names none; a running
broker accepts other addresses of controllers and nameservers."""

# pure: pods in, keys out.

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from epochmq_operator.pods import (
    Component,
    Pod,
)
from epochmq_protocol import properties

ACCEPTED_KEYS = frozenset({"controllerAddr", "namesrvAddr"})
"""The keys that a running broker has to get."""
ADDRESS_KEYS: Mapping[Component, frozenset[str]] = {
    Component.NAMESERVER: frozenset(),
    Component.CONTROLLER: frozenset({"controllerDLegerPeers", "joinControllerGroup"}),
    Component.BROKER: ACCEPTED_KEYS | {"dLegerPeers", "joinDLedgerGroup"},
}
"""The keys whose change needs no restart."""


def changed_addresses(before: Pod, after: Pod) -> dict[str, str] | None:
    """The new values of the keys that differ, if no others do; None if the pod has to be restarted. Keys that
    the new configuration lacks are left out."""
    if dataclasses.replace(before, config_files=after.config_files, probe=after.probe) != after:
        return None
    changes: dict[str, str] = {}
    for old, new in zip(before.config_files, after.config_files, strict=True):
        was, now = properties.parse(old.text), properties.parse(new.text)
        differing = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
        if old.path != new.path or not differing <= ADDRESS_KEYS[after.component]:
            return None
        changes |= {key: now[key] for key in differing & now.keys()}
    return changes
