"""Tests that a message lists the first few lines and counts the others."""

from __future__ import annotations

import pytest

from epochmq_operator.plans.group_status import LISTED_MAX, _listed

LINES = [f"pod {number} is not ready" for number in range(LISTED_MAX + 2)]


@pytest.mark.parametrize(
    ("count", "more"),
    [(1, ""), (LISTED_MAX, ""), (LISTED_MAX + 1, "; and 1 more"), (LISTED_MAX + 2, "; and 2 more")],
)
def test_a_message_lists_a_bounded_number_of_lines(count: int, more: str) -> None:
    assert _listed(LINES[:count]) == "; ".join(LINES[: min(count, LISTED_MAX)]) + more
