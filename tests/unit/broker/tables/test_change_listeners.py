"""Joined changes of a table call its listeners once."""

from __future__ import annotations

import pytest

from epochmq_broker.tables.change_listeners import ChangeListeners


@pytest.fixture
def told() -> list[tuple[str, ...]]:
    return []


@pytest.fixture
def listeners(told: list[tuple[str, ...]]) -> ChangeListeners:
    made = ChangeListeners()
    made.append(told.append)
    return made


def test_a_change_calls_every_listener_at_once(
    listeners: ChangeListeners, told: list[tuple[str, ...]]
) -> None:
    listeners.append(told.append)
    listeners.notify(("a", "b"))
    assert told == [("a", "b"), ("a", "b")]


def test_joined_changes_call_them_at_the_end_with_every_name_once(
    listeners: ChangeListeners, told: list[tuple[str, ...]]
) -> None:
    with listeners.joined():
        listeners.notify(("a",))
        with listeners.joined():
            listeners.notify(("b", "a"))
        assert told == []
    assert told == [("a", "b")]
    with listeners.joined():
        pass
    assert told == [("a", "b")]


def change_and_fail(listeners: ChangeListeners) -> None:
    with listeners.joined():
        listeners.notify(("a",))
        raise RuntimeError("broken")


def test_changes_count_although_their_block_fails(
    listeners: ChangeListeners, told: list[tuple[str, ...]]
) -> None:
    with pytest.raises(RuntimeError, match="broken"):
        change_and_fail(listeners)
    assert told == [("a",)]
    listeners.notify(("b",))
    assert told == [("a",), ("b",)]
