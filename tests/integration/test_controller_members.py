"""A quorum of controllers grows and shrinks while it serves; a controller with other settings takes no
part."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.group_processes import Member, our_controller
from tests.support.process import wait_until
from tests.support.remoting import call
from tests.support.replica_group import ReplicaGroup

METADATA, REPLICA_INFO, APPLY_BROKER_ID = 1005, 1004, 1013
BEAT_MS = 2000
"""The leader's heartbeat interval: a leader that is starved for four seconds keeps its leadership."""


class ControllerQuorum(ReplicaGroup):
    """n0, n1 and n2 are a quorum; n3 and n4 wait to be added."""

    def __init__(self, directory: Path) -> None:
        settings = {"mappedFileSize": 1 << 16, "heartBeatTimeIntervalMs": BEAT_MS}
        super().__init__(directory, [our_controller] * 5, [], controller=settings, octet=61)
        first = [f"n{i}-{member.address}" for i, member in enumerate(self.controllers[:3])]
        for number, member in enumerate(self.controllers):
            peers = first if number < 3 else [*first, f"n{number}-{member.address}"]
            self.put(member, controllerDLegerPeers=";".join(peers))
            if number >= 3:
                self.put(member, joinControllerGroup="true")

    @staticmethod
    def put(member: Member, **settings: str) -> None:
        """Adds lines to a controller's settings; the last one of a key counts."""
        lines = [f"{key}={value}\n" for key, value in settings.items()]
        member.config.write_text(member.config.read_text() + "".join(lines))

    def stop(self) -> None:
        for member in self.controllers:
            member.process.kill()

    def shown(self, asked: Member, *arguments: str) -> str:
        """What `epochmq controller members` prints; it must succeed."""
        command = [sys.executable, "-m", "epochmq", "controller", "members", asked.address, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr + self.logs(1500)
        return done.stdout


@pytest.fixture
def quorum(tmp_path: Path) -> Iterator[ControllerQuorum]:
    """Not started."""
    found = ControllerQuorum(tmp_path)
    yield found
    found.stop()


class GroupCreator(threading.Thread):
    """Creates groups, one after another, at the present leader."""

    def __init__(self, quorum: ControllerQuorum) -> None:
        super().__init__(daemon=True)
        self.quorum = quorum
        self.acknowledged: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        number, leader = 0, self.quorum.wait_leader()
        while not self.done.is_set():
            number += 1
            ext = {"clusterName": "c", "brokerName": f"g{number}", "appliedBrokerId": "1"}
            try:
                ext["registerCheckCode"] = "1.1.1.1:1;x"
                response = call(leader.address, APPLY_BROKER_ID, ext, timeout_s=5)
                code = response.code
            except (OSError, ValueError):
                code = -1
            if code == 0:
                self.acknowledged.append(f"g{number}")
            else:
                leader = self.quorum.leader() or leader

    def wait_more(self) -> None:
        """Waits until more groups are acknowledged."""
        count = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > count + 20, what="requests served after a change")


@contextmanager
def under_load(quorum: ControllerQuorum) -> Iterator[GroupCreator]:
    """Sends requests meanwhile, and asserts afterwards that everything acknowledged is there."""
    client = GroupCreator(quorum)
    client.start()
    try:
        yield client
    finally:
        client.done.set()
        client.join(120)
    assert client.acknowledged
    for name in client.acknowledged:
        assert quorum.answered(REPLICA_INFO, {"brokerName": name}).code == 0, name


def names(printed: str) -> set[str]:
    """The ids in what the command printed."""
    return {line.split()[0] for line in printed.splitlines()}


