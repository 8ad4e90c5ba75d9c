"""Tests `epochmq client list`: who is connected, on which brokers."""

from __future__ import annotations

import json

import pytest

from epochmq.app import run
from epochmq_protocol.bodies import ConsumerConnection, ProducerTableInfo, SubscriptionGroupWrapper, to_json
from epochmq_protocol.bodies_client import Connection, ProducerInfo
from epochmq_protocol.codes import LanguageCode, RequestCode, ResponseCode
from epochmq_protocol.errors import RequestError
from epochmq_protocol.frame import Command, response
from epochmq_protocol.headers_admin import GetConsumerConnectionListRequestHeader
from epochmq_protocol.subscription_groups import SubscriptionGroupConfig
from epochmq_protocol.transport import RemotingConnection
from tests.unit.cli.fake_brokers import FakeBrokers, Handlers

SHOP = ProducerInfo("10.0.0.7@shop", "/10.0.0.7:4711", LanguageCode.JAVA, 479, 1)
READER = Connection("10.0.0.8@reader", "10.0.0.8:4712", LanguageCode.GO, 479)


def broker(producers: dict[str, list[ProducerInfo]], members: dict[str, list[Connection]]) -> Handlers:
    def all_producers(connection: RemotingConnection, command: Command) -> Command:
        return response(command, ResponseCode.SUCCESS, body=to_json(ProducerTableInfo(producers)))

    def settings(connection: RemotingConnection, command: Command) -> Command:
        table = {name: SubscriptionGroupConfig(group_name=name) for name in (*members, "TOOLS_CONSUMER")}
        return response(command, ResponseCode.SUCCESS, body=to_json(SubscriptionGroupWrapper(table)))

    def connected(connection: RemotingConnection, command: Command) -> Command:
        name = GetConsumerConnectionListRequestHeader.decode(command.ext).consumer_group
        if not members.get(name):
            raise RequestError(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online")
        return response(command, ResponseCode.SUCCESS, body=to_json(ConsumerConnection(members[name])))

    return {
        RequestCode.GET_ALL_PRODUCER_INFO: all_producers,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: settings,
        RequestCode.GET_CONSUMER_CONNECTION_LIST: connected,
    }


def test_a_client_of_several_brokers_is_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    ours = broker({"shops": [SHOP], "CLIENT_INNER_PRODUCER": [SHOP]}, {"billing": [READER], "away": []})
    others = broker({"shops": [SHOP]}, {"billing": [READER]})
    with FakeBrokers({("a", 0): ours, ("b", 0): others}) as fake:
        options = [*fake.options, "--timeout", "60"]
        assert run(["client", "list", *options, "-o", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        assert [(row["group"], row["kind"], row["clientId"], row["brokers"]) for row in rows] == [
            ("billing", "consumer", "10.0.0.8@reader", ["a", "b"]),
            ("shops", "producer", "10.0.0.7@shop", ["a", "b"]),
        ]
        assert rows[1] | {"address": "10.0.0.7:4711", "language": "JAVA", "version": "V5_3_3"} == rows[1]

        assert run(["client", "list", *options, "--all", "-o", "name"]) == 0
        assert capsys.readouterr().out.splitlines() == ["10.0.0.7@shop", "10.0.0.8@reader", "10.0.0.7@shop"]
        assert run(["client", "list", *options, "--group", "shops", "-o", "name"]) == 0
        assert capsys.readouterr().out == "10.0.0.7@shop\n"
        assert run(["client", "list", *options, "--group", "away"]) == 0
        assert "no client is connected as a member of group away" in capsys.readouterr().err
