"""Repeats tests of what holds only while the master keeps its lease: a master that stalls for longer than the
lease rejects sends, and another replica is elected. The brokers count the leases that ran out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.parser import text_string_to_metric_families

from tests.support.sidecar import Sidecar

ATTEMPTS_MAX = 4


def lease_lapses(sidecars: Iterable[Sidecar]) -> int:
    """How many leases of these brokers have run out before they were renewed."""
    return sum(
        int(sample.value)
        for sidecar in sidecars
        for family in text_string_to_metric_families(sidecar.get("/metrics").text)
        for sample in family.samples
        if sample.name == "epochmq_broker_lease_lapses_total"
    )


def unless_lease_lapsed(lapses: Callable[[], int], attempt: Callable[[], None]) -> None:
    """Makes an attempt, and another one after an attempt that failed while a lease ran out."""
    for number in range(1, ATTEMPTS_MAX + 1):
        before = lapses()
        try:
            attempt()
            return
        except AssertionError as error:
            lapsed = lapses() - before
            if not lapsed or number == ATTEMPTS_MAX:
                error.add_note(f"attempt {number}; {lapsed} leases ran out during it")
                raise
