"""Keeps the newest samples of rates and lags, and makes lines for pages from them."""

# pure: takes values and times.

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SAMPLES_MAX = 360
"""How many samples are kept, of all series together in time: the oldest one leaves for a new one."""
SERIES_MAX = 300
"""How many series a sample may have; further ones are left out."""
WIDTH, HEIGHT, MARGIN = 100.0, 24.0, 1.5
"""The size of a line's drawing; pages stretch it."""


class SeriesName(NamedTuple):
    """What a series is about: its kind, such as `in`, and the object, such as `orders-a:0`."""

    kind: str
    of: str


@dataclass(frozen=True, slots=True)
class LineDrawing:
    """A series as lines in a box of WIDTH and HEIGHT: one for each stretch without a gap. `text` says what it
    shows."""

    lines: Sequence[str]
    newest: float
    highest: float
    text: str


class SampleRing:
    """The newest samples. Each has the values of all series at a time, in s of a monotonic clock."""

    def __init__(self, samples_max: int = SAMPLES_MAX, series_max: int = SERIES_MAX) -> None:
        self._samples: deque[tuple[float, dict[SeriesName, float]]] = deque(maxlen=samples_max)
        self._series_max = series_max

    def add(self, now_s: float, values: Mapping[SeriesName, float]) -> None:
        """Adds a sample. One without values is a gap in every series."""
        kept = sorted(values)[: self._series_max]
        self._samples.append((now_s, {name: values[name] for name in kept}))

    def drawing(self, name: SeriesName) -> LineDrawing | None:
        """A series as lines; None if it has fewer than two values."""
        points = [(at, values.get(name)) for at, values in self._samples]
        known = [(at, value) for at, value in points if value is not None]
        if len(known) < 2:
            return None
        first_s, span_s = points[0][0], max(points[-1][0] - points[0][0], 1e-9)
        highest = max(value for _, value in known)
        lines: list[list[str]] = [[]]
        for at, value in points:
            if value is None:
                lines.append([])
                continue
            x = (at - first_s) / span_s * WIDTH
            room = HEIGHT - 2 * MARGIN
            y = HEIGHT - MARGIN - (value / highest if highest > 0 else 0.0) * room
            lines[-1].append(f"{x:.1f},{y:.1f}")
        newest = known[-1][1]
        text = f"now {shown(newest)}, at most {shown(highest)} in the last {span_text(span_s)}"
        return LineDrawing([" ".join(line) for line in lines if len(line) > 1], newest, highest, text)


def shown(value: float) -> str:
    """A value for people: whole if it is large."""
    return f"{value:.1f}" if value < 100 and value != int(value) else f"{value:.0f}"


def span_text(span_s: float) -> str:
    """A span of time in words."""
    return f"{span_s:.0f} s" if span_s < 120 else f"{span_s / 60:.0f} min"
