"""Decides which messages a subscription selects, for pulls and pops (RocketMQ's ExpressionMessageFilter and
ExpressionForRetryMessageFilter).

A filter has up to three parts. `tags` are compared with the tag codes of the consume queue. `select` looks at
the properties of the stored message; it exists for expressions only. `excludes` says by the filter bit map in
the extension of the consume queue that the message need not be read.
"""
# pure: rules over values

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeVar

from epochmq_broker.tables.filters.bloom import has_bits, set_bits
from epochmq_broker.tables.filters.consumer_filters import (
    ConsumerFilterData,
    ConsumerFilterTable,
    RegisteredFilter,
    compiled,
)
from epochmq_broker.tables.filters.sql import SqlExpression
from epochmq_broker.tables.subscriptions import is_tag_type, wanted_codes
from epochmq_formats.extension_unit import ExtensionUnit
from epochmq_protocol.bodies import SubscriptionData
from epochmq_protocol.fastpath import find_property_bytes
from epochmq_protocol.message_const import PROPERTY_RETRY_TOPIC
from epochmq_protocol.topics import RETRY_GROUP_TOPIC_PREFIX
from epochmq_store.reading.selections import PROPERTY_END, Select, SelectByProperty

_RETRY_TOPIC: Final = PROPERTY_RETRY_TOPIC.encode()
"""The property with the topic from which a message came to a retry topic."""

SELECTORS_MAX = 128
RESULTS_MAX = 256
RESULT_BYTES_MAX = 64
"""Expressions whose results are kept, the results of each, and the bytes of the values of a result."""

Key = TypeVar("Key")
Excludes = Callable[[ExtensionUnit], bool]
"""Whether the bit map in a unit of the consume queue's extension says that the message is not selected."""


class MessageFilter:
    """Selects messages: `tags` None means every tag code, `select` None every message."""

    __slots__ = ("excludes", "select", "tags")

    def __init__(
        self,
        tags: frozenset[int] | None = None,
        select: Select | None = None,
        excludes: Excludes | None = None,
    ) -> None:
        self.tags = tags
        self.select = select
        self.excludes = excludes


def _text_of(value: bytes | None) -> str | None:
    """The value of a property, as `parse_properties` returns it."""
    return None if value is None else value.decode("utf-8", "replace")


@lru_cache(maxsize=SELECTORS_MAX)
def selector(expression: SqlExpression) -> Select:
    """The test of an expression. The value of an expression depends only on the properties that it names; so
    these are found in the stored bytes, and the results for their latest values are kept."""
    names = [name.encode() for name in expression.names]
    return _select_by_one(expression, names[0]) if len(names) == 1 else _select_by_all(expression, names)


class _Results(dict[bytes, bool]):
    """The results of an expression for the values of its one property. Only the latest are kept."""

    __slots__ = ("_decides",)

    def __init__(self, expression: SqlExpression) -> None:
        super().__init__()
        self._decides = expression.decides

    def __missing__(self, value: bytes) -> bool:
        result = self._decides((value.decode("utf-8", "replace"),))
        if len(value) <= RESULT_BYTES_MAX:
            _keep(self, value, result)
        return result


def _select_by_one(expression: SqlExpression, name: bytes) -> Select:
    """The test of an expression that names one property."""
    results = _Results(expression)
    without = expression.decides((None,))

    def select(stored: bytes) -> bool:
        value = find_property_bytes(stored, name)
        return without if value is None else results[value]

    return SelectByProperty(_mark_of(name), results, select)


def _select_by_all(expression: SqlExpression, names: list[bytes]) -> Select:
    """The test of an expression that names any number of properties."""
    results: dict[tuple[bytes | None, ...], bool] = {}
    marks = [(_mark_of(name), name) for name in names]

    def select(stored: bytes) -> bool:
        values = tuple(
            [
                ((found := stored.rpartition(mark))[1] and found[2].partition(PROPERTY_END)[0])
                or find_property_bytes(stored, name)
                for mark, name in marks
            ]
        )
        known = results.get(values)
        if known is None:
            known = expression.decides([_text_of(value) for value in values])
            if sum(map(len, filter(None, values))) <= RESULT_BYTES_MAX:
                _keep(results, values, known)
        return known

    return select


def _mark_of(name: bytes) -> bytes:
    """What precedes the value of a property that follows another one. Most are found by it: searching with
    `partition` costs half of `find` with its positions."""
    return PROPERTY_END + name + b"\x01"


def _keep(results: dict[Key, bool], key: Key, result: bool) -> None:
    if len(results) >= RESULTS_MAX:
        results.clear()
    results[key] = result


def tag_filter(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription by tags."""
    return MessageFilter(wanted_codes(subscription))


def carried_filter(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription that a request carries. An expression that does not compile selects every
    message, as in RocketMQ."""
    if is_tag_type(subscription.expression_type):
        return tag_filter(subscription)
    expression = compiled(subscription.sub_string, subscription.expression_type)
    return MessageFilter() if expression is None else MessageFilter(None, selector(expression))


def registered_filter(registered: RegisteredFilter) -> MessageFilter:
    """The filter of a group's registered expression."""
    expression = registered.expression
    if expression is None:
        return MessageFilter()
    return MessageFilter(None, selector(expression), bit_map_test(registered.data))


def bit_map_test(data: ConsumerFilterData) -> Excludes | None:
    """A function that tells whether a bit map excludes a message. Bit maps count for messages that were
    stored after the expression was registered."""
    bits = data.bloom_filter_data
    if bits is None:
        return None

    def excludes(unit: ExtensionUnit) -> bool:
        return (
            unit.store_timestamp > data.born_time
            and len(unit.bit_map) * 8 == bits.bit_num
            and not has_bits(bits, unit.bit_map)
        )

    return excludes


def bit_map_of(table: ConsumerFilterTable, topic: str, stored: bytes) -> bytes:
    """The filter bit map of a message from its stored properties (CommitLogDispatcherCalcBitMap): the bits of
    every group whose expression selects it. Empty if no group has registered an expression for the topic."""
    groups = table.of_topic(topic)
    if not groups:
        return b""
    bit_map = bytearray(table.bloom.bits // 8)
    for registered in groups.values():
        bits, expression = registered.data.bloom_filter_data, registered.expression
        if bits is not None and expression is not None and selector(expression)(stored):
            set_bits(bits, bit_map)
    return bytes(bit_map)


def retry_filter(table: ConsumerFilterTable, subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription by an expression to a retry topic, with filterSupportRetry: a message is
    selected by the group's registered expression for the topic from which the message came."""
    group, plus, topic = subscription.topic.removeprefix(RETRY_GROUP_TOPIC_PREFIX).partition("+")
    if plus and "+" in topic:  # a group's name may contain a plus; of a retry topic v2 it is the separator
        group = f"{group}{plus}{topic}"

    def select(stored: bytes) -> bool:
        origin = find_property_bytes(stored, _RETRY_TOPIC) or b""
        registered = table.get(origin.decode("utf-8", "replace"), group)
        if registered is None or registered.expression is None:
            return True
        return selector(registered.expression)(stored)

    return MessageFilter(None, select)
