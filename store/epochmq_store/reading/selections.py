"""The tests that say which messages a get with an expression returns."""
# pure: functions over values

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

Select = Callable[[bytes], bool]
"""Whether a message with these stored properties is selected."""

PROPERTY_END: Final = b"\x02"
"""What follows the value of a property in stored properties."""


class SelectByProperty:
    """A `Select` that depends on one property.

    `test` tells for any message. `results` has the result for every value of the property that is not empty,
    computed when it is first asked for, so that few messages need a call. `mark` is what precedes the value
    if another property precedes it; the value behind the last mark counts, unless it is empty."""

    __slots__ = ("mark", "results", "test")

    def __init__(self, mark: bytes, results: Mapping[bytes, bool], test: Select) -> None:
        self.mark = mark
        self.results = results
        self.test = test

    def __call__(self, stored: bytes) -> bool:
        return self.test(stored)
