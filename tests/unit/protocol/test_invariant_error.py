"""An InvariantError names the class, the rule, and the values that break it."""

from __future__ import annotations

import pickle

from epochmq_protocol.errors import EpochMQError, InvariantError


def test_it_names_owner_rule_and_values() -> None:
    error = InvariantError("MemberState", "committed_index <= log.end_index", committed_index=5, end_index=3)
    assert str(error) == (
        "MemberState: committed_index <= log.end_index; found committed_index=5, end_index=3"
    )
    assert (error.owner, error.values) == ("MemberState", {"committed_index": 5, "end_index": 3})


def test_it_is_an_assertion_and_one_of_our_errors() -> None:
    """So the simulator takes it for an assertion that production keeps."""
    assert issubclass(InvariantError, AssertionError)
    assert issubclass(InvariantError, EpochMQError)


def test_it_passes_between_processes() -> None:
    error = InvariantError("LeaseTable", "a rule", group="orders")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.values) == (str(error), error.values)
