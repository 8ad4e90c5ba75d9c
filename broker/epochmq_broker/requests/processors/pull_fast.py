"""Serves pulls that find messages at once: the fast path of `pull`.

Most pulls of a group from a queue differ only in their offset. So the fast path checks group, topic and
queue once, and keeps what follows from them until a topic, a group or the configuration changes. A pull that
it does not serve has changed nothing yet; `pull` serves it from the beginning, and builds every rejection. A
test checks that both paths respond the same.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import msgspec

from epochmq_broker.config.broker_config import BrokerConfig
from epochmq_broker.requests.processors.broker_name_check import names_another_broker
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.pull_filters import PullSubscription
from epochmq_broker.requests.request_latencies import PULLS
from epochmq_broker.services.cold_control.pull_control import ColdPullControl
from epochmq_broker.tables.attributes import is_compacted
from epochmq_broker.tables.filters.message_filter import MessageFilter
from epochmq_broker.tables.stats import TrafficCounter
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.fastpath import (
    FastPullRequest,
    PullHeader,
    PullResponseHeadEncoder,
    pull_request,
    pull_response_template,
)
from epochmq_protocol.frame import FLAG_ONEWAY, FLAG_RESPONSE
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import TopicConfig
from epochmq_protocol.transport.connection import RemotingConnection
from epochmq_store.statuses import GetStatus

IN_PLACE_MIN_BYTES: Final = 8 * 1024
IN_PLACE_PIECE_MIN_BYTES: Final = 4 * 1024
SOURCES_MAX: Final = 100_000
RESPONDED: Final = b""
"""Stands for a response that was written already."""

FLAG_COMMIT_OFFSET: Final = 1  # of sysFlag
SQL92: Final = "SQL92"
"""The type of an expression, which the ordinary path evaluates."""
_FLAGS: Final = FLAG_RESPONSE | FLAG_ONEWAY
_PULL: Final = int(RequestCode.PULL_MESSAGE)


def is_sent_in_place(size: int, pieces: int) -> bool:
    """Whether messages of `size` bytes in so many pieces are sent from the mapped file. Joining them first
    costs less if the pieces are small: the kernel takes longer for a buffer than a copy of 4 KiB does."""
    return size >= IN_PLACE_MIN_BYTES and size >= pieces * IN_PLACE_PIECE_MIN_BYTES


class PullSource(msgspec.Struct, frozen=True, gc=False):
    """What all pulls of one group from one queue share. `place`: topic and queue id."""

    group: SubscriptionGroupConfig
    place: tuple[str, int]
    traffic: TrafficCounter
    respond: PullResponseHeadEncoder


class FastPull:
    """The fast path of one broker. `filter_of` and `check` are those of the ordinary path."""

    def __init__(
        self,
        context: ProcessorContext,
        *,
        cold_control: ColdPullControl,
        static: Container[str],
        filter_of: Callable[[PullSubscription, SubscriptionGroupConfig], MessageFilter],
        check: Callable[[RemotingConnection, FastPullRequest], tuple[SubscriptionGroupConfig, TopicConfig]],
    ) -> None:
        self._live = context.live
        self._name = context.live.current.broker_name
        self._queues = context.store.queues
        self._get = context.store.reader.get_resident
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._stats = context.tables.stats
        self._cold_control = cold_control
        self._static = static
        self._counts = context.latencies.fast
        self._filter_of = filter_of
        self._check = check
        self._sources: dict[tuple[str, str, int], PullSource] = {}
        self._topics_seen = context.tables.topics.generation
        self._groups_seen = context.tables.groups.generation
        context.live.on_change.append(self._reconfigured)

    def serve(self, connection: RemotingConnection, request: PullHeader) -> bytes | None:
        """The response to a pull, or RESPONDED. None: the ordinary path has to serve it. Raises
        NotResidentError, with nothing changed."""
        fields, offsets = request.fields, self._offsets
        if self._topics.generation != self._topics_seen or self._groups.generation != self._groups_seen:
            self._clear_cache()
        topic, queue_id, group = fields.topic, fields.queue_id, fields.consumer_group
        source = self._sources.get((group, topic, queue_id)) or self._add_source(connection, request)
        if (
            source is None
            or request.flag & _FLAGS
            or request.code != _PULL
            or fields.expression_type == SQL92
            or offsets.has_resets
            or self._cold_control.counts
            or names_another_broker(fields.bname, self._name)
        ):
            return None
        queue = self._queues.get(source.place)
        if queue is None or topic in self._static:
            return None
        try:
            wanted = self._filter_of(fields, source.group)
            if wanted.select is not None:
                return None
            result = self._get(queue, fields.queue_offset, fields.max_msg_nums, tags=wanted.tags)
        except RequestError:
            return None
        if result.status is not GetStatus.FOUND:
            return None
        next_offset, size, pieces = result.next_offset, result.size, result.pieces
        offsets.commit_pull(group, topic, queue_id, next_offset)
        if fields.sys_flag & FLAG_COMMIT_OFFSET:
            offsets.commit(group, topic, queue_id, fields.commit_offset)
        traffic = source.traffic
        traffic.messages += result.count
        traffic.bytes += size
        traffic.requests += 1
        self._counts[PULLS] += 1
        head = source.respond(request.opaque, next_offset, result.min_offset, result.max_offset, size)
        if is_sent_in_place(size, len(pieces)):
            connection.write_views(head, pieces, len(head) + size)
            return RESPONDED
        return b"".join((head, *pieces))

    def _add_source(self, connection: RemotingConnection, request: PullHeader) -> PullSource | None:
        """The new cache entry for these pulls. None if the ordinary path has to serve them."""
        fields, config = request.fields, self._live.current
        if config.slave_read_enable or fields.topic in self._static:
            return None
        try:
            group, topic = self._check(connection, pull_request(request))
        except RequestError:
            return None
        if is_compacted(topic):
            return None
        if len(self._sources) >= SOURCES_MAX:
            self._sources.clear()
        source = PullSource(
            group,
            (fields.topic, fields.queue_id),
            self._stats.get_traffic(fields.consumer_group, fields.topic, fields.queue_id),
            pull_response_template(
                ResponseCode.SUCCESS,
                GetStatus.FOUND.value,
                suggest_which_broker_id=0,
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            ),
        )
        self._sources[fields.consumer_group, fields.topic, fields.queue_id] = source
        return source

    def _clear_cache(self) -> None:
        self._sources.clear()
        self._topics_seen = self._topics.generation
        self._groups_seen = self._groups.generation

    def _reconfigured(self, before: BrokerConfig, after: BrokerConfig) -> None:
        self._clear_cache()
        self._name = after.broker_name
