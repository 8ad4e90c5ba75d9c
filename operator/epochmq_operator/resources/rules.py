"""Defines validation rules that span fields, or that compare a resource with its earlier state.

A rule about changes is written twice, side by side: in CEL for the API server, and in Python. A test on a
real API server checks both against one table. The message tells the user what to do; the API server puts the
field's path before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from epochmq_operator.resources.model import (
    AN_EVEN_NUMBER,
    COUNTS_IN_WORDS,
    DLEDGER_COUNTS,
    DNS_LABEL,
    NAME_LENGTH_MAX,
    BrokerGroup,
    GroupResource,
)
from epochmq_operator.resources.owned_keys import (
    CONTROLLER_OWNED_KEYS,
    OPERATOR_OWNED_KEYS,
    STORE_PATHS,
    VOLUMES,
)
from epochmq_operator.resources.quantities import parse_quantity
from epochmq_operator.resources.restore_from import RESTORE_FROM_RULES


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """A rule of the API server: `cel` must hold at the field `path` (dotted; "" is the whole resource).
    `holds_for_change` is set for rules about changes: the same rule in Python, given the old and the new
    group."""

    path: str
    cel: str
    message: str
    holds_for_change: Callable[[GroupResource, GroupResource], bool] | None = None


def _field(path: str) -> Callable[[GroupResource], Any]:
    def value(group: GroupResource) -> Any:
        found: Any = group
        for part in path.split("."):
            found = getattr(found, part)
        return found

    return value


def _immutable(where: str, name: str, attribute: str, message: str) -> ValidationRule:
    """The field is immutable."""
    value = _field(attribute)
    return ValidationRule(
        where,
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        lambda old, new: value(old) == value(new),
    )


def _has_controllers(group: GroupResource) -> bool:
    return isinstance(group, BrokerGroup) and group.spec.controllers is not None


def _keeps_controllers_volumes(old: GroupResource, new: GroupResource, *, size: bool) -> bool:
    """Whether the volumes of a group's own controllers keep their class, or do not shrink."""
    before = old.spec.controllers if isinstance(old, BrokerGroup) else None
    after = new.spec.controllers if isinstance(new, BrokerGroup) else None
    if before is None or after is None:
        return True
    if size:
        return parse_quantity(after.storage.size) >= parse_quantity(before.storage.size)
    return after.storage.storage_class_name == before.storage.storage_class_name


def _reserved_key_rules(owned: Mapping[str, str]) -> tuple[ValidationRule, ...]:
    """One rule for each source of operator-owned configuration keys; its message names the keys."""
    by_owner: dict[str, list[str]] = defaultdict(list)
    for key, owner in owned.items():
        by_owner[owner].append(key)
    return tuple(
        ValidationRule(
            "spec.config",
            " && ".join(f"!has(self.{key})" for key in keys),
            f"remove {', '.join(keys)} from spec.config: "
            + (f"give {owner} instead" if owner.startswith("spec.") else f"this follows from {owner}"),
        )
        for owner, keys in by_owner.items()
    )


_COMMON = (
    ValidationRule(
        "",
        f"self.metadata.name.size() <= {NAME_LENGTH_MAX}",
        f"choose a name of at most {NAME_LENGTH_MAX} characters: pod and volume names are derived from it",
    ),
    ValidationRule(
        "",
        f"self.metadata.name.matches('{DNS_LABEL}')",
        "choose a name of lower-case letters, digits and '-' that begins with a letter",
    ),
    ValidationRule(
        "spec.storage",
        "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
        "size cannot shrink: give at least the size it had, or create a new group and move to it",
        lambda old, new: parse_quantity(new.spec.storage.size) >= parse_quantity(old.spec.storage.size),
    ),
    _immutable(
        "spec.storage",
        "storageClassName",
        "spec.storage.storage_class_name",
        "storageClassName cannot change: restore it, or create a new group with the other class",
    ),
    ValidationRule(
        "spec",
        "!has(self.external) || self.external.type != 'LoadBalancer' || has(self.external.host)",
        "give external.host: the name or address that clients outside get, with {ordinal} for the broker",
    ),
    ValidationRule(
        "spec",
        "!has(self.external) || self.external.type != 'NodePort' || has(self.external.nodePort)",
        "give external.nodePort: the port of the nodes; broker N has this port plus N",
    ),
)

