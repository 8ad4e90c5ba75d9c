"""Mistakes in the core, in the rules or in a broker, each as a small change of the source of one function.
The simulator must find all of them. The module is longer than 600 lines because the mistakes are one list."""

from __future__ import annotations

import importlib
import json
import multiprocessing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochmq_controller.replica_groups import leases, rules
from epochmq_controller.replica_groups.leases import LeaseTable
from epochmq_controller.replica_groups.request_queues import RequestQueues
from epochmq_controller.replica_groups.state_machine import ControllerStateMachine
from epochmq_dledger.core.election import Election
from epochmq_dledger.core.entry_pusher import EntryPusher
from epochmq_dledger.core.follower import Follower
from epochmq_dledger.core.heartbeat_rounds import HeartbeatRounds
from epochmq_dledger.core.leader import Leader
from epochmq_dledger.core.leader_state import LeaderState
from epochmq_dledger.core.member_state import MemberState
from epochmq_dledger.core.node import RaftNode
from epochmq_dledger.core.rejoin import Rejoin
from epochmq_dledger.store import damage_detection, file_log, segments
from epochmq_dledger.store.file_log import FileLog
from epochmq_dledger.store.log_files import LogFiles
from epochmq_dledger.store.segments import Segments
from tests.simulation.campaign import KINDS
from tests.simulation.clockwork import ViolationError
from tests.simulation.mutation import Mutation
from tests.simulation.mutations_acting import ACTING
from tests.simulation.mutations_blocks import BLOCKS
from tests.simulation.mutations_groups import GROUPS
from tests.simulation.mutations_promises import PROMISES

FOUND = Path(__file__).with_name("mutations_found.json")


@dataclass(frozen=True)
class Found:
    """The seed that finds a mistake, and the promise that it breaks there."""

    seed: int
    text: str


def find(mutation: Mutation, seeds: Iterable[int]) -> Found | None:
    """The first of the seeds that finds the mistake; None when none does."""
    with mutation.made():
        for seed in seeds:
            try:
                live(mutation.kind, seed, mutation.given)
            except ViolationError as violation:
                return Found(seed, violation.text)
            except AssertionError as error:
                if not raised_by_production(error, mutation):
                    raise
                return Found(seed, f"an assertion of the core: {error}")
    return None


def raised_by_production(error: AssertionError, mutation: Mutation) -> bool:
    """Whether an assertion of production code has failed. Any other error in a simulated world is a mistake
    of the simulator, and does not count. A scenario asserts its promise itself."""
    last = error.__traceback__
    assert last is not None
    while last.tb_next is not None:
        last = last.tb_next
    module = last.tb_frame.f_globals.get("__name__", "")
    return module.startswith("epochmq_") or "." in mutation.kind


def live(kind: str, seed: int, given: Mapping[str, Any]) -> None:
    """Runs a seed of a kind of world. A kind with a dot is one scenario, the same for every seed, with
    the arguments `given`."""
    module, dot, history = kind.partition(".")
    if dot:
        getattr(importlib.import_module(f"tests.simulation.{module}"), history)(**given)
    else:
        KINDS[kind].live(KINDS[kind].plan(seed))


def remembered() -> dict[str, int]:
    """The seed that found each mistake in the last search."""
    found: dict[str, int] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def _search(task: tuple[str, int]) -> tuple[str, Found | None]:
    mistake, seeds_max = task
    mutation = next(one for one in MUTATIONS if one.mistake == mistake)
    known = remembered().get(mistake, 0) if FOUND.exists() else 0
    return mistake, find(mutation, [known, *range(seeds_max)])


def search(seeds_max: int, processes: int, chosen: str = "") -> dict[str, Found | None]:
    """Searches seeds that find each mistake (with `chosen` in its name): first the one that found it last,
    then from 0 on. Saves the seeds."""
    tasks = [(one.mistake, seeds_max) for one in MUTATIONS if chosen in one.mistake]
    results: dict[str, Found | None] = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for mistake, found in pool.imap_unordered(_search, tasks):
            print(f"{mistake}: {found}", flush=True)
            results[mistake] = found
    seeds = remembered() if FOUND.exists() else {}
    seeds |= {mistake: found.seed for mistake, found in results.items() if found is not None}
    known = [one.mistake for one in MUTATIONS if one.mistake in seeds]
    FOUND.write_text(json.dumps({one: seeds[one] for one in known}, indent=1) + "\n", encoding="utf-8")
    return results


