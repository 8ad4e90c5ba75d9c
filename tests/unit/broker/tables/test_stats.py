"""The sums and rates of counters are those that RocketMQ's tools show."""

from __future__ import annotations

from epochmq_broker.tables import stats as names
from epochmq_broker.tables.stats import BrokerStats, StatsWindow, format_runtime, stats_window

START = 1_000_000


def broker_stats() -> BrokerStats:
    return BrokerStats("cluster", START, lambda topic: topic.startswith("SYS"))


def put(stats: BrokerStats, topic: str, queue_id: int, messages: int, size: int) -> None:
    flow = stats.put_traffic(topic, queue_id)
    flow.messages += messages
    flow.bytes += size
    flow.requests += 1


def value(stats: BrokerStats, name: str, key: str) -> tuple[int, int]:
    item = stats.find(name, key)
    return (0, 0) if item is None else (item.value, item.times)


def test_a_stored_message_counts_for_its_queue_its_topic_and_the_broker() -> None:
    stats = broker_stats()
    put(stats, "a", 0, 3, 300)
    put(stats, "a", 1, 1, 100)
    put(stats, "SYS", 0, 5, 50)
    stats.sample(START, 1)
    assert value(stats, names.TOPIC_PUT_NUMS, "a") == (4, 2)
    assert value(stats, names.TOPIC_PUT_SIZE, "a") == (400, 2)
    assert value(stats, names.QUEUE_PUT_NUMS, "a@1") == (1, 1)
    assert value(stats, names.BROKER_PUT_NUMS, "cluster") == (9, 3)
    assert stats.put_total == 4


def test_a_fetched_message_counts_for_its_group() -> None:
    stats = broker_stats()
    flow = stats.get_traffic("g", "a", 2)
    flow.messages, flow.bytes, flow.requests = 32, 3200, 1
    stats.sample(START, 1)
    assert value(stats, names.GROUP_GET_NUMS, "a@g") == (32, 1)
    assert value(stats, names.GROUP_GET_SIZE, "a@g") == (3200, 1)
    assert value(stats, names.QUEUE_GET_NUMS, "a@2@g") == (32, 1)
    assert stats.get_total == 32


def test_a_counter_exists_only_after_its_first_increment() -> None:
    stats = broker_stats()
    stats.put_traffic("a", 0)
    assert stats.find(names.TOPIC_PUT_NUMS, "a") is None
    assert stats.find("NONSENSE", "a") is None
    assert stats.tps(names.TOPIC_PUT_NUMS, "a") == 0.0


def test_a_window_spans_the_last_seven_samples_of_ten_seconds() -> None:
    stats = broker_stats()
    put(stats, "a", 0, 10, 0)
    for second in range(71):
        stats.sample(START + second * 1000, 1)
        if second % 10 == 0:
            put(stats, "a", 0, 6, 0)
    item = stats.find(names.TOPIC_PUT_NUMS, "a")
    assert item is not None
    assert stats_window(item.minute) == StatsWindow(sum=36, tps=0.6, avgpt=6.0)


def test_the_first_sample_gives_the_window_a_width() -> None:
    stats = broker_stats()
    put(stats, "a", 0, 10, 0)
    stats.sample(START, 1)
    item = stats.find(names.TOPIC_PUT_NUMS, "a")
    assert item is not None
    assert stats_window(item.minute) == StatsWindow(sum=10, tps=1.0, avgpt=10.0)
    assert stats_window(item.hour).sum == 10
    assert stats_window(item.day).sum == 10


def test_counters_outside_the_fast_paths_are_incremented_directly() -> None:
    stats = broker_stats()
    stats.add(names.SNDBCK_PUT_NUMS, "a@g")
    stats.add(names.SNDBCK_PUT_NUMS, "a@g", 2, 1)
    assert value(stats, names.SNDBCK_PUT_NUMS, "a@g") == (3, 2)


def test_rates_are_reported_for_windows_with_enough_samples() -> None:
    stats = broker_stats()
    for second in range(61):
        put(stats, "a", 0, 5, 10)
        stats.sample(START + second * 1000, 1)
    info = stats.runtime_info(START + 61_000)
    assert info["putTps"] == "5.0 5.0 "
    assert info["getTransferredTps"] == "0.0 0.0 "
    assert info["getTotalTps"] == "0.0 0.0 0.0"
    assert info["putMessageTimesTotal"] == "305"
    assert info["putMessageAverageSize"] == "2.0"
    assert info["runtime"] == "[ 0 days, 0 hours, 1 minutes, 1 seconds ]"


def test_daily_totals_are_recorded_at_local_midnight() -> None:
    stats = broker_stats()
    put(stats, "a", 0, 5, 0)
    stats.sample(START, 1)
    stats.sample(START + 1000, 2)
    put(stats, "a", 0, 2, 0)
    stats.sample(START + 2000, 2)
    assert (stats.put_total_yesterday_morning, stats.put_total_today_morning, stats.put_total) == (0, 5, 7)
    stats.sample(START + 3000, 3)
    assert (stats.put_total_yesterday_morning, stats.put_total_today_morning) == (5, 7)


def test_a_deleted_topics_counters_are_deleted_and_the_brokers_stay() -> None:
    stats = broker_stats()
    put(stats, "a", 0, 5, 0)
    put(stats, "ab", 0, 1, 0)
    stats.get_traffic("g", "a", 0).requests += 1
    stats.forget_topic("a")
    stats.sample(START, 1)
    assert stats.find(names.TOPIC_PUT_NUMS, "a") is None
    assert stats.find(names.GROUP_GET_NUMS, "a@g") is None
    assert value(stats, names.TOPIC_PUT_NUMS, "ab") == (1, 1)
    assert stats.put_total == 6


def test_a_deleted_groups_counters_are_deleted() -> None:
    stats = broker_stats()
    for group in ("g", "h"):
        flow = stats.get_traffic(group, "a", 0)
        flow.messages = flow.requests = 1
    stats.add(names.SNDBCK_PUT_NUMS, "a@g")
    stats.forget_group("g")
    stats.sample(START, 1)
    assert stats.find(names.GROUP_GET_NUMS, "a@g") is None
    assert stats.find(names.SNDBCK_PUT_NUMS, "a@g") is None
    assert value(stats, names.GROUP_GET_NUMS, "a@h") == (1, 1)


def test_uptime_is_formatted_in_days_hours_minutes_and_seconds() -> None:
    assert (
        format_runtime(((1 * 24 + 2) * 60 + 3) * 60_000 + 4999) == "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    )
