"""Tests that the kernel's counters tell when pages may have been reclaimed."""

from __future__ import annotations

from pathlib import Path

from epochmq_store.files.page_reclaim import PageReclaim, own_page_reclaim

QUIET = "nr_free_pages {free}\npgsteal_kswapd 5\npgsteal_direct 0\ndrop_pagecache 1\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_only_reclaims_count(tmp_path: Path) -> None:
    vmstat = written(tmp_path / "vmstat", QUIET.format(free=1))
    reclaim = PageReclaim(vmstat)
    assert [reclaim.has_run(), reclaim.has_run()] == [True, False]
    written(vmstat, QUIET.format(free=2))
    assert not reclaim.has_run()
    for text in (
        QUIET.replace("kswapd 5", "kswapd 6"),
        QUIET.replace("direct 0", "direct 1"),
        QUIET.replace("drop_pagecache 1", "drop_pagecache 2"),
    ):
        written(vmstat, text)
        assert [reclaim.has_run(), reclaim.has_run()] == [True, False]


def test_reclaims_of_the_control_group_count(tmp_path: Path) -> None:
    vmstat = written(tmp_path / "vmstat", QUIET)
    group = written(tmp_path / "memory.stat", "file 100\npgsteal 7\npgsteal_direct 7\n")
    reclaim = PageReclaim(vmstat, group, is_limited=True)
    assert [reclaim.has_run(), reclaim.has_run()] == [True, False]
    written(group, "file 90\npgsteal 8\npgsteal_direct 8\n")
    assert [reclaim.has_run(), reclaim.has_run()] == [True, False]


def test_without_counters_pages_may_always_have_been_reclaimed(tmp_path: Path) -> None:
    vmstat = written(tmp_path / "vmstat", QUIET)
    group = written(tmp_path / "memory.stat", "cache 100\n")  # version 1 does not count reclaims
    for reclaim in (
        PageReclaim(tmp_path / "missing"),
        PageReclaim(vmstat, group, is_limited=True),
        PageReclaim(vmstat, None, is_limited=True),
    ):
        assert [reclaim.has_run() for _ in range(3)] == [True] * 3
    unlimited = PageReclaim(vmstat, group)
    assert [unlimited.has_run(), unlimited.has_run()] == [True, False]


def test_this_machine_has_counters() -> None:
    assert own_page_reclaim().has_run()  # the first call has nothing to compare with
