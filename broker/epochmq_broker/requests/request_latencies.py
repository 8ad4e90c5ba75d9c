"""Counts the requests of clients by code and result, and how long each took (RemotingMetricsManager), and
those that are being served by the processors of RocketMQ.

A request takes from the turn of the server in which its bytes were read until its response is written. Most
requests are served within their turn, and most turns take less than a millisecond. So the fast handlers only
increment a number in `fast`; the server reads the clock at both ends of a turn, and only a turn that took a
millisecond or longer is distributed over the buckets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from epochmq_broker.requests.request_rules import ADMIN, PROCESSORS, rule_of
from epochmq_broker.tables.metric_tables import HISTOGRAMS_MAX, Histogram, Sample
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import response_code

LATENCY_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""Upper bounds of the latencies of requests (RemotingMetricsManager.getMetricsView)."""
UNKNOWN: Final = -1
"""Stands for all request codes that RocketMQ does not have: they come from clients, and must not use up the
label sets."""

SENDS, ONEWAY_SENDS, PULLS, LITE_PULLS, COMMITS, ONEWAY_COMMITS, ACKS, ONEWAY_ACKS = range(8)
"""Positions in `RequestLatencies.fast`, of requests that a fast handler has served with SUCCESS."""

_Key = tuple[int, int, bool, bool]
"""Request code, response code, whether the request waited for messages, and whether it was one-way."""

_FAST: Final[tuple[_Key, ...]] = (
    (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, False),
    (RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS, False, True),
    (RequestCode.PULL_MESSAGE, ResponseCode.SUCCESS, False, False),
    (RequestCode.LITE_PULL_MESSAGE, ResponseCode.SUCCESS, False, False),
    (RequestCode.END_TRANSACTION, ResponseCode.SUCCESS, False, False),
    (RequestCode.END_TRANSACTION, ResponseCode.SUCCESS, False, True),
    (RequestCode.ACK_MESSAGE, ResponseCode.SUCCESS, False, False),
    (RequestCode.ACK_MESSAGE, ResponseCode.SUCCESS, False, True),
)
_KNOWN: Final = frozenset(map(int, RequestCode))


class RequestLatencies:
    """The requests of one broker's ports (`request_dispatcher.RequestTimer`)."""

    __slots__ = ("_slow", "_table", "began", "fast", "marks")

    def __init__(self) -> None:
        self.began = 0.0
        """When the turn began whose requests are served now (time.monotonic)."""
        self.fast = [0] * len(_FAST)
        self.marks = list(self.fast)
        """`fast` when the turn began."""
        self._slow = [Histogram(LATENCY_BOUNDS_MS) for _ in _FAST]
        self._table: dict[_Key, Histogram] = {}

    def end_slow_turn(self, took_s: float) -> None:
        """Counts the fast requests of a turn that took a millisecond or longer."""
        took_ms = int(took_s * 1000)
        for number, (count, mark) in enumerate(zip(self.fast, self.marks, strict=True)):
            if count != mark:
                self._slow[number].record(took_ms, count - mark)

    def count_pull(self, code: int, frame: bytes) -> None:
        """Counts a pull that a fast handler has served in the present turn, by its response."""
        answer = response_code(frame)
        if answer:
            self.record(code, answer, self.began)
        elif code == RequestCode.PULL_MESSAGE:
            self.fast[PULLS] += 1
        else:
            self.fast[LITE_PULLS] += 1

    def record(
        self, code: int, answer: int, began_s: float, *, polls: bool = False, oneway: bool = False
    ) -> None:
        """Counts a request that a fast handler has not counted: its response, with the code `answer`, is
        written now."""
        found = self._table.get((code, answer, polls, oneway))
        if found is None:
            found = self._histogram((code if code in _KNOWN else UNKNOWN, answer, polls, oneway))
        if found is not None:
            found.record(int((time.monotonic() - began_s) * 1000))

    def _histogram(self, key: _Key) -> Histogram | None:
        """The histogram of these requests, which is created on first use; None if there are too many."""
        found = self._table.get(key)
        if found is None and len(self._table) < HISTOGRAMS_MAX - len(_FAST):
            found = self._table[key] = Histogram(LATENCY_BOUNDS_MS)
        return found

    def samples(self) -> Iterator[Sample]:
        """The histograms, with RocketMQ's labels."""
        total = {key: Histogram(LATENCY_BOUNDS_MS, one.counts, one.total) for key, one in self._table.items()}
        for key, count, slow in zip(_FAST, self.fast, self._slow, strict=True):
            if count:
                histogram = total.setdefault(key, Histogram(LATENCY_BOUNDS_MS))
                for at, times in enumerate(slow.counts):
                    histogram.counts[at] += times
                histogram.counts[0] += count - sum(slow.counts)  # those took 0 ms
                histogram.total += slow.total
        for (code, answer, polls, oneway), histogram in total.items():
            labels = {
                "protocol_type": "remoting",
                "request_code": _name(RequestCode, code),
                "response_code": _name(ResponseCode, answer),
                "result": "oneway" if oneway else "success",
                "is_long_polling": "true" if polls else "false",
            }
            yield from histogram.samples("rpc_latency_milliseconds", labels)


def watermarks(running: Iterable[int], waiting: Iterable[int]) -> Iterator[Sample]:
    """How many requests each of RocketMQ's processors has. `running`: the codes of requests that are being
    served, `waiting`: of those that are served, and wait for a flush, for replicas or for the disk. Waiting
    sends belong to `async_put`."""
    found: Counter[str] = Counter(dict.fromkeys([*PROCESSORS, "async_put", ADMIN], 0))
    for code in running:
        found[rule_of(code).processor] += 1
    for code in waiting:
        name = rule_of(code).processor
        found["async_put" if name == "send" else name] += 1
    for name, count in found.items():
        yield "processor_watermark", count, {"processor": name}


def _name(codes: type[RequestCode] | type[ResponseCode], code: int) -> str:
    """The name of a code as in RocketMQ's metrics (RemotingHelper.getRequestCodeDesc)."""
    if code == UNKNOWN:
        return "unknown"
    try:
        return codes(code).name.lower()
    except ValueError:
        return str(code)
