"""What the put hook makes of a message with a delivery time: RocketMQ's times and statuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochmq_broker.config.broker_config import LiveConfig, from_properties
from epochmq_broker.services.timer.put_hook import TimerPutHook
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.statuses import PutStatus

NOW_MS = 1_700_000_000_123
THREE_DAYS_MS = 3 * 24 * 3600 * 1000


def message(**properties: object) -> InnerMessage:
    return InnerMessage(
        topic="T",
        queue_id=3,
        body=b"",
        properties={name: str(value) for name, value in properties.items()},
        born_timestamp=0,
        born_host=bytes(8),
    )


def hook(pending: int = 0, dice: int = 0, **settings: object) -> TimerPutHook:
    loaded = from_properties({name: str(value) for name, value in settings.items()})
    live = LiveConfig(loaded.config)
    return TimerPutHook(live, lambda _due: pending, clock_ms=lambda: NOW_MS, dice=lambda _sides: dice)


@given(st.integers(1, THREE_DAYS_MS), st.sampled_from([100, 200, 500, 1000]))
def test_the_time_is_rounded_down_to_the_interval_before(delay_ms: int, precision_ms: int) -> None:
    made = message(TIMER_DELIVER_MS=NOW_MS + delay_ms)
    assert hook(timerPrecisionMs=precision_ms)(made) is None
    out_ms = int(made.properties["TIMER_OUT_MS"])
    assert out_ms % precision_ms == 0
    assert out_ms < NOW_MS + delay_ms <= out_ms + precision_ms
    assert (made.topic, made.queue_id) == (TIMER_TOPIC, 0)
    assert (made.properties["REAL_TOPIC"], made.properties["REAL_QID"]) == ("T", "3")


def test_seconds_take_precedence_over_milliseconds_and_these_over_a_time() -> None:
    made = message(TIMER_DELAY_SEC=7, TIMER_DELAY_MS=90_000, TIMER_DELIVER_MS=NOW_MS + 99_000)
    assert hook()(made) is None
    assert int(made.properties["TIMER_OUT_MS"]) == (NOW_MS + 7000) // 1000 * 1000
    made = message(TIMER_DELAY_MS=90_000, TIMER_DELIVER_MS=NOW_MS + 99_000)
    assert hook()(made) is None
    assert int(made.properties["TIMER_OUT_MS"]) == (NOW_MS + 90_000) // 1000 * 1000


@pytest.mark.parametrize("due_ms", [NOW_MS, NOW_MS - 1, 0, -5])
def test_a_message_that_is_due_is_stored_in_its_own_topic(due_ms: int) -> None:
    made = message(TIMER_DELIVER_MS=due_ms)
    assert hook()(made) is None
    assert (made.topic, made.properties) == ("T", {"TIMER_DELIVER_MS": str(due_ms)})


def test_a_deletion_of_a_message_that_is_due_is_illegal() -> None:
    made = message(TIMER_DELIVER_MS=NOW_MS, TIMER_DEL_UNIQKEY="T+1")
    assert hook()(made) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL


@pytest.mark.parametrize(
    "text", ["", "x", "1.5", " 1", "1 ", "1_000", "٣" * 3 + "x", str(2**63), str(-(2**63) - 1)]
)
@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_a_time_that_is_no_number_is_illegal(name: str, text: str) -> None:
    assert hook()(message(**{name: text})) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL


@pytest.mark.parametrize(
    ("name", "delay"),
    [("TIMER_DELAY_MS", 2**63 - 1), ("TIMER_DELAY_SEC", 2**63 - 1), ("TIMER_DELAY_SEC", 2**61)],
)
def test_a_delay_beyond_64_bits_is_too_long(name: str, delay: int) -> None:
    assert hook()(message(**{name: delay})) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL


@pytest.mark.parametrize("name", ["TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_a_negative_delay_is_over_however_large_it_is(name: str) -> None:
    made = message(**{name: -(2**63)})
    assert hook()(made) is None
    assert made.topic == "T"


def test_the_longest_delay_is_a_setting() -> None:
    assert hook()(message(TIMER_DELIVER_MS=NOW_MS + THREE_DAYS_MS)) is None
    late = message(TIMER_DELIVER_MS=NOW_MS + THREE_DAYS_MS + 1)
    assert hook()(late) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL
    assert hook(timerMaxDelaySec=3)(message(TIMER_DELAY_MS=3001)) is PutStatus.WHEEL_TIMER_MSG_ILLEGAL


@pytest.mark.parametrize(
    ("pending", "dice", "rejected"),
    [(10, 999, False), (11, 99, False), (11, 100, True), (19, 890, False), (19, 999, True), (20, 0, True)],
)
def test_too_many_messages_for_one_time_are_rejected(pending: int, dice: int, rejected: bool) -> None:
    made = message(TIMER_DELAY_SEC=60)
    status = hook(pending, dice, timerCongestNumEachSlot=10)(made)
    assert status is (PutStatus.WHEEL_TIMER_FLOW_CONTROL if rejected else None)
