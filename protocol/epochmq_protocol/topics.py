"""Defines topics, the names of topics and groups, data versions, and the bodies that carry topics.

RocketMQ's classes are TopicConfig, DataVersion, TopicValidator, MixAll, KeyBuilder and RegisterBrokerBody.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from enum import StrEnum
from typing import ClassVar, Final

import msgspec
from msgspec import field

from epochmq_protocol import fastjson
from epochmq_protocol.bodies_base import Body, convert, from_json, to_json
from epochmq_protocol.codes import V5_0_0
from epochmq_protocol.errors import BodyError, EpochMQError
from epochmq_protocol.integers import Int, Long
from epochmq_protocol.steps import finish

# ------------------------------------------------------------------------------------------------ permissions

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1  # new topics may inherit this topic's settings


def is_readable(perm: int) -> bool:
    """PermName.isReadable."""
    return bool(perm & PERM_READ)


def is_writeable(perm: int) -> bool:
    """PermName.isWriteable."""
    return bool(perm & PERM_WRITE)


def is_inherited(perm: int) -> bool:
    """PermName.isInherited."""
    return bool(perm & PERM_INHERIT)


# ------------------------------------------------------------------------------------------------------ names

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255
RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
LMQ_PREFIX: Final = "%LMQ%"
LMQ_QUEUE_ID: Final = 0
LMQ_DISPATCH_SEPARATOR: Final = ","
TRACE_DATA_PREFIX: Final = f"{SYSTEM_TOPIC_PREFIX}TRACE_DATA_"
"""Traces of clients that use Alibaba's cloud (TraceConstants.TRACE_TOPIC_PREFIX)."""
SYNC_BROKER_MEMBER_GROUP_PREFIX: Final = f"{SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_"
INNER_PRODUCER_GROUP_PREFIX: Final = "InnerProducerGroup_"
"""The producer group of messages that a broker sends to another one begins with it (EscapeBridge)."""
CID_RMQ_SYS_PREFIX: Final = "CID_RMQ_SYS_"

AUTO_CREATE_TOPIC_KEY_TOPIC: Final = "TBW102"
RMQ_SYS_SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
RMQ_SYS_BENCHMARK_TOPIC: Final = "BenchmarkTest"
RMQ_SYS_TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
RMQ_SYS_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
RMQ_SYS_TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
RMQ_SYS_SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
RMQ_SYS_OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
RMQ_SYS_ROCKSDB_OFFSET_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}wheel_timer"
"""TimerMessageStore.TIMER_TOPIC."""
QUARANTINE_TOPIC: Final = f"{SYSTEM_TOPIC_PREFIX}quarantine"
"""Copies of records that a service of the broker could not handle."""

SYSTEM_TOPICS: Final = frozenset(
    [
        AUTO_CREATE_TOPIC_KEY_TOPIC,
        RMQ_SYS_SCHEDULE_TOPIC,
        RMQ_SYS_BENCHMARK_TOPIC,
        RMQ_SYS_TRANS_HALF_TOPIC,
        RMQ_SYS_TRACE_TOPIC,
        RMQ_SYS_TRANS_OP_HALF_TOPIC,
        RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
        RMQ_SYS_SELF_TEST_TOPIC,
        RMQ_SYS_OFFSET_MOVED_EVENT,
        RMQ_SYS_ROCKSDB_OFFSET_TOPIC,
    ]
)
NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    [
        RMQ_SYS_SCHEDULE_TOPIC,
        RMQ_SYS_TRANS_HALF_TOPIC,
        RMQ_SYS_TRANS_OP_HALF_TOPIC,
        RMQ_SYS_TRANS_CHECK_MAX_TIME_TOPIC,
        RMQ_SYS_SELF_TEST_TOPIC,
        RMQ_SYS_OFFSET_MOVED_EVENT,
    ]
)
NOT_DELIVERED_TOPICS: Final = frozenset(
    [
        RMQ_SYS_SCHEDULE_TOPIC,
        RMQ_SYS_TRANS_HALF_TOPIC,
        RMQ_SYS_TRANS_OP_HALF_TOPIC,
        TIMER_TOPIC,
        QUARANTINE_TOPIC,
    ]
)
"""Topics to which no delayed message is delivered. A message that waits in such a topic for its delivery to
the same topic would be delivered for ever."""
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
SCHEDULE_CONSUMER_GROUP: Final = "SCHEDULE_CONSUMER"
FILTERSRV_CONSUMER_GROUP: Final = "FILTERSRV_CONSUMER"
MONITOR_CONSUMER_GROUP: Final = "__MONITOR_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
SELF_TEST_PRODUCER_GROUP: Final = "SELF_TEST_P_GROUP"
SELF_TEST_CONSUMER_GROUP: Final = "SELF_TEST_C_GROUP"
ONS_HTTP_PROXY_GROUP: Final = "CID_ONS-HTTP-PROXY"
CID_ONSAPI_PERMISSION_GROUP: Final = "CID_ONSAPI_PERMISSION"
CID_ONSAPI_OWNER_GROUP: Final = "CID_ONSAPI_OWNER"
CID_ONSAPI_PULL_GROUP: Final = "CID_ONSAPI_PULL"
CID_SYS_RMQ_TRANS: Final = "CID_RMQ_SYS_TRANS"

