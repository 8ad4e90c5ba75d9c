"""Every verb prints its result in all formats, or stands here with the formats that it has."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import StrEnum
from typing import get_args, get_type_hints

import typer

from epochmq.app import app
from epochmq.verbs.output import ResultFormat

ALL = frozenset(ResultFormat)
TEXT_OR_JSON = {
    "produce": "a line or an object for each message, as soon as it is stored",
    "consume": "a line or an object for each message, as it arrives",
    "audit": "findings as sentences, or the summary",
    "promote": "what was done, as a sentence or an object",
    "fence": "what was done, as a sentence or an object",
    "drain": "what was done, as a sentence or an object",
    "replica adopt": "what was done, as a sentence or an object",
    "replica discard": "what was done, as a sentence or an object",
    "replica replace": "what was done, as a sentence or an object",
    "controllers adopt": "what was done, as sentences or an object",
    "controllers replace": "what was done, as a sentence or an object",
}
"""The verbs with the formats `text` and `json`, and what they print."""
WITHOUT = {
    **dict.fromkeys(("nameserver", "admin", "operator"), "is a process of a pod"),
    "admin-call": "prints what a process responds, which is JSON",
    "completion": "prints a script",
    "console": "serves pages",
    "down": "stops what runs",
    "logs": "prints lines of logs",
    "report": "prints a path",
    "restart": "shows its progress",
    "support-bundle": "writes an archive",
    "up": "shows its progress",
    "upgrade-log": "changes files",
    "validate": "prints one line for each file",
    "version": "prints the version",
}
"""The verbs without `-o`, and why."""


def verbs_of(given: typer.Typer, before: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Each verb with the formats that `-o` accepts; without `-o` there are none."""
    for command in given.registered_commands:
        callback = command.callback
        assert callback is not None
        name = command.name or callback.__name__.replace("_", "-")
        annotation = inspect.signature(callback).parameters.get("output")
        formats: frozenset[str] = frozenset()
        if annotation is not None:
            hint = get_type_hints(callback).get("output") or get_args(annotation.annotation)[0]
            kind = hint if isinstance(hint, type) else get_args(hint)[0]
            assert issubclass(kind, StrEnum)
            formats = frozenset(kind)
        yield f"{before}{name}", formats
    for group in given.registered_groups:
        assert group.typer_instance is not None
        yield from verbs_of(group.typer_instance, f"{before}{group.name} ")


def test_every_verb_has_all_formats_or_stands_here() -> None:
    known = dict(verbs_of(app))
    few = {name for name, formats in known.items() if formats and not formats >= ALL}
    assert few == TEXT_OR_JSON.keys()
    assert {name for name, formats in known.items() if not formats} == WITHOUT.keys()
    for name in TEXT_OR_JSON:
        assert known[name] == {"text", "table", "json"}, name
