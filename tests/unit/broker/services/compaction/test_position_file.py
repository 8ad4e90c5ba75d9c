"""The position file has RocketMQ's layout and survives a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochmq_broker.services.compaction.position_file import (
    NEVER_COMPACTED,
    CompactionPositions,
    decode_positions,
    encode_positions,
)
from epochmq_protocol.errors import BodyError
from epochmq_store.state_files.state_file_io import StateFileDamagedError

JAVA = b'{\n\t"empty":false,\n\t"queueOffsetMap":{\n\t\t"compacted_0":12,\n\t\t"compacted_1":7\n\t}\n}'
JAVA_EMPTY = b'{\n\t"empty":true,\n\t"queueOffsetMap":{}\n}'


def test_the_layout_is_that_of_rocketmq() -> None:
    positions = {"compacted_0": 12, "compacted_1": 7}
    assert encode_positions(positions) == JAVA
    assert decode_positions(JAVA) == positions
    assert encode_positions({}) == JAVA_EMPTY
    assert decode_positions(JAVA_EMPTY) == {}


@pytest.mark.parametrize(
    "content", [b"[]", b"{}", b'{"queueOffsetMap":{"a_0":"x"}}', b'{"queueOffsetMap":3}']
)
def test_other_content_is_damaged(content: bytes) -> None:
    with pytest.raises(BodyError, match="queueOffsetMap"):
        decode_positions(content)


def test_positions_survive_a_restart(tmp_path: Path) -> None:
    positions = CompactionPositions(tmp_path)
    positions.load()
    assert positions.get("topic", 1) == NEVER_COMPACTED
    positions.set("topic", 1, 41)
    positions.write()
    again = CompactionPositions(tmp_path)
    again.load()
    assert again.get("topic", 1) == 41
    again.remove("topic", 1)
    assert again.get("topic", 1) == NEVER_COMPACTED


def test_a_damaged_file_without_backup_is_named(tmp_path: Path) -> None:
    (tmp_path / "position-checkpoint").write_bytes(b"{")
    with pytest.raises(StateFileDamagedError, match="position-checkpoint"):
        CompactionPositions(tmp_path).load()
