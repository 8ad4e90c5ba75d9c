"""After a power failure, or on a copied volume, a broker has no vote before it has what it may have lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from epochmq_dledger.store import damage_evidence
from epochmq_dledger.store.damage_evidence import RejoinMark
from tests.unit.broker.dledger_bench import dledger_of, peers_of, running, send, settings_of
from tests.unit.broker.membership.dledger.test_stuck_peers import group_of_three
from tests.unit.store.support import adopt_abort_file

POWER = {"boot_id": "another"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("flush", "changes", "mark"),
    [
        ("ASYNC_FLUSH", POWER, RejoinMark(vote_lost=False, only_unflushed=True)),
        ("ASYNC_FLUSH", {}, None),
        ("SYNC_FLUSH", POWER, None),
        ("SYNC_FLUSH", {"flush_failed": True}, RejoinMark(vote_lost=True)),
        ("SYNC_FLUSH", None, RejoinMark(vote_lost=True)),
    ],
    ids=["power", "killed", "power, flushed", "fsync failed", "copied volume"],
)
async def test_a_start_finds_out_what_the_disk_may_have_lost(
    tmp_path: Path, flush: str, changes: dict[str, Any] | None, mark: RejoinMark | None
) -> None:
    async with group_of_three(tmp_path / "group", flushDiskType=flush) as benches:
        leader = next(one for one in benches if dledger_of(one).is_ready)
        await send(leader, "message")
        copied = tmp_path / "copy"
        shutil.copytree(tmp_path / "group" / "0", copied)
    if changes is not None:
        adopt_abort_file(copied, **changes)
    async with running(copied, settings_of(peers_of(3), flushDiskType=flush)) as bench:
        assert damage_evidence.load_rejoin_mark(copied / "dledger-n0") == mark
        assert (dledger_of(bench).peer.node.member.rejoin is None) is (mark is None)


async def test_the_only_peer_of_a_group_serves_after_a_power_failure(tmp_path: Path) -> None:
    settings = settings_of(peers_of(1), flushDiskType="ASYNC_FLUSH")
    async with running(tmp_path / "store", settings):
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
    adopt_abort_file(tmp_path / "copy", **POWER)
    async with running(tmp_path / "copy", settings) as bench:
        assert dledger_of(bench).peer.node.member.rejoin is None
