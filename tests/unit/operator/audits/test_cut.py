"""Tests up to which offset the cut compares each replica's log."""

from __future__ import annotations

import pytest

from epochmq_operator.audits.cut import GroupCut, cut_of
from epochmq_operator.plans.reported_states import ReportedBrokerState, ReportedMemberGroup
from epochmq_protocol.epoch_entries import EpochEntry, format_epoch_file

PODS = ("b-0", "b-1", "b-2")


def epochs(*entries: tuple[int, int]) -> bytes:
    return format_epoch_file([EpochEntry(*entry) for entry in entries]).encode()


def word(broker_id: int, end: int, role: str = "replica", *, by_all: bool = True) -> ReportedBrokerState:
    return ReportedBrokerState(
        broker_id=broker_id,
        role=role,  # type: ignore[arg-type]
        master_epoch=2,
        sync_state_set=[1, 2] if role == "master" else [],
        confirm_offset=900,
        confirmed_by_all=by_all,
        max_offset=end,
    )


LEADING = epochs((1, 0), (2, 500))


def ends(third: bytes | None, first: int, later: int | None) -> list[int]:
    """The ends of the cut for a master, its replica in the set, and a third one outside it, which ends at
    `first` and then at `later`."""
    states = {"b-0": word(1, 1000, "master"), "b-1": word(2, 950), "b-2": word(3, first)}
    copies = {"b-0": LEADING, "b-1": LEADING} | ({} if third is None else {"b-2": third})
    again = {} if later is None else {"b-2": word(3, later)}
    found = cut_of(PODS, states, copies, again, "b")
    assert isinstance(found, GroupCut)
    return [one.end for one in found.replicas]


@pytest.mark.parametrize(
    ("third", "first", "later", "end"),
    [
        pytest.param(LEADING, 700, 800, 800, id="it follows"),
        pytest.param(LEADING, 1200, 1250, 900, id="it has more than is confirmed"),
        pytest.param(epochs((1, 0)), 620, 620, 500, id="a former master that has not cut its log"),
        pytest.param(LEADING, 620, 510, 510, id="one that cut it between"),
        pytest.param(epochs((1, 0), (3, 450)), 620, 620, 450, id="with an epoch of its own"),
        pytest.param(b"broken", 620, 630, 630, id="its epochs say nothing"),
        pytest.param(None, 620, 630, 630, id="it gives none"),
        pytest.param(LEADING, 620, None, 500, id="it answers no more"),
    ],
)
def test_a_replica_out_of_sync_is_compared_up_to_the_common_history(
    third: bytes | None, first: int, later: int | None, end: int
) -> None:
    assert ends(third, first, later) == [900, 900, end]


def test_without_all_acks_a_replica_is_compared_up_to_its_own_end() -> None:
    """Only the master is sure to have the log up to its confirm offset; a member's epochs may be older."""
    states = {
        "b-0": word(1, 1000, "master", by_all=False),
        "b-1": word(2, 450, by_all=False),
        "b-2": word(3, 450, by_all=False),
    }
    copies = {"b-0": LEADING, "b-1": epochs((1, 0)), "b-2": LEADING}
    again = {pod: word(2, 950, by_all=False) for pod in ("b-1", "b-2")}
    found = cut_of(PODS, states, copies, again, "b")
    assert isinstance(found, GroupCut)
    assert [one.end for one in found.replicas] == [900, 500, 900]


def member(broker_id: int, end: int, role: str) -> ReportedBrokerState:
    """A broker of a group in the mode MasterSlave. A slave knows no confirm offset."""
    return ReportedBrokerState(
        broker_id=broker_id,
        role="master" if role == "master" else "replica",
        master_epoch=0,
        sync_state_set=[0] if role == "master" else [],
        confirm_offset=end if role == "master" else 0,
        max_offset=end,
        controlled=False,
        group=ReportedMemberGroup(role=role),  # type: ignore[arg-type]
    )


def test_slaves_of_a_group_without_epochs_are_compared_up_to_their_own_ends() -> None:
    states = {
        "b-0": member(0, 1000, "master"),
        "b-1": member(1, 1000, "slave"),
        "b-2": member(2, 400, "slave"),
    }
    again = {
        "b-0": member(0, 1300, "master"),
        "b-1": member(1, 1200, "slave"),
        "b-2": member(2, 600, "slave"),
    }
    found = cut_of(PODS, states, {}, again, "b")
    assert isinstance(found, GroupCut)
    assert (found.master, found.epoch, found.confirmed, found.view) == ("b-0", 0, 1000, None)
    assert [(one.end, one.epochs) for one in found.replicas] == [(1000, None), (1000, None), (600, None)]


def test_while_the_master_is_down_the_log_of_the_acting_slave_is_the_measure() -> None:
    states = {"b-1": member(1, 1000, "acting"), "b-2": member(2, 900, "slave")}
    found = cut_of(PODS, states, {}, states, "b")
    assert isinstance(found, GroupCut)
    assert (found.master, found.confirmed) == ("b-1", 1000)
    assert [one.end for one in found.replicas] == [1000, 1000, 900]


def test_an_isolated_master_that_has_not_taken_over_is_the_master() -> None:
    """Its log is what the slaves follow; the slave that still acts may have more."""
    states = {
        "b-0": member(0, 800, "master"),
        "b-1": member(1, 1000, "acting"),
        "b-2": member(2, 900, "slave"),
    }
    found = cut_of(PODS, states, {}, states, "b")
    assert isinstance(found, GroupCut)
    assert (found.master, [one.end for one in found.replicas]) == ("b-0", [800, 800, 800])
