# pure: tables in, tables out
"""Decides what a returning master adopts from a slave's table of offsets, by data version
(BrokerPreOnlineService.syncMetadataReverse).

- A table whose data version is not older than this broker's is adopted. Entries that only this broker has
  stay.
- An empty table adopts any other: the version of a new table means nothing. (RocketMQ compares versions even
  then. A master with a new disk may take its slave's offsets for older ones.)
- From an older table only what is ahead is taken. A master that stopped in order has written changes that its
  slaves have not copied; the acting master's progress still counts. (RocketMQ ignores an older table,
  and delivers again what was consumed from the acting master.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from epochmq_protocol.topics import DataVersion

Key = TypeVar("Key", int, str)


def adopts_all(own: Mapping[Key, object], own_version: DataVersion, their_version: DataVersion) -> bool:
    """Whether all entries of the slave's table are adopted, with its version; otherwise those ahead are."""
    return not own or own_version.compare(their_version) <= 0


def ahead(theirs: Mapping[Key, int], own: Mapping[Key, int]) -> dict[Key, int]:
    """The entries of `theirs` that are greater than those of `own`, or missing there."""
    return {key: offset for key, offset in theirs.items() if offset > own.get(key, -1)}


def merge(
    own: Mapping[Key, int], own_version: DataVersion, theirs: Mapping[Key, int], their_version: DataVersion
) -> tuple[dict[Key, int], DataVersion]:
    """Merges a slave's table into that of a returning master. Returns the table and its version."""
    if adopts_all(own, own_version, their_version):
        return {**own, **theirs}, their_version
    return {**own, **ahead(theirs, own)}, own_version
