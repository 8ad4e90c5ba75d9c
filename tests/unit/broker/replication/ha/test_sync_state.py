"""Tests who is in sync and what is confirmed, whatever replicas and controllers report or fail to report."""

from __future__ import annotations

import pytest

from epochmq_broker.replication.ha.ack_quorum import ALL_MEMBERS, replicated_until
from epochmq_broker.replication.ha.sync_state import SyncState


def state(members: set[int], *, end: int = 1000, confirm: int = 0, all_ack: bool = True) -> SyncState:
    return SyncState(
        self_id=1,
        epoch_start=100,
        members=frozenset(members),
        set_epoch=5,
        confirm_offset=confirm,
        end=end,
        not_caught_up_max_ms=15_000,
        since_ms=0,
        all_ack=all_ack,
    )


def test_confirmed_is_what_every_member_has() -> None:
    sync = state({1, 2, 3})
    for one in (2, 3):
        sync.replica_connected(one, async_learner=False)
    assert sync.replica_acknowledged(2, 900, 10)
    assert sync.confirm_offset == 0
    assert sync.replica_acknowledged(3, 700, 10)
    assert sync.confirm_offset == 700
    assert sync.replica_acknowledged(3, 1000, 20)
    assert sync.confirm_offset == 900


def test_a_member_without_a_connection_holds_the_confirmed_offset() -> None:
    sync = state({1, 2, 3}, confirm=400)
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 1000, 10)
    assert sync.confirm_offset == 400


def test_a_first_acknowledgement_of_zero_does_not_count() -> None:
    sync = state({1, 2}, confirm=400)
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 0, 10)
    assert sync.confirm_offset == 400


@pytest.mark.parametrize("offset", [-1, 1001, 1 << 62])
def test_an_impossible_acknowledgement_is_rejected(offset: int) -> None:
    sync = state({1, 2}, confirm=400)
    sync.replica_connected(2, async_learner=False)
    assert not sync.replica_acknowledged(2, offset, 10)
    assert sync.confirm_offset == 400
    assert not sync.replicated_to_all(500)


def test_a_lost_response_may_have_been_an_acceptance() -> None:
    """An expansion was proposed and the response was lost: from then on the new member's acknowledgement is
    required."""
    sync = state({1})
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 1000, 10)
    proposal = sync.change_to_propose(10)
    assert proposal is not None
    assert proposal.members == {1, 2}
    sync.proposal_sent(proposal.members)
    sync.log_appended(2000)
    assert sync.confirm_offset == 1000
    assert not sync.replicated_to_all(2000)
    assert sync.change_to_propose(20) is None
    sync.replica_acknowledged(2, 2000, 30)
    assert sync.confirm_offset == 2000


def test_a_removal_of_unknown_fate_still_waits_for_the_member() -> None:
    sync = state({1, 2, 3})
    for one in (2, 3):
        sync.replica_connected(one, async_learner=False)
        sync.replica_acknowledged(one, 1000, 10)
    sync.replica_disconnected(3)
    proposal = sync.change_to_propose(11)
    assert proposal is not None
    assert proposal.members == {1, 2}
    sync.proposal_sent(proposal.members)
    sync.log_appended(1500)
    sync.replica_acknowledged(2, 1500, 20)
    assert sync.confirm_offset == 1000
    assert sync.adopt(frozenset({1, 2}), 6)
    assert sync.confirm_offset == 1500


def test_a_replica_joins_once_it_has_the_confirmed_offset_and_this_epoch() -> None:
    sync = state({1}, end=1000, confirm=50)
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 60, 10)
    assert sync.change_to_propose(10) is None
    sync.replica_acknowledged(2, 1000, 10)
    assert sync.change_to_propose(10) is not None


