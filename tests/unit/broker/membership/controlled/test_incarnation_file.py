"""The names of the processes of a store: on disk before they are used, and kept back to the last acknowledged
one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epochmq_broker.membership.controlled.incarnation_file import NAMES_MAX, IncarnationFile


def begin(tmp_path: Path) -> IncarnationFile:
    file = IncarnationFile(tmp_path / "brokerIdentity")
    file.begin()
    return file


def test_a_start_names_the_process_and_keeps_the_former_names(tmp_path: Path) -> None:
    first, second, third = (begin(tmp_path).lineage for _ in range(3))
    assert second.split(",")[1:] == [first]
    assert third.split(",")[1:] == second.split(",")
    assert (tmp_path / "brokerIdentity-incarnations").read_text() == third


def test_an_acknowledged_name_replaces_the_former_ones_on_disk(tmp_path: Path) -> None:
    begin(tmp_path)
    second = begin(tmp_path)
    own = second.lineage.split(",")[0]
    second.acknowledged("")  # RocketMQ's controllers
    second.acknowledged("0" * 16)
    assert second.path.read_text() == second.lineage
    second.acknowledged(own)
    assert second.path.read_text() == own
    assert begin(tmp_path).lineage.split(",")[1:] == [own]


def test_the_acknowledged_name_outlives_any_number_of_starts(tmp_path: Path) -> None:
    first = begin(tmp_path)
    first.acknowledged(first.lineage)
    for _ in range(2 * NAMES_MAX):
        last = begin(tmp_path)
    assert len(last.lineage.split(",")) == NAMES_MAX
    assert last.lineage.split(",")[-1] == first.lineage


def test_a_name_that_cannot_be_saved_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begin(tmp_path)

    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert begin(tmp_path).lineage == first.lineage


def test_a_broken_file_counts_as_no_names(tmp_path: Path) -> None:
    (tmp_path / "brokerIdentity-incarnations").write_text("?")
    assert "," not in begin(tmp_path).lineage
