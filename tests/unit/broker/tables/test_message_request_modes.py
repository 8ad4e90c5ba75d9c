"""The modes stay encoded one by one, and the whole has the form of the plain encoder."""

from __future__ import annotations

from pathlib import Path

from epochmq_broker.tables.message_request_modes import MessageRequestModeTable
from epochmq_protocol import fastjson
from epochmq_protocol.bodies import (
    MessageRequestModeSerializeWrapper,
    SetMessageRequestModeRequestBody,
    from_json,
    to_json,
)


def mode(topic: str, group: str, share: int = 0) -> SetMessageRequestModeRequestBody:
    return SetMessageRequestModeRequestBody(topic=topic, consumer_group=group, pop_share_queue_num=share)


def test_the_file_and_the_copy_for_slaves_are_as_if_encoded_at_once(tmp_path: Path) -> None:
    table, expected = MessageRequestModeTable(tmp_path), MessageRequestModeSerializeWrapper()

    def check() -> None:
        assert table.encode() == to_json(expected)
        content = (tmp_path / "messageRequestMode.json").read_bytes()
        assert content == fastjson.dumps(expected, pretty=True)
        again = MessageRequestModeTable(tmp_path)
        again.load()
        assert again.encode() == to_json(expected)

    for number, name in enumerate(["b", "a", 'ü"', "b", "a"]):
        for group in ("g2", "g1"):
            one = mode(name, group, number)
            table.set_mode(one)
            expected.message_request_mode_map.setdefault(name, {})[group] = one
        check()
    expected = from_json(MessageRequestModeSerializeWrapper, to_json(expected))
    expected.message_request_mode_map["empty"] = {}
    del expected.message_request_mode_map["b"]
    table.replace_all(expected)
    check()
    assert table.find("b", "g1") is None