_LEGAL: Final = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def is_topic_or_group_illegal(name: str) -> bool:
    """True if a character is not one of `%|a-zA-Z0-9_-`."""
    return not _LEGAL.issuperset(name)


def validate_topic(topic: str) -> str | None:
    """The reason why a topic name is not valid (TopicValidator's remark), or None."""
    if not topic.strip():
        return "The specified topic is blank."
    if is_topic_or_group_illegal(topic):
        return "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(topic) > TOPIC_LENGTH_MAX:
        return "The specified topic is longer than topic max length."
    return None


def is_system_topic(topic: str) -> bool:
    """True for system topics that exist on every broker. A broker has further ones that contain its own
    name."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_not_allowed_send_topic(topic: str) -> bool:
    """True for topics that no client may send to."""
    return topic in NOT_ALLOWED_SEND_TOPICS


def is_service_topic(topic: str) -> bool:
    """True for topics whose records a service of the broker reads, such as those of the timer and of POP.
    Brokers alone write to them. Clients write to the topics of traces."""
    return topic.startswith(SYSTEM_TOPIC_PREFIX) and not topic.startswith(TRACE_DATA_PREFIX)


def is_lmq(name: str) -> bool:
    """True for a light message queue, and for a group that consumes light message queues."""
    return name.startswith(LMQ_PREFIX)


def topic_allows_lmq(topic: str) -> bool:
    """Whether messages of this topic also get into the light message queues that they name
    (MixAll.topicAllowsLMQ)."""
    return (
        not topic.startswith((RETRY_GROUP_TOPIC_PREFIX, SYSTEM_TOPIC_PREFIX))
        and topic != RMQ_SYS_SCHEDULE_TOPIC
    )


def is_retry_topic(topic: str) -> bool:
    """True for a group's retry topic."""
    return topic.startswith(RETRY_GROUP_TOPIC_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """True for a group's dead-letter topic."""
    return topic.startswith(DLQ_GROUP_TOPIC_PREFIX)


def retry_topic(group: str) -> str:
    """The retry topic of a consumer group."""
    return RETRY_GROUP_TOPIC_PREFIX + group


def dlq_topic(group: str) -> str:
    """The dead-letter topic of a consumer group."""
    return DLQ_GROUP_TOPIC_PREFIX + group


def reply_topic(cluster: str) -> str:
    """The topic that stores the replies of a cluster."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"


def pop_retry_topic(topic: str, group: str, *, is_v2: bool = False) -> str:
    """The retry topic of a group for one topic under POP consumption."""
    return f"{RETRY_GROUP_TOPIC_PREFIX}{group}{'+' if is_v2 else '_'}{topic}"


# ---------------------------------------------------------------------------------------------------- version


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The version of a table. Two versions are equal only if all three fields are; they are ordered by
    state version, counter and time (epoch ms)."""

    counter: Long = 0
    state_version: Long = 0
    timestamp: Long = 0

    def next(self, now_ms: int, state_version: int = 0) -> DataVersion:
        """The version after one more change."""
        return DataVersion(self.counter + 1, state_version, now_ms)

    def compare(self, other: DataVersion) -> int:
        """-1, 0 or 1."""
        mine = (self.state_version, self.counter, self.timestamp)
        others = (other.state_version, other.counter, other.timestamp)
        return (mine > others) - (mine < others)


# ----------------------------------------------------------------------------------------------------- topics


class TopicFilterType(StrEnum):
    """Whether messages of a topic carry one tag or several. No component uses it any more."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One topic of a broker. `attributes` as stored, without the `+` and `-` of create requests."""

    topic_name: str = ""
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)

    def encode(self) -> str:
        """The one-line form of compressed registrations; `order` and `topicSysFlag` are lost, as in Java."""
        return (
            f"{self.topic_name} {self.read_queue_nums} {self.write_queue_nums} {self.perm} "
            f"{self.topic_filter_type.name} {fastjson.dumps(self.attributes).decode()}"
        )

    @classmethod
    def decode(cls, text: str) -> TopicConfig:
        """Decodes the one-line form. As in Java, attributes that contain blanks are lost."""
        parts = text.split(" ")
        if len(parts) < 5:
            raise BodyError(f"topic line {text!r:.100}: expected at least 5 words")
        attributes: dict[str, str] = {}
        numbers, kind = parts[1:4], _FILTER_TYPES.get(parts[4])
        if kind and parts[5:6] == ["{}"] and all(_is_short_number(one) for one in numbers):
            read, write, perm = map(int, numbers)
            return cls(parts[0], read, write, perm, kind)
        if len(parts) >= 6:
            try:
                attributes = convert(TopicConfig, {"attributes": fastjson.loads(parts[5])}).attributes
            except EpochMQError:
                attributes = {}
        plain = {
            "topicName": parts[0],
            "readQueueNums": parts[1],
            "writeQueueNums": parts[2],
            "perm": parts[3],
            "topicFilterType": parts[4],
        }
        config = convert(cls, plain)
        return msgspec.structs.replace(config, attributes=attributes) if attributes else config


