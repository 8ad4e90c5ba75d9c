"""Brokers whose commit log is a DLedger log: what they acknowledge is committed, and every peer has it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import pytest

from epochmq_dledger import core_driver
from epochmq_dledger.core.raft_log import LogFullError
from epochmq_dledger.results import RaftOperationError
from epochmq_dledger.store import state_files
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.transport.client import RemotingClient
from epochmq_protocol.transport.group_members import BROKERS, GroupMembers, MemberChange
from epochmq_store.queues.consume_queue import UNIT_BYTES
from epochmq_store.running import queue_flusher
from tests.support.full_disk import FullDisk
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
from tests.unit.broker.kit import Bench, pull_command, send_command, until
from tests.unit.store.support import adopt_abort_file


async def test_an_acknowledged_message_can_be_pulled_and_is_there_after_a_restart(tmp_path: Path) -> None:
    settings = settings_of(peers_of(1))
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        assert set(await send(bench, *numbered(100))) == {ResponseCode.SUCCESS}
        assert texts_of(bench) == numbered(100)
        pulled = bench.peer().call(pull_command(TOPIC, 90))
        assert pulled.code == ResponseCode.SUCCESS
        assert b"text-99" in pulled.body
    async with running(tmp_path, settings) as bench:
        assert texts_of(bench) == numbered(100)
        await ready(bench)
        assert set(await send(bench, *numbered(10, 100))) == {ResponseCode.SUCCESS}
        assert texts_of(bench) == numbered(110)


@pytest.mark.long
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_a_killed_broker_has_everything_that_it_acknowledged(tmp_path: Path, flush: str) -> None:
    settings = settings_of(peers_of(1), flushDiskType=flush)
    async with running(tmp_path / "store", settings) as bench:
        await ready(bench)
        await send(bench, *numbered(500))
        shutil.copytree(tmp_path / "store", tmp_path / "copy")  # as a killed process leaves it
    async with running(tmp_path / "copy", settings) as bench:
        await ready(bench)
        assert texts_of(bench) == numbered(500)
        await send(bench, "next")
        assert texts_of(bench) == [*numbered(500), "next"]


@pytest.mark.long
async def test_a_second_kill_loses_no_unit_that_the_first_start_took_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The abort file says up to where the queues' files have everything. The peer's checkpoint is older, so
    the start after the first kill takes units back. When they are committed again, those of queue 1 are in
    memory only, while the many of queue 0 are written. Then the broker is killed again."""
    settings = settings_of(
        peers_of(1),
        mappedFileSizeCommitLog=str(1 << 20),
        maxMessageSize=str(1 << 16),
        maxHashSlotNum="5000",
        maxIndexNum="20000",
    )
    old = tmp_path / "old-checkpoint"
    first, second = tmp_path / "b", tmp_path / "c"
    async with running(tmp_path / "a", settings) as bench:
        await ready(bench)
        store = bench.broker.store
        await send(bench, *numbered(20), queue_id=1)
        dledger_of(bench).peer._checkpoints.save_now()
        shutil.copy(tmp_path / "a" / "dledger-n0" / state_files.CHECKPOINT, old)
        await send(bench, *numbered(20, 20), queue_id=1)
        await send(bench, "before the kill")
        await until(lambda: store.checkpoint.physic_msg_timestamp > 0)
        written = asyncio.Event()
        store.queue_flusher.write_all_then(written.set)
        await written.wait()
        shutil.copytree(tmp_path / "a", first)
    adopt_abort_file(first)
    shutil.copy(old, first / "dledger-n0" / state_files.CHECKPOINT)
    monkeypatch.setattr(queue_flusher, "UNRECORDED_LOG_BYTES", 1 << 30)
    async with running(first, settings) as bench:
        await ready(bench)
        assert texts_of(bench, 1) == numbered(40)
        queues = bench.broker.store.queues
        await send(bench, *numbered(1000))
        await until(lambda: queues[TOPIC, 0].written_end > 100 * UNIT_BYTES)
        assert queues[TOPIC, 1].written_end < 40 * UNIT_BYTES
        dledger_of(bench).peer._checkpoints.save_now()
        shutil.copytree(first, second)
    adopt_abort_file(second)
    async with running(second, settings) as bench:
        await ready(bench)
        assert texts_of(bench, 1) == numbered(40)
        assert texts_of(bench) == ["before the kill", *numbered(1000)]


