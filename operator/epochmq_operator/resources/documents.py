"""Defines what all parts of a document have in common: how they are validated, and how their fields are
declared."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

KUBERNETES_ONLY = "x-kubernetes-only"
"""Marks, in a field's JSON schema, a field that the local runtime ignores."""

SCHEMA = "x-schema"
"""In a field's JSON schema: the schema that Kubernetes gets instead."""


class DocumentModel(BaseModel):
    """A part of a document. Unknown fields are rejected, values are not converted, and instances are
    immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """The same instance, which nobody changes: pydantic would copy its defaults for every document."""
        return self


M = TypeVar("M", bound=BaseModel)


def model_of(kind: type[M], resource: Mapping[str, Any]) -> M | str:
    """A resource of the API server as this model, or what is invalid. Its status is left out."""
    shaped = {key: resource[key] for key in ("apiVersion", "kind", "metadata", "spec") if key in resource}
    try:
        return kind.model_validate(shaped)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def enum_by_value(kind: type[StrEnum]) -> BeforeValidator:
    """Converts a member's value to the member: strict mode accepts members only, and documents hold
    values."""
    return BeforeValidator(lambda value: kind(value) if value in list(kind) else value)


def kubernetes_only(description: str, **constraints: Any) -> Any:
    """A field that the local runtime ignores."""
    return Field(description=description, json_schema_extra={KUBERNETES_ONLY: True}, **constraints)
