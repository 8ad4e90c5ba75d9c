"""What the admin API and the requests of replica control do in a group of brokers on a DLedger log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from epochmq_broker.membership.modes.dledger import DLedgerMode
from epochmq_protocol.admin_api import results
from epochmq_protocol.admin_api.messages import AdminError, FaultKind
from epochmq_protocol.admin_api.operations import (
    AdminOperation,
    ChangeMembersArguments,
    ReadinessLimits,
)
from epochmq_sidecar.metrics import exposition
from tests.support.net import free_port
from tests.unit.broker.admin.leadership_calls import (
    Group,
    leader_of,
    promote,
    serves,
    state_of,
    until_leads,
    until_ready,
)
from tests.unit.broker.admin.served_operations import Served
from tests.unit.broker.dledger_bench import peers_of, settings_of
from tests.unit.broker.kit import HOST, until


def served(directory: Path, peers: str, number: int) -> Served:
    port = str(free_port(HOST))
    return Served(directory, **settings_of(peers, number, listenPort=port, bindAddress=HOST, brokerIP1=HOST))


@contextlib.asynccontextmanager
async def running(directory: Path, count: int) -> AsyncIterator[Group]:
    """Runs a group, from when all its brokers are ready."""
    peers = peers_of(count)
    async with contextlib.AsyncExitStack() as stack:
        group: Group = []
        for number in range(count):
            home = directory / str(number)
            home.mkdir()
            one = served(home, peers, number)
            stack.push_async_callback(one.broker.stop)
            await one.broker.start()
            group.append(one)
        async with asyncio.timeout(60):
            for one in group:
                await until_ready(one)
        await until_leads(leader_of(group))
        yield group


def take_over(one: Served, may: Callable[[], object]) -> None:
    """Lets a broker take a leadership that is transferred to it when `may` returns a true value."""
    assert isinstance(one.broker.mode, DLedgerMode)
    one.broker.mode.commit_log.processor.may_take_over = lambda: bool(may())


def accept_leadership(one: Served, *, on: bool) -> None:
    take_over(one, lambda: on)


async def test_the_state_names_role_term_positions_and_peers(tmp_path: Path) -> None:
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        number = group.index(leader)
        state = await state_of(leader)
        assert (state.role, state.broker_id, state.master_broker_id) == ("master", number + 1, number + 1)
        assert (state.ready, state.takes_messages, state.controlled) == (True, True, False)
        found = state.dledger
        assert found is not None
        name = f"n{number}"
        assert (found.id, found.leader, found.role, found.serves) == (name, name, "leader", True)
        assert state.master_epoch == found.term >= 0
        assert found.committed_index == found.end_index >= 0  # the first record of the term
        assert state.confirm_offset == state.max_offset > 0
        while None in [one.lag_bytes for one in found.peers]:
            found = (await state_of(leader)).dledger  # a follower may not have answered yet
            assert found is not None
        assert [(one.id, one.broker_id, one.alive, one.lag_bytes) for one in found.peers] == [
            ("n0", 1, True, 0), ("n1", 2, True, 0), ("n2", 3, True, 0),
        ]  # fmt: skip
        lag = await leader.ask(AdminOperation.LAG, results.ReplicationLag)
        assert [(one.broker_id, one.lag_bytes) for one in lag.replicas] == [(1, 0), (2, 0), (3, 0)]
        follower = group[number - 1]
        state = await state_of(follower)
        assert state.dledger is not None
        assert (state.role, state.takes_messages) == ("replica", False)
        assert (state.dledger.role, state.dledger.behind) == ("follower", 0)
        assert {one.lag_bytes for one in state.dledger.peers} == {None}
        values = await follower.ask(AdminOperation.METRICS, results.MetricValues, ReadinessLimits())
        assert "epochmq_broker_dledger_behind_entries{" in exposition(values)


async def test_without_a_quorum_a_broker_is_not_ready_and_says_why(tmp_path: Path) -> None:
    one = served(tmp_path, peers_of(3), 0)
    await one.broker.start()
    try:
        state = await state_of(one)
        assert (state.role, state.ready) == ("none", False)
        no_vote, no_leader = state.not_ready
        assert no_vote.startswith("it has no vote: its directory was empty at its start")
        assert no_vote.endswith("for responses of n1, n2")
        assert no_leader == "the group has no leader, as far as it knows"
        with pytest.raises(AdminError, match="knows no master"):
            await promote(one)
    finally:
        await one.broker.stop()


async def test_promote_transfers_the_leadership_from_any_broker(tmp_path: Path) -> None:
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        term = (await state_of(leader)).master_epoch
        chosen = group[group.index(leader) - 1]
        wanted = group.index(chosen) + 1
        done = await promote(chosen)
        assert (done.moved, done.master_broker_id) == (True, wanted)
        assert done.master_epoch > term
        await until_leads(chosen)
        assert not (await promote(leader, wanted)).moved
        with pytest.raises(AdminError, match="no peer of this group"):
            await promote(chosen, 9)


async def test_a_drained_broker_gives_the_leadership_away_and_takes_no_other(tmp_path: Path) -> None:
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        others = [one for one in group if one is not leader]
        done = await leader.ask(AdminOperation.DRAIN, results.ReplicaControlResult)
        assert done.drained
        assert done.switched is not None
        assert done.switched.moved
        state = await state_of(leader)
        assert state.not_ready == [
            "it is drained: it leaves the leadership to other replicas until it is undrained"
        ]
        await until(lambda: any(map(serves, others)))
        await until_leads(leader_of(group))
        with pytest.raises(AdminError, match="or it is drained"):
            await promote(leader)
        # A drained peer that wins an election transfers the leadership.
        accept_leadership(leader, on=True)
        for one in others:
            accept_leadership(one, on=False)
        assert (await promote(leader)).moved
        await until_leads(leader)
        for one in others:
            accept_leadership(one, on=True)
        await until(lambda: any(map(serves, others)))


async def test_a_peer_that_does_not_take_over_is_asked_again(tmp_path: Path) -> None:
    """It may not have heard of the leader yet, or have been too slow."""
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        for asked in (leader, group[group.index(leader) - 1]):
            chosen = group[group.index(leader) - 2]
            answers = [True, False]
            take_over(chosen, answers.pop)
            assert (await promote(asked, group.index(chosen) + 1)).moved
            assert not answers
            await until_leads(chosen)
            leader = chosen


async def test_a_leader_keeps_the_leadership_while_all_are_drained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each attempt to transfer the leadership rejects sends, so there are few."""
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        asked: list[Served] = []
        for one in group:
            if one is not leader:
                take_over(one, lambda one=one: asked.append(one))  # None: it rejects
        await leader.broker.replica_control.change_state(fenced=None, drained=True)
        await until(lambda: "still leads its group" in caplog.text)
        assert len(asked) == 2
        assert serves(leader)
        for one in group:
            if one is not leader:
                accept_leadership(one, on=True)
        await until(lambda: any(serves(one) for one in group if one is not leader))


