"""Reads the properties of an inner batch, from which its unit in a batch consume queue is made."""
# pure: bytes in, numbers out

from __future__ import annotations

from typing import Final, NamedTuple

from epochmq_formats.batch_unit import MESSAGES_MAX
from epochmq_protocol.message_const import PROPERTY_INNER_BASE, PROPERTY_INNER_NUM, stored_name
from epochmq_store.record import property_value

DIGITS_MAX: Final = 19  # fewer digits always fit into eight bytes
_BASE: Final = stored_name(PROPERTY_INNER_BASE)
_NUMBER: Final = stored_name(PROPERTY_INNER_NUM)


class InnerBatch(NamedTuple):
    """Where the messages of an inner batch are in their queue."""

    base: int
    messages: int


def inner_batch_of(properties: bytes) -> InnerBatch | None:
    """The inner batch that stored properties describe by INNER_BASE and INNER_NUM (setBatchSizeIfNeeded).
    None for a record that is no inner batch, or whose numbers are not valid."""
    base = property_value(properties, _BASE) or b""
    count = property_value(properties, _NUMBER) or b""
    if not (base.isdigit() and count.isdigit() and len(base) < DIGITS_MAX and len(count) < DIGITS_MAX):
        return None
    found = InnerBatch(int(base), int(count))
    return found if 0 < found.messages <= MESSAGES_MAX else None
