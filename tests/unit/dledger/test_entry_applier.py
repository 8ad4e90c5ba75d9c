"""Committed entries are applied in turns, and what waits for them runs once they are."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epochmq_dledger import entry_applier as module
from epochmq_dledger.core.raft_log import MemoryLog
from epochmq_dledger.entry_applier import EntryApplier
from tests.unit.dledger.scripted_node import fill


async def test_an_action_runs_once_its_entry_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APPLY_MAX", 4)
    log = MemoryLog()
    fill(log, range(10))
    context = SimpleNamespace(log=log, committed_index=9, applied_index=-1, is_running=True, effects=[])
    happened: list[object] = []
    snapshots = SimpleNamespace(take_if_due=lambda: None)
    applier = EntryApplier(
        cast(Any, context), lambda entry: happened.append(entry.index), None, cast(Any, snapshots)
    )
    for index in (3, 6, 9):
        applier.when_applied(index, lambda index=index: happened.append(f"action {index}"))  # type: ignore[misc]
    turns = []
    applier.apply_committed()
    while len(happened) < 13:
        turns.append(context.applied_index)
        await asyncio.sleep(0)
    assert happened == [0, 1, 2, 3, "action 3", 4, 5, 6, 7, "action 6", 8, 9, "action 9"]
    assert turns == [3, 7]
    applier.when_applied(9, lambda: happened.append("at once"))
    assert happened[-1] == "at once"
