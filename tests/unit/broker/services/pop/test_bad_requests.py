"""Whatever a client sends in a POP request, it gets a response, and the broker continues to serve."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import request
from tests.unit.broker.services.pop.support import pop, popping, send

CODES = (
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
    RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
)
FIELDS = (
    ("consumerGroup", "g"), ("topic", "T"), ("queueId", "0"), ("maxMsgNums", "1"), ("invisibleTime", "1000"),
    ("pollTime", "0"), ("bornTime", "0"), ("initMode", "0"), ("exp", "*"), ("expType", "TAG"),
    ("order", "false"), ("attemptId", "a"), ("offset", "0"), ("extraInfo", "0 1 2 3 0 broker-a 0 0"),
)  # fmt: skip
WRONG = st.one_of(
    st.none(),
    st.sampled_from(("", "-1", "2147483647", "-9223372036854775808", "9223372036854775807", "1e3", "true")),
    st.sampled_from(("0 1 2 999 0 b 0 0", "%RETRY%g_T", "rmq_sys_wheel_timer", "a||b", "SQL92", "x" * 300)),
    st.text(max_size=10),
)
BODIES = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    st.sampled_from(
        (
            b"{}",
            b"[]",
            b'{"acks":[{}]}',
            b'{"acks":[{"b":"","c":"g","q":-1,"r":"7","rq":1,"so":0,"t":"T"}]}',
            b'{"acks":[{"b":"/w==","c":"g","it":-1,"pt":9223372036854775807,"q":0,"r":"0","rq":3,"so":-1,"t":"T"}]}',
            b'{"clientId":"c","consumerGroup":"g","messageModel":"CLUSTERING","strategyName":"AVG","topic":"T"}',
            b'{"consumerGroup":"g","mode":"POP","popShareQueueNum":-5,"topic":"T"}',
        )
    ),
)


@pytest.mark.long
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(CODES), st.dictionaries(st.integers(0, 13), WRONG, max_size=3), BODIES),
        min_size=20,
        max_size=20,
    )
)
def test_every_request_gets_a_response(
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
    requests: list[tuple[int, dict[int, str | None], bytes]],
) -> None:
    async def run(directory: Path) -> None:
        async with popping(directory) as bench:
            send(bench, 3)
            peer = bench.peer()
            for code, wrong, body in requests:
                ext = {}
                for number, (name, value) in enumerate(FIELDS):
                    changed = wrong.get(number, value)
                    if changed is not None:
                        ext[name] = changed
                opaque = peer.send(request(code, None, body, ext))
                response = await peer.answer(opaque)
                assert 0 <= response.code < 1000
            assert bench.broker.store.state.flags == 0
            messages, _ = await pop(bench, consumer_group="another")
            assert len(messages) >= 3

    with caplog.at_level(logging.ERROR):
        asyncio.run(run(tmp_path_factory.mktemp("bad")))
    assert not [record for record in caplog.records if record.exc_info], "an exception was not expected"
