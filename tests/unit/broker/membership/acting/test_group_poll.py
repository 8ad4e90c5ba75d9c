"""The question for a group's members, and how its answers are read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochmq_broker.config.broker_config import BrokerConfig, LiveConfig, from_properties
from epochmq_broker.membership.acting.group_poll import members_of, other_members, poll_request
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import to_json
from epochmq_protocol.bodies_controller import BrokerMemberGroup, GetBrokerMemberGroupResponseBody
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.errors import BodyError, EpochMQError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.route import BrokerData, TopicRouteData

ADDRESSES = {0: "127.0.0.1:10911", 2: "127.0.0.2:10911"}


def config(*, compatible: bool) -> BrokerConfig:
    text = {"brokerName": "b", "brokerClusterName": "c", "brokerIP1": "127.0.0.1"}
    return from_properties(text | {"compatibleWithOldNameSrv": str(compatible).lower()}).config


def answer(code: int = ResponseCode.SUCCESS, body: bytes = b"") -> Command:
    return response(Command(1), code, body=body)


def route(*brokers: BrokerData) -> TopicRouteData:
    return TopicRouteData(broker_datas=list(brokers))


def test_the_question_is_the_route_of_the_group_s_own_topic_or_its_members() -> None:
    old, new = poll_request(config(compatible=True)), poll_request(config(compatible=False))
    assert (old.code, new.code) == (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_MEMBER_GROUP)
    assert old.ext == {"topic": "rmq_sys_SYNC_BROKER_MEMBER_b"}
    assert new.ext == {"clusterName": "c", "brokerName": "b"}


@pytest.mark.parametrize("encode", [fastjson.dumps, fastjson.dumps_standard])
def test_the_members_are_those_of_the_own_name_and_cluster(
    encode: Callable[[TopicRouteData], bytes],
) -> None:
    body = encode(
        route(
            BrokerData("c", "other", {0: "127.0.0.9:10911"}),
            BrokerData("another", "b", {0: "127.0.0.8:10911"}),
            BrokerData("c", "b", dict(ADDRESSES)),
        )
    )
    assert members_of(answer(body=body), config(compatible=True)) == ADDRESSES
    group = BrokerMemberGroup(cluster="c", broker_name="b", broker_addrs=dict(ADDRESSES))
    body = to_json(GetBrokerMemberGroupResponseBody(broker_member_group=group))
    assert members_of(answer(body=body), config(compatible=False)) == ADDRESSES


@pytest.mark.parametrize("compatible", [True, False])
def test_a_nameserver_that_does_not_know_the_group_answers_no_member(compatible: bool) -> None:
    wanted = config(compatible=compatible)
    for found in (
        answer(ResponseCode.TOPIC_NOT_EXIST),
        answer(),
        answer(body=b"{}"),
    ):
        assert members_of(found, wanted) == {}


@pytest.mark.parametrize("compatible", [True, False])
def test_an_error_is_not_taken_for_an_empty_group(compatible: bool) -> None:
    wanted = config(compatible=compatible)
    with pytest.raises(EpochMQError, match="code 1"):
        members_of(answer(ResponseCode.SYSTEM_ERROR), wanted)
    with pytest.raises(BodyError):
        members_of(answer(body=b"[broken"), wanted)


class Nameservers:
    """Answers the question for the group's members; `down` ones do not respond."""

    def __init__(self, members: dict[int, str], down: set[str]) -> None:
        self._members = members
        self._down = down

    async def call(self, address: str, command: Command, timeout_ms: float = 3000) -> Command:
        assert command.code == RequestCode.GET_BROKER_MEMBER_GROUP
        if address in self._down:
            raise EpochMQError(f"{address} does not respond")
        group = BrokerMemberGroup(cluster="c", broker_name="b", broker_addrs=dict(self._members))
        return answer(body=to_json(GetBrokerMemberGroupResponseBody(broker_member_group=group)))


async def test_the_other_members_are_those_that_the_first_living_nameserver_knows() -> None:
    text = {"brokerName": "b", "brokerIP1": "127.0.0.1", "namesrvAddr": "127.0.0.7:1;127.0.0.8:1"}
    live = LiveConfig(from_properties(text).config)
    one_down = Nameservers(ADDRESSES, {"127.0.0.7:1"})
    assert await other_members(one_down, live) == ["127.0.0.2:10911"]
    with pytest.raises(EpochMQError):
        await other_members(Nameservers(ADDRESSES, {"127.0.0.7:1", "127.0.0.8:1"}), live)
    without = LiveConfig(from_properties({"brokerName": "b"}).config)
    assert await other_members(one_down, without) == []
