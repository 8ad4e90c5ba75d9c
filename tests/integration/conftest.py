"""Fixtures of the tests with real processes and disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.disks import faulty_volume
from tests.integration.disks.faulty_volume import FaultyVolume
from tests.integration.disks.run_directory import RunDirectory


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[FaultyVolume]:
    """A mounted file system that fails on command."""
    if (lacks := faulty_volume.missing()) is not None:
        pytest.skip(f"missing: {lacks}")
    with RunDirectory() as directory:
        program = faulty_volume.compile_program(directory.path)
        made = FaultyVolume(program, directory.path, directory.path / "real", tmp_path / "disk")
        try:
            yield made
        finally:
            made.close()
