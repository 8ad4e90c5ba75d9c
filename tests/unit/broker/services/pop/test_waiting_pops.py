"""POPs and notifications that wait for a message, and peeks, which hand out nothing."""

from __future__ import annotations

import asyncio
import time

import pytest

from epochmq_broker.requests.processors import pop as pop_processor
from epochmq_broker.services.pop import pop_long_polling
from epochmq_protocol.codes import RequestCode, ResponseCode
from epochmq_protocol.frame import request
from epochmq_protocol.headers_client import (
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
)
from epochmq_protocol.message import decode_records
from tests.unit.broker.kit import Bench, bodies, pull_command, until
from tests.unit.broker.services.pop.support import (
    pop,
    pop_command,
    send,
)


async def test_a_waiting_pop_gets_the_next_message(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    peer = bench.peer()
    opaque = peer.send(pop_command(poll_time=10_000))
    await until(lambda: bench.broker.processors.pop.polling.held == 1)
    info = request(
        RequestCode.POLLING_INFO, PollingInfoRequestHeader(consumer_group="g", topic="T", queue_id=-1)
    )
    waiting = bench.peer().call(info)
    assert waiting.ext == {"pollingNum": "1"}
    send(bench, 1, queue_id=3)
    response = await peer.answer(opaque)
    assert response.code == ResponseCode.SUCCESS
    assert bodies(decode_records(response.body)) == [b"0"]


async def test_one_message_wakes_one_pop_of_each_group(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    await pop(bench, consumer_group="h")
    peers = [(bench.peer(), group) for group in ("g", "g", "h")]
    opaques = [peer.send(pop_command(consumer_group=group, poll_time=20_000)) for peer, group in peers]
    await until(lambda: bench.broker.processors.pop.polling.held == 3)
    send(bench, 1)
    first = await peers[0][0].answer(opaques[0])
    other = await peers[2][0].answer(opaques[2])
    assert (first.code, other.code) == (0, 0)
    assert bench.broker.processors.pop.polling.held == 1


async def test_a_pop_that_takes_several_steps_gets_a_message_of_a_queue_it_has_passed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "STEP_BUDGET_S", -1)
    monkeypatch.setattr(pop_processor.random, "randrange", lambda _stop: 99)
    send(bench, 1)
    await pop(bench)
    peer = bench.peer()
    opaque = peer.send(pop_command(poll_time=60_000))
    send(bench, 1, queue_id=3)
    response = await peer.answer(opaque, timeout_s=20)
    assert response.code == ResponseCode.SUCCESS
    assert bodies(decode_records(response.body)) == [b"0"]


async def test_latest_arrivals_are_known_of_a_bounded_number_of_topics(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_long_polling, "LATEST_MAX", 3)
    polling = bench.broker.processors.pop.polling
    first = polling.latest_arrival(["T"])
    assert polling.latest_arrival(["T"]) == first
    send(bench, 1)
    second = polling.latest_arrival(["T"])
    assert second != first
    for number in range(10):
        polling.latest_arrival([f"topic {number}"])
        assert len(polling._latest) <= 4
    assert polling.latest_arrival(["T"]) not in (first, second), "as if a message had arrived"


async def test_a_free_queue_wakes_a_pop_of_it_and_one_of_all_queues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = bench.broker.processors.pop
    woken: list[tuple[str, str, int]] = []
    monkeypatch.setattr(processor.polling, "notify", lambda *place: woken.append(place))
    processor.notify("T", "g", 3)
    processor.notify("T", "g", -1)
    await asyncio.sleep(0)
    assert woken == [("T", "g", -1), ("T", "g", 3), ("T", "g", -1)]


async def test_a_waiting_pop_ends_with_its_time(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    peer = bench.peer()
    started = time.monotonic()
    response = await peer.answer(peer.send(pop_command(poll_time=300)))
    assert (response.code, response.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")
    assert time.monotonic() - started > 0.2


async def test_a_waiting_pop_without_a_birth_time_ends_with_its_time(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    peer = bench.peer()
    response = await peer.answer(peer.send(pop_command(poll_time=300, born_time=0)))
    assert (response.code, response.remark) == (ResponseCode.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


async def test_a_waiting_notification_without_a_birth_time_ends_with_its_time(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    header = NotificationRequestHeader(consumer_group="g", topic="T", queue_id=-1, poll_time=300, born_time=0)
    peer = bench.peer()
    response = await peer.answer(peer.send(request(RequestCode.NOTIFICATION, header)))
    assert response.ext == {"hasMsg": "false", "pollingFull": "false"}


async def test_too_many_waiting_pops_are_rejected(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    assert bench.broker.live.update({"maxPopPollingSize": "1"}) == []
    waiting = bench.peer()
    waiting.send(pop_command(poll_time=20_000))
    await until(lambda: bench.broker.processors.pop.polling.held == 1)
    peer = bench.peer()
    rejected = await peer.answer(peer.send(pop_command(poll_time=20_000)))
    assert rejected.code == ResponseCode.POLLING_FULL
    assert (waiting.connection.in_flight, peer.connection.in_flight) == (1, 0)


async def test_waiting_pops_of_a_slave_are_answered(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    peer = bench.peer()
    opaque = peer.send(pop_command(poll_time=20_000))
    bench.broker.live.set_role(1, "SLAVE")
    bench.broker.master_services.stop()
    assert (await peer.answer(opaque)).code == ResponseCode.SYSTEM_BUSY


async def test_a_notification_waits_for_a_message(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)

    def notification() -> object:
        header = NotificationRequestHeader(
            consumer_group="g",
            topic="T",
            queue_id=-1,
            poll_time=10_000,
            born_time=int(time.time() * 1000),
        )
        return request(RequestCode.NOTIFICATION, header)

    peer = bench.peer()
    opaque = peer.send(notification())  # type: ignore[arg-type]  # a Command
    send(bench, 1)
    response = await peer.answer(opaque)
    assert response.ext == {"hasMsg": "true", "pollingFull": "false"}
    assert bench.peer().call(notification()).ext == response.ext  # type: ignore[arg-type]  # a Command


@pytest.mark.parametrize(("order", "has_message"), [(True, "false"), (False, "true")])
async def test_only_an_orderly_notification_waits_for_an_orderly_pop(
    bench: Bench, *, order: bool, has_message: str
) -> None:
    def notify() -> str:
        header = NotificationRequestHeader(
            consumer_group="g", topic="T", queue_id=-1, poll_time=0, born_time=0, order=order
        )
        return (bench.peer().call(request(RequestCode.NOTIFICATION, header)).ext or {})["hasMsg"]

    send(bench, 2)
    assert notify() == "true"
    await pop(bench, max_msg_nums=1, order=True)
    assert notify() == has_message


async def test_a_peek_hands_out_nothing(bench: Bench) -> None:
    send(bench, 2)
    header = PeekMessageRequestHeader(topic="T", queue_id=-1, max_msg_nums=8, consumer_group="g")
    for _ in range(2):
        response = bench.peer().call(request(RequestCode.PEEK_MESSAGE, header))
        assert bodies(decode_records(response.body)) == [b"0", b"1"]
        assert response.ext is not None
        assert response.ext["restNum"] == "2"
    await pop(bench)
    assert bench.peer().call(request(RequestCode.PEEK_MESSAGE, header)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_peek_of_few_messages_says_how_many_are_left_in_all_queues(bench: Bench) -> None:
    for queue_id in range(4):
        send(bench, 2, queue_id=queue_id)
    header = PeekMessageRequestHeader(topic="T", queue_id=-1, max_msg_nums=2, consumer_group="g")
    response = bench.peer().call(request(RequestCode.PEEK_MESSAGE, header))
    assert bodies(decode_records(response.body)) == [b"0", b"1"]
    assert response.ext is not None
    assert response.ext["restNum"] == "8"


async def test_a_waiting_pop_outlasts_a_switchover_that_fails(bench: Bench) -> None:
    send(bench, 1)
    await pop(bench)
    peer, standing = bench.peer(), bench.broker.live.standing
    opaque = peer.send(pop_command(poll_time=20_000))
    await until(lambda: bench.broker.processors.pop.polling.held == 1)
    standing.handover_changed(True)
    send(bench, 1)
    await until(lambda: bench.broker.processors.pop.polling.held == 0)
    peer.collect()
    assert opaque not in peer.answers
    standing.handover_changed(False)
    assert len(decode_records((await peer.answer(opaque)).body)) == 1


def broken(*_: object, **__: object) -> None:
    """Replaces a method that a request needs."""
    raise ArithmeticError("this request always fails")


async def test_a_waiting_pop_that_fails_is_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, 1)
    await pop(bench)
    peer = bench.peer()
    opaque = peer.send(pop_command(poll_time=60_000))
    processor = bench.broker.processors.pop
    await until(lambda: processor.polling.held == 1)
    monkeypatch.setattr(processor.popper, "pop", broken)
    processor.polling.release()
    assert (await peer.answer(opaque)).code == ResponseCode.SYSTEM_ERROR


async def test_a_waiting_pull_that_fails_is_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    send(bench, 1)
    peer = bench.peer()
    opaque = peer.send(pull_command("T", offset=1, sys_flag=2 | 4, suspend_timeout_millis=60_000))
    hold = bench.broker.processors.pull.hold
    await until(lambda: hold.held == 1)
    monkeypatch.setattr(bench.broker.store, "get", broken)
    monkeypatch.setattr(bench.broker.processors.pull, "_get_resident", broken)
    hold.release()
    assert (await peer.answer(opaque)).code == ResponseCode.SYSTEM_ERROR
