"""The format of an index file (IndexFile, IndexHeader): a header (40 bytes), slots and entries.

A slot (4 bytes) is the number of its newest entry, or 0. An entry (20 bytes) is the hash of `topic#key`, the
physical offset, the seconds since the file's first message, and the number of the slot's next older entry.
Entry 0 is never used.
"""

from __future__ import annotations

from typing import Final

from epochmq_formats.fields import positions_of, struct_of

HEADER_FIELDS: Final = (
    ("begin_timestamp", "q"), ("end_timestamp", "q"), ("begin_physical", "q"), ("end_physical", "q"),
    ("slots_used", "i"), ("count", "i"),
)  # fmt: skip
HEADER: Final = struct_of(HEADER_FIELDS)
HEADER_BYTES: Final = 40
_, _, BEGIN_PHYSICAL_AT, END_PHYSICAL_AT, _, COUNT_AT = positions_of(HEADER_FIELDS)

SLOT: Final = struct_of((("newest", "i"),))
SLOT_BYTES: Final = 4

ENTRY_FIELDS: Final = (("hash", "i"), ("physical", "q"), ("seconds", "i"), ("previous", "i"))
ENTRY: Final = struct_of(ENTRY_FIELDS)
ENTRY_WITH_PACKED_NUMBER: Final = struct_of((*ENTRY_FIELDS[:-1], ("previous", "4s")))
"""The same, with the number of the next older entry as bytes."""
ENTRY_BYTES: Final = 20
HASH_AT, PHYSICAL_AT, SECONDS_AT, PREVIOUS_AT = positions_of(ENTRY_FIELDS)