def test_three_controllers_become_five_and_three_again_while_they_serve(quorum: ControllerQuorum) -> None:
    """There is one leader in one term, until it is removed itself."""
    for member in quorum.controllers:
        member.start()
    leader = quorum.wait_leader()
    term = call(leader.address, METADATA).ext["term"]
    own = f"n{quorum.controllers.index(leader)}"
    others = [name for name in ("n0", "n1", "n2") if name != own]
    with under_load(quorum) as client:
        wait_until(lambda: len(client.acknowledged) > 20, what="requests served")
        for number in (3, 4):
            asked = quorum.controllers[number - 2]
            printed = quorum.shown(asked, "--add", f"n{number}-{quorum.controllers[number].address}")
            assert f"n{number}" in names(printed)
            client.wait_more()
        assert names(printed) == {"n0", "n1", "n2", "n3", "n4"}
        for name in others:
            printed = quorum.shown(leader, "--remove", name)
            client.wait_more()
        assert names(printed) == {own, "n3", "n4"}
        now = call(leader.address, METADATA).ext
        assert (now["isLeader"], now["term"]) == ("true", term)
        printed = quorum.shown(leader, "--remove", own)
        assert names(printed) == {"n3", "n4"}
    for name in ("n0", "n1", "n2"):
        gone = quorum.controllers[int(name[1])]
        wait_until(
            partial(lists_peer, gone, "n3"),
            what=f"{name} knows that it was removed",
        )
    kept = quorum.controllers[3]
    kept.process.kill()
    kept.start()
    quorum.wait_leader()
    kept.process.wait_until(
        lambda: "the log names the members n3-" in kept.process.output(100_000),
        what="able to take its group from its log",
    )
    assert names(quorum.shown(kept)) == {"n3", "n4"}


def test_a_controller_with_another_lease_takes_no_part(quorum: ControllerQuorum) -> None:
    odd, *others = quorum.controllers[:3]
    for member in (odd, *others):
        member.start()
    quorum.wait_leader()
    odd.process.stop()
    quorum.put(odd, writeLeaseMs="1200")
    odd.start()
    assert quorum.wait_leader() is not odd
    expected = "n0 has writeLeaseMs=1200, expected writeLeaseMs=300 as here"
    wait_until(
        lambda: any(expected in one.process.output(100_000) for one in others),
        what="the leader logs it",
    )
    known = quorum.metadata(odd)
    assert known is None or "controllerLeaderId" not in known
    odd.process.stop()
    quorum.put(odd, writeLeaseMs="300")
    odd.start()
    odd.process.wait_until(
        lambda: "controllerLeaderId" in (quorum.metadata(odd) or {}), what="it knows the leader"
    )
    assert "waiting 1260 ms until leases of the former writeLeaseMs=1200 have ended" in odd.process.output()


def test_a_controller_that_was_away_gets_a_snapshot(
    quorum: ControllerQuorum,
) -> None:
    """All three have removed the log files that a snapshot replaces, and the tables are complete."""
    for member in quorum.controllers[:3]:
        quorum.put(member, controllerSnapshotEntries="50", mappedFileSize="4096")
        member.start()
    leader = quorum.wait_leader()
    away = next(one for one in quorum.controllers[:3] if one is not leader)
    with under_load(quorum) as client:
        wait_until(lambda: len(client.acknowledged) > 20, what="requests served")
        away.process.kill()
        seen = len(client.acknowledged)
        wait_until(lambda: len(client.acknowledged) > seen + 200, what="requests served")
        away.start()
        number = quorum.controllers.index(away)
        folder = away.config.parent / "store" / f"dledger-n{number}"
        wait_until(lambda: not (folder / "data" / f"{0:020d}").exists(), what="the snapshot")
    for member in quorum.controllers[:3]:
        member.process.kill()
    for member in quorum.controllers[:3]:
        member.start()
        member.process.wait_until(partial(quorum.has_metadata, member))

    def all_equal() -> bool:
        """The last request, which was not acknowledged, may be committed after the restart."""
        tables = [names_of(member) for member in quorum.controllers[:3]]
        return tables[0] == tables[1] == tables[2] and set(client.acknowledged) <= set(tables[0])

    wait_until(all_equal, what="all have all tables")


def lists_peer(member: Member, peer: str) -> bool:
    """Whether a controller counts this one among the members."""
    return peer in (call(member.address, METADATA).ext.get("peers") or "")


def names_of(member: Member) -> list[str]:
    """All groups that a controller knows, read page by page."""
    found: list[str] = []
    while True:
        ext = call(member.address, METADATA, {"brokerNamesAfter": found[-1] if found else ""}).ext
        more = json.loads(ext.get("brokerNames", "[]"))
        if not more:
            return found
        found += more
