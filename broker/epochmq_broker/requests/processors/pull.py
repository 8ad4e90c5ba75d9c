"""Serves PULL_MESSAGE and LITE_PULL_MESSAGE (RocketMQ's PullMessageProcessor and
DefaultPullMessageResultHandler).

The checks come in Java's order, with its codes. A pull that finds no new message is held (`long_polling`) if
it asks for that. When it runs again, it goes through all checks once more, and is not held a second time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from epochmq_broker.requests.fast_handler import FastHandler, GateName, Port
from epochmq_broker.requests.processors.broker_name_check import names_another_broker
from epochmq_broker.requests.processors.filtered_gets import FilteredGets
from epochmq_broker.requests.processors.held_requests import FAILED_REMARK
from epochmq_broker.requests.processors.processor_context import ProcessorContext
from epochmq_broker.requests.processors.pull_fast import RESPONDED, FastPull, is_sent_in_place
from epochmq_broker.requests.processors.pull_filters import PullFilters
from epochmq_broker.requests.processors.pull_rejection import (
    FORBIDDEN_BROKER,
    FORBIDDEN_GROUP,
    FORBIDDEN_TOPIC,
    PullRejectedError,
)
from epochmq_broker.requests.processors.slave_rejection import reject_pull_on_slave
from epochmq_broker.requests.processors.static_pull import (
    RemoteItemError,
    StaticPull,
    StaticPulls,
    static_frame,
)
from epochmq_broker.requests.request_latencies import PULLS
from epochmq_broker.services.cold_control.pull_control import ColdPullControl
from epochmq_broker.services.cold_reads import PULL_TRIES_MAX
from epochmq_broker.services.compaction.compacted_queue import CompactedQueue
from epochmq_broker.services.compaction.compaction_service import CompactionService
from epochmq_broker.services.long_polling import HeldPull, PullHoldService
from epochmq_broker.tables.filters.message_filter import MessageFilter
from epochmq_broker.tables.filters.sql_compiler import NotCompiledError, SqlCompiler
from epochmq_broker.tables.static_topics.queue_items import PullOutcome
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import FastPathMiss, RequestError
from epochmq_protocol.fastpath import (
    FastPullRequest,
    decode_pull_header,
    pull_request,
    pull_response_head,
)
from epochmq_protocol.frame import (
    CODE_SLICE,
    FLAG_ONEWAY,
    SUCCESS_CODE,
    Command,
    encode,
    response,
    response_code,
)
from epochmq_protocol.headers_client import PullMessageRequestHeader, PullMessageResponseHeader
from epochmq_protocol.memory_limit import memory_bytes
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.topics import PERM_READ, TopicConfig
from epochmq_protocol.transport.connection import OVERLOAD_REMARK, RemotingConnection, RequestHandler
from epochmq_store.files.page_residency import NotResidentError
from epochmq_store.statuses import GetResult, GetStatus

log = logging.getLogger(__name__)

FLAG_COMMIT_OFFSET = 1
FLAG_SUSPEND = 2
"""Bits of a pull's sysFlag (PullSysFlag)."""

HOLD_MAX_MS = 60_000
"""The longest time for which a pull is held, whatever it asks for; RocketMQ's clients ask for 15 to 30 s."""

CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
"""For NO_MATCHED_LOGIC_QUEUE and NO_MESSAGE_IN_QUEUE the code depends on the offset."""


_PULL = int(RequestCode.PULL_MESSAGE)  # a plain number compares faster


