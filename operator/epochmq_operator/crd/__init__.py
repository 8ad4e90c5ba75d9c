"""Generates the CustomResourceDefinitions and the reference from the resource models.

python -m epochmq_operator.crd            # writes them to their places in the repository python -m
epochmq_operator.crd --check    # lists those that are out of date"""
# pure: models to documents

from collections.abc import Iterator
from typing import Any

from epochmq_operator.crd.audit import AUDIT, audit_definition
from epochmq_operator.crd.backup import BACKUP
from epochmq_operator.crd.definition import definition
from epochmq_operator.crd.entity_kinds import ENTITIES
from epochmq_operator.crd.reference import reference
from epochmq_operator.crd.simple_kind import definition_of, reference_of
from epochmq_operator.crd.text import to_yaml
from epochmq_operator.resources import KINDS

SIMPLE_KINDS = (AUDIT, BACKUP, *ENTITIES.values())


def all_definitions() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions of all kinds."""
    return [*(definition(kind) for kind in KINDS), *(definition_of(kind) for kind in SIMPLE_KINDS)]


def whole_reference() -> Iterator[str]:
    """The reference of all kinds, in Markdown."""
    yield reference()
    for kind in SIMPLE_KINDS:
        yield from reference_of(kind)


__all__ = ["all_definitions", "audit_definition", "definition", "definition_of", "to_yaml", "whole_reference"]
