"""Half messages, commits and rollbacks: what is stored, and the codes of rejections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.headers_admin import ResumeCheckHalfMessageRequestHeader
from epochmq_protocol.headers_client import SendMessageRequestHeader, SendMessageRequestHeaderV2
from epochmq_store.statuses import PutStatus, RunningFlags
from tests.unit.broker.kit import BORN_MS, HOST, UNIQ_KEY, Bench, running, send_command, until
from tests.unit.broker.services.transactions.support import (
    COMMIT,
    DISCARDED,
    HALF,
    OP,
    QUIET,
    ROLLBACK,
    UNKNOWN,
    copy_as_killed,
    end_command,
    half_command,
    half_properties,
    ops,
    properties_of,
    send_half,
)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, QUIET) as made:
        yield made


def count_of(bench: Bench, topic: str) -> int:
    """The number of half messages of a topic that the metrics count."""
    found = bench.broker.transactions.metrics.counts.get(topic)
    return 0 if found is None else found.count


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_half_message_is_stored_apart_and_its_response_names_the_half_message(
    bench: Bench, code: int
) -> None:
    command = half_command(queue_id=3, sys_flag=4, flag=9)
    if code == RequestCode.SEND_MESSAGE:
        short = SendMessageRequestHeaderV2.decode(command.ext)
        values = {name: getattr(short, name) for name in SendMessageRequestHeader.__struct_fields__}
        command = request(code, SendMessageRequestHeader(**values), command.body)
    answer = bench.peer().call(command)
    assert answer.code == ResponseCode.SUCCESS
    ext = answer.ext or {}
    assert (ext["queueId"], ext["queueOffset"], ext["transactionId"]) == ("3", "0", UNIQ_KEY)
    assert ext["msgId"] == records.message_id(records.encode_host(HOST, 10911), 0)
    half = bench.record(HALF, 0, 0)
    assert (half.body, half.flag, half.sys_flag) == (b"half", 9, 0)
    assert properties_of(half) == half_properties() | {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "TestCluster",
        "__transactionId__": UNIQ_KEY,
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }
    assert bench.count("T", 3) == 0
    assert count_of(bench, "T") == 1


async def test_a_retry_of_an_old_client_is_no_half_message(bench: Bench) -> None:
    properties = half_properties(DELAY="1")
    assert bench.peer().call(half_command(properties=properties, reconsume_times=1, sys_flag=0)).code == 0
    assert bench.count(HALF) == 0
    assert bench.count("SCHEDULE_TOPIC_XXXX", 0) == 1


async def test_a_batch_in_a_transaction_is_rejected(bench: Bench) -> None:
    body = records.encode_batch([records.BatchElement(b"one")])
    command = send_command("T", body, half_properties(), code=320, batch=True, sys_flag=4)
    assert bench.peer().call(command).code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.count(HALF) == 0


async def test_a_commit_stores_the_message_in_its_own_topic(bench: Bench) -> None:
    half = send_half(bench, flag=9)
    answer = bench.peer().call(end_command(half))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    stored = bench.record("T", 1, 0)
    assert (stored.body, stored.flag, stored.sys_flag) == (b"half", 9, COMMIT)
    assert stored.prepared_transaction_offset == half.physical_offset
    assert stored.properties == half.properties  # RocketMQ encodes them before it removes some
    assert (stored.born_timestamp, stored.born_host, stored.store_host) == (
        half.born_timestamp,
        half.born_host,
        half.store_host,
    )
    queue = bench.broker.store.lookup.existing_queue("T", 1)
    assert queue is not None
    unit = queue.unit(0)
    assert unit is not None
    assert unit[2] == ord("a")
    assert count_of(bench, "T") == 0
    assert (bench.broker.transactions.committed, bench.broker.transactions.rolled_back) == (1, 0)


async def test_a_rollback_stores_nothing_in_the_topic(bench: Bench) -> None:
    half = send_half(bench)
    answer = bench.peer().call(end_command(half, ROLLBACK))
    assert answer.code == ResponseCode.SUCCESS
    assert bench.count("T", 1) == 0
    assert count_of(bench, "T") == 0
    bench.broker.transactions.ops.flush()
    assert ops(bench) == [b"0,"]


async def test_op_messages_name_ended_half_messages_as_rocketmq_writes_them(bench: Bench) -> None:
    peer = bench.peer()
    for number in range(3):
        peer.call(end_command(send_half(bench), ROLLBACK if number == 1 else COMMIT))
    assert bench.count(OP) == 0
    bench.broker.transactions.ops.flush()
    op = bench.record(OP, 0, 0)
    assert op.body == b"0,1,2,"
    assert op.properties == b"WAIT\x01true\x02TAGS\x01d\x02"
    assert op.store_host == op.born_host == records.encode_host(HOST, 10911)
    assert (op.sys_flag, op.flag) == (0, 0)


async def test_ends_are_written_after_the_interval_or_when_they_are_many(tmp_path: Path) -> None:
    settings = QUIET | {"transactionOpBatchInterval": "50", "transactionOpMsgMaxSize": "6"}
    async with running(tmp_path, settings) as bench:
        peer = bench.peer()
        for _ in range(3):
            peer.call(end_command(send_half(bench), ROLLBACK))
        assert ops(bench) == [b"0,1,2,"]
        peer.call(end_command(send_half(bench), ROLLBACK))
        await until(lambda: bench.count(OP) == 2)
        assert ops(bench)[1] == b"3,"


async def test_ends_survive_a_stop(tmp_path: Path) -> None:
    async with running(tmp_path, QUIET) as bench:
        bench.peer().call(end_command(send_half(bench)))
        assert bench.count(OP) == 0
    async with running(tmp_path, QUIET) as bench:
        assert ops(bench) == [b"0,"]
        assert bench.count("T", 1) == 1


async def test_ends_wait_while_the_store_accepts_nothing(tmp_path: Path) -> None:
    settings = QUIET | {"transactionOpBatchInterval": "10"}
    async with running(tmp_path, settings) as bench:
        half = send_half(bench)
        bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, True)
        assert bench.peer().call(end_command(half, ROLLBACK)).code == 0
        bench.broker.transactions.ops.flush()
        assert bench.broker.transactions.ops.waiting == 1
        bench.broker.store.state.set_flag(RunningFlags.NOT_WRITEABLE, False)
        await until(lambda: bench.count(OP) == 1)
        assert bench.broker.transactions.ops.waiting == 0


async def test_a_producer_that_does_not_know_the_state_gets_no_response(bench: Bench) -> None:
    half = send_half(bench)
    peer = bench.peer()
    peer.send(end_command(half, UNKNOWN))
    peer.call(end_command(half, COMMIT))
    assert peer.answers == {}
    assert bench.count("T", 1) == 1


class TestRejections:
    """Ends that change nothing."""

    @pytest.mark.parametrize(
        ("fields", "remark"),
        [
            ({"producer_group": "others"}, "The producer group wrong"),
            ({"transaction_id": "7F0000016B5C18B4AAC2000000019999"}, "The transaction id wrong"),
            ({"tran_state_table_offset": 1}, "The transaction state table offset wrong"),
            ({"commit_log_offset": 10**9}, "Find prepared transaction message failed"),
            ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
            ({"commit_log_offset": 5}, "Find prepared transaction message failed"),
        ],
    )
    @pytest.mark.parametrize("kind", [COMMIT, ROLLBACK])
    async def test_an_end_with_wrong_names(
        self, bench: Bench, kind: int, fields: dict[str, object], remark: str
    ) -> None:
        half = send_half(bench)
        answer = bench.peer().call(end_command(half, kind, **fields))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
        assert bench.count("T", 1) == 0
        assert bench.broker.transactions.ops.waiting == 0
        assert count_of(bench, "T") == 1

    async def test_an_end_of_a_message_that_is_no_half_message(self, bench: Bench) -> None:
        half = send_half(bench)
        bench.peer().call(end_command(half))
        answer = bench.peer().call(end_command(bench.record("T", 1, 0)))
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "Find prepared transaction message failed",
        )
        assert bench.count("T", 1) == 1

    async def test_a_kind_that_is_neither_commit_nor_rollback(self, bench: Bench) -> None:
        answer = bench.peer().call(end_command(send_half(bench), 4))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("commitOrRollback field wrong")

    async def test_an_end_after_the_immunity_time_that_answers_no_check(self, bench: Bench) -> None:
        properties = half_properties(CHECK_IMMUNITY_TIME_IN_SECONDS="10")
        half = send_half(bench, properties=properties, born_timestamp=BORN_MS)
        for kind in (COMMIT, ROLLBACK):
            answer = bench.peer().call(end_command(half, kind))
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert bench.peer().call(end_command(half, from_transaction_check=True)).code == 0
        assert bench.count("T", 1) == 1

    async def test_an_end_on_a_slave(self, bench: Bench) -> None:
        half = send_half(bench)
        bench.broker.live.set_role(1, "SLAVE")
        answer = bench.peer().call(end_command(half))
        assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (PutStatus.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE),
            (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, ResponseCode.SYSTEM_ERROR),
        ],
    )
    async def test_a_commit_that_cannot_be_stored_does_not_end_the_transaction(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch, status: PutStatus, code: int
    ) -> None:
        half = send_half(bench)
        monkeypatch.setattr(bench.broker.writer, "may_reject", True)
        monkeypatch.setattr(bench.broker.writer, "rejection", lambda _wait: status)
        assert bench.peer().call(end_command(half)).code == code
        assert bench.broker.transactions.ops.waiting == 0
        monkeypatch.undo()
        assert bench.peer().call(end_command(half)).code == 0
        assert bench.count("T", 1) == 1


async def test_a_commit_is_answered_when_the_message_is_on_disk(tmp_path: Path) -> None:
    async with running(tmp_path, QUIET | {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        opaque = peer.send(half_command())
        assert (await peer.answer(opaque)).code == 0
        half = bench.record(HALF, 0, 0)
        opaque = peer.send(end_command(half))
        assert (await peer.answer(opaque)).code == 0
        assert bench.broker.store.flushed_where >= bench.record("T", 1, 0).physical_offset


async def test_a_message_that_does_not_wait_is_committed_without_waiting(tmp_path: Path) -> None:
    async with running(tmp_path, QUIET | {"flushDiskType": "SYNC_FLUSH"}) as bench:
        peer = bench.peer()
        assert peer.call(half_command(properties=half_properties(WAIT="false"))).code == 0
        await until(lambda: bench.count(HALF) == 1)
        assert peer.call(end_command(bench.record(HALF, 0, 0))).code == 0


async def test_a_discarded_message_becomes_a_half_message_again(bench: Bench) -> None:
    half = send_half(bench, properties=half_properties(TRANSACTION_CHECK_TIMES="15"))
    await bench.broker.transactions.checks.check()
    discarded = bench.record(DISCARDED, 0, 0)
    assert bench.broker.topics.get(DISCARDED) is not None
    assert properties_of(discarded) == properties_of(half)
    header = ResumeCheckHalfMessageRequestHeader(topic=DISCARDED, msg_id=discarded.msg_id)
    assert bench.peer().call(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)).code == 0
    resumed = bench.record(HALF, 0, 1)
    assert properties_of(resumed) == properties_of(half) | {"TRANSACTION_CHECK_TIMES": "0"}
    assert bench.peer().call(end_command(resumed)).code == 0
    assert bench.record("T", 1, 0).body == b"half"


@pytest.mark.parametrize("msg_id", [None, "", "xyz", "7F0000010000AA9F00000000000FFFFF"])
async def test_no_message_is_resumed_by_a_wrong_id(bench: Bench, msg_id: str | None) -> None:
    send_half(bench)
    header = ResumeCheckHalfMessageRequestHeader(topic=DISCARDED, msg_id=msg_id)
    answer = bench.peer().call(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("Exception was thrown when putting message back")
    assert bench.count(HALF) == 1


async def test_the_numbers_of_half_messages_are_in_rocketmqs_file(tmp_path: Path) -> None:
    async with running(tmp_path, QUIET) as bench:
        send_half(bench)
        send_half(bench)
        bench.peer().call(end_command(bench.record(HALF, 0, 0)))
    text = (tmp_path / "config" / "transactionMetrics").read_text()
    assert text.startswith('{"dataVersion":{"counter":3,"stateVersion":0,"timestamp":')
    assert '"transactionCount":{"T":{"count":1,"timeStamp":' in text
    async with running(tmp_path, QUIET) as bench:
        assert count_of(bench, "T") == 1


async def test_a_killed_broker_still_has_the_half_message_and_can_commit_it(tmp_path: Path) -> None:
    async with running(tmp_path / "a", QUIET) as bench:
        half = send_half(bench)
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    async with running(tmp_path / "b", QUIET) as bench:
        assert bench.peer().call(end_command(half)).code == 0
        assert bench.record("T", 1, 0).body == b"half"


async def test_a_broker_with_damaged_metrics_of_transactions_starts(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    for name in ("transactionMetrics", "transactionMetrics.bak"):
        (tmp_path / "config" / name).write_bytes(b"\0" * 100)
    async with running(tmp_path, QUIET) as bench:
        send_half(bench)
        assert count_of(bench, "T") == 1
    async with running(tmp_path, QUIET) as bench:
        assert count_of(bench, "T") == 1


TEXTS = st.one_of(
    st.integers().map(str),
    st.sampled_from(["", "0", "8", "12", "true", "producers", UNIQ_KEY, "-1", str(2**63 - 1), str(2**63)]),
    st.text(max_size=40),
)


@pytest.mark.long
async def test_no_header_of_an_end_breaks_the_broker(tmp_path: Path) -> None:
    """Any fields get a response with one of RocketMQ's codes, or none if the state is unknown."""
    codes = {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.ILLEGAL_OPERATION}
    async with running(tmp_path, QUIET) as bench:
        good = end_command(send_half(bench)).ext or {}
        peer = bench.peer()

        @settings(max_examples=300, deadline=None)
        @given(st.dictionaries(st.sampled_from([*good, "msgId", "topic", "x"]), TEXTS), st.booleans())
        def fuzz(fields: dict[str, str], resume: bool) -> None:
            code = RequestCode.RESUME_CHECK_HALF_MESSAGE if resume else RequestCode.END_TRANSACTION
            opaque = peer.send(request(code, None, b"", good | fields))
            peer.collect()
            answer = peer.answers.pop(opaque, None)
            if answer is None:
                assert (good | fields)["commitOrRollback"].strip() in ("0", "-0", "+0", "00")
            else:
                assert answer.code in codes
                assert "Traceback" not in (answer.remark or "")

        fuzz()
        assert bench.peer().call(end_command(send_half(bench))).code == 0
