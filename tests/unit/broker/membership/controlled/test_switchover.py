"""Tests the steps of a switchover, each of which may fail."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from epochmq_broker.membership.controlled import switchover as module
from epochmq_broker.membership.controlled.request_gate import GatePhase, RequestGate
from epochmq_broker.membership.controlled.state_machine_types import (
    ControllerReply,
    MasterView,
    QuestionRejected,
    ReplyLost,
)
from epochmq_broker.membership.controlled.switchover import LAG_MAX_BYTES, Switchover
from epochmq_broker.replication.ha.service import HARole
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.errors import CallTimeoutError, RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.replica_control import ReplicaControlCode, ReplicaControlStateHeader
from tests.unit.broker.replication.ha.broker_node import until

NEXT = "10.0.0.2:10911"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts are long, so that a slow machine fails no switchover."""
    monkeypatch.setattr(module, "HOLD_MAX_MS", 60_000)
    monkeypatch.setattr(module, "HOLD_TIMEOUT_S", 60.0)


class SwitchoverHarness:
    """A master, id 1, with replicas 2 and 3 in sync, and 4 not in sync."""

    def __init__(self, end: int = 1000) -> None:
        self.sync = SyncState(
            self_id=1,
            epoch_start=0,
            members=frozenset({1, 2, 3}),
            set_epoch=1,
            confirm_offset=0,
            end=end,
            not_caught_up_max_ms=1000,
            since_ms=0,
            all_ack=True,
        )
        for broker_id in (2, 3, 4):
            self.sync.replica_connected(broker_id, async_learner=False)
            self.sync.replica_acknowledged(broker_id, end, 0)
        self.store = SimpleNamespace(max_phy_offset=end)
        self.ha = SimpleNamespace(role=HARole.MASTER, sync_state=self.sync)
        self.events: list[object] = []
        self.reply: ControllerReply = MasterView(2, NEXT, 7, frozenset({2}), 9)
        self.tables: int | Exception = 0
        self.copy_takes_ms = 0
        self.takes: list[bool] = []
        self.undispatched: list[int | Exception] = []
        self.obstacles: list[str] = []
        self.prepared: list[str] = []
        """The phases of the gate in which the services of the master stored what they had in memory."""
        self.gate = RequestGate(cast(Any, self), "10.0.0.1:10911")
        self.switchover = Switchover(
            cast(Any, self.store),
            cast(Any, self.ha),
            self.gate,
            cast(Any, self),
            prepare=lambda: self.prepared.append(self.gate.phase.value),
            commit_replicated=self._commit_replicated,
            election_obstacle=self._obstacle,
            elect=self._elect,
            election_failed=lambda: self.events.append("given up"),
        )

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """Responds as the replica: how much it has to dispatch, that it copied the tables, whether it accepts
        messages."""
        assert address == NEXT
        if command.code == ReplicaControlCode.SET_CONTROL_STATE and self.gate.phase is GatePhase.OPEN:
            behind = self.undispatched.pop(0) if self.undispatched else None
            if isinstance(behind, Exception):
                raise behind
            return response(
                command, 0, header=ReplicaControlStateHeader(takes_messages=False, undispatched=behind)
            )
        if command.code == ReplicaControlCode.SET_CONTROL_STATE:
            self.events.append(f"takes messages? while {self.gate.phase.value}")
            takes = self.takes.pop(0) if self.takes else True
            return response(command, 0, header=ReplicaControlStateHeader(takes_messages=takes))
        assert command.code == ReplicaControlCode.COPY_TABLES
        self.events.append(f"tables while {self.gate.phase.value}")
        if timeout_ms < self.copy_takes_ms:
            raise CallTimeoutError("late")
        if isinstance(self.tables, Exception):
            raise self.tables
        return response(command, self.tables)

    def _commit_replicated(self) -> None:
        lack = self.store.max_phy_offset - self.sync.replicas[2].ack_offset
        self.events.append(f"commit lacking {lack} while {self.gate.phase.value}")

    async def _obstacle(self, broker_id: int) -> str | None:
        return self.obstacles.pop(0) if self.obstacles else None

    async def _elect(self, broker_id: int) -> ControllerReply:
        lack = self.store.max_phy_offset - self.sync.replicas[broker_id].ack_offset
        self.events.append(f"elect {broker_id} lacking {lack} while {self.gate.phase.value}")
        return self.reply

    def grow(self, size: int) -> None:
        """Lets the log grow; no replica has the new bytes yet."""
        self.store.max_phy_offset += size
        self.sync.log_appended(self.store.max_phy_offset)

    def acknowledge(self, *ids: int, lacking: int = 0) -> None:
        """These replicas acknowledge the whole log but the last `lacking` bytes."""
        for broker_id in ids:
            self.sync.replica_acknowledged(broker_id, self.store.max_phy_offset - lacking, 0)

    async def rejection(self, broker_id: int = 2, timeout_ms: int = 60_000) -> str:
        """Why the switchover was rejected."""
        with pytest.raises(RequestError) as caught:
            await self.switchover.switch_to(broker_id, NEXT, timeout_ms)
        return caught.value.remark