async def test_the_queues_are_built_again_when_the_checkpoint_is_lost(tmp_path: Path) -> None:
    settings = settings_of(peers_of(1))
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        for first in range(0, 3000, 500):
            assert set(await send(bench, *numbered(500, first))) == {ResponseCode.SUCCESS}
    (tmp_path / "dledger-n0" / state_files.CHECKPOINT).unlink()
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        assert texts_of(bench) == numbered(3000)


async def test_messages_larger_than_a_file_in_sum_continue_in_the_next_file(tmp_path: Path) -> None:
    settings = settings_of(peers_of(1), mappedFileSizeCommitLog=str(1 << 17), maxMessageSize="30000")
    texts = [f"{number}-" + "x" * 20_000 for number in range(40)]
    async with running(tmp_path, settings) as bench:
        await ready(bench)
        for at in range(0, 40, 7):
            assert set(await send(bench, *texts[at : at + 7])) == {ResponseCode.SUCCESS}
        assert texts_of(bench) == texts
        assert len(list((tmp_path / "dledger-n0" / "data").iterdir())) >= 6
    async with running(tmp_path, settings) as bench:
        assert texts_of(bench) == texts


async def test_a_message_that_the_full_disk_rejects_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, settings_of(peers_of(1))) as bench:
        await ready(bench)
        await send(bench, *numbered(5))
        log = dledger_of(bench).peer.log

        def append_nothing(*_: object) -> None:
            raise LogFullError("no space")

        with monkeypatch.context() as patch:
            patch.setattr(log, "append_blocks", append_nothing)
            assert await send(bench, "lost", "lost") == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
        assert not dledger_of(bench).is_ready
        assert await send(bench, "early") == [ResponseCode.SYSTEM_BUSY]
        await ready(bench)
        await send(bench, *numbered(5, 5))
        assert texts_of(bench) == numbered(10)


async def test_three_brokers_have_the_same_messages_and_another_one_takes_over(tmp_path: Path) -> None:
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        stacks, benches = [], []
        for number in range(3):
            one = contextlib.AsyncExitStack()
            stack.push_async_callback(one.aclose)
            stacks.append(one)
            benches.append(
                await one.enter_async_context(running(tmp_path / str(number), settings_of(peers, number)))
            )
        leader = await ready(*benches)
        assert leader.broker.live.current.broker_id == 0
        assert set(await send(leader, *numbered(50))) == {ResponseCode.SUCCESS}
        followers = [one for one in benches if one is not leader]
        for one in followers:
            await until(lambda one=one: one.count(TOPIC) == 50)  # type: ignore[misc] # bound at once
            assert texts_of(one) == numbered(50)
            assert one.broker.live.current.broker_role == "SLAVE"
            assert one.broker.live.current.broker_id > 0
            assert await send(one, "no") == [ResponseCode.SYSTEM_BUSY]
        await stacks[benches.index(leader)].aclose()
        leader = await ready(*followers)
        assert set(await send(leader, *numbered(10, 50))) == {ResponseCode.SUCCESS}
        for one in followers:
            await until(lambda one=one: one.count(TOPIC) == 60)  # type: ignore[misc] # bound at once
            assert texts_of(one) == numbered(60)


