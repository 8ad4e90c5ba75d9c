"""The fast path of pulls: it responds as the ordinary path does, also after what it has kept has changed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from epochmq_broker.requests.processors.pull_fast import RESPONDED, is_sent_in_place
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.fastpath import decode_pull_header
from epochmq_protocol.frame import CODE_SLICE, FLAG_ONEWAY, SUCCESS_CODE, Command, encode
from tests.unit.broker.kit import UNIQ_KEY, Bench, pull_command, running, send_command

TOPIC = "BenchmarkTest"
COMMIT, SUBSCRIPTION = 1, 4


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path, {"enablePropertyFilter": "true"}) as made:
        peer = made.peer()
        for number in range(40):
            tag = "ab"[number % 2]
            command = send_command(TOPIC, bytes(900), {"UNIQ_KEY": UNIQ_KEY, "TAGS": tag})
            assert peer.call(command).code == 0
        yield made


def served(bench: Bench, command: Command) -> bool:
    """Whether the fast path itself responds to a pull."""
    frame = encode(command)
    header = decode_pull_header(frame[8 : 8 + int.from_bytes(frame[4:8], "big")])
    response = bench.broker.processors.pull._fast_pull(bench.peer().connection, header)
    return response is RESPONDED or (response is not None and response[CODE_SLICE] == SUCCESS_CODE)


def expect_same(bench: Bench, command: Command) -> Command:
    """The response to a pull, the same on both paths."""
    fast, other = bench.peer().call(command), bench.peer(ordinary=True).call(command)
    assert (fast.code, fast.remark, fast.ext, fast.body) == (other.code, other.remark, other.ext, other.body)
    return fast


@pytest.mark.parametrize("count", [1, 2, 32])
@pytest.mark.parametrize("subscription", ["*", "a", "b || c"])
async def test_the_fast_path_responds_to_plain_pulls(bench: Bench, subscription: str, count: int) -> None:
    for offset in (0, 5, 39):
        command = pull_command(TOPIC, offset, max_msg_nums=count, subscription=subscription)
        response = expect_same(bench, command)
        assert served(bench, command) == (response.code == ResponseCode.SUCCESS)


async def test_the_fast_path_stores_offsets_and_counts(bench: Bench) -> None:
    assert served(bench, pull_command(TOPIC, 3, sys_flag=SUBSCRIPTION | COMMIT, commit_offset=2))
    offsets = bench.broker.offsets
    assert offsets.query("group", TOPIC, 0) == 2
    assert offsets.query_pull("group", TOPIC, 0) == 35
    traffic = bench.broker.tables.stats.get_traffic("group", TOPIC, 0)
    assert (traffic.messages, traffic.requests) == (32, 1)


@pytest.mark.parametrize(
    "command",
    [
        pull_command(TOPIC, code=RequestCode.LITE_PULL_MESSAGE),
        pull_command(TOPIC, 40),
        pull_command(TOPIC, queue_id=9),
        pull_command(TOPIC, subscription="a = 1", expression_type="SQL92"),
        pull_command(TOPIC, subscription="||"),
        pull_command(TOPIC, sys_flag=0),
        pull_command("Unknown"),
    ],
)
async def test_the_ordinary_path_serves_all_other_pulls(bench: Bench, command: Command) -> None:
    assert served(bench, pull_command(TOPIC))
    assert not served(bench, command)


async def test_the_ordinary_path_serves_one_way_pulls_and_those_for_another_broker(bench: Bench) -> None:
    oneway, other = pull_command(TOPIC), pull_command(TOPIC)
    oneway.flag |= FLAG_ONEWAY
    assert not served(bench, oneway)
    other.ext = {**(other.ext or {}), "bname": "broker-b"}
    assert not served(bench, other)


def _disable_group(bench: Bench) -> None:
    group = bench.broker.groups.find("group")
    assert group is not None
    bench.broker.groups.update([msgspec.structs.replace(group, consume_enable=False)])


def _make_topic_write_only(bench: Bench) -> None:
    topic = bench.broker.topics.get(TOPIC)
    assert topic is not None
    bench.broker.topics.update([msgspec.structs.replace(topic, perm=2)])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda bench: bench.broker.live.update({"brokerPermission": "2"}), ResponseCode.NO_PERMISSION),
        (lambda bench: bench.broker.live.set_role(1, "SLAVE"), ResponseCode.SYSTEM_BUSY),
        (_disable_group, ResponseCode.NO_PERMISSION),
        (_make_topic_write_only, ResponseCode.NO_PERMISSION),
        (
            lambda bench: bench.broker.offsets.set_pending_reset("group", TOPIC, 0, 1),
            ResponseCode.PULL_OFFSET_MOVED,
        ),
        (lambda bench: bench.broker.store.delete_topic(TOPIC), ResponseCode.PULL_NOT_FOUND),
    ],
)
async def test_a_change_applies_to_the_next_pull(
    bench: Bench, change: Callable[[Bench], object], code: int
) -> None:
    command = pull_command(TOPIC)
    assert served(bench, command)
    change(bench)
    assert not served(bench, command)
    assert bench.peer().call(command).code == code


def test_small_pieces_are_joined() -> None:
    assert is_sent_in_place(40_000, 1)
    assert is_sent_in_place(40_960, 10)
    assert not is_sent_in_place(40_959, 10)
    assert not is_sent_in_place(8_000, 1)
