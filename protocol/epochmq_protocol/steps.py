"""Work in steps: a generator that yields between two short steps and returns its result, so that its caller
decides when the next step is done (`transport/turns.py`)."""
# pure: values only

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def finish(steps: Generator[None, None, T]) -> T:
    """Does all steps at once. Returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
