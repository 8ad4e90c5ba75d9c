"""Writes the two result files of a run of `make bench`, and formats Markdown tables."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Final

FOLDER_OPTIONS: Final = ("--out", "--data", "--add-to")


def command_line(module: str, words: list[str]) -> str:
    """The command of a run, without what says nothing to others: options that name folders, and the folder
    in NAME=FOLDER."""
    kept: list[str] = []
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    for at, word in enumerate(words):
        if word not in FOLDER_OPTIONS and (at == 0 or words[at - 1] not in FOLDER_OPTIONS):
            is_checkout = at > 0 and words[at - 1] == "--beside"
            kept.append(f"{word.partition('=')[0]}=CHECKOUT" if is_checkout else word)
    return shlex.join(["python", "-m", module, *kept])


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table. All columns except the first are numbers."""
    rows = [head, ["---", *["--:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def write(
    directory: Path, name: str, data: dict[str, Any], intro: list[str], tables: str
) -> tuple[Path, Path]:
    """Writes `NAME-DATE.json` with all measured values, and `NAME-DATE.md` with the introduction, the machine
    and the tables."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{data['date'][:10]}"
    as_json, as_markdown = directory / f"{stem}.json", directory / f"{stem}.md"
    as_json.write_text(json.dumps(data, indent=1) + "\n")
    facts = "\n".join(f"- {key}: {value}" for key, value in data["machine"].items())
    as_markdown.write_text("\n\n".join([*intro, facts, tables]) + "\n")
    return as_markdown, as_json
