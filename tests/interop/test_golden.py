"""The recorded bytes are still what RocketMQ's classes print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.golden.generate import RECORDED, generate

pytestmark = pytest.mark.java


def test_recorded_golden_bytes_are_what_the_release_prints_today(tmp_path: Path) -> None:
    generate(tmp_path)
    fresh = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    assert fresh.keys() == {path.name for path in RECORDED.glob("*.json")}
    for name, text in fresh.items():
        assert text == (RECORDED / name).read_text(), (
            f"{name} differs: run `python -m tests.interop.golden.generate`"
        )