async def test_the_preferred_leader_becomes_master_and_can_transfer_its_role(tmp_path: Path) -> None:
    """After any first election n2 becomes master. It transfers its role on request, and gets it back. All
    acknowledged messages are there."""
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(
                running(tmp_path / str(number), settings_of(peers, number, preferredLeaderId="n2"))
            )
            for number in range(3)
        ]
        await until(lambda: dledger_of(benches[2]).is_ready)
        assert set(await send(benches[2], *numbered(20))) == {ResponseCode.SUCCESS}
        await dledger_of(benches[2]).transfer_leadership("n0")
        await until(lambda: dledger_of(benches[0]).is_ready)
        assert set(await send(benches[0], *numbered(20, 20))) == {ResponseCode.SUCCESS}
        with pytest.raises(RaftOperationError, match="UNKNOWN_MEMBER"):
            await dledger_of(benches[0]).transfer_leadership("n7")
        await until(lambda: dledger_of(benches[2]).is_ready)
        for one in benches:
            await until(lambda one=one: texts_of(one) == numbered(40))  # type: ignore[misc] # bound at once


async def test_messages_sent_during_a_transfer_are_stored_or_rejected(tmp_path: Path) -> None:
    """A message that is acknowledged is on every broker, once; the others get a code with which a producer
    sends to another broker."""
    peers = peers_of(3)
    async with contextlib.AsyncExitStack() as stack:
        benches = [
            await stack.enter_async_context(running(tmp_path / str(number), settings_of(peers, number)))
            for number in range(3)
        ]
        leader = await ready(*benches)
        successor = next(one for one in benches if one is not leader)
        codes: dict[str, int] = {}

        async def keep_sending() -> None:
            for text in numbered(300):
                (codes[text],) = await send(leader, text)

        sending = asyncio.create_task(keep_sending())
        await until(lambda: len(codes) > 50)
        await dledger_of(leader).transfer_leadership(f"n{benches.index(successor)}")
        await until(lambda: dledger_of(successor).is_ready)
        await sending
        rejections = {ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY}
        assert set(codes.values()) <= {ResponseCode.SUCCESS, *rejections}
        acknowledged = [text for text, code in codes.items() if code == ResponseCode.SUCCESS]
        assert 50 < len(acknowledged) < 300
        await send(successor, "last")
        for one in benches:
            await until(lambda one=one: texts_of(one)[-1:] == ["last"])  # type: ignore[misc] # bound at once
            assert [text for text in texts_of(one) if text in set(acknowledged)] == acknowledged
        assert texts_of(benches[0]) == texts_of(benches[1]) == texts_of(benches[2])


async def test_without_a_quorum_a_send_fails_and_shows_nothing(tmp_path: Path) -> None:
    peers = peers_of(3)
    async with (
        running(tmp_path / "0", settings_of(peers, 0)) as one,
        contextlib.AsyncExitStack() as stack,
    ):
        other = await stack.enter_async_context(running(tmp_path / "1", settings_of(peers, 1)))
        async with running(tmp_path / "2", settings_of(peers, 2)) as third:
            await ready(one, other, third)
            await until(lambda: all(dledger_of(it).peer.node.member.rejoin is None for it in (one, other)))
        leader = await ready(one, other)
        await send(leader, *numbered(5))
        follower = other if leader is one else one
        dledger_of(follower).peer.handle_request = lambda *_: None  # type: ignore[method-assign] # it hangs
        peer = leader.peer()
        answer = await peer.answer(peer.send(send_command(TOPIC, b"uncommitted")))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough")
        assert texts_of(leader) == numbered(5)


async def test_rocketmqs_key_for_the_role_does_not_decide_it(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(peers_of(1), brokerRole="ASYNC_MASTER")) as bench:
        await ready(bench)
        config = bench.broker.live.current
        assert (config.broker_id, config.broker_role) == (0, "SYNC_MASTER")


async def test_a_delayed_message_is_delivered(tmp_path: Path) -> None:
    async with running(tmp_path, settings_of(peers_of(1), messageDelayLevel="1s 2s")) as bench:
        await ready(bench)
        peer = bench.peer()
        properties = {"UNIQ_KEY": "7F0000016B5C18B4AAC2000000010001", "DELAY": "1"}
        answer = await peer.answer(peer.send(send_command(TOPIC, b"later", properties)))
        assert answer.code == ResponseCode.SUCCESS
        await until(lambda: texts_of(bench) == ["later"])


