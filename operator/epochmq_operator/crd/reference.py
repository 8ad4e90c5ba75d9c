"""Generates the reference of the resources, in Markdown."""

# pure: data in, text out.

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from epochmq_operator.crd.schema import spec_schema
from epochmq_operator.crd.status import COLUMNS, CONDITIONS, STATUS
from epochmq_operator.resources import (
    API_VERSION,
    CONTROLLER_OWNED_KEYS,
    KINDS,
    OPERATOR_OWNED_KEYS,
    RULES,
    BrokerGroupSpec,
    ControllerGroupSpec,
)
from epochmq_operator.resources.documents import KUBERNETES_ONLY
from epochmq_operator.resources.loader import EXPECTED, EXPECTED_OF_CONTROLLERS
from epochmq_operator.resources.model import fields_of

HEAD = f"""\
# Resources

<!-- Made by `python -m epochmq_operator.crd` of the resource model; change that, and run it again. -->

For people who write resource files. This page lists all kinds and fields of `{API_VERSION}`, with the values
that each field accepts and its default.

Fields marked ☸ only have an effect on Kubernetes; `epochmq up` accepts and ignores them. Defaults are in the
schema: the API server writes them into the resource.
"""


SPECS: Mapping[str, type[BaseModel]] = {
    "BrokerGroup": BrokerGroupSpec,
    "ControllerGroup": ControllerGroupSpec,
}


def reference() -> str:
    """The whole document."""
    return "\n".join((HEAD, *(line for kind in KINDS for line in _kind(kind))))


def _kind(kind: str) -> Iterator[str]:
    model = KINDS[kind]
    yield f"## {kind}\n\n{(model.__doc__ or '').strip()}\n"
    yield "| field | | values | default |\n|---|---|---|---|"
    schema = spec_schema(model)
    spec = SPECS[kind]
    order = [spec.model_fields[name].alias or name for name in fields_of(spec)]
    required = schema.get("required", [])
    marks = model.model_json_schema(by_alias=True)["$defs"][f"{kind}Spec"]["properties"]
    for name in sorted(order, key=lambda name: (name not in required, order.index(name))):
        mark = " ☸" if KUBERNETES_ONLY in marks[name] else ""
        for path, field in fields_below(f"spec.{name}", schema["properties"][name]):
            default = "required" if path == f"spec.{name}" and name in required else default_of(field)
            cells = f"`{path}`{mark}", field.get("description", ""), _values(kind, path, field), default
            yield f"| {' | '.join(cells)} |"
    yield ""
    yield from _refusals(kind)
    yield from _status(kind)


def fields_below(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The field and the fields below it. Owned configuration keys are left out; the reference lists them
    separately."""
    yield path, schema
    inner = {} if schema.get("x-kubernetes-preserve-unknown-fields") else schema.get("properties", {})
    for name, field in inner.items():
        yield from fields_below(f"{path}.{name}", field)
    items = schema.get("items", {}).get("properties", {})
    for name, field in items.items():
        yield f"{path}[].{name}", field


def default_of(field: dict[str, Any]) -> str:
    default = field.get("default")
    if default is None or "default" in str(field.get("properties", "")):
        return ""
    if isinstance(default, dict):
        return f"`{json.dumps(default)}`" if default else ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _values(kind: str, path: str, field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "object" and "maxProperties" not in field:
        return ""
    special = EXPECTED_OF_CONTROLLERS if kind == "ControllerGroup" else {}
    accepted = special.get(path) or EXPECTED.get(path) or field.get("type", "")
    bound = field.get("maxItems") or field.get("maxProperties")
    return accepted.replace("|", "\\|") + (f"; at most {bound}" if bound else "")


def _refusals(kind: str) -> Iterator[str]:
    yield "Besides values of another type, the API server rejects:\n"
    yield "| field | message |\n|---|---|"
    for rule in RULES[kind]:
        yield f"| `{rule.path or 'the resource'}` | {rule.message} |"
    yield ""
    keys = OPERATOR_OWNED_KEYS if kind == "BrokerGroup" else CONTROLLER_OWNED_KEYS
    also = ", and every key that begins with `storePath`" if kind == "BrokerGroup" else ""
    yield f"Keys that `spec.config` must not have: {', '.join(f'`{key}`' for key in sorted(keys))}{also}.\n"


def _status(kind: str) -> Iterator[str]:
    columns = ", ".join(
        f"{column['name']}{' (with `-o wide`)' if column.get('priority') else ''}" for column in COLUMNS[kind]
    )
    yield f"`kubectl get {kind.lower()}s` shows {columns}. `kubectl scale` works on `spec.replicas`.\n"
    yield "| field of `status` | |\n|---|---|"
    for name, field in STATUS[kind]["properties"].items():
        yield f"| `{name}` | {field['description']} |"
    inner = ", ".join(f"`{name}`" for name in CONDITIONS["items"]["properties"])
    yield f"\nA condition has {inner}.\n"
