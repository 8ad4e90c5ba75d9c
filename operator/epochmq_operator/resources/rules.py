"""The rules that span fields, or a resource's past and present. Each is written twice, side by side: for the
API server as CEL, and in Python for what got past it. A test on a real API server holds both to one table.

The message says what to do; the API server puts the field's path before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from epochmq_operator.resources.model import (
    AN_EVEN_NUMBER,
    COUNTS_IN_WORDS,
    DNS_LABEL,
    NAME_LENGTH_MAX,
    GroupResource,
)
from epochmq_operator.resources.owned_keys import (
    CONTROLLER_OWNED_KEYS,
    OPERATOR_OWNED_KEYS,
    STORE_PATHS,
    VOLUMES,
)


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """`cel` holds at the field `path` (dotted, "" is the whole resource). `kept`, of a rule about changes,
    says the same of a group as it was and as it is to be."""

    path: str
    cel: str
    message: str
    holds_for_change: Callable[[GroupResource, GroupResource], bool] | None = None


_UNITS: Mapping[str, int] = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def quantity(text: str | int) -> Decimal:
    """The number that a quantity of Kubernetes stands for: 10Gi, 500m, 2."""
    text = str(text)
    number = text.rstrip("mkKMGTPi")
    unit = text[len(number) :]
    if unit == "m":
        return Decimal(number) / 1000
    base = Decimal(1024 if unit.endswith("i") else 1000)
    power = _UNITS[unit.removesuffix("i").replace("K", "k")]
    return Decimal(number) * base**power


def _field(path: str) -> Callable[[GroupResource], Any]:
    def value(group: GroupResource) -> Any:
        found: Any = group
        for part in path.split("."):
            found = getattr(found, part)
        return found

    return value


def _immutable(where: str, name: str, attribute: str, message: str) -> ValidationRule:
    """The field never changes once the resource is there."""
    value = _field(attribute)
    return ValidationRule(
        where,
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        lambda old, new: value(old) == value(new),
    )


def _reserved_key_rules(owned: Mapping[str, str]) -> tuple[ValidationRule, ...]:
    """A rule for each thing that configuration keys follow from, naming the keys."""
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
        f"choose a name of at most {NAME_LENGTH_MAX} characters: names of pods and volumes are made of it",
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
        lambda old, new: quantity(new.spec.storage.size) >= quantity(old.spec.storage.size),
    ),
    _immutable(
        "spec.storage",
        "storageClassName",
        "spec.storage.storage_class_name",
        "storageClassName cannot change: put it back, or create a new group with the other class",
    ),
)

RULES: Mapping[str, tuple[ValidationRule, ...]] = {
    "BrokerGroup": (
        *_COMMON,
        ValidationRule(
            "spec",
            "!has(self.minInSyncReplicas) || self.minInSyncReplicas <= self.replicas",
            "minInSyncReplicas is above replicas, and nothing could be sent: lower it, or add replicas",
        ),
        _immutable(
            "spec",
            "brokerName",
            "spec.broker_name",
            "brokerName cannot change, for clients know the group by it: put it back, or create a new group",
        ),
        _immutable(
            "spec",
            "cluster",
            "spec.cluster",
            "cluster cannot change, for clients know the group by it: put it back, or create a new group",
        ),
        _immutable(
            "spec",
            "controllerGroup",
            "spec.controller_group",
            "controllerGroup cannot change, for only these controllers know which replicas have every "
            "acknowledged message: put it back, or create a new group",
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
        _immutable(
            "spec.nameserver",
            "embedded",
            "spec.nameserver.embedded",
            "embedded cannot change, for clients know the nameservers' addresses: put it back, or create "
            "a new group",
        ),
        *_reserved_key_rules(CONTROLLER_OWNED_KEYS),
    ),
}


def rejected_changes(old: GroupResource, new: GroupResource) -> tuple[str, ...]:
    """What of a change the API server would refuse, a line each. Both are the same group."""
    return tuple(
        f"{rule.path}: {rule.message}"
        for rule in RULES[new.kind]
        if rule.holds_for_change is not None and not rule.holds_for_change(old, new)
    )
