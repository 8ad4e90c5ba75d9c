"""Each invariant of a mastership, of epochs and of a doubt is broken once, and the check names it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from epochmq_broker.membership.controlled.write_lease import WriteLease
from epochmq_broker.replication.ha.ack_quorum import ALL_MEMBERS, check_acknowledged
from epochmq_broker.replication.ha.epochs import Epochs
from epochmq_broker.replication.ha.log_doubt import LogDoubt
from epochmq_broker.replication.ha.sync_state import SyncState
from epochmq_protocol.epoch_entries import EpochEntry
from epochmq_protocol.errors import InvariantError


def mastership() -> SyncState:
    """Broker 1 is master with the members 2 and 3. All have 100 bytes, which are confirmed."""
    sync = SyncState(
        self_id=1,
        epoch_start=50,
        members=frozenset({1, 2, 3}),
        set_epoch=4,
        confirm_offset=60,
        end=100,
        not_caught_up_max_ms=1000,
        since_ms=0,
        all_ack=True,
    )
    for one in (2, 3):
        sync.replica_connected(one, async_learner=False)
        sync.block_sent(one, 1)
        assert sync.replica_acknowledged(one, 100, 2)
    assert sync.confirm_offset == 100
    return sync


SYNC: list[tuple[str, Callable[[SyncState], object]]] = [
    ("contains the master", lambda s: setattr(s, "members", frozenset({2, 3}))),
    ("contains the master", lambda s: setattr(s, "members", frozenset())),
    ("contains the master, as does every proposal", lambda s: setattr(s, "proposed", frozenset({2}))),
    ("at most the end of the log", lambda s: setattr(s, "confirm_offset", 101)),
    ("at most the end of the log", lambda s: setattr(s, "epoch_start", 101)),
    ("at most the end of the log", lambda s: setattr(s, "highest_ack", 101)),
    ("has reported at most highest_ack", lambda s: setattr(s, "highest_ack", 99)),
    ("has reported at most highest_ack", lambda s: setattr(s.replicas[2], "ack_offset", -2)),
    ("was sent at most the log", lambda s: setattr(s.replicas[2], "sent_end", 101)),
    ("a connected replica", lambda s: setattr(s.replicas[2], "connections", 0)),
    ("a connected replica", lambda s: setattr(s.replicas[2], "broker_id", 3)),
]


@pytest.mark.parametrize(("rule", "breaks"), SYNC)
def test_a_broken_mastership_is_named(rule: str, breaks: Callable[[SyncState], object]) -> None:
    sync = mastership()
    sync.check_invariants()
    breaks(sync)
    with pytest.raises(InvariantError, match=rule):
        sync.check_invariants()


def test_a_confirm_offset_that_falls_or_is_ahead_of_a_member_is_named() -> None:
    sync = mastership()
    sync.check_advance(60)
    with pytest.raises(InvariantError, match="never falls during a mastership"):
        sync.check_advance(101)
    sync.replicas[3].ack_offset = 90
    with pytest.raises(InvariantError, match="advances to what every member has reported"):
        sync.check_advance(60)
    sync.check_advance(100)  # a member that returns with a shorter log does not lower it


def test_a_message_that_is_acknowledged_with_too_few_copies_is_named() -> None:
    sync = mastership()
    check_acknowledged(100, ALL_MEMBERS, sync)
    check_acknowledged(100, 3, sync)
    rule = "in as many logs as its send waits for"
    with pytest.raises(InvariantError, match=rule):
        check_acknowledged(101, 1, sync)
    with pytest.raises(InvariantError, match=rule):
        check_acknowledged(100, 4, sync)
    with pytest.raises(InvariantError, match=rule):
        check_acknowledged(100, ALL_MEMBERS, sync, least=4)
    sync.replicas[3].ack_offset = 90
    with pytest.raises(InvariantError, match=rule):
        check_acknowledged(100, ALL_MEMBERS, sync)
    check_acknowledged(100, 2, sync)


def test_epochs_that_do_not_rise_or_begin_after_the_log_are_named() -> None:
    epochs = Epochs([EpochEntry(1, 0), EpochEntry(3, 100)])
    epochs.check_invariants(100)
    Epochs().check_invariants(0)
    with pytest.raises(InvariantError, match="starts at most at the end of the log"):
        epochs.check_invariants(99)
    for wrong in (EpochEntry(3, 200), EpochEntry(4, 100)):
        broken = Epochs([EpochEntry(1, 0), EpochEntry(3, 100)])
        broken._entries.append(wrong)
        with pytest.raises(InvariantError, match="rise strictly"):
            broken.check_invariants()
    with pytest.raises(InvariantError, match="rise strictly"):
        Epochs([EpochEntry(1, -5)]).check_invariants()


def test_a_loss_without_a_mastership_that_is_given_up_is_named() -> None:
    LogDoubt(gives_up=True, unflushed_from=10).check_invariants()
    LogDoubt(given_up_epoch=3, verify_all=True).check_invariants()
    LogDoubt(in_doubt=True).check_invariants()
    for broken in (
        LogDoubt(verify_all=True),
        LogDoubt(unflushed_from=0),
        LogDoubt(gives_up=True, unflushed_from=-1),
    ):
        with pytest.raises(InvariantError, match="gives up the mastership of before"):
            broken.check_invariants()


def test_a_lease_is_measured_from_the_moment_at_which_it_was_requested() -> None:
    lease = WriteLease()
    lease.begin(3)
    lease.record_grant(3, 1000, 600)
    assert (lease.sent_ms, lease.until_ms) == (1000, 1600)
    lease.record_grant(3, 900, 600)
    assert (lease.sent_ms, lease.until_ms) == (1000, 1600), "a grant that arrives late shortens nothing"
    lease.record_grant(2, 5000, 600)
    assert (lease.sent_ms, lease.until_ms) == (1000, 1600), "a lease of another epoch does not count"
    lease.check_invariants(1000)
    with pytest.raises(InvariantError, match="a lease begins when its request was sent"):
        lease.check_invariants(999)
    lease.until_ms = 900
    with pytest.raises(InvariantError, match="a lease begins when its request was sent"):
        lease.check_invariants(1000)


def test_a_lease_of_a_broker_that_is_no_master_is_named() -> None:
    lease = WriteLease()
    lease.begin(3)
    lease.record_grant(3, 1000, 600)
    lease.end()
    lease.check_invariants(1000)
    lease.until_ms = 1600
    with pytest.raises(InvariantError, match="only a master holds a lease"):
        lease.check_invariants(1000)
