"""Sends: the stored messages, the responses, and the codes of rejections."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from epochmq_protocol import message as records
from epochmq_protocol.bodies import MessageQueue
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import FLAG_ONEWAY, Command, request
from epochmq_protocol.headers_client import SendMessageRequestHeader
from epochmq_protocol.message import BatchElement, encode_batch
from epochmq_protocol.topics import TopicFilterType
from epochmq_store.statuses import RunningFlags
from tests.unit.broker.kit import (
    BORN_MS,
    HOST,
    PEER,
    UNIQ_KEY,
    Bench,
    running,
    send_command,
    until,
)

STORE_HOST = records.encode_host(HOST, 10911)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


@pytest.fixture(params=["fast", "ordinary"])
def path(request: pytest.FixtureRequest) -> str:
    """The path that a send takes."""
    return str(request.param)


async def test_a_message_is_stored_as_sent_with_the_brokers_properties(bench: Bench, path: str) -> None:
    peer = bench.peer(ordinary=path == "ordinary")
    command = send_command(
        "BenchmarkTest", b"body", {"UNIQ_KEY": UNIQ_KEY, "TAGS": "a", "KEYS": "k1 k2"}, queue_id=3, flag=7
    )
    answer = peer.call(command)
    assert answer.code == ResponseCode.SUCCESS
    assert answer.remark is None
    assert answer.ext == {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": records.message_id(STORE_HOST, 0),
        "queueId": "3",
        "queueOffset": "0",
        "transactionId": UNIQ_KEY,
    }
    stored = bench.record("BenchmarkTest", 3, 0)
    assert (stored.topic, stored.queue_id, stored.queue_offset, stored.physical_offset) == (
        "BenchmarkTest",
        3,
        0,
        0,
    )
    assert (stored.body, stored.flag, stored.sys_flag, stored.reconsume_times) == (b"body", 7, 0, 0)
    assert (stored.born_timestamp, stored.born_host) == (BORN_MS, records.encode_host(*PEER))
    assert stored.store_host == STORE_HOST
    assert records.parse_properties(stored.properties) == {
        "UNIQ_KEY": UNIQ_KEY,
        "TAGS": "a",
        "KEYS": "k1 k2",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "TestCluster",
    }


async def test_messages_of_one_queue_get_consecutive_offsets(bench: Bench, path: str) -> None:
    peer = bench.peer(ordinary=path == "ordinary")
    offsets = [(peer.call(send_command("BenchmarkTest")).ext or {})["queueOffset"] for _ in range(5)]
    assert offsets == ["0", "1", "2", "3", "4"]


async def test_the_long_header_of_old_clients_is_accepted(bench: Bench) -> None:
    header = SendMessageRequestHeader(
        producer_group="p",
        topic="BenchmarkTest",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp=BORN_MS,
        flag=0,
        properties=f"UNIQ_KEY\x01{UNIQ_KEY}\x02",
    )
    answer = bench.peer().call(request(RequestCode.SEND_MESSAGE, header, b"v1"))
    assert answer.code == ResponseCode.SUCCESS
    assert bench.record("BenchmarkTest", 1, 0).body == b"v1"


async def test_a_message_without_an_id_gets_one(bench: Bench) -> None:
    answer = bench.peer().call(send_command("BenchmarkTest", properties={"TAGS": "a"}))
    made = (answer.ext or {})["transactionId"]
    assert len(made) == 32
    stored = bench.record("BenchmarkTest", 0, 0)
    assert records.parse_properties(stored.properties)["UNIQ_KEY"] == made


async def test_properties_that_the_broker_sets_replace_the_clients(bench: Bench) -> None:
    sent = {"UNIQ_KEY": UNIQ_KEY, "CLUSTER": "x", "MSG_REGION": "y", "TRACE_ON": "z", "POP_CK": "1 2 3"}
    bench.peer().call(send_command("BenchmarkTest", properties=sent))
    stored = records.parse_properties(bench.record("BenchmarkTest", 0, 0).properties)
    assert stored["CLUSTER"] == "TestCluster"
    assert stored["MSG_REGION"] == "DefaultRegion"
    assert stored["TRACE_ON"] == "true"
    assert "POP_CK" not in stored


async def test_a_one_way_send_is_stored_without_a_response(bench: Bench, path: str) -> None:
    peer = bench.peer(ordinary=path == "ordinary")
    command = send_command("BenchmarkTest")
    command.flag |= FLAG_ONEWAY
    opaque = peer.send(command)
    peer.collect()
    assert opaque not in peer.answers
    assert bench.count("BenchmarkTest") == 1


async def test_a_negative_queue_leaves_the_choice_to_the_broker(bench: Bench) -> None:
    answer = bench.peer().call(send_command("BenchmarkTest", queue_id=-1))
    chosen = int((answer.ext or {})["queueId"])
    assert 0 <= chosen < 1024
    assert bench.count("BenchmarkTest", chosen) == 1


class TestTopics:
    """The effect of a send on its topic."""

    async def test_an_unknown_topic_is_created_from_the_default_topic(self, bench: Bench) -> None:
        assert bench.peer().call(send_command("New", default_topic_queue_nums=3)).code == 0
        made = bench.broker.topics.get("New")
        assert made is not None
        assert (made.read_queue_nums, made.write_queue_nums, made.perm) == (3, 3, 6)

    async def test_an_unknown_topic_is_rejected_if_its_default_topic_forbids_inheritance(
        self, bench: Bench
    ) -> None:
        answer = bench.peer().call(send_command("New", default_topic="SELF_TEST_TOPIC"))
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert (answer.ext or {})["MSG_REGION"] == "DefaultRegion"

    async def test_the_retry_topic_of_a_group_is_created_without_a_default_topic(self, bench: Bench) -> None:
        assert bench.peer().call(send_command("%RETRY%g", default_topic="none")).code == 0
        made = bench.broker.topics.get("%RETRY%g")
        assert made is not None
        assert made.write_queue_nums == 1

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            ("", ResponseCode.INVALID_PARAMETER),
            ("   ", ResponseCode.INVALID_PARAMETER),
            ("no.dots", ResponseCode.INVALID_PARAMETER),
            ("x" * 128, ResponseCode.INVALID_PARAMETER),
            ("%RETRY%" + "x" * 121, ResponseCode.INVALID_PARAMETER),
            ("SCHEDULE_TOPIC_XXXX", ResponseCode.NO_PERMISSION),
            ("RMQ_SYS_TRANS_HALF_TOPIC", ResponseCode.NO_PERMISSION),
            ("RMQ_SYS_TRANS_OP_HALF_TOPIC", ResponseCode.NO_PERMISSION),
            ("TRANS_CHECK_MAX_TIME_TOPIC", ResponseCode.NO_PERMISSION),
            ("SELF_TEST_TOPIC", ResponseCode.NO_PERMISSION),
            ("OFFSET_MOVED_EVENT", ResponseCode.NO_PERMISSION),
        ],
    )
    async def test_topics_that_no_client_may_send_to(self, bench: Bench, topic: str, code: int) -> None:
        assert bench.peer().call(send_command(topic)).code == code

    async def test_a_queue_id_beyond_the_topics_queues_is_rejected(self, bench: Bench, path: str) -> None:
        answer = bench.peer(ordinary=path == "ordinary").call(send_command("BenchmarkTest", queue_id=1024))
        assert answer.code == ResponseCode.INVALID_PARAMETER

    async def test_with_more_read_than_write_queues_every_queue_accepts_messages(
        self, bench: Bench, path: str
    ) -> None:
        config = bench.broker.topics.get("BenchmarkTest")
        assert config is not None
        bench.broker.topics.put(msgspec.structs.replace(config, write_queue_nums=2, read_queue_nums=4))
        peer = bench.peer(ordinary=path == "ordinary")
        assert peer.call(send_command("BenchmarkTest", queue_id=3)).code == 0
        assert peer.call(send_command("BenchmarkTest", queue_id=4)).code == ResponseCode.INVALID_PARAMETER

    async def test_a_topic_without_write_queues_gets_no_message_for_any_queue(
        self, bench: Bench, path: str
    ) -> None:
        config = bench.broker.topics.get("BenchmarkTest")
        assert config is not None
        bench.broker.topics.put(msgspec.structs.replace(config, write_queue_nums=0))
        answer = bench.peer(ordinary=path == "ordinary").call(send_command("BenchmarkTest", queue_id=-1))
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "topic[BenchmarkTest] has no write queue",
        )

    async def test_a_broker_without_write_permission_rejects_sends_to_ordered_topics_only(
        self, bench: Bench, path: str
    ) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        bench.broker.live.update({"brokerPermission": "4"})
        assert peer.call(send_command("BenchmarkTest")).code == 0
        bench.broker.topics.mark_ordered(["BenchmarkTest"])
        assert peer.call(send_command("BenchmarkTest")).code == ResponseCode.NO_PERMISSION
        bench.broker.live.update({"brokerPermission": "6"})
        assert peer.call(send_command("BenchmarkTest")).code == 0

    async def test_a_multi_tag_topic_marks_its_messages(self, bench: Bench) -> None:
        config = bench.broker.topics.get("BenchmarkTest")
        assert config is not None
        bench.broker.topics.put(msgspec.structs.replace(config, topic_filter_type=TopicFilterType.MULTI_TAG))
        bench.peer().call(send_command("BenchmarkTest"))
        assert bench.record("BenchmarkTest", 0, 0).sys_flag == records.MULTI_TAGS_FLAG

    async def test_a_compacted_topic_requires_a_key(self, bench: Bench) -> None:
        config = bench.broker.topics.get("BenchmarkTest")
        assert config is not None
        bench.broker.topics.put(msgspec.structs.replace(config, attributes={"cleanup.policy": "COMPACTION"}))
        assert bench.peer().call(send_command("BenchmarkTest")).code == ResponseCode.MESSAGE_ILLEGAL
        keyed = {"UNIQ_KEY": UNIQ_KEY, "KEYS": "k"}
        assert bench.peer().call(send_command("BenchmarkTest", properties=keyed)).code == 0


class TestRefusals:
    """Sends that are rejected."""

    async def test_sends_before_the_start_time_are_rejected(self, tmp_path: Path, path: str) -> None:
        async with running(tmp_path, {"startAcceptSendRequestTimeStamp": str(2**52)}) as bench:
            answer = bench.peer(ordinary=path == "ordinary").call(send_command("BenchmarkTest"))
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "until" in (answer.remark or "")

    async def test_a_send_without_a_body(self, bench: Bench, path: str) -> None:
        answer = bench.peer(ordinary=path == "ordinary").call(send_command("BenchmarkTest", b""))
        assert answer.code == ResponseCode.SYSTEM_ERROR

    async def test_a_body_larger_than_allowed(self, bench: Bench, path: str) -> None:
        peer = bench.peer(ordinary=path == "ordinary")
        assert peer.call(send_command("BenchmarkTest", bytes(1 << 20))).code == 0
        too_large = send_command("BenchmarkTest", bytes((1 << 20) + 1))
        assert peer.call(too_large).code == ResponseCode.MESSAGE_ILLEGAL
        assert bench.count("BenchmarkTest") == 1

    async def test_more_properties_than_a_record_holds(self, bench: Bench, path: str) -> None:
        command = send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "big": "x" * 32_767})
        answer = bench.peer(ordinary=path == "ordinary").call(command)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    async def test_half_messages_are_rejected_with_reject_transaction_message(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"rejectTransactionMessage": "true"}) as bench:
            answer = bench.peer().call(
                send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "TRAN_MSG": "true"})
            )
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == f"the broker[{HOST}] sending transaction message is forbidden"

    async def test_an_inner_number_without_an_inner_batch(self, bench: Bench) -> None:
        answer = bench.peer().call(
            send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "INNER_NUM": "2"})
        )
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL

    async def test_a_full_disk_is_reported(self, bench: Bench, path: str) -> None:
        bench.broker.store.state.set_flag(RunningFlags.DISK_FULL, True)
        answer = bench.peer(ordinary=path == "ordinary").call(send_command("BenchmarkTest"))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "disk is full" in (answer.remark or "")

    async def test_a_header_without_a_required_field_is_named(self, bench: Bench) -> None:
        command = send_command("BenchmarkTest")
        assert command.ext is not None
        del command.ext["e"]
        answer = bench.peer().call(command)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "e" in (answer.remark or "")


class TestRetriesSentByClients:
    """A client that cannot send a message back sends it to the retry topic itself."""

    def retry(self, **fields: Any) -> Command:
        """A retry of group g, delayed by level 3 as clients do."""
        properties = {"UNIQ_KEY": UNIQ_KEY, "DELAY": "3", "RETRY_TOPIC": "T"}
        return send_command("%RETRY%g", properties=properties, **fields)

    async def test_a_retry_waits_for_its_delay_level(self, bench: Bench) -> None:
        assert bench.peer().call(self.retry(reconsume_times=1)).code == 0
        assert bench.count("SCHEDULE_TOPIC_XXXX", 2) == 1

    async def test_a_message_retried_too_often_goes_to_the_dead_letter_topic(self, bench: Bench) -> None:
        answer = bench.peer().call(self.retry(reconsume_times=3, max_reconsume_times=2))
        assert answer.code == 0
        stored = bench.record("%DLQ%g", 0, 0)
        assert records.parse_properties(stored.properties)["DELAY"] == "-1"
        assert bench.count("SCHEDULE_TOPIC_XXXX", 2) == 0

    async def test_the_groups_retry_limit_applies_if_the_client_names_none(self, bench: Bench) -> None:
        assert bench.peer().call(self.retry(reconsume_times=16)).code == 0
        assert bench.count("%DLQ%g") == 0
        assert bench.peer().call(self.retry(reconsume_times=17)).code == 0
        assert bench.count("%DLQ%g") == 1

    async def test_a_group_with_queue_locks_consumes_in_order_and_skips_retries(self, bench: Bench) -> None:
        bench.broker.tables.locks.lock(
            "g", [MessageQueue("T", "broker-a", 0)], "client", int(time.time() * 1000)
        )
        assert bench.peer().call(self.retry(reconsume_times=1)).code == 0
        assert bench.count("%DLQ%g") == 1

    async def test_an_unknown_group_is_rejected_without_auto_creation(self, tmp_path: Path) -> None:
        async with running(tmp_path, {"autoCreateSubscriptionGroup": "false"}) as bench:
            answer = bench.peer().call(self.retry())
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class TestBatches:
    """SEND_BATCH_MESSAGE: one request, one record per message."""

    def batch(self, topic: str = "BenchmarkTest", delay: str = "", **fields: Any) -> Command:
        """Three messages."""
        body = encode_batch(
            [
                BatchElement(b"one", b"TAGS\x01a\x02UNIQ_KEY\x01X\x02", 1),
                BatchElement(b"two", b"TAGS\x01b", 2),
                BatchElement(b"three", b"", 3),
            ]
        )
        properties = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true"} | ({"DELAY": delay} if delay else {})
        return send_command(
            topic, body, properties, code=RequestCode.SEND_BATCH_MESSAGE, **({"batch": True} | fields)
        )

    async def test_every_message_becomes_a_record_with_the_batchs_own_properties(self, bench: Bench) -> None:
        answer = bench.peer().call(self.batch())
        assert answer.code == 0
        stored = [bench.record("BenchmarkTest", 0, offset) for offset in range(3)]
        assert [record.body for record in stored] == [b"one", b"two", b"three"]
        assert [record.flag for record in stored] == [1, 2, 3]
        for record in stored:
            properties = records.parse_properties(record.properties)
            assert properties["UNIQ_KEY"] == UNIQ_KEY
            assert properties["CLUSTER"] == "TestCluster"
        assert records.parse_properties(stored[1].properties)["TAGS"] == "b"
        ext = answer.ext or {}
        assert ext["msgId"] == ",".join(record.msg_id for record in stored)
        assert ext["queueOffset"] == "0"
        assert ext["transactionId"] == UNIQ_KEY

    async def test_a_plain_send_with_the_batch_flag_is_a_batch(self, bench: Bench) -> None:
        command = self.batch()
        command.code = RequestCode.SEND_MESSAGE_V2
        assert bench.peer().call(command).code == 0
        assert bench.count("BenchmarkTest") == 3

    async def test_a_batch_is_stored_as_a_whole_or_not_at_all(self, bench: Bench) -> None:
        command = self.batch()
        command.body = command.body[:-3]
        assert bench.peer().call(command).code == ResponseCode.MESSAGE_ILLEGAL
        assert bench.count("BenchmarkTest") == 0

    async def test_batches_of_retries_transactions_or_delays_are_rejected(self, bench: Bench) -> None:
        peer = bench.peer()
        assert peer.call(self.batch("%RETRY%g")).code == ResponseCode.MESSAGE_ILLEGAL
        assert peer.call(self.batch(sys_flag=4)).code == ResponseCode.MESSAGE_ILLEGAL
        assert peer.call(self.batch(delay="3")).code == ResponseCode.MESSAGE_ILLEGAL


class TestDelay:
    """A message with a DELAY property goes to its level's queue first."""

    async def test_a_delayed_message_waits_in_the_schedule_topic_with_its_own_topic_noted(
        self, bench: Bench
    ) -> None:
        command = send_command(
            "BenchmarkTest",
            properties={"UNIQ_KEY": UNIQ_KEY, "DELAY": "3", "TIMER_DELAY_MS": "5"},
            queue_id=9,
        )
        answer = bench.peer().call(command)
        assert answer.code == 0
        assert (answer.ext or {})["queueId"] == "9"
        stored = bench.record("SCHEDULE_TOPIC_XXXX", 2, 0)
        properties = records.parse_properties(stored.properties)
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("BenchmarkTest", "9")
        assert "TIMER_DELAY_MS" not in properties
        queue = bench.broker.store.lookup.existing_queue("SCHEDULE_TOPIC_XXXX", 2)
        assert queue is not None
        unit = queue.unit(0)
        assert unit is not None
        assert unit[2] == stored.store_timestamp + 10_000

    async def test_a_level_above_the_highest_counts_as_the_highest(self, bench: Bench) -> None:
        bench.peer().call(send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "DELAY": "99"}))
        stored = bench.record("SCHEDULE_TOPIC_XXXX", 17, 0)
        assert records.parse_properties(stored.properties)["DELAY"] == "18"

    async def test_level_zero_means_no_delay(self, bench: Bench) -> None:
        bench.peer().call(send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "DELAY": "0"}))
        assert bench.count("BenchmarkTest") == 1

    async def test_a_level_that_is_not_a_number_is_rejected(self, bench: Bench) -> None:
        answer = bench.peer().call(
            send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "DELAY": "soon"})
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR


