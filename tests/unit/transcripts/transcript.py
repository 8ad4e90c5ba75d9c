"""Reads and runs transcripts: text files that tell a story to a reader, and are tests.

The form is that of etcd/raft's `rafttest/testdata`. Lines that begin with `#`, at the head of a paragraph,
are for the reader. After them come commands and, after `----`, what the cores did:

    # The leader dies, and a follower asks for votes.
    stop n0
    wait 700
    ----
    n0 stops
    n1 is candidate of term 1

A story (`Story`) knows the commands. It runs production's pure cores, and checks their invariants after each
command.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Protocol

SEPARATOR = "----"


class Story(Protocol):
    """Carries out the commands of one transcript."""

    def run(self, command: str, arguments: list[str]) -> None:
        """Carries out one command. ValueError: there is no such command, or its arguments are wrong."""

    def take_lines(self) -> list[str]:
        """The lines that describe what happened since the last call."""

    def check_invariants(self) -> None:
        """Checks the invariants of all cores."""


def played(text: str, story: Story) -> str:
    """Runs the commands of a transcript. Returns the same text with what really happened. ValueError names
    the command that is wrong."""
    paragraphs = []
    for paragraph in text.strip("\n").split("\n\n"):
        lines = paragraph.splitlines()
        comments = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
        lines = lines[len(comments) :]
        if not lines:
            paragraphs.append(paragraph)
            continue
        commands = lines[: lines.index(SEPARATOR)] if SEPARATOR in lines else lines
        happened: list[str] = []
        for line in commands:
            command, *arguments = line.split()
            try:
                story.run(command, arguments)
            except (ValueError, KeyError, IndexError) as error:
                raise ValueError(f"the command {line!r} cannot be carried out: {error}") from error
            story.check_invariants()
            happened += story.take_lines()
        paragraphs.append("\n".join([*comments, *commands, SEPARATOR, *happened]))
    return "\n\n".join(paragraphs) + "\n"


def play(path: Path, story: Story) -> None:
    """Runs a transcript, and compares what happened with what it says. With EPOCHMQ_UPDATE_GOLDEN=1 it
    rewrites the file."""
    text = path.read_text(encoding="utf-8")
    found = played(text, story)
    if os.environ.get("EPOCHMQ_UPDATE_GOLDEN"):
        path.write_text(found, encoding="utf-8")
        return
    assert found == text, f"{path.name} tells another story; EPOCHMQ_UPDATE_GOLDEN=1 rewrites it"


def options_of(arguments: list[str]) -> dict[str, str]:
    """The arguments of the form `name=value`; an argument without `=` has an empty value."""
    found = {}
    for one in arguments:
        name, _, value = one.partition("=")
        found[name] = value
    return found


def numbers(text: str) -> frozenset[int]:
    """Numbers that are separated by commas."""
    return frozenset(int(one) for one in text.split(",") if one)


def shown_set(members: frozenset[int] | set[int]) -> str:
    """A set of broker ids, for a line of output."""
    return "{" + ", ".join(map(str, sorted(members))) + "}"