RAFT = [
    Mutation(
        "a quorum off by one",
        "raft",
        MemberState,
        "quorum",
        "len(self.voters) // 2 + 1",
        "len(self.voters) // 2",
    ),
    Mutation(
        "a leader counts entries that it has not synced",
        "raft",
        LeaderState,
        "advance_commit",
        "[member.synced_index,",
        "[member.log.end_index,",
    ),
    Mutation(
        "a follower acknowledges entries that it has not synced",
        "raft",
        Follower,
        "_respond_when_durable",
        "if index <= member.synced_index:",
        "if True:",
    ),
    Mutation(
        "a leader commits entries of earlier terms by counting",
        "raft",
        LeaderState,
        "advance_commit",
        " and member.log.term(index) == self.term",
        "",
    ),
    Mutation(
        "a vote is not saved",
        "raft",
        MemberState,
        "save_vote",
        "self.emit(SaveVote(term, voted_for))",
        "pass",
    ),
    Mutation(
        "a voter forgets that it voted in this term",
        "raft",
        Election,
        "_vote_result",
        "request.term == member.term and member.voted_for not in (None, request.leader_id)",
        "False",
    ),
    Mutation(
        "a voter ignores the term of the candidate's last entry",
        "raft",
        Election,
        "_check_candidate",
        "request.ledger_end_term < member.log.end_term",
        "False",
    ),
    Mutation(
        "a voter ignores the length of the candidate's log",
        "raft",
        Election,
        "_check_candidate",
        "request.ledger_end_index < member.log.end_index",
        "False",
    ),
    Mutation(
        "a candidate counts rejections as votes",
        "raft",
        Election,
        "_count_votes",
        "accepted >= member.quorum",
        "len(self.vote_results) >= member.quorum",
    ),
    Mutation(
        "pre-votes count as votes",
        "raft",
        Election,
        "_count_votes",
        "self.candidacy is Candidacy.PRE_VOTE",
        "False",
    ),
    Mutation(
        "responses to an earlier candidacy count",
        "raft",
        Election,
        "on_vote_response",
        "requested is not self.candidacy or request.term != self.candidacy_term",
        "requested is not self.candidacy",
        rare=True,
    ),
    Mutation(
        "a restarted leader continues in its term",
        "raft",
        Election,
        "__init__",
        "self.barred_term = member.term if member.voted_for == member.settings.self_id else None",
        "self.barred_term = None",
    ),
    Mutation(
        "a follower truncates entries that it has acknowledged",
        "raft",
        Follower,
        "_truncate",
        "if drops_committed or (not disjoint and (own_term or kept < self.matched_index)):",
        "if False:",
    ),
    Mutation(
        "a follower advances the committed index beyond compared entries",
        "raft",
        Follower,
        "on_push",
        "self.member.commit(min(request.commit_index, self.matched_index))",
        "self.member.commit(request.commit_index)",
    ),
    Mutation(
        "a truncation does not lower the synced index",
        "raft",
        MemberState,
        "truncate",
        "self.synced_index = min(self.synced_index, end_index)",
        "pass",
    ),
    Mutation(
        "a late sync acknowledges entries written since",
        "raft",
        RaftNode,
        "_on_synced",
        " and member.log.term(index) == term",
        "",
        rare=True,
    ),
    Mutation(
        "a read is served without a confirmation",
        "raft",
        HeartbeatRounds,
        "add_read",
        "self._reads.append((token, self.number + 1))",
        "self._reads.append((token, 0))",
    ),
    Mutation(
        "a read is confirmed by a round that started before it",
        "raft",
        HeartbeatRounds,
        "add_read",
        "self._reads.append((token, self.number + 1))",
        "self._reads.append((token, self.number))",
    ),
    Mutation(
        "a read is served before the leader's first entry is committed",
        "raft",
        Leader,
        "read_index",
        "member.log.term(member.committed_index) != self.term",
        "False",
    ),
    Mutation(
        "a leader acknowledges entries that are only in its log",
        "raft",
        LeaderState,
        "advance_commit",
        "self.pending[0].index <= member.committed_index",
        "self.pending[0].index <= member.log.end_index",
    ),
    Mutation(
        "proposals written together report one index",
        "raft",
        Leader,
        "_append_proposals",
        "PendingProposal(proposal.token, index,",
        "PendingProposal(proposal.token, self.member.log.end_index,",
    ),
    Mutation(
        "a proposal of several entries is committed with its first",
        "raft",
        Leader,
        "_append_proposals",
        "PendingProposal(proposal.token, index,",
        "PendingProposal(proposal.token, index - len(proposal.bodies) + 1,",
    ),
    Mutation(
        "a rejected push counts as stored",
        "raft",
        EntryPusher,
        "_on_append_response",
        "if response.code != DLedgerResponseCode.SUCCESS:",
        "if False:",
    ),
]

