"""Compares an object of the API server with its manifest. Only the fields of the manifest count: the API
server fills in defaults, Kubernetes' controllers and users add fields of their own, and the operator leaves
all of these alone.

Lists whose items have a key are compared item by item, as server-side apply merges them: items that others
added are no difference. The operator owns all other lists as a whole."""

# pure: data in, lines out.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from epochmq_operator.manifests.settings import JsonObject
from epochmq_operator.resources.quantities import parse_quantity

ITEM_KEYS = ("mountPath", "name", "topologyKey", "uid")
"""The key of a list is the first of these that all its items have. A mount's key is its path: its `name` is
the volume's."""
QUANTITIES = frozenset({"requests", "limits"})
"""Fields with quantities, which the API server rewrites: 1024Mi becomes 1Gi."""
SHOWN_MAX = 60
IMMUTABLE_FIELDS = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
"""Fields of a StatefulSet's spec that the API server does not allow to change."""


def differences(desired: Mapping[str, Any], observed: Mapping[str, Any]) -> tuple[str, ...]:
    """One line for each field of the manifest that differs: its path, the observed and the desired value.
    Both arguments are whole objects as JSON has them. Empty: nothing is to be done."""
    return tuple(_compare(desired, observed, ""))


def _compare(desired: Any, observed: Any, path: str) -> Iterator[str]:
    if _is_nothing(desired) and _is_nothing(observed):
        return
    if isinstance(desired, Mapping) and isinstance(observed, Mapping):
        if desired == observed:  # nearly always: no walk through the fields
            return
        quantities = path.rpartition(".")[2] in QUANTITIES
        for name, wanted in desired.items():
            there = observed.get(name)
            if quantities and _same_quantity(wanted, there):
                continue
            yield from _compare(wanted, there, f"{path}.{name}" if path else name)
        return
    if isinstance(desired, list) and isinstance(observed, list):
        if desired == observed:
            return
        yield from _compare_lists(desired, observed, path)
        return
    if desired != observed or isinstance(desired, bool) != isinstance(observed, bool):
        yield f"{path}: {_shown(observed)}, should be {_shown(desired)}"


def _compare_lists(desired: list[Any], observed: list[Any], path: str) -> Iterator[str]:
    key = _key_of(desired)
    if key is not None and key == _key_of(observed):
        there = {item[key]: item for item in observed}
        for item in desired:
            yield from _compare(item, there.get(item[key]), f"{path}[{item[key]}]")
        return
    if len(desired) != len(observed):
        yield f"{path}: {_shown(observed)}, should be {_shown(desired)}"
        return
    for index, (wanted, found) in enumerate(zip(desired, observed, strict=True)):
        yield from _compare(wanted, found, f"{path}[{index}]")


def _key_of(items: Sequence[Any]) -> str | None:
    if not items or not all(isinstance(item, Mapping) for item in items):
        return None
    for key in ITEM_KEYS:
        values = [item.get(key) for item in items]
        if all(isinstance(value, str) for value in values) and len(set(values)) == len(values):
            return key
    return None


def _is_nothing(value: Any) -> bool:
    """The API server omits empty values. It keeps `false` in the fields that the operator sets, for which no
    value would mean `true`."""
    return value is None or (not isinstance(value, bool) and value in ("", {}, []))


def _same_quantity(wanted: Any, there: Any) -> bool:
    try:
        return parse_quantity(wanted) == parse_quantity(there)
    except (ArithmeticError, ValueError):
        return False


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"


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
