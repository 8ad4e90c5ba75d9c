"""Serves POP_MESSAGE (RocketMQ's PopMessageProcessor).

A POP looks into every queue of a topic, from a random one on, or into one queue; and into the group's retry
topic, before or after that. If the topic has priorities, a POP looks into the queues of the highest ones
first, as in RocketMQ 5.4; `priority.factor` of the group says how many of 100 POPs do so. For what it finds
in a queue it stores a checkpoint before the response. So after a failover the new master hands out again what
is not acknowledged. A POP that finds nothing waits (`pop.pop_long_polling`), and runs again from the start.

A `PopRound` processes one queue after the other on the event loop, in steps of `STEP_BUDGET_S`. Each queue is
popped without a pause, so that two rounds never get the same message. If a queue's messages are on the disk
only, the round responds with what it has, or waits until a worker thread has read them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.held_requests import run_held, with_birth_time
from epochmq_broker.requests.processors.pop_checks import (
    check_broker_readable,
    check_queue_and_group,
    reject_pop_on_slave,
    with_header_on_errors,
)
from epochmq_broker.requests.processors.pop_queue import PopResult, QueuePopper
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.services.cold_reads import PULL_TRIES_MAX
from epochmq_broker.services.pop.extra_info import ORDER_REVIVE_QUEUE, join_entries
from epochmq_broker.services.pop.pop_long_polling import HeldPop, Polling, PopLongPolling
from epochmq_broker.services.pop.pop_service import PopService
from epochmq_broker.tables.attributes import has_priorities, priority_factor
from epochmq_broker.tables.filters.consumer_filters import compiled
from epochmq_broker.tables.filters.message_filter import MessageFilter, carried_filter
from epochmq_broker.tables.subscriptions import SubscriptionError, is_tag_type, parse_subscription
from epochmq_protocol.bodies import ConsumeType, MessageModel
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_client import PopMessageRequestHeader, PopMessageResponseHeader
from epochmq_protocol.topics import pop_retry_topic
from epochmq_protocol.transport.connection import RemotingConnection, RequestHandler
from epochmq_store.files.page_residency import NotResidentError

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 32
"""A checkpoint has a bit for each message."""
LATE_MS: Final = 500
"""A request that is so much older than its client waits is not served."""
STEP_BUDGET_S: Final = 0.003
"""How long one step of a round may block the event loop."""
REST_PAUSE_S: Final = 0.1
"""A POP that found nothing although there are messages runs again after this time, unless it got further."""
RERUN_PAUSE_S: Final = 0.02
"""A waiting POP that a switchover prevents from running again tries again after this time."""
FILTERS_MAX: Final = 10_000
FILTER_FRESH_MS: Final = 60_000
"""How long a parsed subscription is reused. Its version is its time, by which the registry expires it."""


NOTHING: Final = PopMessageResponseHeader(pop_time=0, invisible_time=0, revive_qid=0, rest_num=0)
"""The fields of a response to a request that was rejected."""


class PopProcessor:
    """Serves POPs."""

    def __init__(self, context: ProcessorContext, *, pop: PopService) -> None:
        live = context.live
        self.polling = PopLongPolling(self._rerun, lambda: live.current, pop.compacted.listen, now_ms)
        self.popper = QueuePopper(
            context.live, context.store, context.tables.offsets, context.tables.stats, pop
        )
        self._pop = pop
        self.store = context.store
        self.cold_reads = context.cold_reads
        self.topics = context.tables.topics
        self.live = context.live
        self._groups = context.tables.groups
        self._clients = context.tables.clients
        self._filters: dict[tuple[str, str, str | None, str | None], tuple[int, MessageFilter]] = {}
        self._checkpoints = 0
        pop.on_free.append(self.notify)

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler."""
        return {RequestCode.POP_MESSAGE: with_header_on_errors(self.pop, NOTHING)}

    def notify(self, topic: str, group: str, queue_id: int) -> None:
        """Wakes a waiting POP of this queue, and one of every queue, after the present iteration."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self.polling.notify, topic, group, -1)
        if queue_id >= 0:
            loop.call_soon(self.polling.notify, topic, group, queue_id)

    def may_hand_out(self) -> bool:
        """Whether a POP may hand out messages now (`Capabilities.hands_out`)."""
        return self.live.standing.capabilities.hands_out

    def pop(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Serves a POP. None: the response follows."""
        reject_pop_on_slave(self.live.standing.capabilities, self._pop.sink)
        command = with_birth_time(command)
        header = PopMessageRequestHeader.decode(command.ext)
        wanted = self._check(connection, header)
        return PopRound(self, connection, command, header, wanted).run()

    def _rerun(self, held: HeldPop) -> None:
        if not self.may_hand_out() and now_ms() < held.expires_ms:
            asyncio.get_running_loop().call_later(RERUN_PAUSE_S, self._rerun, held)
            return
        run_held(held.connection, held.request, self.pop, NOTHING)

    def goes_by_priority(self, header: PopMessageRequestHeader, number: int) -> bool:
        """Whether a POP looks into the queues of the highest priorities first. `number`: which one of 100
        POPs it is, at random."""
        topic, group = self.topics.get(header.topic), self._groups.get(header.consumer_group)
        if topic is None or group is None or header.order or not has_priorities(topic):
            return False
        return number < priority_factor(group)

    def next_revive_queue(self, header: PopMessageRequestHeader) -> int:
        """The revive queue of the next POP's checkpoints, in turn."""
        if header.order:
            return ORDER_REVIVE_QUEUE
        number = self._checkpoints % self.live.current.revive_queue_num
        self._checkpoints += 1
        return number

    def _check(self, connection: RemotingConnection, header: PopMessageRequestHeader) -> MessageFilter:
        """Checks a request, in RocketMQ's order. Returns its filter."""
        config = self.live.current
        if now_ms() - header.born_time - header.poll_time > LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT,
                f"the broker[{config.broker_ip1}] pop message is timeout too much",
            )
        check_broker_readable(config, "pop")
        if header.max_msg_nums > MESSAGES_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{config.broker_ip1}] pop message's num is greater than {MESSAGES_MAX}",
            )
        if not config.timer_wheel_enable:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{config.broker_ip1}] pop message is forbidden because timerWheelEnable is false",
            )
        check_queue_and_group(self.live, self.topics, self._groups, header, connection.remote)
        return self._subscribe(header)

    def _subscribe(self, header: PopMessageRequestHeader) -> MessageFilter:
        """Notes the subscription that a POP carries, for the topic and for the group's retry topic. Returns
        its filter; equal texts are parsed once a minute."""
        present_ms = now_ms()
        words = (header.topic, header.consumer_group, header.exp, header.exp_type)
        known = self._filters.get(words)
        if known is not None and present_ms - known[0] < FILTER_FRESH_MS:
            return known[1]
        try:
            subscription = parse_subscription(
                header.topic, header.exp or "*", header.exp_type if header.exp else None, present_ms
            )
        except SubscriptionError as error:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            ) from error
        by_tag = is_tag_type(subscription.expression_type)
        if not by_tag and compiled(subscription.sub_string, subscription.expression_type) is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
            )
        retry = pop_retry_topic(
            header.topic, header.consumer_group, is_v2=self.live.current.enable_retry_topic_v2
        )
        for topic, found in (
            (header.topic, subscription),
            (retry, parse_subscription(retry, "*", None, present_ms)),
        ):
            self._clients.compensate(
                header.consumer_group, topic, found, ConsumeType.CONSUME_POP, MessageModel.CLUSTERING
            )
        if len(self._filters) >= FILTERS_MAX:
            self._filters.clear()
        wanted = carried_filter(subscription)
        self._filters[words] = (present_ms, wanted)
        return wanted


