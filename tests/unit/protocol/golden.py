"""Reads the recorded output of RocketMQ's own classes (see `tests/interop/golden`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "golden"


@cache
def golden(name: str) -> Any:
    """One recorded section."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="ascii"))
