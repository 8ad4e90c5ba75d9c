"""The format of the file `checkpoint` (StoreCheckpoint): store times up to which log, consume queues and
index are on disk, and two offsets of the log. The rest of its page is zero."""

from __future__ import annotations

from typing import Final

from epochmq_formats.fields import positions_of, struct_of

CHECKPOINT_BYTES: Final = 4096

_FIELDS: Final = (
    ("physic_msg_timestamp", "q"), ("logics_msg_timestamp", "q"), ("index_msg_timestamp", "q"),
    ("master_flushed_offset", "q"), ("confirm_phy_offset", "q"),
)  # fmt: skip
FIELDS: Final = struct_of(_FIELDS)
FIELD: Final = struct_of(_FIELDS[:1])
"""Any one of the fields."""
PHYSIC_MSG_TIMESTAMP_AT, _, _, _, CONFIRM_PHY_OFFSET_AT = positions_of(_FIELDS)
