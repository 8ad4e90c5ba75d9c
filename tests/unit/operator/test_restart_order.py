"""Tests the order in which the changed brokers of a group in the modes MasterSlave and DLedger restart."""

from __future__ import annotations

import itertools

from epochmq_operator.local.restart_rules import BrokerInTurn, next_restarts

SIZE = 3


def brokers(outdated: set[int], unready: set[int] | None = None) -> list[BrokerInTurn]:
    return [
        BrokerInTurn(f"b{number}", number, number in outdated, number not in (unready or set()))
        for number in range(SIZE)
    ]


def test_slaves_restart_one_after_another_and_the_master_last() -> None:
    outdated, order = {0, 1, 2}, []
    while names := next_restarts(brokers(outdated)):
        order += names
        assert next_restarts(brokers(outdated - {int(names[0][1:])}, {int(names[0][1:])})) == []
        outdated -= {int(name[1:]) for name in names}
    assert order == ["b2", "b1", "b0"]


def test_no_ready_broker_restarts_while_another_is_not_ready() -> None:
    """Whatever the others are: the group never has two brokers less than it could have."""
    for count in range(SIZE + 1):
        for chosen in itertools.combinations(range(SIZE), count):
            for unready in range(1, 1 << SIZE):
                away = {number for number in range(SIZE) if unready >> number & 1}
                names = next_restarts(brokers(set(chosen), away))
                assert {int(name[1:]) for name in names} == away & set(chosen)


def test_unchanged_brokers_do_not_restart() -> None:
    assert next_restarts(brokers(set())) == []
    assert next_restarts(brokers({1})) == ["b1"]


def test_the_leader_of_a_dledger_group_restarts_last() -> None:
    outdated, order = {0, 1, 2}, []
    while outdated:
        found = [
            BrokerInTurn(f"b{number}", number, number in outdated, ready=True, leads=number == 1)
            for number in range(SIZE)
        ]
        (name,) = next_restarts(found)
        order.append(name)
        outdated.remove(int(name[1:]))
    assert order == ["b2", "b0", "b1"]