RULES: Mapping[str, tuple[ValidationRule, ...]] = {
    "BrokerGroup": (
        *_COMMON,
        ValidationRule(
            "spec",
            "!has(self.external) || !self.externalServices",
            "external and externalServices give clients different addresses: remove one of them",
        ),
        ValidationRule(
            "spec",
            "!has(self.controllers) || !has(self.controllerGroup)",
            "controllers is for the group's own controllers, and controllerGroup names others: remove "
            "controllers, and scale that ControllerGroup",
        ),
        ValidationRule(
            "spec",
            "!has(self.memberAuthentication) || !has(self.controllerGroup)",
            "memberAuthentication is for a group with controllers of its own: remove it, and set it on the "
            "ControllerGroup",
        ),
        ValidationRule(
            "spec",
            "!has(self.controllers) || self.controllers.replicas % 2 == 1",
            f"controllers.replicas must be {COUNTS_IN_WORDS}: {AN_EVEN_NUMBER}; take one fewer or one more",
        ),
        ValidationRule(
            "spec",
            "!has(oldSelf.controllers) || has(self.controllers)",
            "controllers cannot be removed, because the controllers would lose the credentials by which "
            "their number changes: set controllers.replicas to the number that you want",
            lambda old, new: not _has_controllers(old) or _has_controllers(new),
        ),
        ValidationRule(
            "spec",
            "!has(self.minInSyncReplicas) || self.minInSyncReplicas <= self.replicas",
            "minInSyncReplicas is above replicas, so every send would be rejected: lower it, or add replicas",
        ),
        ValidationRule(
            "spec",
            "!has(self.actingMaster) || self.mode == 'MasterSlave'",
            "actingMaster is for the mode MasterSlave; in the other modes another replica is elected master: "
            "remove it, or create a new group in that mode",
        ),
        ValidationRule(
            "spec",
            f"self.mode != 'DLedger' || self.replicas in {list(DLEDGER_COUNTS)}",
            f"replicas must be {COUNTS_IN_WORDS} in the mode DLedger: take one fewer or one more",
        ),
        ValidationRule(
            "spec",
            "self.mode != 'DLedger' || !has(self.minInSyncReplicas)",
            "minInSyncReplicas is not for the mode DLedger, where a message is acknowledged once a majority "
            "of the replicas has it: remove it",
        ),
        ValidationRule(
            "spec",
            "self.mode != 'DLedger' || !self.hibernate",
            "remove hibernate: a group in the mode DLedger cannot hibernate yet, because a replica alone is "
            "no majority",
        ),
        ValidationRule(
            "spec",
            "self.mode != 'DLedger' || !has(self.restoreFrom)",
            "restoreFrom is not for the mode DLedger, in which no backups are taken: remove it",
        ),
        *(ValidationRule("spec.restoreFrom", cel, message) for cel, message in RESTORE_FROM_RULES),
        _immutable(
            "spec",
            "restoreFrom",
            "spec.restore_from",
            "restoreFrom cannot change, because only a new group is restored: give it the value that it had, "
            "or create a new group",
        ),
        ValidationRule(
            "spec.controllers.storage",
            "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "size cannot shrink: give at least the size it had",
            lambda old, new: _keeps_controllers_volumes(old, new, size=True),
        ),
        ValidationRule(
            "spec.controllers.storage",
            "has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "storageClassName cannot change, because the volumes have their class: restore it",
            lambda old, new: _keeps_controllers_volumes(old, new, size=False),
        ),
        _immutable(
            "spec",
            "mode",
            "spec.mode",
            "mode cannot change, because only the mode that wrote the logs knows which replicas have every "
            "acknowledged message: restore it, or create a new group and move to it",
        ),
        _immutable(
            "spec",
            "brokerName",
            "spec.broker_name",
            "brokerName cannot change, because clients use it: restore it, or create a new group",
        ),
        _immutable(
            "spec",
            "cluster",
            "spec.cluster",
            "cluster cannot change, because clients use it: restore it, or create a new group",
        ),
        _immutable(
            "spec",
            "controllerGroup",
            "spec.controller_group",
            "controllerGroup cannot change, because only these controllers know which replicas have every "
            "acknowledged message: restore it, or create a new group",
        ),
        *_reserved_key_rules({**OPERATOR_OWNED_KEYS, **dict.fromkeys(STORE_PATHS, VOLUMES)}),
    ),
    "ControllerGroup": (
        *_COMMON,
        ValidationRule(
            "spec",
            "self.replicas % 2 == 1",
            f"replicas must be {COUNTS_IN_WORDS}: {AN_EVEN_NUMBER}; take one fewer or one more",
        ),
        ValidationRule(
            "spec.nameserver",
            "!has(self.replicas) || !self.embedded",
            "replicas is for nameservers in pods of their own; of embedded ones each controller has one: "
            "remove it, or create a new group with embedded: false",
        ),
        ValidationRule(
            "spec.nameserver",
            "!has(self.pods) || !self.embedded",
            "pods is for nameservers in pods of their own; embedded ones run in the controllers' pods: "
            "remove it, or create a new group with embedded: false",
        ),
        _immutable(
            "spec.nameserver",
            "embedded",
            "spec.nameserver.embedded",
            "embedded cannot change, because clients use the nameservers' addresses: restore it, or create "
            "a new group",
        ),
        *_reserved_key_rules(CONTROLLER_OWNED_KEYS),
    ),
}


def rejected_changes(old: GroupResource, new: GroupResource) -> tuple[str, ...]:
    """The changes that the API server would reject, one line each. Both arguments are the same group."""
    return tuple(
        f"{rule.path}: {rule.message}"
        for rule in RULES[new.kind]
        if rule.holds_for_change is not None and not rule.holds_for_change(old, new)
    )
