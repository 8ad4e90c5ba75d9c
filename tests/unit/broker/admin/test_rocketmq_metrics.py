"""A broker's metrics under RocketMQ's names: what is counted, for whom, and the bounds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import pytest

from epochmq_broker.admin import rocketmq_metrics
from epochmq_broker.admin.consumer_lags import ConsumerLags
from epochmq_broker.admin.rocketmq_metrics import RocketMQMetrics
from epochmq_broker.admin.rocketmq_service_metrics import service_samples
from epochmq_broker.services.timer.timer_metrics import DISTRIBUTION_BOUNDS_S
from epochmq_protocol.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    SubscriptionGroupConfig,
    to_json,
)
from epochmq_protocol.codes import RequestCode, version_name
from epochmq_sidecar.metrics import ROCKETMQ_HELP, ROCKETMQ_HISTOGRAMS
from tests.unit.broker.kit import UNIQ_KEY, Bench, Peer, command, pull_command, running, send_command, until

TOPIC = "BenchmarkTest"
OTHER = "created-by-the-first-message"
KNOWN = ROCKETMQ_HELP.keys() | {
    f"{name}_{part}" for name in ROCKETMQ_HISTOGRAMS for part in ("bucket", "count", "sum")
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        yield made


async def collected(bench: Bench, name: str, *wanted: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by these labels."""
    broker = bench.broker
    metrics = RocketMQMetrics(
        broker.store,
        broker.tables,
        ConsumerLags(broker.store, broker.tables, broker.pop),
        lambda: chain(
            service_samples(broker.transactions, broker.pop, broker.timer), broker.ports.metric_samples()
        ),
    )
    samples = await metrics.collect(broker.live.current)
    assert {sample.name for sample in samples} <= KNOWN
    return {
        tuple(sample.labels[label] for label in wanted): sample.value
        for sample in samples
        if sample.name == name
    }


def send(peer: Peer, topic: str = TOPIC, **properties: str) -> None:
    assert peer.call(send_command(topic, b"x", {"UNIQ_KEY": UNIQ_KEY} | properties)).code == 0


def join(peer: Peer) -> None:
    """Registers a push consumer and a producer."""
    subscription = SubscriptionData(topic=TOPIC, sub_string="*", sub_version=1, expression_type="TAG")
    consumer = ConsumerData(
        group_name="group",
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[subscription],
    )
    data = HeartbeatData(
        client_id="client", consumer_data_set=[consumer], producer_data_set=[ProducerData("producers")]
    )
    assert peer.call(command(RequestCode.HEART_BEAT, body=to_json(data))).code == 0


@pytest.mark.parametrize("ordinary", [False, True])
async def test_stored_messages_are_counted_by_topic_and_type(bench: Bench, ordinary: bool) -> None:
    peer = bench.peer(ordinary=ordinary)
    send(peer)
    send(peer)
    send(peer, __SHARDINGKEY="k")
    send(peer, DELAY="3")
    found = await collected(bench, "messages_in_total", "topic", "message_type", "is_system")
    assert found[TOPIC, "normal", "true"] == 2
    assert found[TOPIC, "fifo", "true"] == 1
    assert found["SCHEDULE_TOPIC_XXXX", "delay", "true"] == 1
    size = await collected(bench, "throughput_in_total", "topic", "message_type")
    assert size[TOPIC, "normal"] == pytest.approx(2 * size[TOPIC, "fifo"], rel=0.2)


async def test_fetched_messages_and_the_lag_are_counted_by_group(bench: Bench) -> None:
    peer = bench.peer()
    for _ in range(5):
        send(peer)
    join(peer)
    assert peer.call(pull_command(TOPIC, 0, max_msg_nums=3)).code == 0
    bench.broker.offsets.commit("group", TOPIC, 0, 1)
    labels = ("consumer_group", "topic")
    assert await collected(bench, "messages_out_total", *labels) == {("group", TOPIC): 3}
    assert await collected(bench, "consumer_lag_messages", *labels) == {("group", TOPIC): 4}
    assert await collected(bench, "consumer_ready_messages", *labels) == {("group", TOPIC): 2}
    assert await collected(bench, "consumer_inflight_messages", *labels) == {("group", TOPIC): 2}
    latency = await collected(bench, "consumer_lag_latency_milliseconds", *labels)
    assert 0 <= latency["group", TOPIC] < 60_000


