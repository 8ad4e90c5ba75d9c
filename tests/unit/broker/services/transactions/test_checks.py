"""The master asks producers for the state of old transactions, also after a restart or a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from epochmq_broker.services.transactions.half_queue import StoredHalfQueue
from epochmq_broker.writing.inner_message import InnerMessage, PutResult
from epochmq_protocol import message as records
from epochmq_protocol.codes import ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.headers_client import CheckTransactionStateRequestHeader
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.statuses import GetResult, RunningFlags
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, until
from tests.unit.broker.services.transactions.support import (
    DISCARDED,
    HALF,
    OP,
    QUICK,
    QUIET,
    ROLLBACK,
    checks,
    copy_as_killed,
    end_command,
    half_properties,
    offsets,
    producer,
    properties_of,
    send_half,
)

SLOW = QUIET | {"transactionTimeOut": "1"}
"""Only the test starts checks, and any half message is old enough."""


async def check(bench: Bench) -> None:
    """Runs the checks once, when every half message is old enough."""
    await asyncio.sleep(0.003)
    await bench.broker.transactions.checks.check()


async def test_a_producer_is_asked_and_its_answer_ends_the_transaction(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as bench:
        peer = producer(bench)
        half = send_half(bench, flag=7)
        await until(lambda: checks(peer))
        asked = checks(peer)[0]
        assert asked.is_oneway
        copy = bench.record(HALF, 0, 1)
        header = CheckTransactionStateRequestHeader.decode(asked.ext)
        assert header == CheckTransactionStateRequestHeader(
            topic=HALF,
            tran_state_table_offset=1,
            commit_log_offset=copy.physical_offset,
            msg_id=UNIQ_KEY,
            transaction_id=UNIQ_KEY,
            offset_msg_id=copy.msg_id,
            bname="broker-a",
        )
        message = records.decode_record(asked.body)
        assert (message.topic, message.queue_id, message.body, message.flag) == ("T", 1, b"half", 7)
        assert (message.queue_offset, message.physical_offset) == (1, copy.physical_offset)
        assert message.born_timestamp == half.born_timestamp
        assert properties_of(message) == properties_of(copy) | {"WAIT": "false"}
        assert properties_of(copy) == properties_of(half) | {"TRANSACTION_CHECK_TIMES": "1"}
        assert peer.call(end_command(copy, from_transaction_check=True)).code == 0
        assert bench.count("T", 1) == 1
        await until(lambda: offsets(bench) == (bench.count(HALF), bench.count(OP)))
        assert bench.count("T", 1) == 1


async def test_any_living_producer_of_the_group_is_asked(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as bench:
        gone, alive, other = producer(bench), producer(bench), producer(bench, "others")
        gone.close()
        send_half(bench)
        for _ in range(4):
            await check(bench)
        assert len(checks(alive)) == 4
        assert checks(other) == []


async def test_without_a_producer_the_half_message_is_checked_again_later(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as bench:
        send_half(bench)
        await check(bench)
        assert bench.broker.transactions.checks.unreachable == 1
        peer = producer(bench)
        await check(bench)
        assert len(checks(peer)) == 1
        assert properties_of(bench.record(HALF, 0, 2))["TRANSACTION_CHECK_TIMES"] == "2"


async def test_after_too_many_checks_the_message_is_in_the_discard_topic(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW | {"transactionCheckMax": "3"}) as bench:
        peer = producer(bench)
        send_half(bench)
        for _ in range(4):
            await check(bench)
        assert len(checks(peer)) == 3
        assert bench.count(DISCARDED) == 1
        assert bench.broker.transactions.checks.discarded == 1
        assert bench.broker.transactions.metrics.counts["T"].count == 0
        await check(bench)
        assert (len(checks(peer)), bench.count(DISCARDED)) == (3, 1)


async def test_ended_transactions_are_never_asked_about(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as bench:
        peer = producer(bench)
        for kind in (8, ROLLBACK):
            assert peer.call(end_command(send_half(bench), kind)).code == 0
        await check(bench)
        assert checks(peer) == []
        assert offsets(bench) == (2, 1)


async def test_after_a_restart_the_checks_continue_where_they_were(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as bench:
        assert bench.peer().call(end_command(send_half(bench))).code == 0
        send_half(bench, body=b"open")
        await check(bench)
        assert offsets(bench) == (2, 1)
    async with running(tmp_path, SLOW) as bench:
        assert offsets(bench) == (2, 1)
        peer = producer(bench)
        await check(bench)
        assert [records.decode_record(one.body).body for one in checks(peer)] == [b"open"]


@pytest.mark.parametrize("flushed", [True, False])
async def test_after_a_kill_no_open_half_message_is_forgotten(tmp_path: Path, flushed: bool) -> None:
    """`flushed`: whether the op message was written before the kill. If not, the producer is asked again."""
    async with running(tmp_path / "a", SLOW) as bench:
        assert bench.peer().call(end_command(send_half(bench, body=b"done"))).code == 0
        send_half(bench, body=b"open")
        if flushed:
            bench.broker.transactions.ops.flush()
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    async with running(tmp_path / "b", SLOW) as bench:
        assert bench.count("T", 1) == 1
        peer = producer(bench)
        await check(bench)
        asked = [records.decode_record(one.body).body for one in checks(peer)]
        assert asked == ([b"open"] if flushed else [b"done", b"open"])


async def test_a_checked_half_message_is_not_checked_twice_when_the_offsets_are_lost(tmp_path: Path) -> None:
    """A kill loses the offsets of the last seconds. The log says which half messages have copies."""
    async with running(tmp_path / "a", SLOW) as bench:
        peer = producer(bench)
        send_half(bench)
        for _ in range(3):
            await check(bench)
        assert len(checks(peer)) == 3
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "config" / "consumerOffset.json").unlink(missing_ok=True)
    async with running(tmp_path / "b", SLOW) as bench:
        assert offsets(bench) == (None, None)
        peer = producer(bench)
        await check(bench)
        (asked,) = checks(peer)
        message = records.decode_record(asked.body)
        assert properties_of(message)["TRANSACTION_CHECK_TIMES"] == "4"


async def test_offsets_wait_until_replicas_have_the_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica copies offsets apart from the log. With an offset past a half message and without its copy it
    would never check that transaction."""
    async with running(tmp_path, SLOW) as bench:
        safe = 0
        monkeypatch.setattr(bench.broker.writer, "safe_end", lambda **_: safe)
        peer = producer(bench)
        send_half(bench)
        await check(bench)
        assert offsets(bench) == (None, None)
        await check(bench)  # continues behind the first half message all the same
        assert len(checks(peer)) == 2
        assert bench.count(HALF) == 3
        safe = bench.record(HALF, 0, 1).physical_offset + 1000
        await check(bench)
        assert offsets(bench) == (1, 0) or offsets(bench) == (2, 0)


