"""The transcripts of this directory tell what production's cores do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.transcripts.election_story import ElectionStory
from tests.unit.transcripts.membership_story import MembershipStory
from tests.unit.transcripts.transcript import Story, play, played
from tests.unit.transcripts.truncation_story import TruncationStory

HERE = Path(__file__).resolve().parent
STORIES: dict[str, Callable[[], Story]] = {
    "logs_diverge": TruncationStory,
    "members_change": MembershipStory,
    "new_master_loses_power": ElectionStory,
}


@pytest.mark.parametrize("name", STORIES)
def test_the_cores_do_what_the_transcript_says(name: str) -> None:
    play(HERE / f"{name}.txt", STORIES[name]())


def test_every_transcript_has_a_story() -> None:
    assert {path.stem for path in HERE.glob("*.txt")} == set(STORIES)


def test_a_transcript_that_says_something_else_differs() -> None:
    text = "# A log.\nlead 1 epoch=1\n----\nbroker 1 leads epoch 2 from offset 0 on\n"
    assert played(text, TruncationStory()) == (
        "# A log.\nlead 1 epoch=1\n----\nbroker 1 leads epoch 1 from offset 0 on\n"
    )


def test_a_command_that_no_story_knows_is_named() -> None:
    with pytest.raises(ValueError, match="the command 'wrote 1 5' cannot be carried out"):
        played("wrote 1 5\n----\n", TruncationStory())
