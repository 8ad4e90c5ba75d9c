"""Counters and histograms with labels, as RocketMQ's metrics have them.

A table has a bounded number of label sets: what is counted with any further one is left out, because names of
topics and groups come from clients. `bounds` are the upper bounds of the buckets, in ascending order; a value
above the last one falls into one more bucket.
"""
# pure: numbers only

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

LABEL_SETS_MAX: Final = 5000
HISTOGRAMS_MAX: Final = 500
"""A histogram has several values for each label set, so there are fewer of them."""

Sample = tuple[str, float, Mapping[str, str]]
"""Name without `rocketmq_`, value, labels."""


class Histogram:
    """Counts whole numbers by bucket."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[int, ...], counts: Iterable[int] = (), total: int = 0) -> None:
        self.bounds = bounds
        self.counts = list(counts) or [0] * (len(bounds) + 1)
        """How many values each bucket has; the last one is of values above all bounds."""
        self.total = total
        """The sum of the values."""

    def record(self, value: int, times: int = 1) -> None:
        """Adds a value that occurred so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def samples(self, name: str, labels: Mapping[str, str]) -> Iterator[Sample]:
        """The samples of Prometheus' histogram; its buckets are cumulative."""
        cumulative = 0
        for bound, count in zip((*map(float, self.bounds), None), self.counts, strict=True):
            cumulative += count
            le = "+Inf" if bound is None else str(bound)
            yield f"{name}_bucket", cumulative, {**labels, "le": le}
        yield f"{name}_count", cumulative, labels
        yield f"{name}_sum", self.total, labels


class CounterTable:
    """Counters of one metric, by the values of these labels."""

    def __init__(self, *labels: str) -> None:
        self.counts: dict[tuple[str, ...], int] = {}
        self._labels = labels

    def add(self, *values: str) -> None:
        """Adds one to the counter with these values of the labels."""
        counts = self.counts
        count = counts.get(values)
        if count is None:
            if len(counts) >= LABEL_SETS_MAX:
                return
            count = 0
        counts[values] = count + 1

    def samples(self, name: str, more: Mapping[str, str] | None = None) -> Iterator[Sample]:
        """The counters; with `more` labels."""
        for values, count in list(self.counts.items()):
            yield name, count, {**dict(zip(self._labels, values, strict=True)), **(more or {})}


class HistogramTable:
    """Histograms of one metric, by the values of these labels."""

    def __init__(self, bounds: tuple[int, ...], *labels: str) -> None:
        self.table: dict[tuple[str, ...], Histogram] = {}
        self._bounds = bounds
        self._labels = labels

    def record(self, value: int, *values: str, times: int = 1) -> None:
        """Adds a value to the histogram with these values of the labels."""
        found = self.table.get(values)
        if found is None:
            if len(self.table) >= HISTOGRAMS_MAX:
                return
            found = self.table[values] = Histogram(self._bounds)
        found.record(value, times)

    def samples(self, name: str, more: Mapping[str, str] | None = None) -> Iterator[Sample]:
        """The histograms; with `more` labels."""
        for values, histogram in list(self.table.items()):
            labels = dict(zip(self._labels, values, strict=True))
            yield from histogram.samples(name, {**labels, **(more or {})})
