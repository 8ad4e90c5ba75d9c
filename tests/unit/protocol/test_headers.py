"""Headers are decoded and encoded by their declaration, and errors name the invalid field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import LocalProtocolError, RequestError
from epochmq_protocol.headers_admin import CreateTopicRequestHeader
from epochmq_protocol.headers_base import Header, _bool, _float, _int, _long, _plan, _text, request_of
from epochmq_protocol.headers_client import (
    BoundaryType,
    GetMaxOffsetRequestHeader,
    PullMessageRequestHeader,
    SearchOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    UnregisterClientRequestHeader,
)
from tests.support.header_classes import HEADERS, request_header

WILD = (
    st.text(max_size=20) | st.integers().map(str) | st.sampled_from(["true", "TRUE", "", " ", "null", "1e3"])
)


def _texts(parse: Any) -> st.SearchStrategy[Any]:
    """Valid values of a field, as attributes."""
    return {
        _text: st.text(st.characters(codec="utf-8"), max_size=10),
        _int: st.integers(-(2**31), 2**31 - 1),
        _long: st.integers(-(2**63), 2**63 - 1),
        _bool: st.booleans(),
        _float: st.floats(allow_nan=False, allow_infinity=False),
    }.get(parse, st.sampled_from(BoundaryType))


@pytest.mark.long
@pytest.mark.parametrize("header", HEADERS.values())
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_headers_round_trip(header: type[Header], data: st.DataObject) -> None:
    values: dict[str, Any] = {}
    for attribute, _, parse, is_required, _ in _plan(header):
        if is_required or data.draw(st.booleans()):
            values[attribute] = data.draw(_texts(parse))
    made = header(**values)
    assert header.decode(made.encode()) == made


@pytest.mark.long
@pytest.mark.parametrize("header", HEADERS.values())
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_fields_give_a_header_or_a_request_error(header: type[Header], data: st.DataObject) -> None:
    names = [entry[1] for entry in _plan(header)] or ["x"]
    ext = data.draw(st.none() | st.dictionaries(st.sampled_from([*names, "unknown"]), WILD))
    try:
        read = header.decode(ext)
    except RequestError as error:
        rejection = error
    else:
        assert header.decode(read.encode()) == read
        return
    assert rejection.code == ResponseCode.SYSTEM_ERROR
    assert header.__name__ in rejection.remark


@pytest.mark.parametrize(
    ("ext", "remark"),
    [
        (None, "SearchOffsetRequestHeader.topic: missing, expected a text"),
        ({"topic": "T"}, "SearchOffsetRequestHeader.queueId: missing, expected a 32-bit integer"),
        (
            {"topic": "T", "queueId": "x", "timestamp": "1"},
            "SearchOffsetRequestHeader.queueId='x': expected a 32-bit integer",
        ),
        (
            {"topic": "T", "queueId": "2147483648", "timestamp": "1"},
            "SearchOffsetRequestHeader.queueId='2147483648': expected a 32-bit integer",
        ),
        (
            {"topic": "T", "queueId": "1", "timestamp": "9223372036854775808"},
            "SearchOffsetRequestHeader.timestamp='9223372036854775808': expected a 64-bit integer",
        ),
        (
            {"topic": "T", "queueId": "", "timestamp": "1"},
            "SearchOffsetRequestHeader.queueId='': expected a 32-bit integer",
        ),
    ],
)
def test_an_error_names_the_invalid_field_its_value_and_the_expected_one(
    ext: dict[str, str] | None, remark: str
) -> None:
    with pytest.raises(RequestError) as caught:
        SearchOffsetRequestHeader.decode(ext)
    assert caught.value.remark == remark
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("TRUE", True),
        ("True", True),
        ("false", False),
        ("1", False),
        ("yes", False),
        (" true", False),
    ],
)
def test_only_true_in_any_case_is_true(text: str, value: bool) -> None:
    assert (
        GetMaxOffsetRequestHeader.decode({"topic": "T", "queueId": "0", "committed": text}).committed is value
    )


def test_the_boundary_of_a_time_search_is_upper_only_when_it_says_so() -> None:
    fields = {"topic": "T", "queueId": "0", "timestamp": "1"}
    assert (
        SearchOffsetRequestHeader.decode({**fields, "boundaryType": "upper"}).boundary_type
        is BoundaryType.UPPER
    )
    assert (
        SearchOffsetRequestHeader.decode({**fields, "boundaryType": "?"}).boundary_type is BoundaryType.LOWER
    )
    assert SearchOffsetRequestHeader.decode(fields).boundary_type is None


def test_an_empty_optional_number_counts_as_missing() -> None:
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "1",
        "sysFlag": "0",
    }
    fields |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "maxMsgBytes": ""}
    assert PullMessageRequestHeader.decode(fields).max_msg_bytes is None


def test_both_send_headers_have_the_same_attributes() -> None:
    v1 = {entry[0] for entry in _plan(SendMessageRequestHeader)}
    v2 = {entry[0] for entry in _plan(SendMessageRequestHeaderV2)}
    assert v2 - v1 == {"broker_name"}
    assert v1 <= v2


def test_javas_unusual_spellings_are_kept() -> None:
    header = UnregisterClientRequestHeader(client_id="c")
    assert header.encode() == {"clientID": "c"}
    assert "proxyFrowardClientId" in {entry[1] for entry in _plan(PullMessageRequestHeader)}


def test_a_required_field_with_a_default_may_be_missing() -> None:
    fields = {"topic": "T", "defaultTopic": "D", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    assert CreateTopicRequestHeader.decode({**fields, "topicFilterType": "SINGLE_TAG"}).order is False


def test_encoding_a_number_out_of_range_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError, match=r"GetMaxOffsetRequestHeader\.queueId=2147483648"):
        GetMaxOffsetRequestHeader(topic="T", queue_id=2**31).encode()


def test_a_request_has_one_header() -> None:
    assert request_header(RequestCode.GET_MAX_OFFSET) is GetMaxOffsetRequestHeader
    with pytest.raises(TypeError, match="GET_MAX_OFFSET already has GetMaxOffsetRequestHeader"):
        request_of(RequestCode.GET_MAX_OFFSET)(PullMessageRequestHeader)
