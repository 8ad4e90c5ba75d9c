"""A peer that cannot read its log, or whose log differs from its leader's, says so and does not serve."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_broker.membership.dledger import serving_watch
from epochmq_broker.membership.dledger.committed_log import CommittedLog
from epochmq_broker.membership.dledger.group_state import dledger_state, runtime_info
from epochmq_broker.membership.dledger.serving_watch import ServingWatch
from epochmq_broker.membership.modes.dledger import DLedgerMode
from epochmq_dledger.core.raft_log import make_entry
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.dledger import DLedgerResponseCode, PushEntryRequest, PushType
from tests.unit.broker.dledger_bench import (
    TOPIC,
    dledger_of,
    numbered,
    peers_of,
    ready,
    running,
    send,
    settings_of,
    texts_of,
)
from tests.unit.broker.kit import Bench, until


@contextlib.asynccontextmanager
async def group_of_three(directory: Path, **more: str) -> AsyncIterator[list[Bench]]:
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(
                running(directory / str(number), settings_of(peers, number, **more))
            )
            for number in range(3)
        ]
        await ready(*benches)
        await until(lambda: all(dledger_of(one).peer.node.member.rejoin is None for one in benches))
        yield benches


async def test_a_leader_that_cannot_read_its_log_says_so_and_gives_the_leadership_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of_three(tmp_path) as benches:
        leader = next(one for one in benches if dledger_of(one).is_ready)
        unreadable, reads = leader.broker.store.log, 0
        parse = CommittedLog.parse_next

        def parse_next(self: CommittedLog, *args: object, **more: object) -> object:
            nonlocal reads
            if self is not unreadable:
                return parse(self, *args, **more)  # type: ignore[arg-type] # as it was called
            reads += 1
            return None

        monkeypatch.setattr(CommittedLog, "parse_next", parse_next)
        assert await send(leader, "not dispatched") == [ResponseCode.SYSTEM_ERROR]
        assert reads < 20, "the dispatcher tries again and again without a pause"
        state = dledger_state(dledger_of(leader))
        assert state.problem is not None
        assert state.problem.startswith("it dispatches no committed message: no whole record can be read at")

        monkeypatch.setattr(serving_watch, "READY_WAIT_MAX_S", 0.0)
        mode = leader.broker.mode
        assert isinstance(mode, DLedgerMode)
        dledger_of(leader).check_progress()
        mode.leadership.check_drained()
        others = [one for one in benches if one is not leader]
        successor = await ready(*others)
        assert await send(successor, "stored") == [ResponseCode.SUCCESS]

        monkeypatch.setattr(CommittedLog, "parse_next", parse)
        await until(lambda: texts_of(leader)[-1:] == ["stored"])
        dledger_of(leader).check_progress()
        assert dledger_state(dledger_of(leader)).problem is None


def test_only_a_leader_without_progress_is_stuck() -> None:
    watch = ServingWatch()
    assert not watch.look((0, 5), 100.0, 10.0)
    assert not watch.look((0, 6), 109.0, 10.0), "the committed index has advanced"
    assert not watch.look((7, 6), 118.0, 10.0), "records were dispatched"
    assert not watch.look((7, 6), 127.0, 10.0)
    assert watch.look((7, 6), 128.0, 10.0)
    assert watch.cannot_serve
    assert not watch.look((7, 6), 129.0, 10.0), "reported once"
    watch.look(None, 130.0, 10.0)
    assert not watch.cannot_serve


async def test_a_peer_with_another_history_is_not_in_sync_and_hides_what_differs(tmp_path: Path) -> None:
    """A leader has lost entries that are committed on a follower, and orders the follower to truncate
    them."""
    async with group_of_three(tmp_path) as benches:
        leader = next(one for one in benches if dledger_of(one).is_ready)
        await send(leader, *numbered(10))
        follower = next(one for one in benches if one is not leader)
        await until(lambda: texts_of(follower) == numbered(10))
        dledger = dledger_of(follower)
        peer, log = dledger.peer, dledger.peer.log
        name = peer.leader_id
        assert name is not None
        before = log.entry(log.end_index - 4)
        assert before is not None
        entry = make_entry(before.index, peer.term + 1, before.body, before.pos, 1 << 30)
        push = PushEntryRequest(
            group="group-a", remote_id=peer.settings.self_id, local_id=name, leader_id=name
        )
        push.term, push.type, push.entry = peer.term + 1, PushType.TRUNCATE, entry
        codes: list[int] = []
        peer.handle_request(push, lambda it: codes.append(it.code if it else -1))
        await until(lambda: codes == [DLedgerResponseCode.INCONSISTENT_STATE])
        dledger.check_progress()
        state = dledger_state(dledger)
        assert state.behind is None
        assert state.problem is not None
        assert f"differ after entry {before.index - 1}" in state.problem
        assert runtime_info(dledger)["dledgerBehind"] == ""
        assert runtime_info(dledger)["dledgerProblem"] == state.problem
        store = follower.broker.store
        assert store.reader.max_offset(store.queues[TOPIC, 0]) == 5

        await ready(*benches)  # the others still have the entries, and a leader compares them
        await until(lambda: not dledger.peer.divergence)
        dledger.check_progress()
        assert dledger_state(dledger).problem is None