STORE = [
    Mutation(
        "a truncation erases only the header of the first entry",
        "store",
        segments,
        "_erase",
        'end = len(data.rstrip(b"\\0"))',
        'end = min(len(data.rstrip(b"\\0")), blank + 48)',
    ),
    Mutation(
        "a truncation is not synced",
        "store",
        segments.Erasure,
        "run",
        "os.fdatasync(self.fd)",
        "pass",
    ),
    Mutation(
        "recovery keeps bytes after the end of the log",
        "store",
        FileLog,
        "open",
        "        self.erase_after_end()\n",
        "        pass\n",
    ),
    Mutation(
        "a torn body counts",
        "store",
        LogFiles,
        "read_entry",
        " if entry.body_crc in (0, crc_of(entry.body)) else None",
        "",
    ),
    Mutation(
        "unsynced entries of a killed process count as durable",
        "store",
        Segments,
        "open",
        "os.fsync(fd)\n"
        "            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
        "    self._dirty.update(self.bases)",
        "pass",
    ),
    Mutation(
        "the name of a new file is not synced",
        "store",
        Segments,
        "_create",
        "self._has_new_names = True",
        "pass",
    ),
    Mutation(
        "the index of whole files is not synced",
        "store",
        FileLog,
        "append_blocks",
        "self._index_due = True",
        "pass",
    ),
]

DISKS = [
    Mutation(
        "a rejected append stays in the files",
        "raft",
        FileLog,
        "append_blocks",
        "self._drop_after_end(marked=False)",
        "pass",
    ),
    Mutation(
        "every error of the disk is a full disk",
        "raft",
        Segments,
        "write",
        "if is_disk_full(error):",
        "if True:",
    ),
    Mutation(
        "only the names of files are synced",
        "raft",
        segments,
        "sync_and_close",
        "os.fdatasync(fd)",
        "pass",
    ),
    Mutation(
        "every unreadable entry is a torn tail",
        "raft",
        file_log,
        "_describe_damage",
        "if proof is not None:",
        "if False:",
    ),
    Mutation(
        "every torn tail is damage",
        "store",
        damage_detection,
        "find_proof_of_loss",
        "if was_written if durable_index is None else durable_index >= index:",
        "if True:",
    ),
    Mutation(
        "a peer with a damaged log votes",
        "raft",
        RaftNode,
        "__init__",
        "if rejoins:",
        "if rejoins and (vote_lost or only_unflushed):",
    ),
    Mutation(
        "a vote counts if all vote although the voter has lost more than unflushed entries",
        "test_scenarios_raft.test_a_peer_that_has_lost_its_vote_gives_none_even_if_all_others_do",
        Election,
        "_check_candidate",
        "if member.rejoin is not None and not member.rejoin.votes_if_all:",
        "if False:",
    ),
    Mutation(
        "a peer with a damaged log stands for election",
        "raft",
        Election,
        "on_timeout",
        "elif member.is_voter and self._may_stand:",
        "elif member.is_voter:",
    ),
    Mutation(
        "an emptied peer votes before it knows whether its group is new",
        "raft",
        RaftNode,
        "__init__",
        "if rejoins:",
        "if rejoins and not is_new_directory:",
    ),
    Mutation(
        "votes of peers that may have lost unflushed entries count like others",
        "raft",
        Election,
        "_count_votes",
        "if accepted >= member.quorum or of_all:",
        "if accepted + len(self._votes_if_all) >= member.quorum:",
    ),
    Mutation(
        "a damaged log counts as caught up before it is",
        "raft",
        Follower,
        "advance_rejoin",
        "min(self.matched_index, member.synced_index) < target",
        "False",
    ),
    Mutation(
        "one peer without entries shows that the group is new",
        "test_scenarios_raft.test_one_peer_without_entries_does_not_show_that_a_group_is_new",
        Rejoin,
        "shows_new_group",
        "if len(terms) < len(voters) - quorum + 1:",
        "if not terms:",
    ),
    Mutation(
        "the log of a leader of an earlier term ends a rejoin",
        "test_scenarios_raft.test_the_log_of_an_earlier_leader_does_not_end_a_rejoin",
        Follower,
        "advance_rejoin",
        "if is_newer:",
        "if False:",
    ),
    Mutation(
        "every read starts a round of its own",
        "test_scenarios_raft.test_one_round_confirms_all_waiting_reads",
        HeartbeatRounds,
        "is_due",
        "return self._reads[0][1] > self.number or now_ms >= self.round_started_ms + self._retry_ms",
        "return self._reads[-1][1] > self.number",
    ),
    Mutation(
        "a log with committed entries is reset",
        "test_scenarios_raft.test_a_truncate_far_behind_the_end_drops_no_committed_log",
        Follower,
        "_truncate",
        "member.committed_index >= 0 if disjoint else kept < member.committed_index",
        "False if disjoint else kept < member.committed_index",
    ),
    Mutation(
        "responses to an earlier leadership count",
        "test_scenarios_raft.test_a_response_to_an_earlier_leadership_confirms_nothing",
        HeartbeatRounds,
        "__init__",
        "self.round_started_ms = now_ms",
        "self.round_started_ms = now_ms\n    member.heartbeat_round = 0",
    ),
]