async def test_connections_are_counted_by_language_and_version(bench: Bench) -> None:
    join(bench.peer())
    assert await collected(bench, "producer_connections", "language", "version", "protocol_type") == {
        ("python", "v5_3_3", "remoting"): 1
    }
    assert await collected(bench, "consumer_connections", "consumer_group", "consume_mode") == {
        ("group", "push"): 1
    }


async def test_a_metric_has_a_bounded_number_of_series(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocketmq_metrics, "SERIES_MAX", 1)
    send(bench.peer(), TOPIC)
    send(bench.peer(), OTHER)
    assert len(await collected(bench, "messages_in_total", "topic")) == 1


@pytest.mark.parametrize(
    ("number", "name"),
    [(479, "V5_3_3"), (478, "V5_3_3_SNAPSHOT"), (399, "V4_9_3"), (213, "V4_0_0"), (37, "37"), (612, "612")],
)
def test_a_version_has_rocketmqs_name(number: int, name: str) -> None:
    assert version_name(number) == name


async def test_transactions_are_counted_by_topic(bench: Bench) -> None:
    peer = bench.peer()
    for number, kind in enumerate(("8", "12", "12", None)):
        key = f"{number:032X}"
        half = send_command(
            TOPIC, b"x", {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "producers"}, sys_flag=4
        )
        answer = peer.call(half)
        assert answer.code == 0
        if kind is None:
            continue
        message_id = (answer.ext or {})["msgId"]
        end = command(
            RequestCode.END_TRANSACTION,
            producerGroup="producers",
            tranStateTableOffset=str(number),
            commitLogOffset=str(int(message_id[-16:], 16)),
            commitOrRollback=kind,
            fromTransactionCheck="true",
            msgId=key,
            transactionId=key,
        )
        assert peer.call(end).code == 0
    assert await collected(bench, "half_messages", "topic") == {(TOPIC,): 1}
    assert await collected(bench, "commit_messages_total", "topic") == {(TOPIC,): 1}
    assert await collected(bench, "rollback_messages_total", "topic") == {(TOPIC,): 2}
    assert await collected(bench, "finish_message_latency_milliseconds_count", "topic") == {(TOPIC,): 1}


async def test_pending_timer_messages_are_counted_by_topic(bench: Bench) -> None:
    peer, timer = bench.peer(), bench.broker.timer
    assert timer is not None
    timer.stop()
    for _ in range(3):
        send(peer, TIMER_DELAY_SEC="3600")
    assert await collected(bench, "timer_enqueue_lag") == {(): 3}
    assert await collected(bench, "timing_messages", "topic") == {}
    timer.start()
    await until(lambda: timer.offset_behind == 0)
    assert await collected(bench, "timing_messages", "topic", "storage_type") == {(TOPIC, "local"): 3}
    assert await collected(bench, "timer_dequeue_lag") == {(): 3}
    for name in ("timer_enqueue_latency_milliseconds", "timer_dequeue_latency_milliseconds"):
        assert len(await collected(bench, name)) == 1


async def test_the_state_of_pop_is_shown(bench: Bench) -> None:
    assert await collected(bench, "pop_offset_buffer_size") == {(): 0}
    assert await collected(bench, "pop_checkpoint_buffer_size") == {(): 0}
    lag = await collected(bench, "pop_revive_lag_milliseconds", "queue_id")
    queues = bench.broker.live.current.revive_queue_num
    assert lag == {(str(queue_id),): 1 for queue_id in range(queues)}
    latency = await collected(bench, "pop_revive_latency_milliseconds", "queue_id")
    assert latency == dict.fromkeys(lag, 0)


