"""Reads the documentation: its pages, and the links, commands and words in them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
"""Reports of former runs: they tell what was then."""


@dataclass(frozen=True)
class Page:
    """One Markdown file. `blocks` are its code blocks, fenced and indented; `words` what stands in single
    backticks elsewhere."""

    path: Path
    text: str
    blocks: tuple[str, ...]
    prose: str

    @property
    def name(self) -> str:
        """Its path from the root."""
        return str(self.path.relative_to(ROOT))

    @property
    def words(self) -> list[str]:
        """The texts in backticks."""
        return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", self.prose)

    @property
    def anchors(self) -> set[str]:
        """The fragments that a link to this page may have, as GitHub makes them of headings."""
        return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)}

    @property
    def links(self) -> list[tuple[str, str]]:
        """(file, fragment) of each link to another file or to a place in this one."""
        found = re.findall(r"\]\(([^)\s]+)\)", self.prose)
        return [
            (file, fragment)
            for file, _, fragment in (one.partition("#") for one in found)
            if "://" not in file
        ]

    @property
    def lines(self) -> Iterator[str]:
        """The lines of its code blocks, without a prompt."""
        for block in self.blocks:
            for line in block.splitlines():
                yield line.strip().removeprefix("$ ")


def anchor(heading: str) -> str:
    """The fragment that leads to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


@cache
def pages() -> tuple[Page, ...]:
    """Every page of the documentation."""
    paths = [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(ROOT / "charts").rglob("README.md"),
    ]
    paths += [path for path in (ROOT / "docs").rglob("*.md") if not path.is_relative_to(RESULTS)]
    return tuple(read(path) for path in sorted(paths))


def user_pages() -> list[Page]:
    """The pages for users."""
    return [page for page in pages() if page.path.parent == ROOT / "docs"]


def read(path: Path) -> Page:
    """One page."""
    text = path.read_text(encoding="utf-8")
    blocks: list[str] = []

    def take(match: re.Match[str]) -> str:
        blocks.append(match["code"])
        return "\n"

    prose = re.sub(r"^```\w*\n(?P<code>.*?)^```$", take, text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"(?<=\n\n)(?P<code>(?:    .*\n|\n(?=    ))+)", take, prose)
    return Page(path, text, tuple(blocks), prose)


@cache
def tracked() -> tuple[str, ...]:
    """The project's files, by their paths from the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(done.stdout.splitlines())
