"""The recorded bytes equal those that RocketMQ's classes produce."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.golden.generate import RECORDED, generate

pytestmark = pytest.mark.java


def test_golden_bytes_equal_those_of_the_release(tmp_path: Path) -> None:
    generate(tmp_path)
    fresh = {path.name: path.read_text() for path in tmp_path.glob("*.json")}
    assert fresh.keys() == {path.name for path in RECORDED.glob("*.json")}
    for name, text in fresh.items():
        assert text == (RECORDED / name).read_text(), (
            f"{name} differs: run `python -m tests.interop.golden.generate`"
        )