class PullProcessor:
    """Serves pulls."""

    def __init__(
        self,
        context: ProcessorContext,
        *,
        cold_control: ColdPullControl,
        compaction: CompactionService,
        static_pulls: StaticPulls,
    ) -> None:
        self._latencies = context.latencies
        self._counts = context.latencies.fast
        self._static_pulls = static_pulls
        self._static_topics = static_pulls.table
        self._cold_reads = context.cold_reads
        self._cold_control = cold_control
        cold_control.run_held_with(self._rerun_unheld)
        self._filtered_gets = FilteredGets(context.live, context.store.reader, context.cold_reads)
        self.hold = PullHoldService(self._rerun)
        self._compaction = compaction
        compaction.on_append.append(self.hold.message_arrived)
        self._live = context.live
        self._store = context.store
        self._topics = context.tables.topics
        self._groups = context.tables.groups
        self._offsets = context.tables.offsets
        self._stats = context.tables.stats
        self._get_resident = context.store.reader.get_resident
        self._memory_bytes = memory_bytes()
        self._filter = PullFilters(
            context.live, context.tables.groups, context.tables.clients, context.tables.filters
        ).filter_of
        self._compiler = SqlCompiler()
        self._fast_pull = FastPull(
            context,
            cold_control=cold_control,
            static=static_pulls.table,
            filter_of=self._filter,
            check=self._check,
        ).serve

    def handlers(self) -> Mapping[int, RequestHandler]:
        """Request code → handler, for headers that the fast path does not support."""
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def fast_declaration(self) -> FastHandler:
        """The fast handler, for both codes."""
        return FastHandler(
            codes=(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
            starts=(b'{"code":11,', b'{"code":361'),
            serve=self.fast_pull,
            satisfies=frozenset({GateName.BROKER_NAME}),
            ports=(Port.MAIN,),
        )

    def fast_pull(self, connection: RemotingConnection, header: bytes, body: bytes) -> bytes | None:
        """Serves a pull from its header's bytes. Raises FastPathMiss for headers that it does not support."""
        decoded = decode_pull_header(header)
        missing = frame = None
        try:
            frame = self._fast_pull(connection, decoded)
        except NotResidentError as error:
            missing = error
        if frame is not None:
            return None if frame is RESPONDED else frame
        request = pull_request(decoded)
        if self._static_topics and request.topic in self._static_topics:
            raise FastPathMiss
        if request.flag & FLAG_ONEWAY or names_another_broker(
            request.broker_name, self._live.current.broker_name
        ):
            raise FastPathMiss
        if missing is not None:
            frame = self._read_first(connection, request, missing, held=False, tries=0)
        else:
            frame = self._respond(connection, request, held=False, views=True)
        if frame is not None:
            if frame[CODE_SLICE] == SUCCESS_CODE and request.code == _PULL:
                self._counts[PULLS] += 1
            else:
                self._latencies.count_pull(request.code, frame)
        return frame

    def pull(self, connection: RemotingConnection, command: Command) -> Command | None:
        """Serves a pull from its command."""
        header = PullMessageRequestHeader.decode(command.ext)
        request = FastPullRequest(
            code=command.code,
            opaque=command.opaque,
            flag=command.flag,
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=header.queue_offset,
            max_msg_nums=header.max_msg_nums,
            sys_flag=header.sys_flag,
            commit_offset=header.commit_offset,
            suspend_timeout_millis=header.suspend_timeout_millis,
            subscription=header.subscription,
            sub_version=header.sub_version,
            expression_type=header.expression_type,
            request_source=header.request_source,
            version=command.version,
        )
        if header.topic in self._static_topics and header.lo is not False:
            request = self._static_pulls.logical(request)
        frame = self._respond(connection, request, held=False)
        if frame is not None:
            latencies = self._latencies
            latencies.record(command.code, response_code(frame), latencies.began, oneway=command.is_oneway)
            if not command.is_oneway:
                connection.write(frame)
        return None

    def _rerun(self, pull: HeldPull) -> None:
        self._rerun_unheld(pull.connection, pull.request)

    def _rerun_unheld(
        self, connection: RemotingConnection, request: FastPullRequest, *, held: bool = True
    ) -> None:
        try:
            frame = self._respond(connection, request, held=held)
        except Exception:  # its client must get a response
            log.exception("a pull failed when it ran again")
            frame = encode(response(_command_of(request), ResponseCode.SYSTEM_ERROR, FAILED_REMARK))
        if frame is None:
            return  # the response follows, for example once the missing bytes are read from the disk
        connection.respond_encoded(request.opaque, frame)

    def _respond(
        self,
        connection: RemotingConnection,
        request: FastPullRequest,
        *,
        held: bool,
        tries: int = 0,
        views: bool = False,
    ) -> bytes | None:
        """The encoded response. None if it comes later, because the pull is held or needs the disk, or if it
        was sent and counted already, which `views` allows. `held`: the pull was held, and is not held again.
        `tries`: how often the disk has been read for it."""
        try:
            group, topic = self._check(connection, request)
            wanted = self._filter(request, group)
            if self._cold_control.flow.active and not self._cold_control.admit(connection, request):
                return None
            # If the kernel keeps evicting the pages, the event loop waits for the disk in the end.
            get = self._get_resident if tries < PULL_TRIES_MAX else self._store.get
            result = self._reset(request) if self._offsets.has_resets else None
            compacted = None
            if topic.attributes:
                compacted = self._compaction.queue_of(request.topic, request.queue_id)
            if result is None and compacted is not None:
                result = self._get_compacted(connection, request, group, topic, wanted, compacted, held=held)
                if result is None:
                    return None
            elif result is None and wanted.select is None:
                queue = self._store.readable_queue(request.topic, request.queue_id)
                result = get(queue, request.queue_offset, request.max_msg_nums, tags=wanted.tags)
            elif result is None:
                result = self._get_selected(connection, request, group, topic, wanted, held=held)
                if result is None:
                    return None
        except NotResidentError as missing:
            return self._read_first(connection, request, missing, held=held, tries=tries)
        except NotCompiledError as missing:
            return self._compile_first(connection, request, missing.text, held=held)
        except RemoteItemError:
            return self._forward(connection, request)
        except PullRejectedError as error:
            return encode(
                response(
                    _command_of(request),
                    error.code,
                    error.remark,
                    ext={"forbiddenType": str(error.forbidden_type)},
                )
            )
        except RequestError as error:
            return encode(response(_command_of(request), error.code, error.remark))
        return self._answer(connection, request, group, topic, wanted, result, held=held, views=views)

    def _answer(
        self,
        connection: RemotingConnection,
        request: FastPullRequest,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        wanted: MessageFilter,
        result: GetResult,
        *,
        held: bool,
        views: bool = False,
    ) -> bytes | None:
        """The encoded response with what a get found. None if the pull is held, or if `views` allows to send
        messages without a copy and they were sent."""
        status = result.status
        if self._cold_control.counts and status is GetStatus.FOUND:
            self._cold_control.count(request, result.next_offset, wanted.tags)
        code = CODES.get(status)
        if code is None:  # NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE
            code = ResponseCode.PULL_OFFSET_MOVED if request.queue_offset else ResponseCode.PULL_NOT_FOUND
        if code is ResponseCode.PULL_OFFSET_MOVED and self._keeps_offsets(status):
            code, result.next_offset = ResponseCode.PULL_NOT_FOUND, request.queue_offset
        self._commit(request, result, held=held)
        logical = None
        if request.__class__ is StaticPull:
            found = PullOutcome(code, result.next_offset, result.min_offset, result.max_offset)
            logical, delta = self._static_pulls.outcome(request, found)
            code = ResponseCode(logical.code)
        if status is GetStatus.FOUND:
            traffic = self._stats.get_traffic(request.consumer_group, request.topic, request.queue_id)
            traffic.messages += result.count
            traffic.bytes += result.size
            traffic.requests += 1
        else:
            self._stats.misses += 1
            wants_to_wait = code == ResponseCode.PULL_NOT_FOUND and request.sys_flag & FLAG_SUSPEND
            if wants_to_wait and not held and self._hold(connection, request, wanted):
                return None
        if logical is not None:
            assert isinstance(request, StaticPull)
            header = PullMessageResponseHeader(
                suggest_which_broker_id=self._suggested_broker(group, result),
                next_begin_offset=0,
                min_offset=0,
                max_offset=0,
                topic_sys_flag=topic.topic_sys_flag,
                group_sys_flag=group.group_sys_flag,
            )
            return static_frame(request, logical, delta, header, result.body, status.value)
        size = result.size
        head = pull_response_head(
            request.opaque,
            code,
            status.value,
            suggest_which_broker_id=self._suggested_broker(group, result),
            next_begin_offset=result.next_offset,
            min_offset=result.min_offset,
            max_offset=result.max_offset,
            topic_sys_flag=topic.topic_sys_flag,
            group_sys_flag=group.group_sys_flag,
            body_size=size,
        )
        if not views or not is_sent_in_place(size, len(result.pieces)):
            return b"".join((head, *result.pieces))
        connection.write_views(head, result.pieces, len(head) + size)
        if code is ResponseCode.SUCCESS and request.code == _PULL:
            self._counts[PULLS] += 1
        else:
            self._latencies.count_pull(request.code, head)
        return None

    def _forward(self, connection: RemotingConnection, request: FastPullRequest) -> bytes | None:
        """Pulls from another broker group. Returns the response if that is impossible."""
        assert isinstance(request, StaticPull)

        def refuse(error: RequestError) -> bytes:
            return encode(response(_command_of(request), error.code, error.remark))

        if request.flag & FLAG_ONEWAY:
            return None
        try:
            self._static_pulls.forward(connection, request, refuse)
        except RequestError as error:
            return refuse(error)
        return None

    def _read_first(
        self,
        connection: RemotingConnection,
        request: FastPullRequest,
        missing: NotResidentError,
        *,
        held: bool,
        tries: int,
    ) -> bytes | None:
        """Reads the missing bytes from the disk, then runs the pull again. Returns the response if that is
        impossible."""
        if request.flag & FLAG_ONEWAY:
            return None

        def done(error: Exception | None) -> None:
            if connection.closed:
                return
            if error is None:
                frame = self._respond(connection, request, held=held, tries=tries + 1)
            else:
                frame = encode(response(_command_of(request), ResponseCode.SYSTEM_ERROR, str(error)))
            if frame is not None:
                connection.respond_encoded(request.opaque, frame)

        try:
            connection.defer(request.opaque, request.code)
            self._cold_reads.submit(connection, missing, done)
        except RequestError as error:
            return encode(response(_command_of(request), error.code, error.remark))
        return None

    def _compile_first(
        self, connection: RemotingConnection, request: FastPullRequest, text: str, *, held: bool
    ) -> bytes | None:
        """Compiles the pull's expression on a worker thread, then runs the pull again. Returns the response
        if that is impossible."""
        if request.flag & FLAG_ONEWAY:
            return None

        def done() -> None:
            if not connection.closed:
                self._rerun_unheld(connection, request, held=held)

        try:
            if not connection.can_defer and not held:
                raise RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
            self._compiler.submit(text, done)
            connection.defer(request.opaque, request.code)
        except RequestError as error:
            return encode(response(_command_of(request), error.code, error.remark))
        return None

    def _check(
        self, connection: RemotingConnection, request: FastPullRequest
    ) -> tuple[SubscriptionGroupConfig, TopicConfig]:
        """Checks broker, group, topic and queue. Raises RequestError."""
        config = self._live.current
        reject_pull_on_slave(self._live.standing.capabilities)
        if not config.broker_permission & PERM_READ:
            raise PullRejectedError(
                FORBIDDEN_BROKER, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise PullRejectedError(
                FORBIDDEN_BROKER, f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            )
        name = request.consumer_group
        group = self._groups.get(name) or self._groups.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{name}] does not exist, "
            )
        if not group.consume_enable:
            raise PullRejectedError(FORBIDDEN_GROUP, f"subscription group no permission, {name}")
        topic = self._topics.get(request.topic)
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{request.topic}] not exist, apply first please! "
            )
        if not topic.perm & PERM_READ:
            raise PullRejectedError(
                FORBIDDEN_TOPIC, f"the topic[{request.topic}] pulling message is forbidden"
            )
        if request.__class__ is StaticPull:
            self._static_pulls.locate(request)
        if not 0 <= request.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{request.queue_id}] is illegal, topic:[{request.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{connection.remote}]",
            )
        return group, topic

    def _reset(self, request: FastPullRequest) -> GetResult | None:
        """The result of a pull whose offset was reset on the server; None without a reset."""
        offset = self._offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
        if offset is None or not self._live.current.use_server_side_reset_offset:
            return None
        queue = self._store.readable_queue(request.topic, request.queue_id)
        return GetResult(GetStatus.OFFSET_RESET, offset, queue.min_offset, queue.max_offset)

    def _get_selected(
        self,
        connection: RemotingConnection,
        request: FastPullRequest,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        wanted: MessageFilter,
        *,
        held: bool,
    ) -> GetResult | None:
        """The messages that an expression selects. None: the response follows in a later turn of the event
        loop. Raises RequestError."""

        done = self._responder(connection, request, group, topic, wanted, held=held)
        queue = self._store.readable_queue(request.topic, request.queue_id)
        found = self._filtered_gets.begin(
            queue, request.queue_offset, request.max_msg_nums, wanted, connection, done
        )
        if found is None and not request.flag & FLAG_ONEWAY:
            connection.defer(request.opaque, request.code)
        return found

    def _get_compacted(
        self,
        connection: RemotingConnection,
        request: FastPullRequest,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        wanted: MessageFilter,
        queue: CompactedQueue,
        *,
        held: bool,
    ) -> GetResult | None:
        """The messages of a compacted queue. As in RocketMQ the client filters them. None: the response
        follows in a later turn of the event loop. Raises RequestError."""
        done = self._responder(connection, request, group, topic, wanted, held=held)
        found = self._compaction.get(queue, request.queue_offset, request.max_msg_nums, done)
        if found is None and not request.flag & FLAG_ONEWAY:
            connection.defer(request.opaque, request.code)
        return found

    def _responder(
        self,
        connection: RemotingConnection,
        request: FastPullRequest,
        group: SubscriptionGroupConfig,
        topic: TopicConfig,
        wanted: MessageFilter,
        *,
        held: bool,
    ) -> Callable[[GetResult | Exception], None]:
        """A function that responds to a pull with what was found, or with an error."""

        def done(result: GetResult | Exception) -> None:
            if connection.closed:
                return
            if isinstance(result, GetResult):
                frame = self._answer(connection, request, group, topic, wanted, result, held=held)
            else:
                code = result.code if isinstance(result, RequestError) else ResponseCode.SYSTEM_ERROR
                frame = encode(response(_command_of(request), code, str(result)))
            if frame is not None and not request.flag & FLAG_ONEWAY:
                connection.respond_encoded(request.opaque, frame)

        return done

    def _commit(self, request: FastPullRequest, result: GetResult, *, held: bool) -> None:
        """Stores the group's offsets: the next one that it pulls, and the one that it says it has
        consumed."""
        offsets, group, topic, queue_id = (
            self._offsets,
            request.consumer_group,
            request.topic,
            request.queue_id,
        )
        offsets.commit_pull(group, topic, queue_id, result.next_offset)
        if held or not request.sys_flag & FLAG_COMMIT_OFFSET:
            return
        if request.__class__ is StaticPull:
            self._static_pulls.commit(request)
        else:
            offsets.commit(group, topic, queue_id, request.commit_offset)

    def _hold(self, connection: RemotingConnection, request: FastPullRequest, wanted: MessageFilter) -> bool:
        config = self._live.current
        hold_ms = request.suspend_timeout_millis
        if not config.long_polling_enable:
            hold_ms = config.short_polling_time_mills
        if hold_ms <= 0 or request.flag & FLAG_ONEWAY or self.hold.is_full:
            return False
        connection.defer(request.opaque, request.code, polls=True)
        compacted = self._compaction.queue_of(request.topic, request.queue_id)
        pull = HeldPull(
            self._store.readable_queue(request.topic, request.queue_id) if compacted is None else compacted,
            request.queue_offset,
            wanted.tags,
            asyncio.get_running_loop().time() + min(hold_ms, HOLD_MAX_MS) / 1000,
            connection,
            request,
        )
        if wanted.select is not None and compacted is None:
            pull.selects_new = self._new_message_test(request, wanted)
        self.hold.hold(pull)
        return True

    def _new_message_test(self, request: FastPullRequest, wanted: MessageFilter) -> Callable[[], bool]:
        """A function that tells whether one of the messages that arrived since its last call may be
        selected."""
        queue = self._store.readable_queue(request.topic, request.queue_id)
        checked = request.queue_offset

        def selects_new() -> bool:
            nonlocal checked
            selected, checked = self._filtered_gets.selects_new(queue, checked, wanted)
            return selected

        return selects_new

    def _suggested_broker(self, group: SubscriptionGroupConfig, result: GetResult) -> int:
        """The id of the broker to pull from next: of another broker only if slaves may be read and this pull
        is far behind the end of the log."""
        config = self._live.current
        if not config.slave_read_enable:
            return 0
        lag = self._store.max_phy_offset - result.physical_end if result.physical_end >= 0 else 0
        if lag > self._memory_bytes * config.access_message_in_memory_max_ratio // 100:
            return group.which_broker_when_consume_slowly
        return group.broker_id

    def _keeps_offsets(self, status: GetStatus) -> bool:
        """Whether this broker leaves an offset outside its queue as it is, because it is a slave: the master
        may have the messages that this log lacks (offsetCheckInSlave). Such a pull waits for messages;
        RocketMQ's slave has it tried again at once."""
        config = self._live.current
        return (
            not self._live.standing.capabilities.is_master
            and not config.offset_check_in_slave
            and status is not GetStatus.OFFSET_RESET
        )


def _command_of(request: FastPullRequest) -> Command:
    return Command(request.code, opaque=request.opaque)
