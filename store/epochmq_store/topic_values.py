"""Computes the values of a topic that all its queues share: the hash of its index keys, and the parts of its
records that follow from its name."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final, NamedTuple

from epochmq_protocol import javahash
from epochmq_store import record
from epochmq_store.key_hash import KeyHasher

CACHED_TOPICS_MAX: Final = 4096
"""Topics whose values are kept for their next queues."""


class TopicValues(NamedTuple):
    """The values of one topic."""

    magic: int
    topic_field: bytes
    """The topic with its length, as in a record."""
    record_overhead: int
    """Bytes of a record with IPv4 hosts besides body and properties."""
    hasher: KeyHasher


@lru_cache(CACHED_TOPICS_MAX)
def topic_values(topic: str) -> TopicValues:
    """The values of this topic."""
    name = topic.encode()
    v2 = len(topic) > record.V1_TOPIC_MAX
    field = (struct.pack(">H", len(name)) if v2 else bytes((min(len(name), 255),))) + name
    # For a topic whose length the format cannot express the overhead is larger than any limit, so that the
    # size check rejects the record.
    legal = len(name) <= (record.PROPERTIES_MAX_BYTES if v2 else record.V1_TOPIC_MAX)
    return TopicValues(
        record.MAGIC_V2 if v2 else record.MAGIC_V1,
        field,
        record.HEAD_V4.size + len(field) + 2 if legal else 1 << 40,
        KeyHasher(javahash.topic_seed(topic)),
    )
