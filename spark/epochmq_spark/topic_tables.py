"""Reads the tables of topics of a group's replicas, `config/topics.json`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from epochmq_protocol.errors import EpochMQError
from epochmq_spark import files, store_layout
from epochmq_spark.checks.former_topics import TOPICS_FILE, parse_topics


def read_tables(replicas: Iterable[store_layout.AuditedReplica]) -> dict[str, frozenset[str]]:
    """The tables of those replicas of one group that have a valid one, by the replica's name."""
    tables = {one.name: topic_table(one.location) for one in replicas}
    return {name: table for name, table in tables.items() if table is not None}


@lru_cache(maxsize=256)
def topic_table(location: str) -> frozenset[str] | None:
    """The table of a store, or the one before it if it is damaged, as a broker reads them; None without a
    valid one."""
    for name in (TOPICS_FILE, f"{TOPICS_FILE}.bak"):
        try:
            return parse_topics(files.read(files.join(location, name)))
        except (OSError, ValueError, EpochMQError):
            continue
    return None
