# pure: tables of fields to types of NumPy
"""Makes the type of a structured array from the fields of a format of `epochmq_formats`."""

from __future__ import annotations

from typing import Any

import numpy as np

from epochmq_formats.fields import Fields


def dtype_of(fields: Fields) -> np.dtype[Any]:
    """The structured type with these fields, big endian."""
    return np.dtype([(name, f">{code}") for name, code in fields])
