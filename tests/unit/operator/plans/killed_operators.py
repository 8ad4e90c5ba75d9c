"""Carries out changes of a group in a cluster in memory, under operators of which one is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.unit.operator.plans.fake_api import FakeApi

IDLE_ROUNDS = 2
"""A change has ended when the operator did nothing in so many rounds."""
STEPS = [pytest.param(8, id="every eighth"), pytest.param(1, id="every one", marks=pytest.mark.soak)]
"""From one effect after which an operator is killed to the next: all of them only in the soak."""


def change_under_operators(
    api: FakeApi, counts: Iterable[int], put: Callable[[int], None], rounds_max: int, stop: int | None
) -> int:
    """Asks for each of these numbers in turn, and lets operators change the group, of which one is killed
    after `stop` effects; returns the number of effects."""
    total = 0
    api.replace_operator()
    for count in counts:
        put(count)
        idle = 0
        for _ in range(rounds_max):
            api.tick()
            done = api.operate(limit=stop)
            idle = 0 if done else idle + 1
            if idle == IDLE_ROUNDS:
                break
            if stop is not None:
                stop -= done
                if stop == 0:  # this operator was killed; the next one is not
                    stop = None
                    api.replace_operator()
            total += done
    return total
