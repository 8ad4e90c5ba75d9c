"""Defines the content of one unit of a consume queue's extension (ConsumeQueueExt.CqExtUnit)."""
# pure: a value

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

BitMapOf = Callable[[str, bytes], bytes]
"""The filter bit map of a message from its topic and stored properties; empty without one."""


class ExtensionUnit(NamedTuple):
    """The tag code and store time (epoch ms) of a message, and its filter bit map, empty if none was
    computed."""

    tags_code: int
    store_timestamp: int
    bit_map: bytes
