"""Finds the first number of a range for which a condition holds, beginning at the range's end."""
# pure: values from values

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable


def first_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number in [low, high) for which this holds, `high` without one. It must hold for all
    larger numbers. The cost depends on the distance of the result from `high`: steps back from there are
    doubled until it does not hold, and a binary search follows."""
    step = 1
    while high - step > low and holds(high - step):
        high -= step
        step *= 2
    numbers = range(max(low, high - step), high)
    return numbers.start + bisect_left(numbers, True, key=holds)
