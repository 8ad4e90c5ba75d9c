"""Reads Kubernetes quantities such as 10Gi, 500m or 2."""

from __future__ import annotations

from decimal import Decimal
from typing import Any


def parse_quantity(value: object) -> Decimal:
    """The value of a quantity. ValueError for anything else."""
    # Imported here, because the local runtime compares no quantities and does without the Kubernetes client.
    from kubernetes.utils import quantity

    parse: Any = quantity.parse_quantity  # it carries no types
    return Decimal(parse(value))