class TestSyncFlush:
    """With SYNC_FLUSH a response means that the message is on disk."""

    async def test_the_response_follows_the_flush(self, tmp_path: Path, path: str) -> None:
        async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
            peer = bench.peer(ordinary=path == "ordinary")
            opaque = peer.send(send_command("BenchmarkTest"))
            peer.collect()
            assert opaque not in peer.answers
            answer = await peer.answer(opaque)
            assert answer.code == 0
            assert bench.broker.store.flushed_where >= bench.broker.store.max_phy_offset

    async def test_a_message_with_wait_false_does_not_wait(self, tmp_path: Path, path: str) -> None:
        async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
            peer = bench.peer(ordinary=path == "ordinary")
            command = send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "WAIT": "false"})
            assert peer.call(command).code == 0

    async def test_a_slow_flush_is_reported_as_a_flush_timeout(
        self, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = threading.Event()
        async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": "50"}) as bench:
            monkeypatch.setattr("os.fdatasync", lambda _fd: disk.wait(60))
            peer = bench.peer(ordinary=path == "ordinary")
            answer = await peer.answer(peer.send(send_command("BenchmarkTest")))
            disk.set()
            assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert (answer.ext or {})["transactionId"] == UNIQ_KEY
            assert (answer.ext or {})["queueOffset"] == "0"

    async def test_an_overloaded_broker_rejects_before_it_stores(self, tmp_path: Path, path: str) -> None:
        """A client sends a rejected message again; had it been stored, it would be there twice."""
        async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
            dispatcher = bench.ordinary if path == "ordinary" else bench.fast
            peer = bench.peer(ordinary=path == "ordinary")
            taken = peer.send(send_command("BenchmarkTest"))
            dispatcher._max_in_flight = 1
            answer = peer.call(send_command("BenchmarkTest"))
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert bench.count("BenchmarkTest") == 1
            assert (await peer.answer(taken)).code == 0
            waitless = send_command("BenchmarkTest", properties={"UNIQ_KEY": UNIQ_KEY, "WAIT": "false"})
            assert peer.call(waitless).code == 0
            assert bench.count("BenchmarkTest") == 2

    async def test_a_one_way_send_waits_for_nothing(self, tmp_path: Path, path: str) -> None:
        async with running(tmp_path, {"flushDiskType": "SYNC_FLUSH"}) as bench:
            peer = bench.peer(ordinary=path == "ordinary")
            command = send_command("BenchmarkTest")
            command.flag |= FLAG_ONEWAY
            peer.send(command)
            assert bench.count("BenchmarkTest") == 1
            assert peer.connection.in_flight == 0
            await until(lambda: bench.broker.store.flushed_where >= bench.broker.store.max_phy_offset)


async def test_sent_messages_are_counted(bench: Bench, path: str) -> None:
    peer = bench.peer(ordinary=path == "ordinary")
    for _ in range(3):
        peer.call(send_command("BenchmarkTest"))
    flow = bench.broker.tables.stats.put_traffic("BenchmarkTest", 0)
    assert flow.totals() == (3, bench.broker.store.max_phy_offset, 3)