async def test_a_slave_does_not_check(tmp_path: Path) -> None:
    async with running(tmp_path, QUICK) as bench:
        peer = producer(bench)
        bench.broker.master_services.stop()
        send_half(bench)
        rounds = bench.broker.transactions.checks.rounds
        await asyncio.sleep(0.2)
        assert bench.broker.transactions.checks.rounds == rounds
        bench.broker.master_services.start()
        await until(lambda: checks(peer))


async def test_a_stop_in_the_middle_of_a_round_keeps_what_it_did(tmp_path: Path) -> None:
    async with running(tmp_path, SLOW) as bench:
        for _ in range(50):
            send_half(bench, properties=half_properties())
        await asyncio.sleep(0.003)
        service = bench.broker.transactions.checks
        turns = 0

        async def one_turn(_queue: object) -> None:
            nonlocal turns
            turns += 1
            if turns == 10:
                service.stop()
            await asyncio.sleep(0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StoredHalfQueue, "take_turn", one_turn)
            service._task = asyncio.ensure_future(service.check())
            await asyncio.wait([service._task])
        assert offsets(bench) == (10, 0)
        assert bench.count(HALF) == 60


async def test_a_role_change_forgets_ends_that_were_not_written(tmp_path: Path) -> None:
    """The next master may give the same offset to another half message."""
    async with running(tmp_path, SLOW) as bench:
        half = send_half(bench)
        bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, True)
        assert bench.peer().call(end_command(half, ROLLBACK)).code == 0
        bench.broker.master_services.stop()
        bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, False)
        bench.broker.master_services.start()
        bench.broker.transactions.ops.flush()
        assert bench.count(OP) == 0
        peer = producer(bench)
        await check(bench)
        assert len(checks(peer)) == 1


async def test_half_messages_that_are_not_in_memory_are_read_on_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, SLOW) as bench:
        peer = producer(bench)
        send_half(bench)
        store, reads = bench.broker.store, []
        get_resident = store.reader.get_resident

        def get_cold(*arguments: object) -> GetResult:
            if len(reads) < 2:
                raise NotResidentError(store.log.files.files[0], 0, 10)
            return get_resident(*arguments[1:])  # type: ignore[arg-type]

        async def read(_client: object, missing: NotResidentError) -> None:
            reads.append(missing)

        monkeypatch.setattr("epochmq_store.reading.message_reader.MessageReader.get_resident", get_cold)
        monkeypatch.setattr(bench.broker.cold_reads, "read", read)
        await check(bench)
        assert len(reads) == 2
        assert len(checks(peer)) == 1


async def test_a_half_message_that_cannot_be_stored_again_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, SLOW) as bench:
        peer = producer(bench)
        send_half(bench, body=b"poison")
        send_half(bench, body=b"good")
        put = bench.broker.writer.put

        def put_without_poison(message: InnerMessage) -> PutResult:
            if message.body == b"poison" and message.topic == HALF:
                raise RequestError(ResponseCode.SYSTEM_ERROR, "not supported")
            return put(message)

        monkeypatch.setattr(bench.broker.writer, "put", put_without_poison)
        await check(bench)
        assert [records.decode_record(one.body).body for one in checks(peer)] == [b"good"]
        assert bench.record(DISCARDED, 0, 0).body == b"poison"
