"""With a RocketMQ controller in the quorum no log is compacted and no member can be added. Once it is
replaced by one of EpochMQ, in its own directory, both are possible."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.conftest import EACH_RELEASE
from tests.interop.java_controllers import java_controller
from tests.interop.java_env import Release, made_by
from tests.support.group_processes import our_controller
from tests.support.process import wait_until
from tests.support.replica_group import ReplicaGroup

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

APPLY_BROKER_ID, REPLICA_INFO = 1013, 1004
JAVA = 2
SETTINGS = {"controllerSnapshotEntries": 20, "mappedFileSize": 1 << 13}


class MixedQuorum(ReplicaGroup):
    """Two EpochMQ controllers and one of RocketMQ."""

    made = 0

    def grow(self, count: int) -> None:
        """Creates `count` groups at the present leader."""
        for number in range(self.made, self.made + count):
            ext = {"clusterName": "c", "brokerName": f"g{number}", "appliedBrokerId": "1"}
            ext["registerCheckCode"] = "1.1.1.1:1;x"

            def made(ext: dict[str, str] = ext) -> bool:
                response = self.ask(APPLY_BROKER_ID, ext)
                return response is not None and response.code == 0

            wait_until(made, what=f"group {number} is created")
        self.made += count

    def files(self, number: int) -> set[str]:
        """The files of a controller's log and its snapshot."""
        folder = self.controllers[number].config.parent / "store" / f"dledger-n{number}"
        data = {path.name for path in (folder / "data").iterdir()}
        return data | ({"snapshot"} if (folder / "snapshot").exists() else set())

    def change(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `epochmq controller members` at the first controller."""
        asked = self.controllers[0].address
        command = [sys.executable, "-m", "epochmq", "controller", "members", asked, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("release", EACH_RELEASE)
def test_no_log_is_compacted_and_no_member_added_with_a_rocketmq_controller(
    tmp_path: Path, release: Release
) -> None:
    kinds = [our_controller, our_controller, made_by(release, java_controller)]
    quorum = MixedQuorum(tmp_path, kinds, [], controller=SETTINGS)
    first = f"{0:020d}"
    try:
        for member in quorum.controllers:
            member.start()
        quorum.controllers[JAVA].process.wait_until(
            lambda: (quorum.metadata(quorum.controllers[JAVA]) or {}).get("controllerLeaderId") is not None,
        )
        quorum.grow(120)
        for number in range(3):
            assert first in quorum.files(number)
            # The folder of RocketMQ 5.5's controller exists from its start on, and stays empty.
            assert number == JAVA or "snapshot" not in quorum.files(number)
        rejected = quorum.change("--add", "n7-127.0.0.1:1")
        assert rejected.returncode == 1
        assert "has a controller of RocketMQ" in rejected.stderr
        assert "no change of the members is possible beside it" in rejected.stderr

        replaced = quorum.controllers[JAVA]
        replaced.process.kill()
        replaced.make = our_controller
        replaced.start()
        quorum.grow(60)
        for number in range(3):
            wait_until(
                lambda number=number: (
                    "snapshot" in quorum.files(number) and first not in quorum.files(number)
                ),
                what=f"n{number} has a snapshot in the place of its log's beginning",
            )
        removed = quorum.change("--remove", f"n{JAVA}")
        assert removed.returncode == 0, removed.stderr
        for number in range(quorum.made):
            assert quorum.answered(REPLICA_INFO, {"brokerName": f"g{number}"}).code == 0
    except BaseException as error:
        error.add_note(quorum.logs(1500))
        raise
    finally:
        quorum.kill()
