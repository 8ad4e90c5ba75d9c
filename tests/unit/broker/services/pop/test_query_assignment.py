"""The broker assigns queues to consumers, by pull or by POP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from epochmq_broker.config.clock import now_ms
from epochmq_broker.requests.processors.message_request_mode import MessageRequestModeProcessor
from epochmq_broker.tables.clients import Client
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    ConsumerData,
    ConsumeType,
    MessageModel,
    MessageQueue,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
    to_json,
)
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import ConnectError
from epochmq_protocol.frame import Command, request, response
from epochmq_protocol.route import QueueData, TopicRouteData
from tests.unit.broker.kit import Bench, running
from tests.unit.broker.services.pop.support import send


class Nameserver:
    """Answers requests for routes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.route: TopicRouteData | None = TopicRouteData(
            queue_datas=[
                QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2, perm=6),
                QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6),
                QueueData(broker_name="c", read_queue_nums=2, write_queue_nums=2, perm=2),
            ]
        )
        self.reachable = True

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        """The route."""
        self.asked.append(address)
        if not self.reachable or address == "127.0.0.1:1":
            raise ConnectError("refused")
        if self.route is None:
            return response(command, ResponseCode.TOPIC_NOT_EXIST)
        return response(command, ResponseCode.SUCCESS, body=to_json(self.route))


@pytest.fixture
async def bench(tmp_path: Path, nameserver: Nameserver) -> AsyncIterator[Bench]:
    settings = {"namesrvAddr": "127.0.0.1:1;127.0.0.1:2", "loadBalancePollNameServerInterval": "1"}
    async with running(tmp_path, settings) as made:
        processor: Any = next(
            cell.cell_contents
            for cell in made.broker.pipeline.in_process[RequestCode.QUERY_ASSIGNMENT].__closure__  # type: ignore[attr-defined]
            if isinstance(getattr(cell.cell_contents, "__self__", None), MessageRequestModeProcessor)
        ).__self__
        processor._routes._client = nameserver
        send(made, 1)
        peer = made.peer()
        for name in ("x", "y"):
            data = ConsumerData(
                group_name="g",
                consume_type=ConsumeType.CONSUME_PASSIVELY,
                message_model=MessageModel.CLUSTERING,
            )
            channel = peer.connection if name == "x" else made.peer().connection
            made.broker.tables.clients.register_consumer(Client(channel, name, 0, 0, now_ms()), data)
        yield made


@pytest.fixture
def nameserver() -> Nameserver:
    return Nameserver()


async def query(bench: Bench, client_id: str = "x", **fields: Any) -> Any:
    """The assignment of a client: mode and queues, or the body without one."""
    body = QueryAssignmentRequestBody(
        topic=fields.get("topic", "T"),
        consumer_group=fields.get("group", "g"),
        client_id=client_id,
        strategy_name=fields.get("strategy", "AVG"),
        message_model=fields.get("model", MessageModel.CLUSTERING),
    )
    peer = bench.peer()
    opaque = peer.send(request(RequestCode.QUERY_ASSIGNMENT, body=to_json(body)))
    answer = await peer.answer(opaque)
    assert answer.code == ResponseCode.SUCCESS
    rows = fastjson.loads(answer.body).get("messageQueueAssignments")
    if rows is None:
        return None
    found = [
        MessageQueue(*(row["messageQueue"][name] for name in ("topic", "brokerName", "queueId")))
        for row in rows
    ]
    return {row["mode"] for row in rows}, found


async def test_queues_of_all_brokers_are_shared_among_the_consumers(bench: Bench) -> None:
    assert await query(bench, "x") == ({"PULL"}, [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)])
    assert await query(bench, "y", strategy="AVG_BY_CIRCLE") == (
        {"PULL"},
        [MessageQueue("T", "a", 1), MessageQueue("T", "b", 1)],
    )
    _, every = await query(bench, model=MessageModel.BROADCASTING)
    assert len(every) == 4


async def test_pop_consumers_get_one_entry_for_each_broker(bench: Bench) -> None:
    mode = SetMessageRequestModeRequestBody(topic="T", consumer_group="g", mode=MessageRequestMode.POP)
    assert bench.peer().call(request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=to_json(mode))).code == 0
    assert await query(bench) == ({"POP"}, [MessageQueue("T", "a", -1), MessageQueue("T", "b", -1)])


async def test_the_default_mode_is_pull_for_retry_topics(bench: Bench) -> None:
    assert bench.broker.live.update({"defaultMessageRequestMode": "POP"}) == []
    assert (await query(bench))[0] == {"POP"}
    assert (await query(bench, topic="%RETRY%g"))[0] == {"PULL"}


async def test_a_client_keeps_what_it_has_if_its_queues_are_unknown(
    bench: Bench, nameserver: Nameserver
) -> None:
    assert await query(bench, strategy="unknown") is None
    assert await query(bench, group="nobody") is None
    assert (await query(bench, "stranger"))[1] == []
    nameserver.reachable = False
    assert (await query(bench)) is not None  # the last answer is used on
    nameserver.reachable, nameserver.route = True, None
    while await query(bench) is not None:  # until the last answer is older than the interval of 1 ms
        pass
    assert await query(bench, topic="other") is None


@pytest.mark.parametrize(
    ("code", "complete"),
    [
        (
            RequestCode.QUERY_ASSIGNMENT,
            {"topic": "T", "consumerGroup": "g", "clientId": "x", "messageModel": "CLUSTERING"},
        ),
        (RequestCode.SET_MESSAGE_REQUEST_MODE, {"topic": "T", "consumerGroup": "g", "mode": "POP"}),
    ],
    ids=["query", "set"],
)
async def test_a_request_without_a_required_field_is_rejected_by_its_name(
    bench: Bench, code: RequestCode, complete: dict[str, str]
) -> None:
    for missing in {"topic", "consumerGroup", "messageModel"} & complete.keys():
        body = {name: value for name, value in complete.items() if name != missing}
        peer = bench.peer()
        answer = await peer.answer(peer.send(request(code, body=fastjson.dumps(body))))
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            f"{missing}: missing, expected a text",
        )
    assert "" not in bench.broker.groups