async def test_a_stopping_leader_hands_the_leadership_over(tmp_path: Path) -> None:
    """So its stop costs no election."""
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        term = (await state_of(leader)).master_epoch
        others = [one for one in group if one is not leader]
        asked: list[Served] = []
        for one in others:
            take_over(one, lambda one=one: asked.append(one) or True)
        await leader.broker.stop()
        assert len(asked) == 1
        await until_leads(asked[0])
        assert (await state_of(asked[0])).master_epoch == term + 1


async def test_the_only_broker_of_a_group_cannot_be_drained(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as group:
        with pytest.raises(AdminError, match="no other replica"):
            await group[0].ask(AdminOperation.DRAIN, results.ReplicaControlResult)
        assert (await state_of(group[0])).ready


async def test_a_fenced_leader_accepts_no_messages(tmp_path: Path) -> None:
    async with running(tmp_path, 1) as group:
        done = await group[0].ask(AdminOperation.FENCE, results.ReplicaControlResult)
        assert (done.fenced, done.takes_messages) == (True, False)
        state = await state_of(group[0])
        assert (state.role, state.takes_messages, state.ready) == ("master", False, False)


async def change_members(one: Served, member: str, address: str | None = None) -> set[str]:
    """The members after the change."""
    wanted = ChangeMembersArguments(member=member, address=address)
    found = await one.ask(AdminOperation.CHANGE_MEMBERS, results.MembersResult, wanted)
    return {peer.id for peer in found.members}


async def test_the_leader_changes_the_members_and_leaves_after_a_transfer(tmp_path: Path) -> None:
    """A change that is in effect may be requested again. A leader that shall leave transfers its leadership,
    and the next one removes it."""
    async with running(tmp_path, 3) as group:
        leader = leader_of(group)
        first = f"n{group.index(leader)}"
        follower = group[group.index(leader) - 1]
        second = f"n{group.index(follower)}"
        known = (await state_of(leader)).dledger
        assert known is not None
        addresses = {one.id: one.address for one in known.peers}
        with pytest.raises(AdminError, match="this broker does not lead"):
            await change_members(follower, first)
        with pytest.raises(AdminError, match="expected host:port of n-3"):
            await change_members(leader, "n-3", addresses[second])
        for _ in range(2):
            assert await change_members(leader, second) == addresses.keys() - {second}
        for _ in range(2):
            assert await change_members(leader, second, addresses[second]) == addresses.keys()
        await until_ready(follower)
        with pytest.raises(AdminError, match="has just transferred its leadership"):
            await change_members(leader, first)
        assert not serves(leader)
        await until(lambda: any(serves(one) for one in group))
        after = leader_of(group)
        assert await change_members(after, first) == addresses.keys() - {first}
        shown = (await state_of(after)).dledger
        assert shown is not None
        assert {one.id for one in shown.peers} == addresses.keys() - {first}


async def test_a_leader_that_is_adding_a_member_is_busy(tmp_path: Path) -> None:
    """It waits for the new broker, which does not run yet."""
    async with running(tmp_path, 1) as group:
        mode = group[0].broker.mode
        assert isinstance(mode, DLedgerMode)
        leading = mode.commit_log.peer.node.leader
        assert leading is not None
        added = asyncio.ensure_future(change_members(group[0], "n1", f"{HOST}:{free_port(HOST)}"))
        await until(lambda: "n1" in leading.peers)
        with pytest.raises(AdminError, match="another change is in progress") as caught:
            await change_members(group[0], "n2", f"{HOST}:{free_port(HOST)}")
        assert caught.value.kind is FaultKind.BUSY
        added.cancel()
        await asyncio.gather(added, return_exceptions=True)
