"""Runs a broker whose checkpoints and acknowledgements reach the revive topic at once, without the timer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from epochmq_protocol.codes import RequestCode
from epochmq_protocol.frame import Command, request
from epochmq_protocol.headers_client import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from epochmq_protocol.message import MessageExt, decode_records
from tests.unit.broker.kit import UNIQ_KEY, Bench, running, send_command

REVIVE = "rmq_sys_REVIVE_LOG_TestCluster"
FAST_REVIVES = {"reviveInterval": "20"}


@contextlib.asynccontextmanager
async def popping(directory: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Bench]:
    """Runs a broker whose messages with a delivery time are stored in their own topic at once."""
    async with running(directory, {**FAST_REVIVES, **(settings or {})}) as bench:
        bench.broker.writer.timer_hook = lambda _message: None
        yield bench


def send(bench: Bench, count: int, topic: str = "T", queue_id: int = 0, **properties: str) -> None:
    """Sends messages with the bodies b"0", b"1", …"""
    for number in range(count):
        words = {"UNIQ_KEY": UNIQ_KEY, "WAIT": "true", **properties}
        assert bench.peer().call(send_command(topic, b"%d" % number, words, queue_id=queue_id)).code == 0


def pop_command(topic: str = "T", **fields: Any) -> Command:
    """A POP of every queue that does not wait."""
    values: dict[str, Any] = {
        "consumer_group": "g",
        "topic": topic,
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": int(time.time() * 1000),
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
    }
    return request(RequestCode.POP_MESSAGE, PopMessageRequestHeader(**(values | fields)))


async def pop(
    bench: Bench, topic: str = "T", **fields: Any
) -> tuple[list[MessageExt], PopMessageResponseHeader]:
    """POPs, and returns the messages and the header of the response."""
    peer = bench.peer()
    response = await peer.answer(peer.send(pop_command(topic, **fields)))
    assert response.code in (0, 210), response.remark
    return decode_records(response.body), PopMessageResponseHeader.decode(response.ext)


def extra_info(header: PopMessageResponseHeader, message: MessageExt, start: int, retry: str = "0") -> str:
    """The name of a received message, as a client builds it."""
    return (
        f"{start} {header.pop_time} {header.invisible_time} {header.revive_qid} {retry} broker-a "
        f"{message.queue_id} {message.queue_offset}"
    )


def ack_command(info: str, message: MessageExt, topic: str = "T", group: str = "g") -> Command:
    """The acknowledgement of one message."""
    return request(
        RequestCode.ACK_MESSAGE,
        AckMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=message.queue_id,
            extra_info=info,
            offset=message.queue_offset,
        ),
    )


def change_command(info: str, message: MessageExt, invisible_time: int, topic: str = "T") -> Command:
    """Changes when one message becomes visible again."""
    return request(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        ChangeInvisibleTimeRequestHeader(
            consumer_group="g",
            topic=topic,
            queue_id=message.queue_id,
            extra_info=info,
            offset=message.queue_offset,
            invisible_time=invisible_time,
        ),
    )
