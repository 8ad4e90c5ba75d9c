"""Converts a model's JSON schema to a structural schema for Kubernetes: every field has one type, and there
are no references. `additionalProperties: false` is left out, because the API server drops unknown fields."""

# pure: data in, data out.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from epochmq_operator.resources import CONTROLLER_OWNED_KEYS, OPERATOR_OWNED_KEYS, GroupResource
from epochmq_operator.resources.documents import SCHEMA
from epochmq_operator.resources.owned_keys import STORE_PATHS
from epochmq_operator.resources.rules import RULES

Schema = dict[str, Any]

COMMON_KEYWORDS = (
    "description",
    "type",
    "enum",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "maxProperties",
    "pattern",
    "anyOf",
    "x-kubernetes-int-or-string",
)
"""The keywords that both schemas have."""

BOOLEAN_KEYS = frozenset(
    {
        "enableControllerInNamesrv",
        "enableControllerMode",
        "enableDLegerCommitLog",
        "enableSlaveActingMaster",
        "fetchControllerAddrByDnsLookup",
        "fetchNameSrvAddrByDnsLookup",
        "fetchNamesrvAddrByAddressServer",
        "isInBrokerContainer",
        "skipPreOnline",
    }
)
"""The owned keys whose values are booleans. A validation rule (CEL) can only mention keys whose types are in
the schema."""
OWNED_KEYS: Mapping[str, tuple[str, ...]] = {
    "BrokerGroup": (*OPERATOR_OWNED_KEYS, *STORE_PATHS),
    "ControllerGroup": tuple(CONTROLLER_OWNED_KEYS),
}


def spec_schema(kind: type[GroupResource]) -> Schema:
    """The schema of a kind's spec, with defaults and validation rules."""
    document = kind.model_json_schema(by_alias=True)
    found = to_structural(document["properties"]["spec"], document["$defs"])
    properties = found["properties"]
    properties["config"] = _config(kind.__name__, properties["config"])
    for rule in RULES[kind.__name__]:
        if not rule.path:
            continue
        part = found
        for name in rule.path.split(".")[1:]:
            part = part["properties"][name]
        part.setdefault("x-kubernetes-validations", []).append({"rule": rule.cel, "message": rule.message})
    return found


def root_rules(kind: str) -> list[dict[str, str]]:
    """The validation rules about the whole resource."""
    return [{"rule": rule.cel, "message": rule.message} for rule in RULES[kind] if not rule.path]


def _config(kind: str, schema: Schema) -> Schema:
    """The schema of `spec.config`. Values may be strings, numbers or booleans, which no type of a structural
    schema covers: the API server accepts any value, and the operator validates it."""
    owned = {
        key: {"type": "boolean"} if key in BOOLEAN_KEYS else {"x-kubernetes-int-or-string": True}
        for key in sorted(OWNED_KEYS[kind])
    }
    return {
        "description": schema["description"],
        "type": "object",
        "maxProperties": schema["maxProperties"],
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": owned,
    }


def to_structural(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Converts a part of a model's JSON schema to a structural schema."""
    schema = _resolved(schema, definitions)
    # A field of the model may bring its structural schema along.
    if SCHEMA in schema:
        return dict(schema[SCHEMA])
    structural = {key: schema[key] for key in COMMON_KEYWORDS if key in schema}
    if "default" in schema and (default := _default(schema)) is not None:
        structural["default"] = default
    if schema.get("type") == "array":
        structural["items"] = to_structural(schema["items"], definitions)
        structural["x-kubernetes-list-type"] = "atomic"
    if schema.get("type") == "object":
        values = schema.get("patternProperties", {}).values() or [schema.get("additionalProperties")]
        if "properties" in schema:
            structural["properties"] = {
                name: to_structural(value, definitions) for name, value in schema["properties"].items()
            }
            if required := schema.get("required"):
                structural["required"] = list(required)
        elif isinstance(inner := next(iter(values)), dict):
            structural["additionalProperties"] = to_structural(inner, definitions)
    return structural


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """The schema with its reference resolved. A field that may be omitted must not be null, because null has
    no meaning here."""
    branches = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(branches) == 1:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return {**_resolved(branches[0], definitions), **rest}
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**definitions[schema["$ref"].rpartition("/")[2]], **rest}
    return dict(schema)


def _default(schema: Schema) -> Any:
    """The default, unless it is empty. The default of an object includes the defaults of its fields: the API
    server validates an object's rules before it would fill in the fields' defaults."""
    default = schema["default"]
    if not isinstance(default, dict):
        return default if default != [] else None
    non_empty = _non_empty(default)
    return non_empty if non_empty or "properties" in schema else None


def _non_empty(default: Mapping[str, Any]) -> dict[str, Any]:
    """An object's default without what is empty at any depth. The API server rejects a null."""
    values = {
        name: _non_empty(value) if isinstance(value, dict) else value for name, value in default.items()
    }
    return {name: value for name, value in values.items() if value not in (None, {}, [])}
