"""Computes the values of a topic that all its queues share: the hash of its index keys, and the parts of its
records that follow from its name."""
# pure: values from values

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from epochmq_protocol import javahash, record_layout
from epochmq_protocol import message_const as const
from epochmq_store.index.key_hash import KeyHasher

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
    v2 = len(topic) > const.TOPIC_BYTES_MAX_V1
    field = (len(name).to_bytes(2) if v2 else bytes((min(len(name), 255),))) + name
    # For a topic whose length the format cannot express the overhead is larger than any limit, so that the
    # size check rejects the record.
    legal = len(name) <= (const.PROPERTIES_BYTES_MAX if v2 else const.TOPIC_BYTES_MAX_V1)
    return TopicValues(
        const.MAGIC_V2 if v2 else const.MAGIC_V1,
        field,
        record_layout.HEAD_V4.size + len(field) + 2 if legal else 1 << 40,
        KeyHasher(javahash.topic_seed(topic)),
    )
