"""The reasons why a store may not be read or written."""

from __future__ import annotations

from epochmq_store.statuses import RunningFlags


def test_each_reason_has_a_bit_of_its_own_above_those_of_rocketmq() -> None:
    values = [flag.value for flag in RunningFlags.__members__.values()]
    assert [value.bit_count() for value in values] == [1] * len(values)
    assert len(set(values)) == len(values)
    assert min(RunningFlags.FLUSH_FAILED, RunningFlags.REPLICA, RunningFlags.LOG_DAMAGED) > 1 << 15
