"""Every command line in the documentation can be typed: verbs, options, make targets and modules exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator

import pytest
import typer.main
from typer.core import TyperGroup

from epochmq import processes
from epochmq.app import app
from epochmq.main import is_process
from epochmq.verbs import admin_call
from epochmq_controller.controller import orders_command
from epochmq_dledger import members_command
from tests.unit.docs.pages import ROOT, Page, pages

PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
BETWEEN = {"|", "||", "&&", ";", ">", "&"}
COMMAND = re.compile(r"(?:[\w./]*/)?epochmq")
GROUP = typer.main.get_command(app)


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line that may have several, as words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for word in lexer:
        if word in BETWEEN:
            yield words
            words = []
        else:
            words.append(word)
    yield words


def typed(page: Page) -> Iterator[tuple[list[str], bool]]:
    """(the words of a command, whether it is whole): lines of code blocks, and texts in backticks."""
    for line in page.lines:
        if re.match(r"(\.venv/bin/|epochmq |make |python |[\w ]+\| |seq )", line):
            for words in commands(line.replace("…", "")):
                yield words, True
    for word in page.words:
        if re.match(r"(\.venv/bin/\S+|epochmq|make|python) ", word):
            plain = re.sub(r"[\[\]…]", "", word).replace("\\|", "|")
            yield [part for part in shlex.split(plain) if part not in ("|", "||")], False


def parse(arguments: list[str], *, whole: bool) -> None:
    """Parses what follows `epochmq` as the command does; raises for what it rejects."""
    verb, rest = arguments[0], arguments[1:]
    if verb in ("broker", "controller") and rest[:1] == ["members"]:
        if whole or len(rest) > 1:
            members_command.parse(rest[1:])
    elif verb == "controller" and rest[:1] and rest[0] in orders_command.VERBS:
        if whole or len(rest) > 1:
            orders_command.parse(["2" if one == "ID" else one for one in rest])
    elif verb == "admin-call":
        if whole or rest:
            admin_call._arguments(admin_call._parse(rest))
    elif is_process(arguments):
        processes._parse(verb, [one for one in rest if one != "--release"])
    else:
        assert isinstance(GROUP, TyperGroup)
        group, name, left, parent = GROUP, "epochmq", list(arguments), None
        while True:
            parent = group.make_context(name, list(left), parent=parent)
            name, command, left = group.resolve_command(parent, left)
            if not isinstance(command, TyperGroup) or not left:
                break
            group = command
        assert command is not None
        try:
            command.make_context(name, left, parent=parent)
        except Exception as error:
            if whole or type(error).__name__ not in ("MissingParameter", "NoArgsIsHelpError"):
                raise


@PAGES
def test_the_command_takes_every_command_line(page: Page) -> None:
    for words, whole in typed(page):
        if words and COMMAND.fullmatch(words[0]) and len(words) > 1:
            parse(words[1:], whole=whole)


@PAGES
def test_every_make_target_exists(page: Page) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for words, _ in typed(page):
        if words and words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, words


@PAGES
def test_every_module_that_is_run_exists(page: Page) -> None:
    for words, _ in typed(page):
        if words and words[0].endswith("python") and words[1:2] == ["-m"]:
            assert importlib.util.find_spec(words[2]) is not None, words


def test_commands_are_found_in_the_pages() -> None:
    found = [words for page in pages() for words, _ in typed(page) if words]
    assert sum(COMMAND.fullmatch(words[0]) is not None for words in found) > 80
    assert sum(words[0] == "make" for words in found) > 15
    assert sum(words[1:2] == ["-m"] for words in found) > 10