async def test_a_switchover_elects_a_caught_up_replica_and_relays_to_it() -> None:
    harness = SwitchoverHarness()
    harness.takes = [False, True]
    done = await harness.switchover.switch_to(2, NEXT, 60_000)
    assert (done.master_id, done.master_address, done.master_epoch) == (2, NEXT, 7)
    assert harness.events == [
        "tables while open",
        "commit lacking 0 while held",
        "tables while held",
        "elect 2 lacking 0 while held",
        *["takes messages? while relaying"] * 2,
    ]
    assert harness.gate.phase is GatePhase.RELAYING
    assert harness.prepared == ["open"]  # a held master stores nothing more


async def test_sends_are_held_only_while_a_near_replica_catches_up() -> None:
    harness = SwitchoverHarness()
    harness.grow(LAG_MAX_BYTES + 1)
    switch = asyncio.ensure_future(harness.switchover.switch_to(2, NEXT, 10_000))
    for _ in range(5):
        await asyncio.sleep(0.001)
        assert harness.gate.phase is GatePhase.OPEN
    harness.acknowledge(2, lacking=10)
    await until(lambda: harness.gate.phase is GatePhase.HOLDING)
    harness.acknowledge(3)
    assert not any("elect" in str(one) for one in harness.events)
    harness.acknowledge(2)
    assert (await switch).master_id == 2
    assert harness.events[-2] == "elect 2 lacking 0 while held"


async def test_sends_are_not_held_while_the_replica_has_much_to_dispatch() -> None:
    harness = SwitchoverHarness()
    harness.undispatched = [LAG_MAX_BYTES + 1] * 3 + [LAG_MAX_BYTES]
    assert (await harness.switchover.switch_to(2, NEXT, 10_000)).master_id == 2
    assert harness.undispatched == []
    harness = SwitchoverHarness()
    harness.undispatched = [LAG_MAX_BYTES + 1] * 1000
    assert f"still has to dispatch {LAG_MAX_BYTES + 1} bytes" in await harness.rejection(timeout_ms=20)
    assert harness.gate.phase is GatePhase.OPEN
    assert harness.events == []


async def test_a_timeout_of_less_than_a_second_is_time_to_wait() -> None:
    harness = SwitchoverHarness()
    harness.undispatched = [LAG_MAX_BYTES + 1, LAG_MAX_BYTES]
    assert (await harness.switchover.switch_to(2, NEXT, 999)).master_id == 2


async def test_a_replica_that_does_not_tell_its_dispatch_lag_delays_no_switchover() -> None:
    harness = SwitchoverHarness()
    harness.undispatched = [CallTimeoutError("no response")]
    assert (await harness.switchover.switch_to(2, NEXT, 1000)).master_id == 2


async def test_a_slow_third_replica_is_waited_for_only_shortly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OTHER_REPLICAS_MS", 5)
    harness = SwitchoverHarness()
    harness.grow(10)
    harness.acknowledge(2)
    assert (await harness.switchover.switch_to(2, NEXT, 60_000)).master_id == 2


async def test_an_unfit_replica_is_rejected_before_sends_are_held() -> None:
    harness = SwitchoverHarness()
    harness.gate.hold = harness.events.append  # type: ignore[method-assign, assignment]
    assert await harness.rejection(1) == "broker 1 is the master already"
    for unfit in (4, 5):
        assert (
            await harness.rejection(unfit) == f"broker {unfit} is not in sync: the SyncStateSet is [1, 2, 3]"
        )
    harness.sync.replica_connected(3, async_learner=True)
    assert "broker 3 is not in sync" in await harness.rejection(3)
    harness.sync.replica_disconnected(2)
    assert "broker 2 is not in sync" in await harness.rejection(2)
    harness.ha.role = HARole.REPLICA
    assert await harness.rejection(2) == "this broker is not the master"
    assert harness.events == []


