"""Counts messages and bytes per topic, queue and group, and computes rates from the counters.

Names, keys and windows are RocketMQ's (BrokerStatsManager, StatsItem, StoreStatsService): a minute is the
last seven samples ten seconds apart, an hour the last seven ten minutes apart, a day the last 25 an hour
apart. The send and pull paths only increment integers of a `TrafficCounter`; `sample`, called once a second,
does the rest.
"""
# pure: the caller passes the time

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from epochmq_broker.tables.metric_tables import Histogram, HistogramTable

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
QUEUE_PUT_NUMS = "QUEUE_PUT_NUMS"
QUEUE_PUT_SIZE = "QUEUE_PUT_SIZE"
QUEUE_GET_NUMS = "QUEUE_GET_NUMS"
QUEUE_GET_SIZE = "QUEUE_GET_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
SNDBCK2DLQ_TIMES = "SNDBCK2DLQ_TIMES"
DLQ_PUT_NUMS = "DLQ_PUT_NUMS"
BROKER_ACK_NUMS = "BROKER_ACK_NUMS"
BROKER_CK_NUMS = "BROKER_CK_NUMS"
GROUP_ACK_NUMS = "GROUP_ACK_NUMS"
GROUP_CK_NUMS = "GROUP_CK_NUMS"

SECOND_MS = 1000
MINUTE_STEP_MS, MINUTE_SAMPLES = 10_000, 7
HOUR_STEP_MS, HOUR_SAMPLES = 600_000, 7
DAY_STEP_MS, DAY_SAMPLES = 3_600_000, 25
RATE_WINDOWS_S = (10, 60, 600)
SIZE_BOUNDS = (1024, 4096, 512 * 1024, 1024 * 1024, 2 * 1024 * 1024, 4 * 1024 * 1024)
"""Upper bounds of the sizes of messages, in bytes (BrokerMetricsManager.registerMetricsView)."""
CREATION_BOUNDS_MS = (10, 100, 1000, 3000, 5000)
"""Upper bounds of the times that changes of topics and groups take (the same)."""
SMALL_BYTES, MEDIUM_BYTES = SIZE_BOUNDS[:2]


