"""The page about mqadmin lists every command of RocketMQ 5.3.3, and says "yes" of those that a test runs."""

from __future__ import annotations

import re

from tests.unit.docs.mqadmin_commands import COMMANDS
from tests.unit.docs.pages import ROOT


def rows() -> list[tuple[str, str, str]]:
    """(command, yes or no, remark) of every row."""
    text = (ROOT / "docs" / "mqadmin.md").read_text()
    return re.findall(r"^\| `(\w+)` \| (yes|no) \| ?(.*?) ?\|$", text, re.MULTILINE)


def test_every_command_is_listed_once() -> None:
    listed = [command for command, _, _ in rows()]
    assert sorted(listed) == sorted(COMMANDS)
    assert f"the {len(COMMANDS)} commands" in (ROOT / "docs" / "mqadmin.md").read_text()


def test_a_command_that_works_is_run_by_a_test_or_has_a_remark() -> None:
    run = "\n".join(path.read_text() for path in (ROOT / "tests" / "interop").glob("*.py"))
    for command, works, remark in rows():
        if works == "yes" and not remark:
            assert re.search(rf"[\"\s]{command}[\s\"]", run), f"no test runs {command}"


def test_a_command_that_does_not_work_says_why() -> None:
    assert [command for command, works, remark in rows() if works == "no" and len(remark) < 20] == []