async def test_a_replica_that_stays_behind_fails_no_send(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = SwitchoverHarness()
    harness.grow(LAG_MAX_BYTES + 1)
    why = f"broker 2 still lacks {LAG_MAX_BYTES + 1} bytes of the log"
    assert await harness.rejection(timeout_ms=20) == why
    harness.acknowledge(2, lacking=5)
    monkeypatch.setattr(module, "HOLD_MAX_MS", 20)
    assert await harness.rejection() == "broker 2 still lacked 5 bytes of the log after 20 ms"
    assert harness.gate.phase is GatePhase.OPEN
    assert not any("elect" in str(one) for one in harness.events)


async def test_sends_continue_here_when_the_replica_disconnects() -> None:
    harness = SwitchoverHarness()
    harness.grow(10)
    switch = asyncio.ensure_future(harness.rejection())
    await until(lambda: harness.gate.phase is GatePhase.HOLDING)
    harness.sync.replica_disconnected(2)
    assert await switch == "broker 2 is not connected any more"
    assert harness.gate.phase is GatePhase.OPEN
    harness.ha.sync_state = None
    assert await harness.rejection() == "this broker is not the master"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (QuestionRejected(2012, "nobody lives"), "did not elect broker 2: nobody lives"),
        (ReplyLost("no response"), "did not elect broker 2: no response"),
        (MasterView(3, "x", 7, frozenset({3}), 9), "elected broker 3"),
    ],
    ids=["refused", "lost", "another"],
)
async def test_after_a_failed_election_sends_wait_for_the_member_that_is_elected(
    reply: ControllerReply, why: str
) -> None:
    harness = SwitchoverHarness()
    harness.reply = reply
    switch = asyncio.ensure_future(harness.rejection())
    await until(lambda: "given up" in harness.events)
    assert harness.gate.phase is GatePhase.HOLDING
    harness.gate.relay("10.0.0.3:10911")
    assert why in await switch
    assert harness.gate.phase is GatePhase.RELAYING


async def test_sends_are_rejected_when_the_election_fails_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_TIMEOUT_S", 0.02)
    harness = SwitchoverHarness()
    harness.reply = ReplyLost("no response")
    assert "no response" in await harness.rejection()
    assert harness.gate.phase is GatePhase.OPEN


async def test_no_send_is_held_for_a_replica_that_cannot_be_elected() -> None:
    harness = SwitchoverHarness()
    harness.obstacles = ["its heartbeats do not reach the controllers"] * 2
    assert (await harness.switchover.switch_to(2, NEXT, 60_000)).master_id == 2
    harness = SwitchoverHarness()
    harness.obstacles = ["it is not in the SyncStateSet"] * 1000
    why = "the controllers would not elect broker 2: it is not in the SyncStateSet"
    assert await harness.rejection(timeout_ms=100) == why
    assert harness.events == []


async def test_a_failed_table_copy_does_not_prevent_a_switchover(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for tables in (CallTimeoutError("silence"), 1):
        harness = SwitchoverHarness()
        harness.tables = tables
        assert (await harness.switchover.switch_to(2, NEXT, 60_000)).master_id == 2
    assert caplog.text.count("did not copy the tables") == 4


async def test_a_replica_on_a_busy_machine_has_time_to_copy_the_tables(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without the offsets that were committed last, the new master would deliver messages again."""
    harness = SwitchoverHarness()
    harness.copy_takes_ms = 400
    assert (await harness.switchover.switch_to(2, NEXT, 60_000)).master_id == 2
    assert "did not copy the tables" not in caplog.text


async def test_there_is_one_switchover_at_a_time() -> None:
    harness = SwitchoverHarness()
    harness.grow(10)
    first = asyncio.ensure_future(harness.switchover.switch_to(2, NEXT, 60_000))
    await until(lambda: harness.gate.phase is GatePhase.HOLDING)
    assert await harness.rejection(3) == "another switchover is under way"
    harness.acknowledge(2, 3)
    assert (await first).master_id == 2