async def test_a_group_grows_and_shrinks_while_it_serves(tmp_path: Path) -> None:
    """One becomes two and three, the third leaves, which fails no send, and the first leaves after it has
    transferred its leadership. The others have all messages."""
    peers = peers_of(3).split(";")
    benches: list[Bench] = []
    async with contextlib.AsyncExitStack() as stack, RemotingClient() as client:

        async def start(number: int) -> Bench:
            known = ";".join(dict.fromkeys((peers[0], peers[number])))
            settings = settings_of(known, number, joinDLedgerGroup=str(number > 0).lower())
            bench = await stack.enter_async_context(running(tmp_path / f"n{number}", settings))
            benches.append(bench)
            return bench

        async def change(address: str, wanted: MemberChange) -> set[str]:
            return set((await BROKERS.change(client, address, wanted)).members)

        async def serve(bench: Bench, until_done: asyncio.Future[set[str]]) -> int:
            sent = 0
            while not until_done.done():
                assert set(await send(bench, *numbered(5, sent))) == {ResponseCode.SUCCESS}
                sent += 5
            return sent

        addresses = [peer.partition("-")[2] for peer in peers]
        first = await start(0)
        await ready(first)
        total = 0
        for number in (1, 2):
            await start(number)
            added = asyncio.ensure_future(change(addresses[0], MemberChange(f"n{number}", addresses[number])))
            total += await serve(first, added)
            assert await added == {f"n{one}" for one in range(number + 1)}
        await until(lambda: benches[2].count(TOPIC, 0) == total)
        # The membership entry moves the end of the log between these records and their append.
        removal = asyncio.ensure_future(dledger_of(first).peer.change_members("n2", None))
        assert set(await send(first, *numbered(50))) == {ResponseCode.SUCCESS}
        await removal
        expected = texts_of(first)
        assert len(expected) == total + 50
        assert texts_of(benches[2])[:total] == expected[:total]
        assert await change(addresses[1], MemberChange("n0")) == {"n1"}
        leader = await ready(benches[1])
        assert set(await send(leader, *numbered(50))) == {ResponseCode.SUCCESS}
        expected += numbered(50)
        assert texts_of(leader) == expected
        shown = await BROKERS.change(client, addresses[1], MemberChange())
        assert shown == GroupMembers({"n1": addresses[1]}, "n1", "group-a")


async def test_a_leader_that_cannot_save_its_members_serves_again_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_driver, "SAVE_RETRY_S", 0.01)
    peers = peers_of(2)
    first_peer, second_address = peers.partition(";")[0], peers.rpartition("-")[2]
    joining = settings_of(peers, 1, joinDLedgerGroup="true")
    async with (
        running(tmp_path / "n0", settings_of(first_peer)) as first,
        running(tmp_path / "n1", joining) as second,
        RemotingClient() as client,
    ):
        await ready(first)
        assert set(await send(first, *numbered(10))) == {ResponseCode.SUCCESS}
        disk = FullDisk(monkeypatch, dledger_of(first).peer.folder)
        address = first_peer.partition("-")[2]
        added = asyncio.ensure_future(BROKERS.change(client, address, MemberChange("n1", second_address)))
        await until(lambda: disk.rejected >= 3)
        assert dledger_of(first).peer.is_paused
        assert not dledger_of(first).is_ready
        assert ResponseCode.SUCCESS not in await send(first, "rejected")
        assert not added.done()
        disk.has_space = True
        assert set((await added).members) == {"n0", "n1"}
        await ready(first)
        assert set(await send(first, *numbered(10, 10))) == {ResponseCode.SUCCESS}
        await until(lambda: texts_of(second) == numbered(20))
