"""Tests that the table of goals names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
GOALS = (ROOT / "docs" / "develop" / "operator-goals.md").read_text(encoding="utf-8")


def test_every_test_that_the_goals_name_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", GOALS)
    assert len(named) > 40
    missing = [
        f"{file}::{test}"
        for file, test in named
        if not re.search(rf"^\s*(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE)
    ]
    assert missing == []


def test_each_of_the_forty_goals_has_a_test_or_is_open() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+) \|$", GOALS, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 41))
    assert [number for number, _, shown in rows if "::" not in shown and "not yet" not in shown] == []