class StatsWindow(msgspec.Struct, frozen=True):
    """One window of a counter: the sum of the values, the values per second, and the average value per
    call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


CountedItems: TypeAlias = "tuple[tuple[StatsItem, bool], ...]"
"""The items that a counter adds to, and whether each of them counts bytes."""


class TrafficCounter:
    """Messages, bytes and requests stored in or fetched from one queue. The send and pull paths increment
    them."""

    __slots__ = ("bytes", "folded", "items", "messages", "requests")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.requests = 0
        self.folded = (0, 0, 0)
        self.items: CountedItems = ()  # found at the first fold, because the first message is waited for

    def totals(self) -> tuple[int, int, int]:
        """(messages, bytes, requests)."""
        return self.messages, self.bytes, self.requests

    def fold(self) -> None:
        """Adds the increments since the last call to the items."""
        messages, size, requests = now = self.totals()
        was = self.folded
        if now == was:
            return
        self.folded = now
        for item, counts_bytes in self.items:
            item.value += size - was[1] if counts_bytes else messages - was[0]
            item.times += requests - was[2]


class ReceivedMessages:
    """Messages that clients sent, or whose delay level has ended: those that RocketMQ's metrics of incoming
    messages count. A batch has one size, the average of its messages."""

    __slots__ = ("bytes", "messages", "sizes")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.sizes = Histogram(SIZE_BOUNDS)

    def add(self, messages: int, size: int) -> None:
        """Counts one message, or a batch, of `size` bytes together."""
        self.messages += messages
        self.bytes += size
        self.sizes.record(size // max(1, messages))

    def add_all(self, other: ReceivedMessages, sign: int = 1) -> None:
        """Adds, or with the sign -1 subtracts, all that another one has counted."""
        self.messages += sign * other.messages
        self.bytes += sign * other.bytes
        sizes, others = self.sizes, other.sizes
        sizes.total += sign * others.total
        for at, count in enumerate(others.counts):
            sizes.counts[at] += sign * count


class PutCounter(TrafficCounter):
    """The counter of messages stored in one queue. `messages`, `bytes` and `requests` are those that the
    broker itself stored, such as commits and timer messages. The fast send path counts single messages by
    their size in `small`, `medium` or with `receive_large`, and their bytes in `received_bytes`."""

    __slots__ = ("medium", "others", "received_bytes", "small")

    def __init__(self) -> None:
        super().__init__()
        self.small = 0
        self.medium = 0
        self.received_bytes = 0
        self.others: ReceivedMessages | None = None

    def receive(self, messages: int, size: int) -> None:
        """Counts one message, or a batch, that was received."""
        if self.others is None:
            self.others = ReceivedMessages()
        self.others.add(messages, size)

    def receive_large(self, size: int) -> None:
        """Counts a single message of more than `MEDIUM_BYTES`; its bytes are in `received_bytes` already."""
        self.receive(1, size)
        self.received_bytes -= size

    def received(self) -> ReceivedMessages:
        """All messages that were received."""
        received = ReceivedMessages()
        received.messages = self.small + self.medium
        received.bytes = received.sizes.total = self.received_bytes
        received.sizes.counts[:2] = self.small, self.medium
        if self.others is not None:
            received.add_all(self.others)
        return received

    def totals(self) -> tuple[int, int, int]:
        """(messages, bytes, requests), of all messages."""
        single = self.small + self.medium
        messages, size, requests = (
            self.messages + single,
            self.bytes + self.received_bytes,
            self.requests + single,
        )
        others = self.others
        if others is None:
            return messages, size, requests
        return messages + others.messages, size + others.bytes, requests + sum(others.sizes.counts)


Samples = tuple[tuple[int, int, int], ...]


class StatsItem:
    """One counter and its samples, oldest first. A sample is (epoch ms, times, value). Samples are in tuples,
    because an empty deque takes 620 bytes, and a broker has six rows of samples for each queue."""

    __slots__ = ("day", "hour", "minute", "times", "value")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self.minute: Samples = ()
        self.hour: Samples = ()
        self.day: Samples = ()

    def next_samples(self, samples: Samples, now_ms: int, step_ms: int, samples_max: int) -> Samples:
        """Returns the samples with a new one. The first sample gets a zero sample one step before it, so that
        the window has a width."""
        if not samples:
            samples = ((now_ms - step_ms, 0, 0),)
        return (*samples[1 - samples_max :], (now_ms, self.times, self.value))


def stats_window(samples: Samples) -> StatsWindow:
    """Computes a window from its samples (StatsItem.computeStatsData)."""
    if not samples:
        return StatsWindow()
    first, last = samples[0], samples[-1]
    total = last[2] - first[2]
    times = last[1] - first[1]
    width_ms = last[0] - first[0]
    return StatsWindow(
        sum=total,
        tps=total * 1000.0 / width_ms if width_ms > 0 else 0.0,
        avgpt=total / times if times > 0 else 0.0,
    )


class SampledRate:
    """A running total sampled once a second over the last ten minutes (StoreStatsService)."""

    __slots__ = ("_samples", "total")

    def __init__(self) -> None:
        self.total = 0
        self._samples: deque[tuple[int, int]] = deque(maxlen=RATE_WINDOWS_S[-1] + 1)

    def sample(self, now_ms: int) -> None:
        """Adds a sample; called once a second."""
        self._samples.append((now_ms, self.total))

    def tps(self, seconds: int) -> float | None:
        """Average per second over the last `seconds`; None without enough samples."""
        samples = self._samples
        if len(samples) <= seconds:
            return None
        (then, before), (now, after) = samples[-seconds - 1], samples[-1]
        return (after - before) * 1000.0 / (now - then) if now > then else 0.0

    def text(self) -> str:
        """`10s 1min 10min`, as runtime info formats rates. A window without enough samples is empty."""
        return " ".join("" if tps is None else str(tps) for tps in map(self.tps, RATE_WINDOWS_S))


class BrokerStats:
    """All counters of a broker. `is_system_topic` selects the topics that the totals without system topics
    omit."""

    def __init__(self, cluster: str, started_ms: int, is_system_topic: Callable[[str], bool]) -> None:
        self.cluster = cluster
        self.started_ms = started_ms
        self.put_failures = 0
        self.misses = 0  # pulls that found nothing; the pull path increments it
        self.put_total_yesterday_morning = 0
        self.put_total_today_morning = 0
        self.get_total_yesterday_morning = 0
        self.get_total_today_morning = 0
        self._is_system_topic = is_system_topic
        self._items: dict[str, dict[str, StatsItem]] = {}
        self._puts: dict[tuple[str, int], PutCounter] = {}
        self._totals: dict[bool, CountedItems] = {}  # of `_put_totals`
        self._gets: dict[tuple[str, str, int], TrafficCounter] = {}
        self._put_rate, self._found_rate, self._miss_rate, self._transferred_rate = (
            SampledRate(),
            SampledRate(),
            SampledRate(),
            SampledRate(),
        )
        self._typed: dict[tuple[str, str], ReceivedMessages] = {}
        self.topic_changes_ms = HistogramTable(CREATION_BOUNDS_MS, "invocation_status", "is_system")
        """How long requests to create or change topics took."""
        self.group_changes_ms = HistogramTable(CREATION_BOUNDS_MS, "invocation_status")
        """The same for consumer groups."""
        self._all_put, self._all_get = StatsItem(), StatsItem()
        self._all_put_bytes = StatsItem()
        self._day: int | None = None
        self._next_minute_ms = self._next_hour_ms = self._next_day_ms = started_ms

    # counters for the send and pull paths

    def put_traffic(self, topic: str, queue_id: int) -> PutCounter:
        """The counter of messages stored in a queue, for callers to cache. After its topic was deleted, a
        counter still accepts increments, which nothing reads; look it up again when the topic table's
        generation has changed."""
        traffic = self._puts.get((topic, queue_id))
        if traffic is None:
            traffic = self._puts[topic, queue_id] = PutCounter()
        return traffic

    def _put_items(self, topic: str, queue_id: int) -> CountedItems:
        queue, item = f"{topic}@{queue_id}", self.item
        return (
            *self._put_totals(self._is_system_topic(topic)),
            (item(TOPIC_PUT_NUMS, topic), False),
            (item(TOPIC_PUT_SIZE, topic), True),
            (item(QUEUE_PUT_NUMS, queue), False),
            (item(QUEUE_PUT_SIZE, queue), True),
        )

    def _put_totals(self, is_system: bool) -> CountedItems:
        """The items that the counters of all queues, or of those of system topics, add to. They are never
        deleted."""
        totals = self._totals.get(is_system)
        if totals is None:
            names = (
                [BROKER_PUT_NUMS] if is_system else [BROKER_PUT_NUMS, BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC]
            )
            totals = self._totals[is_system] = (
                (self._all_put, False),
                (self._all_put_bytes, True),
                *((self.item(name, self.cluster), False) for name in names),
            )
        return totals

    def get_traffic(self, group: str, topic: str, queue_id: int) -> TrafficCounter:
        """The counter of messages that a group fetched from a queue, for callers to cache."""
        traffic = self._gets.get((group, topic, queue_id))
        if traffic is None:
            traffic = self._gets[group, topic, queue_id] = TrafficCounter()
        return traffic

    def _get_items(self, group: str, topic: str, queue_id: int) -> CountedItems:
        queue, consumer, item = f"{topic}@{queue_id}@{group}", f"{topic}@{group}", self.item
        items = (
            (self._all_get, False),
            (item(GROUP_GET_NUMS, consumer), False),
            (item(GROUP_GET_SIZE, consumer), True),
            (item(QUEUE_GET_NUMS, queue), False),
            (item(QUEUE_GET_SIZE, queue), True),
            (item(BROKER_GET_NUMS, self.cluster), False),
        )
        if self._is_system_topic(topic):
            return items
        return (*items, (item(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, self.cluster), False))

    def count_type(self, topic: str, message_type: str, messages: int, size: int) -> None:
        """Counts received messages that are not of the type `normal`, beside their counter."""
        known = self._typed.get((topic, message_type))
        if known is None:
            known = self._typed[topic, message_type] = ReceivedMessages()
        known.add(messages, size)

    def typed_traffic(self) -> dict[tuple[str, str], ReceivedMessages]:
        """(topic, message type) → received messages, of all types but `normal`."""
        return dict(self._typed)

    def puts(self) -> list[tuple[str, PutCounter]]:
        """Topic and counter of every queue in which messages were stored."""
        return [(topic, counter) for (topic, _), counter in self._puts.items()]

    # everything else

    def items(self, name: str) -> list[tuple[str, StatsItem]]:
        """Key and counter of every counter of that name."""
        self._fold()
        return list(self._items.get(name, {}).items())

    def add(self, name: str, key: str, value: int = 1, times: int = 1) -> None:
        """Increments a counter outside the send and pull paths, such as that of messages sent back."""
        try:
            item = self._items[name][key]
        except KeyError:
            item = self.item(name, key)
        item.value += value
        item.times += times

    def item(self, name: str, key: str) -> StatsItem:
        """Returns the counter of that name and key, and creates it if it does not exist."""
        items = self._items.get(name)
        if items is None:
            items = self._items[name] = {}
        found = items.get(key)
        if found is None:
            found = items[key] = StatsItem()
        return found

    def find(self, name: str, key: str) -> StatsItem | None:
        """Returns the counter of that name and key if it was ever incremented."""
        item = self._items.get(name, {}).get(key)
        return None if item is None or not item.times else item

    def tps(self, name: str, key: str) -> float:
        """Values per second over the last minute; 0.0 if the counter does not exist."""
        item = self.find(name, key)
        return 0.0 if item is None else stats_window(item.minute).tps

    def sample(self, now_ms: int, local_day: int) -> None:
        """Takes the samples that are due; called once a second. `local_day` is any number that changes at
        local midnight."""
        self._fold()
        for rate, total in (
            (self._put_rate, self._all_put.value),
            (self._found_rate, self._all_get.times),
            (self._miss_rate, self.misses),
            (self._transferred_rate, self._all_get.value),
        ):
            rate.total = total
            rate.sample(now_ms)
        items = [item for table in self._items.values() for item in table.values()]
        if now_ms >= self._next_minute_ms:
            self._next_minute_ms = now_ms + MINUTE_STEP_MS
            for item in items:
                item.minute = item.next_samples(item.minute, now_ms, MINUTE_STEP_MS, MINUTE_SAMPLES)
        if now_ms >= self._next_hour_ms:
            self._next_hour_ms = now_ms + HOUR_STEP_MS
            for item in items:
                item.hour = item.next_samples(item.hour, now_ms, HOUR_STEP_MS, HOUR_SAMPLES)
        if now_ms >= self._next_day_ms:
            self._next_day_ms = now_ms + DAY_STEP_MS
            for item in items:
                item.day = item.next_samples(item.day, now_ms, DAY_STEP_MS, DAY_SAMPLES)
        if self._day is not None and self._day != local_day:
            self._new_day()
        self._day = local_day

    @property
    def put_total(self) -> int:
        """Messages stored since the start, without system topics."""
        self._fold()
        return self.item(BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC, self.cluster).value

    @property
    def get_total(self) -> int:
        """Messages fetched since the start, without system topics."""
        self._fold()
        return self.item(BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC, self.cluster).value

    def forget_topic(self, topic: str) -> None:
        """Deletes the counters of a deleted topic."""
        self._drop(lambda parts: parts[0] == topic)
        self._typed = {key: counts for key, counts in self._typed.items() if key[0] != topic}
        self._puts = {key: traffic for key, traffic in self._puts.items() if key[0] != topic}
        self._gets = {key: traffic for key, traffic in self._gets.items() if key[1] != topic}

    def forget_group(self, group: str) -> None:
        """Deletes the counters of a deleted group."""
        self._drop(lambda parts: len(parts) > 1 and parts[-1] == group)
        self._gets = {key: traffic for key, traffic in self._gets.items() if key[0] != group}

    def runtime_info(self, now_ms: int) -> dict[str, str]:
        """The keys of GET_BROKER_RUNTIME_INFO about stored and fetched messages."""
        self._fold()
        puts, size = self._all_put.value, self._all_put_bytes.value
        hits, missed = self._found_rate, self._miss_rate
        total_tps = " ".join(
            str((hits.tps(seconds) or 0.0) + (missed.tps(seconds) or 0.0)) for seconds in RATE_WINDOWS_S
        )
        return {
            "bootTimestamp": str(self.started_ms),
            "runtime": format_runtime(now_ms - self.started_ms),
            "putMessageEntireTimeMax": "0",
            "putMessageTimesTotal": str(max(puts, 1)),
            "putMessageFailedTimes": str(self.put_failures),
            "putMessageSizeTotal": str(size),
            "putMessageDistributeTime": "null",
            "putMessageAverageSize": str(size / max(puts, 1)),
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": "0",
            "putTps": self._put_rate.text(),
            "getFoundTps": hits.text(),
            "getMissTps": missed.text(),
            "getTotalTps": total_tps,
            "getTransferredTps": self._transferred_rate.text(),
            "putLatency99": "0.00",
            "putLatency999": "0.00",
            "msgPutTotalYesterdayMorning": str(self.put_total_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_total_today_morning),
            "msgPutTotalTodayNow": str(self.put_total),
            "msgGetTotalYesterdayMorning": str(self.get_total_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_total_today_morning),
            "msgGetTotalTodayNow": str(self.get_total),
        }

    def _fold(self) -> None:
        for put_key, put in self._puts.items():
            if not put.items:
                put.items = self._put_items(*put_key)
            put.fold()
        for get_key, get in self._gets.items():
            if not get.items:
                get.items = self._get_items(*get_key)
            get.fold()

    def _new_day(self) -> None:
        self.put_total_yesterday_morning = self.put_total_today_morning
        self.get_total_yesterday_morning = self.get_total_today_morning
        self.put_total_today_morning = self.put_total
        self.get_total_today_morning = self.get_total

    def _drop(self, matches: Callable[[list[str]], bool]) -> None:
        self._fold()
        for name, items in self._items.items():
            if name.startswith("BROKER_"):
                continue
            for key in [key for key in items if matches(key.split("@"))]:
                del items[key]


def format_runtime(elapsed_ms: int) -> str:
    """`[ 1 days, 2 hours, 3 minutes, 4 seconds ]`: the uptime as runtime info formats it."""
    minutes, seconds = divmod(max(0, elapsed_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