@pytest.mark.parametrize("ordinary", [False, True])
async def test_the_sizes_of_messages_are_in_rocketmqs_buckets(bench: Bench, ordinary: bool) -> None:
    peer = bench.peer(ordinary=ordinary)
    send(peer)
    for size in (3000, 100_000):
        assert peer.call(send_command(TOPIC, bytes(size), {"UNIQ_KEY": UNIQ_KEY})).code == 0
    send(peer, __SHARDINGKEY="k")
    buckets = await collected(bench, "message_size_bucket", "topic", "message_type", "le")
    bounds = ("1024.0", "4096.0", "524288.0", "1048576.0", "2097152.0", "4194304.0", "+Inf")
    normal = [buckets[TOPIC, "normal", bound] for bound in bounds]
    assert normal == [1, 2, 3, 3, 3, 3, 3]
    assert [buckets[TOPIC, "fifo", bound] for bound in bounds] == [1] * 7
    sizes = await collected(bench, "message_size_sum", "topic", "message_type")
    assert sizes == await collected(bench, "throughput_in_total", "topic", "message_type")
    assert sum(sizes.values()) == bench.broker.store.max_phy_offset


async def test_a_batch_has_one_size_the_average(bench: Bench) -> None:
    stats = bench.broker.tables.stats
    stats.put_traffic(TOPIC, 0).receive(3, 3 * 2000)
    assert await collected(bench, "messages_in_total", "topic") == {(TOPIC,): 3}
    assert await collected(bench, "message_size_count", "topic") == {(TOPIC,): 1}
    assert await collected(bench, "message_size_sum", "topic") == {(TOPIC,): 2000}


async def test_messages_that_the_broker_stores_itself_are_not_incoming(bench: Bench) -> None:
    traffic = bench.broker.tables.stats.put_traffic(TOPIC, 0)
    traffic.messages, traffic.bytes, traffic.requests = 2, 200, 2
    send(bench.peer())
    assert await collected(bench, "messages_in_total", "topic") == {(TOPIC,): 1}
    assert bench.broker.tables.stats.put_traffic(TOPIC, 0).totals()[0] == 3


async def test_timer_messages_are_counted_when_they_enter_the_wheel(bench: Bench) -> None:
    peer = bench.peer()
    send(peer, TIMER_DELAY_SEC="7200")
    send(peer, TIMER_DELAY_SEC="30")
    await until(lambda: bench.broker.timer is not None and bench.broker.timer.offset_behind == 0)
    assert await collected(bench, "timer_enqueue_total", "topic", "storage_type") == {(TOPIC, "local"): 2}
    delays = await collected(bench, "delay_message_latency_seconds_count", "topic", "storage_medium")
    assert delays == {(TOPIC, "disk"): 2}
    snapshot = await collected(bench, "timer_message_snapshot", "timer_bound_s")
    assert list(snapshot) == [(str(bound),) for bound in DISTRIBUTION_BOUNDS_S]
    assert {bound: count for (bound,), count in snapshot.items() if count} == {"60": 1, "14400": 1}
    assert await collected(bench, "timer_dequeue_total", "topic") == {}


async def test_the_time_of_a_commit_and_of_changes_is_measured(bench: Bench) -> None:
    peer = bench.peer()
    group = to_json(SubscriptionGroupConfig(group_name="g"))
    assert peer.call(command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)).code == 0
    created = {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    queues = {"readQueueNums": "1", "writeQueueNums": "1"}
    for topic in ("made", "bad!name"):
        opaque = peer.send(command(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, **created, **queues))
        assert ((await peer.answer(opaque)).code == 0) is (topic == "made")
    name = "create_execution_time_milliseconds_count"
    assert await collected(bench, f"consumer_group_{name}", "invocation_status") == {("success",): 1}
    assert await collected(bench, f"topic_{name}", "invocation_status", "is_system") == {
        ("success", "false"): 1,
        ("failure", "false"): 1,
    }
    bench.broker.transactions.count_commit(TOPIC, 7_000)
    ages = await collected(bench, "finish_message_latency_milliseconds_bucket", "topic", "le")
    assert (ages[TOPIC, "5.0"], ages[TOPIC, "60.0"]) == (0, 1)


async def test_requests_in_progress_are_counted_by_processor(bench: Bench) -> None:
    found = await collected(bench, "processor_watermark", "processor")
    assert len(found) == 12
    assert not any(found.values())
