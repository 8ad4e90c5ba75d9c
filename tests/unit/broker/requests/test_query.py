"""Messages and offsets are found by key, log offset and time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from epochmq_protocol import message as records
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.headers_client import (
    BoundaryType,
    GetEarliestMsgStoretimeRequestHeader,
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    QueryMessageRequestHeader,
    SearchOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from tests.unit.broker.kit import UNIQ_KEY, Bench, bodies, command, running, send_command

EVER = 2**62


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as made:
        for number in range(3):
            properties = {"UNIQ_KEY": f"{UNIQ_KEY[:-1]}{number}", "KEYS": f"k{number} shared"}
            made.peer().call(send_command("T", str(number).encode(), properties, queue_id=1))
        yield made


async def test_messages_are_found_by_key_and_by_unique_key(bench: Bench) -> None:
    for key, found in (("k1", [b"1"]), ("shared", [b"0", b"1", b"2"]), (f"{UNIQ_KEY[:-1]}2", [b"2"])):
        header = QueryMessageRequestHeader(
            topic="T", key=key, max_num=10, begin_timestamp=0, end_timestamp=EVER
        )
        answer = bench.peer().call(command(RequestCode.QUERY_MESSAGE, header))
        assert answer.code == ResponseCode.SUCCESS
        assert bodies(records.decode_records(answer.body)) == found
        last = bench.record("T", 1, 2)
        assert (answer.ext or {})["indexLastUpdatePhyoffset"] == str(last.physical_offset)


async def test_a_query_for_a_unique_key_may_return_more_than_it_asks_for(bench: Bench) -> None:
    header = QueryMessageRequestHeader(
        topic="T", key="shared", max_num=1, begin_timestamp=0, end_timestamp=EVER
    )
    plain = bench.peer().call(command(RequestCode.QUERY_MESSAGE, header))
    unique = bench.peer().call(command(RequestCode.QUERY_MESSAGE, header, _UNIQUE_KEY_QUERY="true"))
    assert len(records.decode_records(plain.body)) == 1
    assert len(records.decode_records(unique.body)) == 3


async def test_an_unknown_key_is_not_found(bench: Bench) -> None:
    header = QueryMessageRequestHeader(
        topic="T", key="none", max_num=10, begin_timestamp=0, end_timestamp=EVER
    )
    assert bench.peer().call(command(RequestCode.QUERY_MESSAGE, header)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_message_is_found_by_its_log_offset(bench: Bench) -> None:
    stored = bench.record("T", 1, 1)
    header = ViewMessageRequestHeader(offset=stored.physical_offset)
    answer = bench.peer().call(command(RequestCode.VIEW_MESSAGE_BY_ID, header))
    assert records.decode_record(answer.body) == stored
    nowhere = bench.peer().call(
        command(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=1 << 40))
    )
    assert nowhere.code == ResponseCode.SYSTEM_ERROR
    assert nowhere.remark == f"can not find message by the offset, {1 << 40}"


async def test_an_unconfirmed_message_is_not_found_by_its_log_offset(bench: Bench) -> None:
    """Unconfirmed, it may be truncated; its log offset may then hold another message."""
    stored = bench.record("T", 1, 1)
    end = stored.physical_offset + stored.store_size
    view = ViewMessageRequestHeader(offset=stored.physical_offset)
    for limit, code in ((end - 1, ResponseCode.SYSTEM_ERROR), (end, ResponseCode.SUCCESS)):
        bench.broker.store.visibility.set_confirm_offset(limit)
        assert bench.peer().call(command(RequestCode.VIEW_MESSAGE_BY_ID, view)).code == code


async def test_the_ends_of_a_queue_and_its_first_store_time(bench: Bench) -> None:
    peer = bench.peer()
    highest = peer.call(command(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="T", queue_id=1)))
    lowest = peer.call(command(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic="T", queue_id=1)))
    assert (highest.ext, lowest.ext) == ({"offset": "3"}, {"offset": "0"})
    earliest = peer.call(
        command(
            RequestCode.GET_EARLIEST_MSG_STORETIME,
            GetEarliestMsgStoretimeRequestHeader(topic="T", queue_id=1),
        )
    )
    assert earliest.ext == {"timestamp": str(bench.record("T", 1, 0).store_timestamp)}


async def test_a_request_for_a_queue_does_not_create_it(bench: Bench) -> None:
    peer = bench.peer()
    answer = peer.call(
        command(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic="None", queue_id=0))
    )
    assert answer.ext == {"offset": "0"}
    assert bench.broker.store.lookup.existing_queue("None", 0) is None


@pytest.mark.parametrize(("ahead_ms", "offset"), [(-1000, "0"), (1000, "3")])
async def test_offsets_are_found_by_time(bench: Bench, ahead_ms: int, offset: str) -> None:
    time_ms = bench.record("T", 1, 2).store_timestamp + ahead_ms
    header = SearchOffsetRequestHeader(
        topic="T", queue_id=1, timestamp=time_ms, boundary_type=BoundaryType.LOWER
    )
    answer = bench.peer().call(command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header))
    assert answer.ext == {"offset": offset}
