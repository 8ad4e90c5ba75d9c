"""Generates the CustomResourceDefinitions of both groups."""

# pure: data in, data out.

from __future__ import annotations

import copy
from typing import Any

from epochmq_operator.crd.schema import Schema, root_rules, spec_schema
from epochmq_operator.crd.status import COLUMNS, STATUS
from epochmq_operator.resources import API_GROUP, KINDS, VERSION

SHORT = {"BrokerGroup": "bg", "ControllerGroup": "cg"}
NAME_LENGTH_OF_KUBERNETES = 253


def definition(kind: str) -> Schema:
    """The whole object for `kubectl apply`."""
    singular = kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{singular}s",
                "singular": singular,
                "shortNames": [SHORT[kind]],
                "categories": ["epochmq"],
            },
            "scope": "Namespaced",
            "versions": [_version(kind)],
        },
    }


def _version(kind: str) -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": COLUMNS[kind],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _schema(kind)},
    }


def _schema(kind: str) -> Schema:
    model = KINDS[kind]
    spec = spec_schema(model)
    needed = ["spec"] if model.model_fields["spec"].is_required() else []
    if not needed:
        defaults = {name: part["default"] for name, part in spec["properties"].items() if "default" in part}
        spec["default"] = copy.deepcopy(defaults)
    return root_schema(model, spec, STATUS[kind], needed=needed, rules=root_rules(kind))


def root_schema(
    model: type, spec: Schema, status: Schema, *, needed: list[str], rules: list[Schema]
) -> Schema:
    """The schema of a whole resource. Its description is the docstring of the model."""
    return {
        "description": (model.__doc__ or "").strip(),
        "type": "object",
        **({"required": needed} if needed else {}),
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": NAME_LENGTH_OF_KUBERNETES}},
            },
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": rules,
    }