def test_a_refused_replica_blocks_neither_a_removal_nor_another_replica_and_is_proposed_again() -> None:
    sync = state({1, 3}, end=1000)
    for one in (2, 3, 4):
        sync.replica_connected(one, async_learner=False)
        sync.replica_acknowledged(one, 1000, 10)
    sync.replica_disconnected(3)

    def propose(now_ms: int) -> frozenset[int]:
        proposal = sync.change_to_propose(now_ms)
        assert proposal is not None
        sync.proposal_sent(proposal.members)
        return proposal.members

    assert propose(20) == {1, 2, 4}
    sync.proposal_rejected(2, "replicas {2} don't alive", 20)
    assert sync.refused[2].reason == "replicas {2} don't alive"
    assert propose(21) == {1, 4}
    assert sync.adopt(frozenset({1, 4}), 6)
    assert sync.change_to_propose(219) is None
    pauses = []
    for now_ms in range(220, 40_000, 10):
        if sync.change_to_propose(now_ms) is not None:
            assert propose(now_ms) == {1, 2, 4}
            sync.proposal_rejected(2, "replicas {2} don't alive", now_ms)
            pauses.append(sync.refused[2].pause_ms)
        for one in (2, 4):
            sync.replica_acknowledged(one, 1000, now_ms)
    assert pauses == [400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]
    assert sync.adopt(frozenset({1, 2, 4}), 7)
    assert not sync.refused


def test_a_rejection_that_names_a_member_or_nobody_refuses_nobody() -> None:
    sync = state({1, 2})
    for named in (None, 2):
        sync.proposal_sent(frozenset({1}))
        sync.proposal_rejected(named, "replicas {2} don't alive", 10)
        assert not sync.refused


def test_learners_never_join_nor_count() -> None:
    sync = state({1})
    sync.replica_connected(2, async_learner=True)
    sync.replica_acknowledged(2, 1000, 10)
    assert sync.change_to_propose(10) is None
    assert sync.replicated_to(1000) == 1


def test_a_slow_replica_is_removed_after_its_time_and_a_caught_up_one_stays() -> None:
    sync = state({1, 2, 3}, end=1000)
    for one in (2, 3):
        sync.replica_connected(one, async_learner=False)
        sync.replica_acknowledged(one, 1000, 100)
    sync.log_appended(5000)
    sync.block_sent(2, 14_000)
    sync.replica_acknowledged(2, 5000, 14_500)
    assert sync.change_to_propose(15_000) is None
    late = sync.change_to_propose(15_200)
    assert late is not None
    assert late.members == {1, 2}


def test_a_replica_that_was_removed_as_too_slow_joins_once_it_has_caught_up() -> None:
    """A set that is too small confirms nothing more. A replica that gets no bytes any more, but can report,
    then still has what is confirmed: it must not join only to be removed again at once."""
    sync = state({1, 2}, end=1000)
    sync.min_copies = 2
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 1000, 100)
    sync.log_appended(5000)
    late = sync.change_to_propose(15_200)
    assert late is not None
    assert late.members == {1}
    sync.proposal_sent(late.members)
    assert sync.adopt(late.members, 6)
    sync.replica_acknowledged(2, 1000, 15_300)
    assert sync.change_to_propose(15_300) is None
    sync.replica_acknowledged(2, 5000, 15_400)
    back = sync.change_to_propose(15_400)
    assert back is not None
    assert back.members == {1, 2}


def left_alone(*, durable: int, all_ack: bool = True) -> SyncState:
    """The state after the only other member has closed its connection, with everything up to 1000
    confirmed."""
    sync = state({1, 2}, all_ack=all_ack)
    sync.durable = durable
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 1000, 10)
    sync.replica_disconnected(2)
    return sync


def test_a_master_becomes_the_only_member_after_it_has_flushed_what_is_confirmed() -> None:
    sync = left_alone(durable=999)
    assert sync.confirm_offset == 1000
    assert sync.change_to_propose(20) is None
    sync.durable = 1000
    proposal = sync.change_to_propose(30)
    assert proposal is not None
    assert proposal.members == {1}


def test_a_master_with_fewer_copies_is_left_alone_without_a_flush() -> None:
    """Without allAckInSyncStateSet the members that leave need not have what is confirmed."""
    assert left_alone(durable=0, all_ack=False).change_to_propose(20) is not None


def test_while_a_master_proposes_to_be_alone_only_flushed_bytes_are_confirmed() -> None:
    """The member connects again before the controllers respond: they may remove it all the same."""
    sync = left_alone(durable=1000)
    sync.proposal_sent(frozenset({1}))
    sync.replica_connected(2, async_learner=False)
    sync.log_appended(2000)
    sync.replica_acknowledged(2, 2000, 40)
    assert (sync.confirm_offset, sync.offset_reached_by_all()) == (1000, 1000)
    sync.adopt(frozenset({1}), 6)
    assert (sync.confirm_offset, sync.offset_reached_by_all()) == (2000, 2000)