CONTROLLERS = [
    Mutation(
        "a lease is granted without a leadership check",
        "controllers",
        ControllerStateMachine,
        "_check_leadership",
        "self._state.emit(CheckLeadership(token))",
        "self._complete_check(token, leads=True)",
    ),
    Mutation(
        "a new leader does not wait for the leases of its predecessor",
        "controllers",
        LeaseTable,
        "__init__",
        "self.unknown_leases_until_ms = leads_since_ms + self.lease_bound_ms",
        "self.unknown_leases_until_ms = 0.0",
    ),
    Mutation(
        "an election does not wait for the lease",
        "controllers",
        LeaseTable,
        "lease_end_ms",
        "max(known.ends_ms if known is not None else 0.0, self.unknown_leases_until_ms)",
        "self.unknown_leases_until_ms",
    ),
    Mutation(
        "leases are granted while an election is decided",
        "controllers",
        RequestQueues,
        "_must_wait",
        "leases.electing.add(name)",
        "pass",
    ),
    Mutation(
        "no margin for drifting and leaping clocks",
        "controllers",
        LeaseTable,
        "__init__",
        "duration_ms * (1 + DRIFT) + leap_ms",
        "duration_ms",
    ),
    Mutation(
        "a leap of the controller's clock counts as time",
        "controllers",
        leases.LeapLimitedClock,
        "advance_to",
        "min(now_ms - self._seen_ms, self.clock_step_ms)",
        "now_ms - self._seen_ms",
    ),
    Mutation(
        "a controller decides before it has applied the entries of earlier leaders",
        "controllers",
        ControllerStateMachine,
        "_on_leadership",
        "self._term = term\n",
        "self._term = term\n    if term is not None:\n        self._begin_to_lead(term)\n",
    ),
    Mutation(
        "a group continues while its proposal may still be committed",
        "controllers",
        RequestQueues,
        "_time_out",
        "        return\n    was_first",
        "        self._proposals = {t: n for t, n in self._proposals.items() if n != name}\n    was_first",
    ),
    Mutation(
        "the next request is decided before the events of the last one are applied",
        "controllers",
        RequestQueues,
        "_decide",
        "        state.emit(ProposeEvents(token, tuple(bodies)))\n        return False",
        "        state.emit(ProposeEvents(token, tuple(bodies)))\n"
        "        self._proposals.pop(token)\n"
        "        queue.state = READY_TO_DECIDE\n"
        "        self._respond(queued, decision)\n"
        "        return True",
    ),
    Mutation(
        "a SyncStateSet of an older epoch is taken",
        "controllers",
        rules,
        "alter_sync_state_set",
        "if group.sync_state_set_epoch != set_epoch:",
        "if False:",
    ),
    Mutation(
        "any living replica may be elected",
        "controllers",
        rules,
        "elect_master",
        "group.replicas if unclean else None",
        "group.replicas",
    ),
    Mutation(
        "only closed connections reveal dead masters",
        "test_scenarios_controller.test_an_election_without_a_candidate_is_retried",
        rules,
        "_needs_election",
        "if group.master_id is not None:",
        "return False\n    if group.master_id is not None:",
    ),
    Mutation(
        "a master of an older epoch may still fence",
        "controllers",
        ControllerStateMachine,
        "_on_heartbeat",
        "and state.is_master(name, broker_id, event.fenced_epoch)",
        "and leases.fenced_epochs.setdefault(name, 1 << 30)",
    ),
]

MUTATIONS = RAFT + STORE + DISKS + CONTROLLERS + GROUPS + PROMISES + ACTING + BLOCKS
