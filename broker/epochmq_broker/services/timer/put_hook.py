"""Moves a message with a delivery time to the timer topic, or rejects it
(HookUtils.transformTimerMessage)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig
from epochmq_broker.config.clock import now_ms
from epochmq_broker.services.timer.records import DELETE_KEY, OUT_MS, REAL_QUEUE_ID, REAL_TOPIC
from epochmq_broker.writing.inner_message import InnerMessage
from epochmq_protocol.message_const import (
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
)
from epochmq_protocol.topics import TIMER_TOPIC
from epochmq_store.statuses import PutStatus

_LONG = re.compile(r"[+-]?[0-9]+")
_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1  # RocketMQ's default of timerCongestNumEachSlot, which no slot exceeds
_DICE = 1000
_PLAIN_DIGITS_MAX = 15
_UNITS_MS = {PROPERTY_TIMER_DELAY_SEC: 1000, PROPERTY_TIMER_DELAY_MS: 1}


class TimerPutHook:
    """Called by the message writer for messages with TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS that
    have no delay level."""

    def __init__(
        self,
        live: LiveConfig,
        pending_at: Callable[[int], int],
        clock_ms: Callable[[], int] = now_ms,
        dice: Callable[[int], int] = random.randrange,
    ) -> None:
        """`pending_at` returns the number of messages that are due at a time."""
        self._live = live
        self._pending_at = pending_at
        self._clock_ms = clock_ms
        self._dice = dice
        self._precision_ms = live.current.timer_precision
        live.on_change.append(self._reconfigured)

    def __call__(self, message: InnerMessage) -> PutStatus | None:
        """Changes the message if it is due later. Returns the status with which it is rejected, None if it is
        not."""
        config = self._live.current
        properties = message.properties
        present_ms = self._clock_ms()
        try:
            due_ms = _due_ms(properties, present_ms)
        except ValueError:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        if due_ms <= present_ms:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL if DELETE_KEY in properties else None
        if due_ms - present_ms > config.timer_max_delay_sec * 1000:
            return PutStatus.WHEEL_TIMER_MSG_ILLEGAL
        out_ms = _out_ms(due_ms, self._precision_ms)
        if self._is_congested(out_ms, config.timer_congest_num_each_slot):
            return PutStatus.WHEEL_TIMER_FLOW_CONTROL
        properties[OUT_MS] = str(out_ms)
        properties[REAL_TOPIC] = message.topic
        properties[REAL_QUEUE_ID] = str(message.queue_id)
        message.rendered = None
        message.topic = TIMER_TOPIC
        message.queue_id = 0
        return None

    def held_until_ms(self, due_ms: int) -> int | None:
        """TIMER_OUT_MS of a message with TIMER_DELIVER_MS=`due_ms`, in epoch ms. None if the message is due
        already, or may be rejected."""
        return self._held_until(due_ms, self._clock_ms())

    def has_room(self, out_ms: int) -> bool:
        """Whether no message is rejected that is due at this TIMER_OUT_MS."""
        limit = self._live.current.timer_congest_num_each_slot
        return limit >= _INT_MAX or self._pending_at(out_ms) <= limit

    def plain_out_ms(self, name: str, text: str) -> int | None:
        """The same for a message with this one of TIMER_PROPERTIES. None also for a text that is no plain
        number."""
        if not (text.isdecimal() and text.isascii() and len(text) <= _PLAIN_DIGITS_MAX):
            return None
        present_ms = self._clock_ms()
        unit_ms = _UNITS_MS.get(name)
        due_ms = int(text) if unit_ms is None else present_ms + int(text) * unit_ms
        return self._held_until(due_ms, present_ms)

    def _held_until(self, due_ms: int, present_ms: int) -> int | None:
        config = self._live.current
        if not present_ms < due_ms <= present_ms + config.timer_max_delay_sec * 1000:
            return None
        out_ms = _out_ms(due_ms, self._precision_ms)
        return out_ms if self.has_room(out_ms) else None

    def _reconfigured(self, _before: BrokerConfig, after: BrokerConfig) -> None:
        self._precision_ms = after.timer_precision

    def _is_congested(self, out_ms: int, limit: int) -> bool:
        """Whether too many messages are due at the same time: above the limit some are rejected, above twice
        the limit all (TimerMessageStore.isReject). As there, fewer are rejected the nearer twice the limit
        is."""
        pending = self._pending_at(out_ms)
        if pending <= limit:
            return False
        if pending >= limit * 2:
            return True
        return self._dice(_DICE) > _DICE * (pending - limit) / (limit + 0.1)


def _out_ms(due_ms: int, precision_ms: int) -> int:
    """When the wheel lets a message go that is due at `due_ms`: the last multiple of the precision before
    that."""
    return (due_ms - 1) // precision_ms * precision_ms


def _due_ms(properties: dict[str, str], present_ms: int) -> int:
    """When a message is due, epoch ms. A delay may be too long for a number of 64 bits; in RocketMQ the sum
    then overflows, and the message is delivered at once. Raises ValueError."""
    text = properties.get(PROPERTY_TIMER_DELAY_SEC)
    if text is not None:
        return present_ms + _long(text) * 1000
    text = properties.get(PROPERTY_TIMER_DELAY_MS)
    if text is not None:
        return present_ms + _long(text)
    return _long(properties[PROPERTY_TIMER_DELIVER_MS])


def _long(text: str) -> int:
    """Long.parseLong."""
    value = int(text) if _LONG.fullmatch(text) and len(text) <= 64 else _LONG_MAX + 1
    if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise ValueError(f"{text}: expected a number of 64 bits")
    return value
