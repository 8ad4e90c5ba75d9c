"""Handles the fields of a StatefulSet that the API server does not allow to change."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.manifests.differences import differences
from epochmq_operator.manifests.settings import JsonObject

IMMUTABLE_FIELDS = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
"""Fields of a StatefulSet's spec."""


def keep_immutable_fields(
    desired: Mapping[str, Any], observed: Mapping[str, Any]
) -> tuple[JsonObject, tuple[str, ...]]:
    """The manifest as it can be applied, with immutable fields as observed, and one line for each change that
    this drops, such as another StatefulSet's selector. Another size of volumes has no line: the claims grow
    (`plans.volumes`). Manifests of other kinds are returned unchanged."""
    if desired.get("kind") != "StatefulSet":
        return dict(desired), ()
    wanted, there = desired["spec"], observed.get("spec") or {}
    held = {name: there[name] for name in IMMUTABLE_FIELDS if name in wanted and name in there}
    if not differences({"spec": {name: wanted[name] for name in held}}, {"spec": held}):
        return dict(desired), ()
    compared = [{"spec": {name: _without_sizes(one[name]) for name in held}} for one in (wanted, there)]
    return {**desired, "spec": {**wanted, **held}}, differences(*compared)


def _without_sizes(field: Any) -> Any:
    """The field; claim templates without the sizes of volumes, because the claims themselves can grow."""
    if not isinstance(field, list):
        return field
    found = []
    for claim in field:
        spec = {key: value for key, value in (claim.get("spec") or {}).items() if key != "resources"}
        found.append({**claim, "spec": spec})
    return found
