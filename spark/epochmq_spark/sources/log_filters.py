"""Takes from the filters of a query what restricts a read of commit logs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from epochmq_protocol.epoch_entries import OFFSET_MAX
from epochmq_spark import store_layout

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class LogFilter:
    """What messages a query wants. A set that is None wants all."""

    groups: frozenset[str] | None = None
    replicas: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None
    low: int = 0
    high: int = OFFSET_MAX
    """Physical offsets, without `high`."""
    first_ms: int = -OFFSET_MAX
    last_ms: int = OFFSET_MAX
    """Store times in epoch ms, with `last_ms`."""

    def wants(self, replica: store_layout.AuditedReplica) -> bool:
        """Whether the replica is wanted."""
        is_of_group = self.groups is None or replica.group in self.groups
        return is_of_group and (self.replicas is None or replica.name in self.replicas)

    @property
    def restricts_rows(self) -> bool:
        """Whether not all messages of a range of the log are wanted."""
        has_times = self.first_ms > -OFFSET_MAX or self.last_ms < OFFSET_MAX
        return self.topics is not None or self.queue_ids is not None or has_times

    def add(self, condition: Filter) -> bool:
        """Restricts what is wanted. Returns whether Spark need not apply the condition, too: only for groups,
        replicas and offsets. Rows of other topics, queues and times may remain."""
        attribute: tuple[str, ...] = getattr(condition, "attribute", ())
        value: Any = getattr(condition, "value", None)
        if len(attribute) != 1:
            return False
        match attribute[0]:
            case "group" | "replica" | "topic" | "queue_id":
                return self._add_values(attribute[0], condition, value)
            case "physical_offset":
                bounds = _bounds(condition, value, _whole_number)
                if bounds is not None:
                    self.low, self.high = max(self.low, bounds[0]), min(self.high, bounds[1] + 1)
                return bounds is not None and not isinstance(condition, In)
            case "store_timestamp" | "store_time":
                bounds = _bounds(
                    condition, value, _whole_number if attribute[0] == "store_timestamp" else _milliseconds
                )
                if bounds is not None:
                    slack = 0 if attribute[0] == "store_timestamp" else 1  # of a part of a millisecond
                    self.first_ms = max(self.first_ms, bounds[0] - slack)
                    self.last_ms = min(self.last_ms, bounds[1] + slack)
                return False
        return False

    def _add_values(self, name: str, condition: Filter, value: Any) -> bool:
        if not isinstance(condition, EqualTo | In):
            return False
        values = frozenset((value,) if isinstance(condition, EqualTo) else value) - {None}
        kind = int if name == "queue_id" else str
        if not all(isinstance(one, kind) for one in values):
            return False
        if name == "topic" and any("\ufffd" in one for one in values):
            return False  # stands for any bytes that are not UTF-8
        field = {"group": "groups", "replica": "replicas", "topic": "topics", "queue_id": "queue_ids"}[name]
        known = getattr(self, field)
        setattr(self, field, values if known is None else known & values)
        return name in ("group", "replica")


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(value: Any) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _bounds(condition: Filter, value: Any, number: Any) -> tuple[int, int] | None:
    """The smallest and the largest whole number that a condition lets through."""
    if isinstance(condition, In):
        found = [number(one) for one in value if one is not None]
        if not found or None in found:
            return None
        return min(found), max(found)
    whole = number(value)
    if whole is None:
        return None
    step = 1 if number is _whole_number else 0
    match condition:
        case EqualTo():
            return whole, whole
        case GreaterThan():
            return whole + step, OFFSET_MAX
        case GreaterThanOrEqual():
            return whole, OFFSET_MAX
        case LessThan():
            return -OFFSET_MAX, whole - step
        case LessThanOrEqual():
            return -OFFSET_MAX, whole
    return None
