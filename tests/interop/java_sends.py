"""Checks what a RocketMQ client was told against what is stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

Stored = dict[str, Any]


def place(message: Stored) -> tuple[int, int]:
    """The queue and offset that a stored message or a send result names."""
    return message["queue_id"], message["queue_offset"]


def assert_dense(stored: list[Stored]) -> None:
    """Asserts that the offsets of every queue begin at 0 and have no gap."""
    queues: dict[int, list[int]] = defaultdict(list)
    for message in stored:
        queues[message["queue_id"]].append(message["queue_offset"])
    for offsets in queues.values():
        assert sorted(offsets) == list(range(len(offsets)))


def assert_told_and_stored_agree(results: list[Stored], stored: list[Stored]) -> None:
    """Asserts that each result names the place of exactly that body with that id."""
    assert len(stored) == len(results)
    by_place = {place(m): m for m in stored}
    for result in results:
        message = by_place[place(result)]
        assert (message["body"], message["msg_id"]) == (result["body"], result["msg_id"])
        assert result["status"] == "SEND_OK"


def assert_stored_by_answers(bodies: Iterable[str], answers: dict[str, int]) -> None:
    """Asserts that a message is stored for each of these committed bodies, and at most one for each answer
    that committed it. The broker asks again in every round (a second) in which it knows of no end, so a
    producer that the machine stops for longer gets, and answers, the same question again."""
    copies = Counter(bodies)
    assert copies.keys() == answers.keys()
    assert {body: count for body, count in copies.items() if count > answers[body]} == {}