_FILTER_TYPES: Final = {one.name: one for one in TopicFilterType}


def _is_short_number(text: str) -> bool:
    """Whether the text is a plain number that certainly fits into 32 bits."""
    return len(text) < 10 and text.isascii() and text.isdecimal()


class LogicQueueMappingItem(Body):
    """The physical queue of an offset range of a static topic's logical queue."""

    gen: Int = 0
    queue_id: Int = 0
    bname: str | None = None
    logic_offset: Long = 0
    start_offset: Long = 0
    end_offset: Long = -1
    time_of_start: Long = -1
    time_of_end: Long = -1


class TopicQueueMappingInfo(Body):
    """The logical queues of a static topic on a broker: logical id to physical id."""

    topic: str | None = None
    scope: str = "__global__"
    total_queues: Int = 0
    bname: str | None = None
    epoch: Long = 0
    dirty: bool = False
    curr_id_map: dict[Int, Int] = field(default_factory=dict)


class TopicQueueMappingDetail(TopicQueueMappingInfo):
    """The same with all offset ranges of every hosted queue, for the broker itself."""

    hosted_queues: dict[Int, list[LogicQueueMappingItem]] = field(default_factory=dict)


class TopicConfigSerializeWrapper(Body):
    """A broker's topic table in messages to nameservers and slaves
    (TopicConfigAndMappingSerializeWrapper)."""

    STRICT_FIRST: ClassVar[bool] = True

    topic_config_table: dict[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = DataVersion()


TopicConfigAndMappingSerializeWrapper = TopicConfigSerializeWrapper


class TopicConfigAndQueueMapping(Body):
    """Response to GET_TOPIC_CONFIG: the fields of a TopicConfig and, for a static topic, its mapping."""

    topic_name: str = ""
    read_queue_nums: Int = 16
    write_queue_nums: Int = 16
    perm: Int = PERM_READ | PERM_WRITE
    topic_filter_type: TopicFilterType = TopicFilterType.SINGLE_TAG
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    mapping_detail: TopicQueueMappingDetail | None = None


class CreateTopicListRequestBody(Body):
    """Request of UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig] = field(default_factory=list)


class TopicQueueMappingSerializeWrapper(Body):
    """topicQueueMapping.json."""

    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()


# ----------------------------------------------------------------------------------------------- registration


class RegisterBrokerBody(Body):
    """The body of a broker's registration with a nameserver."""

    STRICT_FIRST: ClassVar[bool] = True

    topic_config_serialize_wrapper: TopicConfigSerializeWrapper = field(
        default_factory=TopicConfigSerializeWrapper
    )
    filter_server_list: list[str] = field(default_factory=list)

    def encode(self, *, compress: bool = False) -> bytes:
        """Encodes the body. Compressed, it is a zlib stream of length-prefixed pieces instead of one JSON
        document."""
        if not compress:
            return to_json(self)
        wrapper = self.topic_config_serialize_wrapper
        pieces = [_with_length(to_json(wrapper.data_version)), _encode_count(len(wrapper.topic_config_table))]
        pieces += [_with_length(config.encode().encode()) for config in wrapper.topic_config_table.values()]
        pieces.append(_with_length(fastjson.dumps(self.filter_server_list)))
        pieces.append(_encode_count(len(wrapper.topic_queue_mapping_info_map)))
        pieces += [_with_length(to_json(info)) for info in wrapper.topic_queue_mapping_info_map.values()]
        return zlib.compress(b"".join(pieces), 9)

    @classmethod
    def decode(
        cls,
        data: bytes,
        *,
        compressed: bool = False,
        version: int = V5_0_0,
        bytes_max: int = 64 * 1024 * 1024,
    ) -> RegisterBrokerBody:
        """Decodes the body. `version` is the broker's: older ones end before the mappings. BodyError:
        malformed, or more than `bytes_max` bytes after decompression."""
        return finish(cls.decode_steps(data, compressed=compressed, version=version, bytes_max=bytes_max))

    @classmethod
    def decode_steps(
        cls,
        data: bytes,
        *,
        compressed: bool = False,
        version: int = V5_0_0,
        bytes_max: int = 64 * 1024 * 1024,
    ) -> Generator[None, None, RegisterBrokerBody]:
        """`decode` in steps."""
        if compressed:
            plain = yield from _inflate(data, bytes_max)
            return (yield from _read_pieces(_PieceReader(plain), version))
        if len(data) > REGISTRATION_STEP_BYTES and b"$ref" not in data:
            try:
                return (yield from _decode_registration(data))
            except (ValueError, RecursionError):
                pass  # lenient JSON, or other types than declared
        return from_json(cls, data)


REGISTRATION_STEP_BYTES: Final = 16_384
"""A registration of so many bytes is decoded in one step."""
TOPICS_AT_A_TIME: Final = 20
"""Topics that are decoded in one step: about 0.1 ms."""


class _RawWrapper(msgspec.Struct, rename="camel"):
    """TopicConfigSerializeWrapper, with topics that are still encoded."""

    topic_config_table: dict[str, msgspec.Raw] = field(default_factory=dict)
    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = field(default_factory=dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = field(default_factory=dict)
    mapping_data_version: DataVersion = DataVersion()


class _RawRegistration(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _RawWrapper = field(default_factory=_RawWrapper)
    filter_server_list: list[str] = field(default_factory=list)


_decode_raw_registration: Final = msgspec.json.Decoder(_RawRegistration).decode
_decode_topic: Final = msgspec.json.Decoder(TopicConfig).decode


def _decode_registration(data: bytes) -> Generator[None, None, RegisterBrokerBody]:
    """ValueError: the body is to be decoded in one step."""
    body = _decode_raw_registration(data)
    yield
    raw = body.topic_config_serialize_wrapper
    topics: dict[str, TopicConfig] = {}
    for number, (name, config) in enumerate(raw.topic_config_table.items(), 1):
        topics[name] = _decode_topic(config)
        if number % TOPICS_AT_A_TIME == 0:
            yield
    wrapper = TopicConfigSerializeWrapper(**(msgspec.structs.asdict(raw) | {"topic_config_table": topics}))
    return RegisterBrokerBody(wrapper, body.filter_server_list)


def _inflate(data: bytes, bytes_max: int) -> Generator[None, None, bytes]:
    inflater, left = zlib.decompressobj(), bytes_max
    pieces: list[bytes] = []
    try:
        while left > 0:
            size = min(left, REGISTRATION_STEP_BYTES)
            pieces.append(inflater.decompress(data, size))
            left -= len(pieces[-1])
            data = inflater.unconsumed_tail
            if not data and len(pieces[-1]) < size:
                break
            yield
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody: {error}") from None
    if data:
        raise BodyError(f"RegisterBrokerBody: more than {bytes_max} bytes after decompression")
    return b"".join(pieces)


def _read_pieces(pieces: _PieceReader, version: int) -> Generator[None, None, RegisterBrokerBody]:
    body = RegisterBrokerBody()
    wrapper = body.topic_config_serialize_wrapper
    wrapper.data_version = from_json(DataVersion, pieces.take())
    for number in range(1, pieces.take_count() + 1):
        config = TopicConfig.decode(pieces.take().decode("utf-8", "replace"))
        wrapper.topic_config_table[config.topic_name] = config
        if number % TOPICS_AT_A_TIME == 0:
            yield
    try:
        filters = fastjson.loads(pieces.take())
    except BodyError:
        raise
    except EpochMQError:
        filters = []
    if isinstance(filters, list):
        body.filter_server_list = [fastjson.as_text(item) for item in filters if item is not None]
    if version >= V5_0_0:
        for _ in range(pieces.take_count()):
            info = from_json(TopicQueueMappingInfo, pieces.take())
            if info.topic is not None:
                wrapper.topic_queue_mapping_info_map[info.topic] = info
            yield
    return body


def _encode_count(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


class _PieceReader:
    """Reads length-prefixed pieces and counts, and checks each against the bytes left."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take_count(self) -> int:
        """Reads a count. BodyError: it is larger than the number of bytes left."""
        start, self._at = self._at, self._at + 4
        value = int.from_bytes(self._data[start : self._at], "big", signed=True)
        if self._at > len(self._data) or not 0 <= value <= len(self._data) - self._at:
            raise BodyError(f"RegisterBrokerBody: count {value} at byte {start} of {len(self._data)}")
        return value

    def take(self) -> bytes:
        size = self.take_count()
        start, self._at = self._at, self._at + size
        return self._data[start : self._at]
