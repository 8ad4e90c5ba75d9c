"""No retired term comes back: `retired_terms.tsv` lists every term with its replacement.

Each row has four columns, separated by tabs: kind, term, replacement, scope. Kinds:

- `identifier`: a name of a class, function, variable or module in Python. Texts do not count.
- `prose`: a word or phrase, in any case, in comments, docstrings, texts with more than one word, and
  documentation. Code in backticks does not count.

The scope is a list of globs from the root of the project, separated by commas; a glob after `!` is
excluded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.language.sources import (
    PRODUCT,
    ROOT,
    identifiers_of,
    in_scope,
    prose_of,
    prose_of_document,
    source_files,
)

TABLE = Path(__file__).with_name("retired_terms.tsv")
KINDS = ("identifier", "prose")


class RetiredTerm(NamedTuple):
    """One row of the table."""

    kind: str
    term: str
    replacement: str
    scope: str


def retired_terms() -> list[RetiredTerm]:
    lines = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [RetiredTerm(*line.split("\t")) for line in lines]


TERMS = retired_terms()


def python_files() -> list[Path]:
    own = Path(__file__).parent.relative_to(ROOT)
    return [path for path in source_files(*PRODUCT, "tests", "tools") if path.parent != own]


def documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT) for path in found)


def test_the_table_is_well_formed() -> None:
    assert TERMS
    assert {term.kind for term in TERMS} <= set(KINDS)
    assert all(term.term and term.replacement and term.scope for term in TERMS)
    keys = [(term.kind, term.term, term.scope) for term in TERMS]
    assert keys == sorted(keys), "the rows are not sorted by kind, term and scope"
    assert len(keys) == len(set(keys)), "two rows are equal"


def test_no_identifier_is_retired() -> None:
    retired: dict[str, list[RetiredTerm]] = {}
    for term in TERMS:
        if term.kind == "identifier":
            retired.setdefault(term.term, []).append(term)
    used = [
        f"{path}: {name} is retired, use {term.replacement}"
        for path in python_files()
        for name in sorted(identifiers_of(path) & retired.keys())
        for term in retired[name]
        if in_scope(path, term.scope)
    ]
    assert used == []


@pytest.mark.parametrize("term", [term for term in TERMS if term.kind == "prose"], ids=lambda term: term.term)
def test_no_prose_is_retired(term: RetiredTerm) -> None:
    pattern = re.compile(rf"(?<![\w/.-]){re.escape(term.term)}(?![\w/-])".replace(r"\ ", r"\s+"), re.I)
    used = [
        f"{path}:{line}: {term.term!r} is retired, use {term.replacement}"
        for path in python_files()
        if in_scope(path, term.scope)
        for line, text in prose_of(path)
        if pattern.search(text)
    ]
    used += [
        f"{path}: {term.term!r} is retired, use {term.replacement}"
        for path in documents()
        if in_scope(path, term.scope) and pattern.search(prose_of_document(path))
    ]
    assert used == []
