"""A request to a controller that is malformed, for an unknown group, from a stale master, by a non-member, or
to the wrong controller gets RocketMQ's own code, and a remark that says what was wrong. In the soak run
RocketMQ's controllers prove the table."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.controller_fixture import ATTEMPTS_MAX, SLOW_HEARTBEATS, leader_agreed
from tests.interop.controller_requests import (
    AT_A_FOLLOWER,
    AT_THE_LEADER,
    BEAT,
    HEARTBEAT,
    MEMBERS,
    NOT_LEADER,
    OK,
    Case,
)
from tests.interop.java_controllers import java_controller
from tests.support.group_processes import Factory, our_controller
from tests.support.process import wait_until
from tests.support.remoting import Response, call, frame, read_frame, split_address
from tests.support.replica_group import ReplicaGroup

KINDS: dict[str, Factory] = {"ours": our_controller, "java": java_controller}
OCTET = 60


class CaseResponses:
    """Sends all cases to two controllers, and keeps their responses."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.group = ReplicaGroup(directory, [KINDS[kind]] * 2, [], controller=SLOW_HEARTBEATS, octet=OCTET)
        self.answers: dict[tuple[str, str], Response] = {}

    def send_cases(self, stack: ExitStack) -> bool:
        """Starts the controllers, sends the members' heartbeats, and sends every case once, in order. Returns
        whether one controller led all the time; on a busy machine another one may be elected."""
        stack.callback(self.group.kill)
        for member in self.group.controllers:
            member.start()
        wait_until(lambda: leader_agreed(self.group), what="one leads, and the other follows")
        leader = self.group.wait_leader()
        for broker_id in MEMBERS:
            beating = stack.enter_context(socket.create_connection(split_address(leader.address), timeout=60))
            beating.sendall(frame(HEARTBEAT, {**BEAT, "brokerId": str(broker_id)}))
            assert read_frame(beating)[0]["code"] == OK
        follower = next(member for member in self.group.controllers if member is not leader)
        for member, chapters in ((leader, AT_THE_LEADER), (follower, AT_A_FOLLOWER)):
            for title, cases in chapters.items():
                for case in cases:
                    response = call(member.address, case.request, case.ext, case.body, timeout_s=60)
                    self.answers[title, case.label] = response
        by_leader = [
            self.answers[title, case.label] for title, cases in AT_THE_LEADER.items() for case in cases
        ]
        return self.group.wait_leader() is leader and all(one.code != NOT_LEADER for one in by_leader)


@pytest.fixture(
    scope="module",
    params=["ours", pytest.param("java", marks=[pytest.mark.soak, pytest.mark.java])],
)
def responses(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CaseResponses]:
    """The responses of two controllers, of EpochMQ or of RocketMQ."""
    for number in range(ATTEMPTS_MAX):
        directory = tmp_path_factory.mktemp(f"controllers-{request.param}-{number}")
        found = CaseResponses(request.param, directory)
        with ExitStack() as stack:
            if found.send_cases(stack):
                yield found
                return
    pytest.fail("the leader was replaced in every attempt")


@pytest.mark.parametrize(
    ("title", "case"),
    [
        pytest.param(title, case, id=f"{title}: {case.label}")
        for chapters in (AT_THE_LEADER, AT_A_FOLLOWER)
        for title, cases in chapters.items()
        for case in cases
    ],
)
def test_a_request_gets_rocketmqs_code_and_a_remark_that_says_what_was_wrong(
    responses: CaseResponses, title: str, case: Case
) -> None:
    response = responses.answers[title, case.label]
    if responses.kind == "java":
        assert response.code == case.code, response.remark
        return
    assert response.code == (case.code if case.ours is None else case.ours), response.remark
    assert re.search(".*".join(map(re.escape, case.remark.split("…"))), response.remark or ""), (
        response.remark
    )
    assert "Traceback" not in (response.remark or "")
