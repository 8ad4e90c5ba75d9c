"""Lists mistakes in the promises by which a master writes without its controllers; the simulator must find
each."""

from __future__ import annotations

from epochmq_broker.membership.controlled.state_machine import ReplicaStateMachine
from epochmq_broker.membership.controlled.write_promises import MasterPromises, ReplicaPromises
from tests.simulation.mutation import Mutation

SCENARIO = "test_scenarios_promises."

PROMISES = [
    Mutation(
        "a new master does not wait for the end of its promise",
        "groups",
        ReplicaStateMachine,
        "_waits_for_promises",
        "self.promises.left_ms(self.now_ms) > 0",
        "False",
    ),
    Mutation(
        "a process forgets what its predecessor has promised",
        SCENARIO + "test_a_replica_that_promised_and_restarted_waits",
        ReplicaPromises,
        "__init__",
        "{None: HELD_MS}",
        "{}",
    ),
    Mutation(
        "a proposed member need not promise",
        SCENARIO + "test_a_proposed_member_must_promise_too",
        MasterPromises,
        "until_ms",
        "for one in _others(sync)",
        "for one in sync.members - {sync.self_id}",
    ),
    Mutation(
        "promises count in a set that is too small to acknowledge",
        SCENARIO + "test_in_a_set_that_is_too_small_promises_do_not_count",
        MasterPromises,
        "until_ms",
        "max(MEMBERS_MIN, sync.recorded_least)",
        "MEMBERS_MIN",
    ),
    Mutation(
        "a promise counts from the arrival of the replica's request",
        "groups",
        MasterPromises,
        "answer",
        "self._record(request.broker_id, request.number)",
        "self._record(request.broker_id, request.number)\n    if request.number:\n"
        "        self._until_ms[request.broker_id] = now_ms + PROMISE_MS",
    ),
    Mutation(
        "a master that still counts a promise releases its replica",
        "groups",
        MasterPromises,
        "answer",
        "StampAnswer(self._stamp(request.broker_id, now_ms))",
        "StampAnswer(self._stamp(request.broker_id, now_ms), has_stopped=True)",
    ),
    Mutation(
        "a master says that it has stopped, and writes on",
        "groups",
        MasterPromises,
        "answer",
        "lease.end_promises()",
        "return StampAnswer(has_stopped=True)",
    ),
    Mutation(
        "a replica that knows a later epoch promises on",
        SCENARIO + "test_a_master_that_reaches_its_replicas_only_is_replaced",
        ReplicaStateMachine,
        "follows",
        "(latest.epoch, latest.master_id) != (role.epoch, role.master_id) or",
        "",
    ),
    Mutation(
        "a promise is kept for a shorter time than the master counts on it",
        SCENARIO + "test_a_promise_is_kept_while_the_former_master_is_silent",
        ReplicaPromises,
        "promise",
        "received_ms + HELD_MS",
        "received_ms + HELD_MS / 2",
    ),
    Mutation(
        "a leap of the clock ends a promise",
        SCENARIO + "test_a_promise_is_kept_although_the_clock_leaps",
        ReplicaPromises,
        "read",
        "min(now_ms - self._seen_ms, STRIDE_MS)",
        "now_ms - self._seen_ms",
    ),
]
