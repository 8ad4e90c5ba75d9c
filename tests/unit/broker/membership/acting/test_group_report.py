"""What a broker reports about its role in a group with an acting master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from epochmq_broker.config.clock import now_ms
from epochmq_broker.membership.acting.group_report import GroupReporter, describe_step
from epochmq_broker.membership.acting.pre_online import (
    AnnounceMaster,
    AskMaster,
    AskMembers,
    AwaitMaster,
    AwaitRetry,
    AwaitSlave,
    GoOnline,
    MeasureLag,
    PreOnlineStep,
    TakeBackTables,
)
from epochmq_broker.writing.escape.bridge import EscapeCounts
from epochmq_broker.writing.escape.rules import EscapeKind
from tests.unit.broker.kit import until
from tests.unit.broker.membership.acting.member_group_bench import MASTER, Bench


class Bridge:
    """Replaces an EscapeBridge."""

    def __init__(self) -> None:
        self.counts = {kind: EscapeCounts() for kind in EscapeKind}
        self.counts[EscapeKind.DELAY] = EscapeCounts(escaped=5, failed=2)
        self.counts[EscapeKind.TIMER] = EscapeCounts(escaped=1)

    def waiting(self, kind: EscapeKind) -> int:
        """EscapeBridge.waiting."""
        return 3 if kind is EscapeKind.DELAY else 0


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A slave that is not in service."""
    made = Bench()
    made.group.start()
    yield made
    await made.group.stop()


def reporter(bench: Bench, step: PreOnlineStep | None = None) -> GroupReporter:
    return GroupReporter(bench.group, cast(Any, Bridge()), lambda: step)


async def test_an_isolated_broker_reports_what_it_waits_for(bench: Bench) -> None:
    state = reporter(bench, MeasureLag(MASTER)).state()
    assert (state.role, state.isolated_because) == ("isolated", f"copies the log of the master {MASTER}")
    info = reporter(bench, MeasureLag(MASTER)).runtime_info()
    assert (info["groupRole"], info["isolatedBecause"]) == ("isolated", state.isolated_because)
    assert reporter(bench).state().isolated_because == ""
    bench.group.start_service(0, MASTER)
    state = reporter(bench, GoOnline(0, MASTER)).state()
    assert (state.role, state.isolated_because) == ("slave", "")


async def test_an_acting_master_reports_since_when_it_acts_and_what_escaped(bench: Bench) -> None:
    bench.group.start_service(0, MASTER)
    assert reporter(bench).state().acting_since_ms is None
    assert "actingSince" not in reporter(bench).runtime_info()
    before = now_ms()
    bench.list_only(1, 2)
    await until(lambda: bench.group.is_acting_master)
    state, info = reporter(bench).state(), reporter(bench).runtime_info()
    assert state.role == "acting"
    assert state.acting_since_ms is not None
    assert before <= state.acting_since_ms <= now_ms()
    assert state.min_broker_id == 1
    assert state.alive_replicas == 2
    assert {one.kind: (one.escaped, one.waiting, one.failed) for one in state.escape} == {
        "delay": (5, 3, 2),
        "timer": (1, 0, 0),
        "checkpoint": (0, 0, 0),
        "retry": (0, 0, 0),
        "transaction": (0, 0, 0),
    }
    assert info == {
        "groupRole": "acting",
        "actingSince": str(state.acting_since_ms),
        "escapedMessages": "6",
        "escapeWaitingMessages": "3",
    }
    bench.list_only(0, 1, 2)
    await until(lambda: not bench.group.is_acting_master)
    assert reporter(bench).state().acting_since_ms is None


async def test_the_master_never_acts(bench: Bench) -> None:
    made = Bench(brokerId="0", brokerRole="ASYNC_MASTER")
    made.group.start()
    made.group.start_service(0, MASTER)
    state = reporter(made).state()
    assert (state.role, state.acting_since_ms) == ("master", None)
    await made.group.stop()


def test_every_step_of_pre_online_has_a_description() -> None:
    steps: list[PreOnlineStep] = [
        AskMembers(),
        AnnounceMaster("a"),
        AwaitSlave("a"),
        TakeBackTables("a"),
        AskMaster("a"),
        AwaitMaster("a"),
        MeasureLag("a"),
        AwaitRetry(1, "the slave a does not respond"),
        GoOnline(0, "a"),
    ]
    texts = [describe_step(step) for step in steps]
    assert all(texts)
    assert texts[-2] == "tries again: the slave a does not respond"
