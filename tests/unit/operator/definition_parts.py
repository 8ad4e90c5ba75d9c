"""The parts of a CustomResourceDefinition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def parts(node: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All schemas within a schema."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from parts(inner, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in node:
            yield from parts(node[word], f"{path}[]")
