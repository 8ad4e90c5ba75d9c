"""Mistakes in the commit log of a broker. Worlds of brokers with a DLedger log must find all of them."""

from __future__ import annotations

from epochmq_dledger.core import membership
from epochmq_dledger.core.entry_pusher import EntryPusher
from epochmq_dledger.core.follower import Follower
from epochmq_dledger.core.leader import Leader
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.membership_change import MembershipChange
from epochmq_dledger.core.transfer import TransferHandler
from epochmq_dledger.store import entry_block
from epochmq_dledger.store.block_log import BlockLog
from tests.simulation.mutation import Mutation

SCENARIOS = "test_scenarios_dledger"
CHANGES = "test_changing_blocks"

BLOCKS = [
    Mutation(
        "files expire whose entries are not committed",
        "blocks",
        BlockLog,
        "expire_files",
        "last_index = min(committed_index, self.durable_index)",
        "last_index = self.durable_index",
    ),
    Mutation(
        "the first entry of a log that was reset is shown before it is written",
        "blocks",
        MemberState,
        "commit",
        "if self._is_resetting:",
        "if False:",
    ),
    Mutation(
        "bodies are not checked when a log is opened or a block arrives",
        "blocks",
        entry_block,
        "leading_entries",
        "if check is not None and not check(data, body_at, body_size, entry_pos + ENTRY_HEADER_SIZE):",
        "if False:",
    ),
    Mutation(
        "the position in a body is that of the entry",
        "blocks",
        entry_block,
        "_block",
        "pos + at)",
        "pos + at - ENTRY_HEADER_SIZE)",
    ),
    Mutation(
        "an idle follower without the log counts as complete",
        f"{SCENARIOS}.test_an_emptied_follower_gets_the_log_without_new_messages",
        Follower,
        "on_push",
        "self.matched_index >= request.commit_index",
        "self.matched_index >= min(request.commit_index, self.member.log.end_index)",
    ),
    Mutation(
        "a leadership is transferred to a dead peer",
        f"{SCENARIOS}.test_no_transfer_to_a_dead_preferred_leader_stops_the_group",
        TransferHandler,
        "advance",
        "and peer.alive\n        and peer.rejoin_incarnation is None\n        and peer.match_index >= 0\n",
        "",
    ),
    Mutation(
        "a broker takes messages before the first record of its term",
        f"{SCENARIOS}.test_a_leader_whose_disk_was_full_begins_its_term_before_it_takes_messages",
        Leader,
        "_append_proposals",
        "self.begin_term()  # each term begins with its own entry\n"
        "    if self.member.is_erasing or self._needs_first_entry:",
        "if self.member.is_erasing:",
    ),
    Mutation(
        "a follower that missed expired entries rejects the first one left",
        f"{SCENARIOS}.test_a_follower_that_missed_expired_entries_begins_anew",
        Follower,
        "_truncate",
        "member.settings.replaces_expired and not same",
        "False and not same",
    ),
    Mutation(
        "a follower does not look for membership entries in blocks",
        "changing_blocks",
        MemberState,
        "append_block",
        "self._add_memberships_at(block.members)",
        "",
    ),
    Mutation(
        "the voters of expired entries are not saved",
        f"{CHANGES}.test_voters_are_known_after_the_entries_that_name_them_have_expired",
        MemberState,
        "_add_memberships",
        "self._save_memberships()",
        "pass",
    ),
    Mutation(
        "a log that begins anew comes without its voters",
        f"{CHANGES}.test_a_peer_whose_log_begins_anew_knows_the_voters_as_of_its_first_entry",
        EntryPusher,
        "_send_truncate",
        "self.member.body_log is not None",
        "False",
    ),
    Mutation(
        "a log that begins anew has the voters of the leader's last entry",
        "changing_blocks",
        EntryPusher,
        "_send_truncate",
        "membership.addresses_at(state.index)",
        "membership.addresses",
    ),
    Mutation(
        "a saved membership counts although its entry was truncated",
        "changing_blocks",
        membership,
        "recovered_memberships",
        "if one.begins_log or one.index < log.begin_index or log.term(one.index) == one.term",
        "if True",
    ),
    Mutation(
        "a restarted peer does not look for membership entries that it has not saved",
        "changing_blocks",
        membership,
        "recovered_memberships",
        "entry is not None and entry.channel == MEMBERS_CHANNEL and index > first",
        "False",
        rare=True,
    ),
    Mutation(
        "the memberships of a truncated log stay saved",
        f"{CHANGES}.test_a_truncated_membership_entry_does_not_count",
        MemberState,
        "truncate",
        "self._save_memberships(after_erasure=True)",
        "pass",
    ),
    Mutation(
        "the members of a group change next to a peer of DLedger's",
        f"{CHANGES}.test_the_group_of_a_peer_without_the_extension_does_not_change",
        MembershipChange,
        "_java_voters",
        "return found if found or is_known else None",
        "return []",
    ),
]
