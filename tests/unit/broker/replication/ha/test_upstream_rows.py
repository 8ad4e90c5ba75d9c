"""Tests that the list of RocketMQ's failures names existing tests."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]
TESTING = (ROOT / "docs" / "develop" / "testing.md").read_text()
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_list_names_is_there() -> None:
    named = NAMED.findall(TESTING)
    assert len(named) > 25
    gone = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"def {name}\(", (ROOT / path).read_text())
    ]
    assert gone == []


def test_every_file_that_the_text_names_is_there() -> None:
    paths = re.findall(r"`(tests/[\w/.]+)`", TESTING)
    assert [path for path in paths if not (ROOT / path).exists()] == []