def test_a_reply_older_than_what_is_known_changes_nothing() -> None:
    sync = state({1, 2})
    assert not sync.adopt(frozenset({1}), 5)
    assert sync.members == {1, 2}


def test_the_set_of_a_new_master_epoch_counts_although_controllers_count_anew() -> None:
    """They have lost everything, and were rebuilt from the brokers."""
    sync = state({1, 2})
    sync.proposal_sent(frozenset({1}))
    assert sync.adopt(frozenset({1}), 1, elected=True)
    assert (sync.members, sync.set_epoch, sync.proposed) == ({1}, 1, None)


def test_the_confirmed_offset_never_goes_back() -> None:
    sync = state({1}, confirm=0)
    sync.log_appended(3000)
    assert sync.confirm_offset == 3000
    sync.replica_connected(2, async_learner=False)
    sync.replica_acknowledged(2, 2500, 1)
    sync.adopt(frozenset({1, 2}), 6)
    assert sync.confirm_offset == 3000


def test_without_all_ack_everything_of_our_own_is_confirmed() -> None:
    sync = state({1, 2}, all_ack=False)
    sync.log_appended(3000)
    assert sync.confirm_offset == 3000


def test_a_second_connection_of_a_replica_survives_the_end_of_the_first() -> None:
    sync = state({1, 2})
    sync.replica_connected(2, async_learner=False)
    sync.replica_connected(2, async_learner=False)
    sync.replica_disconnected(2)
    assert sync.replica_acknowledged(2, 1000, 10)
    sync.replica_disconnected(2)
    assert not sync.replica_acknowledged(2, 1000, 10)


def test_a_set_confirms_nothing_until_the_controllers_have_accepted_enough_members() -> None:
    """Until then the controllers may elect a replica that left the set, and lacks what is stored now."""
    sync = SyncState(
        self_id=1,
        epoch_start=0,
        members=frozenset({1}),
        set_epoch=1,
        confirm_offset=0,
        end=0,
        not_caught_up_max_ms=1000,
        since_ms=0,
        all_ack=True,
        min_copies=2,
    )
    sync.log_appended(1000)
    assert not sync.has_enough_members
    assert (sync.confirm_offset, sync.confirmed_records) == (0, 0)
    assert replicated_until(ALL_MEMBERS, sync, 2) == -1
    sync.replica_connected(2, async_learner=False)
    assert sync.replica_acknowledged(2, 1000, 10)
    proposal = sync.change_to_propose(11)
    assert proposal is not None
    assert (proposal.members, proposal.least) == ({1, 2}, 2)
    sync.proposal_sent(proposal.members)
    assert (sync.confirm_offset, replicated_until(ALL_MEMBERS, sync, 2)) == (0, -1), "only proposed"
    assert sync.adopt(frozenset({1, 2}), 2, 2)
    assert (sync.confirm_offset, sync.confirmed_records) == (1000, 1000)
    assert replicated_until(ALL_MEMBERS, sync, 2) == 1000
    sync.check_invariants()


def test_a_lowered_minimum_counts_once_the_controllers_have_recorded_it() -> None:
    """Until then they may elect a replica that left the set when it was too small."""
    sync = state({1}, end=1000)
    sync.min_copies = sync.recorded_least = 2
    sync.log_appended(2000)
    assert (sync.change_to_propose(10), sync.confirm_offset) == (None, 0)
    sync.min_copies = 1
    sync.log_appended(2100)
    assert (sync.has_enough_members, sync.confirm_offset) == (False, 0)
    proposal = sync.change_to_propose(20)
    assert proposal is not None
    assert (proposal.members, proposal.least) == ({1}, 1)
    sync.proposal_sent(proposal.members)
    assert sync.adopt(frozenset({1}), 6, 1)
    assert (sync.has_enough_members, sync.confirm_offset) == (True, 2100)
    sync.min_copies = 2
    sync.log_appended(3000)
    assert (sync.confirm_offset, sync.change_to_propose(30)) == (2100, None), "a raised one counts at once"
