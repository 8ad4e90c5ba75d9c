"""A slave rejects changes of its tables: the next copy of the master's tables would undo them, and a topic
that was deleted here alone would have lost its queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.requests.request_rules import REQUEST_RULES, codes_where
from epochmq_broker.tables.topics import topic_config
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.headers_admin import DeleteTopicRequestHeader
from tests.unit.broker.kit import running, send_command

SLAVE = {"brokerId": "1", "brokerRole": "SLAVE"}
CHANGING = sorted(codes_where(lambda rule: rule.changes_tables))


@pytest.mark.parametrize("code", CHANGING, ids=lambda code: RequestCode(code).name)
async def test_a_slave_rejects_a_change_and_names_the_master_as_its_place(code: int, tmp_path: Path) -> None:
    async with running(tmp_path, SLAVE) as bench:
        answer = bench.peer().call(request(code, ext={"topic": "T", "groupName": "g"}))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark is not None
        assert "send the request to the master" in answer.remark


async def test_a_topic_keeps_its_messages_when_a_slave_is_asked_to_delete_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bench:
        bench.broker.topics.put(topic_config("T", 1))
        assert bench.peer().call(send_command("T", b"kept")).code == ResponseCode.SUCCESS
        bench.broker.live.set_role(1, "SLAVE")
        delete = request(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic="T"))
        assert bench.peer().call(delete).code == ResponseCode.NO_PERMISSION
        assert bench.count("T") == 1
        bench.broker.live.set_role(0, "SYNC_MASTER")
        assert bench.peer().call(delete).code == ResponseCode.SUCCESS
        assert bench.count("T") == 0


def test_every_change_of_topics_and_groups_has_the_rule() -> None:
    named = {
        code
        for code in RequestCode
        if code.name.startswith(("UPDATE_AND_CREATE_", "DELETE_TOPIC_IN_BROKER", "DELETE_SUBSCRIPTIONGROUP"))
        and "ACL" not in code.name
    }
    assert named <= {code for code, rule in REQUEST_RULES.items() if rule.changes_tables}
