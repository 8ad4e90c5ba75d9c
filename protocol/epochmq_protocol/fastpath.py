"""Decodes send and pull requests and encodes their responses on the fast path.

Typed decoders read only the needed fields from the bytes of a header. Responses come from templates, in which
only the changing numbers are filled in. A header that a decoder cannot read (ROCKETMQ form, lenient JSON, a
number out of range, a response) raises `FastPathMiss`. The ordinary path then handles the frame and names
what is wrong.

The decoders do not check fields that a broker does not need to store a message (producer group, default
topic).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import orjson
from msgspec import field

from epochmq_protocol.codes import CURRENT_VERSION, RequestCode
from epochmq_protocol.errors import FastPathMiss
from epochmq_protocol.frame import FLAG_RESPONSE
from epochmq_protocol.integers import Int, Long

# ------------------------------------------------------------------------------------------------------- send


class SendFields(msgspec.Struct, gc=False):
    """The fields that a broker needs to store a message. `batch` is the text of the field, `true` for a
    batch. `broker_name`: the broker that the sender addresses, empty if it names none."""

    topic: str = field(name="b")
    queue_id: Int = field(name="e")
    sys_flag: Int = field(name="f")
    born_timestamp: Long = field(name="g")
    flag: Int = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Int = field(name="j", default=0)
    batch: str = field(name="m", default="false")
    broker_name: str = field(name="n", default="")


class FastSendRequest(msgspec.Struct, gc=False):
    """A send request. `fields` describe the message."""

    code: int
    fields: SendFields = field(name="extFields")
    flag: int = 0
    opaque: Int = 0
    version: int = 0


class _SendFieldsV1(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    batch: str = "false"
    bname: str = ""
    born_timestamp: Long
    flag: Int
    properties: str = ""
    queue_id: Int
    reconsume_times: Int = 0
    sys_flag: Int
    topic: str


class _SendRequestV1(msgspec.Struct, gc=False):
    code: int
    fields: _SendFieldsV1 = field(name="extFields")
    flag: int = 0
    opaque: Int = 0
    version: int = 0


_read_send: Final = msgspec.json.Decoder(FastSendRequest, strict=False).decode
_read_send_v1: Final = msgspec.json.Decoder(_SendRequestV1, strict=False).decode
_SEND_V2: Final = frozenset(
    map(int, [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
)
_SEND_V1: Final = frozenset(map(int, [RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE]))


def decode_send(header: bytes) -> FastSendRequest:
    """The send request in a JSON header with one-letter names (codes 310, 320, 325). FastPathMiss for
    anything else."""
    try:
        request = _read_send(header)
    except (ValueError, RecursionError):
        raise FastPathMiss("not a plain send header") from None
    if request.code not in _SEND_V2 or request.flag & FLAG_RESPONSE:
        raise FastPathMiss("not a send request")
    return request


def decode_send_v1(header: bytes) -> FastSendRequest:
    """The same for a header with long names (codes 10, 324)."""
    try:
        request = _read_send_v1(header)
    except (ValueError, RecursionError):
        raise FastPathMiss("not a plain send header") from None
    if request.code not in _SEND_V1 or request.flag & FLAG_RESPONSE:
        raise FastPathMiss("not a send request")
    long = request.fields
    fields = SendFields(
        long.topic,
        long.queue_id,
        long.sys_flag,
        long.born_timestamp,
        long.flag,
        long.properties,
        long.reconsume_times,
        long.batch,
        long.bname,
    )
    return FastSendRequest(request.code, fields, request.flag, request.opaque, request.version)


class SendResponseEncoder(Protocol):
    """Encodes the whole frame of a response. `transaction_id` and `recall_handle` may be empty."""

    def __call__(
        self,
        opaque: int,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        transaction_id: bytes,
        recall_handle: bytes = b"",
        /,
    ) -> bytes: ...


# The two length words of a frame without a body, by header length.
_PREFIXES: Final = [(4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") for size in range(1024)]


def _with_prefix(header: bytes) -> bytes:
    size = len(header)
    if size < 1024:
        return _PREFIXES[size] + header
    return (4 + size).to_bytes(4, "big") + size.to_bytes(4, "big") + header


def json_text(text: str | bytes) -> bytes:
    """The text as it is written between the quotes of a JSON string."""
    if isinstance(text, bytes):
        if text.isalnum():
            return text
        text = text.decode("utf-8", "replace")
    return orjson.dumps(text.encode("utf-8", "replace").decode())[1:-1]


def send_response_template(
    store_host: bytes, region_id: str = "DefaultRegion", *, is_traced: bool = True, code: int = 0
) -> SendResponseEncoder:
    """Encodes the responses to send requests of a broker whose records carry `store_host`: `code`,
    SendMessageResponseHeader, MSG_REGION and TRACE_ON. The transaction id is the message's UNIQ_KEY; an
    empty one is left out. A recall handle is for timer messages, which always have a transaction id."""
    head = b'{"code":%d,"extFields":{"MSG_REGION":"%b","TRACE_ON":"%b","msgId":"%b' % (
        code,
        json_text(region_id),
        b"true" if is_traced else b"false",
        store_host.hex().upper().encode(),
    )
    head = head.replace(b"%", b"%%") + b'%016X","queueId":"%d","queueOffset":"%d"'
    tail = b'},"flag":1,"language":"PYTHON","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}'
    tail %= CURRENT_VERSION
    named = head + b',"transactionId":"%b"' + tail
    bare = head + tail
    recallable = head + b',"transactionId":"%b","recallHandle":"%b"' + tail
    prefixes = _PREFIXES

    def respond(
        opaque: int,
        queue_id: int,
        queue_offset: int,
        physical_offset: int,
        transaction_id: bytes,
        recall_handle: bytes = b"",
    ) -> bytes:
        if recall_handle:
            text = json_text(transaction_id)
            return _with_prefix(
                recallable % (physical_offset, queue_id, queue_offset, text, recall_handle, opaque)
            )
        if transaction_id.isalnum():
            header = named % (physical_offset, queue_id, queue_offset, transaction_id, opaque)
            size = len(header)
            return prefixes[size] + header if size < 1024 else _with_prefix(header)
        if transaction_id:
            text = json_text(transaction_id)
            return _with_prefix(named % (physical_offset, queue_id, queue_offset, text, opaque))
        return _with_prefix(bare % (physical_offset, queue_id, queue_offset, opaque))

    return respond


_template: Final = lru_cache(maxsize=64)(send_response_template)


def send_response(
    opaque: int,
    *,
    store_host: bytes,
    physical_offset: int,
    queue_id: int,
    queue_offset: int,
    transaction_id: bytes = b"",
    region_id: str = "DefaultRegion",
    is_traced: bool = True,
) -> bytes:
    """One response, from `send_response_template`."""
    respond = _template(store_host, region_id, is_traced=is_traced)
    return respond(opaque, queue_id, queue_offset, physical_offset, transaction_id)


# ------------------------------------------------------------------------------------------------------- pull


class FastPullRequest(msgspec.Struct, gc=False):
    """A pull request: PullMessageRequestHeader and the fields of the command. `broker_name`: the broker
    that the client addresses, empty if it names none. `no_suspend`: the flow control of cold data held it
    already."""

    code: int
    opaque: int
    flag: int
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int = 0
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_froward_client_id: str | None = None
    version: int = 0
    broker_name: str = ""
    no_suspend: bool = False


class PullFields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """PullMessageRequestHeader as it is in a JSON header: -1 stands for a number that is not there, `bname`
    is the broker that the client addresses."""

    bname: str = ""
    commit_offset: Long
    consumer_group: str
    expression_type: str | None = None
    max_msg_bytes: Int = -1
    max_msg_nums: Int
    proxy_froward_client_id: str | None = None
    queue_id: Int
    queue_offset: Long
    request_source: Int = -1
    sub_version: Long
    subscription: str | None = None
    suspend_timeout_millis: Long
    sys_flag: Int
    topic: str


class PullHeader(msgspec.Struct, gc=False):
    """The header of a pull request."""

    code: int
    fields: PullFields = field(name="extFields")
    flag: int = 0
    opaque: Int = 0
    version: int = 0


_read_pull: Final = msgspec.json.Decoder(PullHeader, strict=False).decode
_PULL: Final = frozenset(map(int, [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE]))


def decode_pull_header(header: bytes) -> PullHeader:
    """The JSON header of a pull (codes 11, 361). FastPathMiss for anything else."""
    try:
        request = _read_pull(header)
    except (ValueError, RecursionError):
        raise FastPathMiss("not a plain pull header") from None
    if request.code not in _PULL or request.flag & FLAG_RESPONSE:
        raise FastPathMiss("not a pull request")
    return request


def pull_request(request: PullHeader) -> FastPullRequest:
    """The request with this header."""
    fields = request.fields
    bytes_max, source = fields.max_msg_bytes, fields.request_source
    return FastPullRequest(
        request.code,
        request.opaque,
        request.flag,
        fields.consumer_group,
        fields.topic,
        fields.queue_id,
        fields.queue_offset,
        fields.max_msg_nums,
        fields.sys_flag,
        fields.commit_offset,
        fields.suspend_timeout_millis,
        fields.sub_version,
        fields.subscription,
        fields.expression_type,
        None if bytes_max == -1 else bytes_max,
        None if source == -1 else source,
        fields.proxy_froward_client_id,
        request.version,
        fields.bname,
    )


def decode_pull(header: bytes) -> FastPullRequest:
    """The pull request in a JSON header. FastPathMiss as in `decode_pull_header`."""
    return pull_request(decode_pull_header(header))


_PULL_HEADER: Final = (
    b'{"code":%d,"extFields":{"groupSysFlag":"%d","maxOffset":"%d","minOffset":"%d","nextBeginOffset":"%d",'
    b'"suggestWhichBrokerId":"%d","topicSysFlag":"%d"},"flag":1,"language":"PYTHON","opaque":%d,%b'
    b'"serializeTypeCurrentRPC":"JSON","version":' + str(CURRENT_VERSION).encode() + b"}"
)


@lru_cache(maxsize=256)
def _remark_field(remark: str | None) -> bytes:
    return b"" if remark is None else b'"remark":"%b",' % json_text(remark)


def pull_response_head(
    opaque: int,
    code: int,
    remark: str | None = None,
    *,
    suggest_which_broker_id: int,
    next_begin_offset: int,
    min_offset: int,
    max_offset: int,
    topic_sys_flag: int = 0,
    group_sys_flag: int = 0,
    body_size: int = 0,
) -> bytes:
    """The response to a pull up to its body, which has `body_size` bytes."""
    header = _PULL_HEADER % (
        code,
        group_sys_flag,
        max_offset,
        min_offset,
        next_begin_offset,
        suggest_which_broker_id,
        topic_sys_flag,
        opaque,
        _remark_field(remark),
    )
    size = len(header)
    return b"%b%b%b" % ((4 + size + body_size).to_bytes(4, "big"), size.to_bytes(4, "big"), header)


PullResponseHeadEncoder = Callable[[int, int, int, int, int], bytes]
"""(opaque, next, min and max offset, size of the body) -> the response up to its body."""


def pull_response_template(
    code: int,
    remark: str | None,
    *,
    suggest_which_broker_id: int,
    topic_sys_flag: int,
    group_sys_flag: int,
) -> PullResponseHeadEncoder:
    """`pull_response_head` for responses that differ in these numbers only."""
    template = (
        b'{"code":%d,"extFields":{"groupSysFlag":"%d","maxOffset":"%%d","minOffset":"%%d",'
        b'"nextBeginOffset":"%%d","suggestWhichBrokerId":"%d","topicSysFlag":"%d"},"flag":1,'
        b'"language":"PYTHON","opaque":%%d,%b"serializeTypeCurrentRPC":"JSON","version":%d}'
    ) % (
        code,
        group_sys_flag,
        suggest_which_broker_id,
        topic_sys_flag,
        _remark_field(remark).replace(b"%", b"%%"),
        CURRENT_VERSION,
    )

    def respond(opaque: int, next_offset: int, min_offset: int, max_offset: int, body_size: int) -> bytes:
        header = template % (max_offset, min_offset, next_offset, opaque)
        size = len(header)
        return ((4 + size + body_size) << 32 | size).to_bytes(8, "big") + header

    return respond


# ------------------------------------------------------------------------------------------------- properties


def find_property(properties: str, name: str) -> str | None:
    """The value of a property as `message.parse_properties` returns it, without parsing the other
    properties."""
    return _finder(name)(properties)


def find_property_bytes(properties: bytes, name: bytes) -> bytes | None:
    """The same for properties as stored bytes."""
    wanted = name + b"\x01"
    size = len(wanted)
    end = len(properties)
    while True:
        at = properties.rfind(wanted, 0, end)
        if at < 0:
            return None
        if at == 0 or properties[at - 1] == 2:
            stop = properties.find(b"\x02", at + size)
            value = properties[at + size : stop] if stop >= 0 else properties[at + size :]
            if value:
                return value
        end = at + size - 1


def property_finder(name: str) -> Callable[[str], str | None]:
    """`find_property` for one name."""
    key, size = name + "\x01", len(name) + 1

    def find(properties: str) -> str | None:
        at = properties.rfind(key)
        while at >= 0:
            if at == 0 or properties[at - 1] == "\x02":
                start = at + size
                stop = properties.find("\x02", start)
                if stop > start:
                    return properties[start:stop]
                if stop < 0 and start < len(properties):
                    return properties[start:]
            at = properties.rfind(key, 0, at + size - 1)
        return None

    return find


_finder: Final = lru_cache(maxsize=256)(property_finder)