class PopRound:
    """One run of one POP."""

    def __init__(
        self,
        processor: PopProcessor,
        connection: RemotingConnection,
        command: Command,
        header: PopMessageRequestHeader,
        wanted: MessageFilter,
    ) -> None:
        self._processor = processor
        self._connection = connection
        self._command = command
        self._header = header
        self._wanted = wanted
        self._random = random.randrange(100)
        self._by_priority = processor.goes_by_priority(header, self._random)
        self._result = PopResult(
            pop_time=now_ms(), revive_queue_id=processor.next_revive_queue(header), order=header.order
        )
        self._queues = self._all_queues()
        self._next = next(self._queues, None)
        self._tries = 0
        self._arrival: int | None = None
        """The `PopLongPolling.latest_arrival` when the round was first interrupted."""

    def run(self) -> Command | None:
        """Runs until the round has ended, its time is over, or the disk has to be read. Returns the response;
        None if it follows."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STEP_BUDGET_S
        # If the kernel keeps evicting the pages, the event loop waits for the disk in the end.
        waits = self._tries >= PULL_TRIES_MAX
        with contextlib.nullcontext() if waits else self._processor.store.reader.resident:
            try:
                while self._next is not None:
                    if not self._processor.may_hand_out():
                        raise RequestError(
                            ResponseCode.SYSTEM_BUSY, "a switchover of the master is under way; pop again"
                        )
                    topic, queue_id = self._next
                    self._processor.popper.pop(self._header, topic, queue_id, self._wanted, self._result)
                    self._next = next(self._queues, None)
                    if self._next is not None and loop.time() > deadline:
                        self._interrupt()
                        self._result.keep()
                        loop.call_soon(self._continue, None)
                        return None
            except NotResidentError as missing:
                if not self._read_first(missing):
                    return None
            except RequestError:
                if not self._result.count:
                    raise
        return self._finish()

    def _continue(self, error: Exception | None) -> None:
        if self._connection.closed and not self._result.count:
            return
        try:
            if error is not None:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error))
            answer = self.run()
        except RequestError as failure:
            answer = response(self._command, failure.code, failure.remark, header=NOTHING)
        except Exception:
            log.exception("a POP failed")
            answer = response(self._command, ResponseCode.SYSTEM_ERROR, "the POP failed", header=NOTHING)
        if answer is not None:
            self._connection.respond(answer)

    def _read_first(self, missing: NotResidentError) -> bool:
        """Reads the missing bytes from the disk. Returns whether the round ends now, because it has
        messages."""
        self._tries += 1
        if self._result.count:
            with contextlib.suppress(RequestError):  # the next POP finds the bytes in memory, or asks again
                self._processor.cold_reads.submit(self._connection, missing, lambda _error: None)
            return True
        self._interrupt()
        self._processor.cold_reads.submit(self._connection, missing, self._continue)
        return False

    def _interrupt(self) -> None:
        """Notes that the round continues in another iteration."""
        self._connection.defer(self._command.opaque, self._command.code)
        if self._arrival is None:
            self._arrival = self._processor.polling.latest_arrival(self._topics())

    def _all_queues(self) -> Iterator[tuple[str, int]]:
        """The queues to pop, in order. The retry topic comes first with a certain probability, otherwise last
        if the response is not full."""
        header, config = self._header, self._processor.live.current
        if self._by_priority:
            retry_first = self._random < config.pop_from_retry_probability_for_priority
        else:
            retry_first = self._random < config.pop_from_retry_probability
        if retry_first and not header.order:
            yield from self._queues_of(self._retry_topic())
        if header.queue_id < 0:
            yield from self._queues_of(header.topic)
        else:
            yield header.topic, header.queue_id
        if not retry_first and not header.order and self._result.count < header.max_msg_nums:
            yield from self._queues_of(self._retry_topic())

    def _queues_of(self, name: str) -> Iterator[tuple[str, int]]:
        topic = self._processor.topics.get(name)
        if topic is not None:
            count = topic.read_queue_nums
            if not self._by_priority:
                order = [(self._random + number) % count for number in range(count)]
            elif self._processor.live.current.priority_order_asc:
                order = list(reversed(range(count)))
            else:
                order = list(range(count))
            for number in order:
                yield name, number

    def _topics(self) -> list[str]:
        """The topics whose messages the POP can receive, its own first."""
        topic, group = self._header.topic, self._header.consumer_group
        if self._header.order:
            return [topic]
        return [topic, *(pop_retry_topic(topic, group, is_v2=is_v2) for is_v2 in (False, True))]

    def _retry_topic(self) -> str:
        config = self._processor.live.current
        is_v2 = config.enable_retry_topic_v2
        if is_v2 and config.retrieve_message_from_pop_retry_topic_v1 and self._random % 2 == 0:
            is_v2 = False
        return pop_retry_topic(self._header.topic, self._header.consumer_group, is_v2=is_v2)

    # the response

    def _finish(self) -> Command | None:
        header, result = self._header, self._result
        polling = self._processor.polling
        code, remark = ResponseCode.SUCCESS, "FOUND"
        if not result.count:
            held = self._hold()
            if held is Polling.HELD:
                if self._arrival is not None and self._arrival != polling.latest_arrival(self._topics()):
                    self._wake_later(0)
                elif result.rest > 0:
                    self._wake_later(0 if result.advanced else REST_PAUSE_S)
                return None
            code = ResponseCode.POLLING_FULL if held is Polling.FULL else ResponseCode.POLLING_TIMEOUT
            remark = "NO_MESSAGE_IN_QUEUE"
        elif result.rest > 0 and polling.count(header.topic, header.consumer_group, header.queue_id):
            self._wake_later(0)
        return response(
            self._command,
            code,
            remark,
            header=PopMessageResponseHeader(
                pop_time=result.pop_time,
                invisible_time=header.invisible_time,
                revive_qid=result.revive_queue_id,
                rest_num=result.rest,
                start_offset_info=join_entries(result.start_offsets),
                msg_offset_info=join_entries(result.message_offsets),
                order_count_info=join_entries(result.order_counts) if header.order else None,
            ),
            body=b"".join(result.records) if result.count else b"",
        )

    def _wake_later(self, delay_s: float) -> None:
        header = self._header
        wake: Callable[..., object] = self._processor.polling.notify
        asyncio.get_running_loop().call_later(
            delay_s, wake, header.topic, header.consumer_group, header.queue_id
        )

    def _hold(self) -> Polling:
        header, command = self._header, self._command
        if command.is_oneway:
            return Polling.DOES_NOT_WAIT
        if not self._connection.can_defer:
            return Polling.FULL
        topic, *retries = self._topics()
        held = HeldPop(
            topic,
            header.consumer_group,
            header.queue_id,
            self._wanted.tags,
            header.born_time + header.poll_time,
            self._connection,
            command,
            tuple(retries),
        )
        polled = self._processor.polling.poll(held, header.poll_time)
        if polled is Polling.HELD:
            self._connection.defer(command.opaque, command.code, polls=True)
        return polled
